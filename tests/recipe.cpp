// SPDX-License-Identifier: Apache-2.0
// Methods by name through the C ABI: what the table tells, what apply writes and what it leaves,
// and the sentence of each refusal.  tests/cases/recipes.cpp holds the methods to their papers.
#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "harness/golden_file.h"

namespace {

fovea_x_recipe blank() {
  fovea_x_recipe r = {};
  r.struct_size = sizeof r;
  return r;
}

template <class P>
P params() {
  P p = {};
  p.struct_size = sizeof p;
  return p;
}

template <class P>
bool same(const P& a, const P& b) {
  return !std::memcmp(&a, &b, sizeof a);
}

TEST(Recipe, EveryRowIsTold) {
  const int64_t count = fovea_x_recipe_count();
  ASSERT_GE(count, 6);
  const std::string operations = std::string(",") + fovea_build_get(FOVEA_BUILD_OPERATIONS) + ",";
  std::string before;
  for (int64_t i = 0; i < count; ++i) {
    fovea_x_recipe at = blank(), get = blank();
    ASSERT_EQ(fovea_x_recipe_at(i, &at), FOVEA_OK) << fovea_last_error();
    ASSERT_EQ(fovea_x_recipe_get(at.name, &get), FOVEA_OK) << fovea_last_error();
    EXPECT_TRUE(same(at, get)) << at.name;
    EXPECT_LT(before, at.name);
    before = at.name;
    EXPECT_NE(operations.find(std::string(",") + at.operation + ","), std::string::npos) << at.name;
    for (const char* text : {at.title, at.paper, at.words}) EXPECT_STRNE(text, "") << at.name;
    EXPECT_NE(at.backward, nullptr);
    EXPECT_GT(at.year, 2000);
  }
}

TEST(Recipe, ApplyWritesTheNumbersAndNothingElse) {
  auto p = params<fovea_attention_forward_params>(), wanted = p;
  p.softcap = wanted.softcap = 3, p.q.ndim = wanted.q.ndim = 4;
  ASSERT_EQ(fovea_x_recipe_apply("streamingllm", "attention_forward", &p), FOVEA_OK)
      << fovea_last_error();
  wanted.causal = 1, wanted.sink_keys = 4, wanted.window_left = 2000;
  EXPECT_TRUE(same(p, wanted));
  auto back = params<fovea_attention_backward_params>(), wanted_back = back;
  ASSERT_EQ(fovea_x_recipe_apply("streamingllm", "attention_backward", &back), FOVEA_OK)
      << fovea_last_error();
  wanted_back.causal = 1, wanted_back.sink_keys = 4, wanted_back.window_left = 2000;
  EXPECT_TRUE(same(back, wanted_back));
  auto sparse = params<fovea_x_sparse_forward_params>(), wanted_sparse = sparse;
  ASSERT_EQ(fovea_x_recipe_apply("blasst", "x_sparse_forward", &sparse), FOVEA_OK);
  wanted_sparse.causal = 1, wanted_sparse.skip_margin = 4;
  EXPECT_TRUE(same(sparse, wanted_sparse));
}

TEST(Recipe, ABackwardNeedsTheInputsThatItShares) {
  auto p = params<fovea_x_nsa_backward_params>();
  float x = 0;
  const auto refused = [&](const char* sentence) {
    const auto before = p;
    EXPECT_EQ(fovea_x_recipe_apply("nsa", "x_nsa_backward", &p), FOVEA_INVALID_ARGUMENT);
    EXPECT_STREQ(fovea_last_error(), sentence);
    EXPECT_TRUE(same(p, before));
  };
  refused("recipe nsa: gate_compressed is absent, wanted (b, s, h) as q or f32");
  p.gate_compressed.data = p.gate_selected.data = &x;
  refused("recipe nsa: gate_window is absent, wanted (b, s, h) as q or f32");
  p.gate_window.data = &x;
  auto wanted = p;
  ASSERT_EQ(fovea_x_recipe_apply("nsa", "x_nsa_backward", &p), FOVEA_OK) << fovea_last_error();
  wanted.block_keys = 64, wanted.compress_keys = 32, wanted.compress_step = 16, wanted.window = 512;
  EXPECT_TRUE(same(p, wanted));
}

TEST(Recipe, ARecurrenceAndItsGradientTakeTheSameNumbers) {
  float x = 0;
  const auto numbers = [&](auto p, const char* operation) {
    p.beta.data = p.gate_key.data = p.gate_rate.data = p.gate_bias.data = &x;
    auto wanted = p;
    EXPECT_EQ(fovea_x_recipe_apply("kda_bounded", operation, &p), FOVEA_OK) << fovea_last_error();
    wanted.gate_map = FOVEA_X_GATE_MAP_BOUNDED, wanted.gate_bound = 5;
    wanted.beta_map = FOVEA_X_BETA_MAP_SIGMOID, wanted.l2_norm = 1;
    EXPECT_TRUE(same(p, wanted)) << operation;
  };
  numbers(params<fovea_x_delta_forward_params>(), "x_delta_forward");
  numbers(params<fovea_x_delta_backward_params>(), "x_delta_backward");
}

TEST(Recipe, AStructOfAnotherReleaseIsTold) {
  struct Newer {
    fovea_x_recipe r;
    int64_t more;
  } newer = {};
  newer.r.struct_size = sizeof newer, newer.more = 7;
  ASSERT_EQ(fovea_x_recipe_get("moa", &newer.r), FOVEA_OK);
  EXPECT_EQ(newer.r.struct_size, sizeof newer);
  EXPECT_EQ(newer.more, 0);
  // The params of the first release hold all that these need.
  auto p = params<fovea_attention_forward_params>();
  p.struct_size = offsetof(fovea_attention_forward_params, k_scale);
  EXPECT_EQ(fovea_x_recipe_apply("streamingllm", "attention_forward", &p), FOVEA_OK);
}

// The sentence of a call that is refused and has written nothing.
template <class P>
std::string refusal(const char* name, const char* operation, P& p) {
  const P before = p;
  EXPECT_EQ(fovea_x_recipe_apply(name, operation, &p), FOVEA_INVALID_ARGUMENT);
  EXPECT_TRUE(same(before, p));
  return fovea_last_error();
}

TEST(Recipe, Refusals) {
  auto p = params<fovea_attention_forward_params>();
  EXPECT_EQ(refusal("streamllm", "attention_forward", p),
            "recipe: there is no 'streamllm', wanted streamingllm");
  EXPECT_EQ(refusal("StreamingLLM", "attention_forward", p),
            "recipe: there is no 'StreamingLLM', wanted streamingllm");
  const std::string all = refusal("nothing like it", "attention_forward", p);
  EXPECT_EQ(all.find("recipe: there is no 'nothing like it', wanted one of blasst, "), 0u) << all;
  EXPECT_EQ(refusal("blasst", "attention_forward", p),
            "recipe blasst: operation is attention_forward, wanted x_sparse_forward");
  EXPECT_EQ(refusal("streamingllm", "x_sparse_forward", p),
            "recipe streamingllm: operation is x_sparse_forward, wanted attention_forward or "
            "attention_backward");
  EXPECT_EQ(refusal("blasst", "", p), "recipe blasst: operation is , wanted x_sparse_forward");
  EXPECT_EQ(refusal("blasst", nullptr, p),
            "recipe blasst: operation is NULL, wanted x_sparse_forward");
  EXPECT_EQ(refusal("moa", "attention_forward", p),
            "recipe moa: head_window is absent, wanted (h, 3) i32");
  auto indexed = params<fovea_x_indexed_forward_params>();
  float x = 0;
  indexed.index_q.data = indexed.index_k.data = &x;
  EXPECT_EQ(refusal("msa", "x_indexed_forward", indexed),
            "recipe msa: lists is 0, wanted list heads without index, a divisor of h");
  indexed.lists = 2;
  EXPECT_EQ(fovea_x_recipe_apply("msa", "x_indexed_forward", &indexed), FOVEA_OK);
  EXPECT_EQ(indexed.lists, 2);
  EXPECT_EQ(indexed.reduce, FOVEA_X_SELECT_REDUCE_SUM);
  p.struct_size = 16;
  EXPECT_EQ(refusal("moa", "attention_forward", p),
            "recipe moa: struct_size is 16, wanted sizeof(fovea_attention_forward_params), at "
            "least 2192");
  EXPECT_EQ(fovea_x_recipe_apply("moa", "attention_forward", nullptr), FOVEA_INVALID_ARGUMENT);
  EXPECT_STREQ(fovea_last_error(), "recipe moa: params is NULL");
  EXPECT_EQ(fovea_x_recipe_apply(nullptr, "attention_forward", &p), FOVEA_INVALID_ARGUMENT);
  EXPECT_STREQ(fovea_last_error(), "recipe: name is NULL, wanted a name such as blasst");
  fovea_x_recipe r = {};
  EXPECT_EQ(fovea_x_recipe_get("moa", &r), FOVEA_INVALID_ARGUMENT);
  EXPECT_STREQ(fovea_last_error(), "recipe: struct_size is 0, wanted sizeof(fovea_x_recipe) (80)");
  EXPECT_EQ(r.name, nullptr);
  EXPECT_EQ(fovea_x_recipe_get("moa", nullptr), FOVEA_INVALID_ARGUMENT);
  r = blank();
  for (const int64_t index : {int64_t{-1}, fovea_x_recipe_count(), INT64_MAX}) {
    EXPECT_EQ(fovea_x_recipe_at(index, &r), FOVEA_INVALID_ARGUMENT);
    EXPECT_EQ(std::string(fovea_last_error()).find("recipe: index is "), 0u);
  }
  // A name longer than any, and one of no letter.
  EXPECT_EQ(fovea_x_recipe_get(std::string(5000, 'x').c_str(), &r), FOVEA_INVALID_ARGUMENT);
  EXPECT_EQ(fovea_x_recipe_get("???", &r), FOVEA_INVALID_ARGUMENT);
}

// The files that the bindings call by name, called by name from C.
TEST(Recipe, GoldenFiles) {
  fovea_context* ctx = nullptr;
  ASSERT_EQ(fovea_context_create(FOVEA_HOST, 0, &ctx), FOVEA_OK) << fovea_last_error();
  std::set<std::string> seen;
  for (const auto& entry : std::filesystem::directory_iterator("tests/golden")) {
    if (entry.path().filename().string().rfind("recipe_", 0) != 0) continue;
    const harness::GoldenFile golden(entry.path());
    EXPECT_EQ(golden.run(ctx), "") << entry.path();
    EXPECT_FALSE(golden.outputs.empty()) << entry.path();
    seen.insert(golden.recipe);
  }
  fovea_context_destroy(ctx);
  for (int64_t i = 0; i < fovea_x_recipe_count(); ++i) {
    fovea_x_recipe r = blank();
    ASSERT_EQ(fovea_x_recipe_at(i, &r), FOVEA_OK);
    EXPECT_TRUE(seen.count(r.name)) << "no golden file of " << r.name;
  }
}

}  // namespace
