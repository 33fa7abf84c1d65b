// SPDX-License-Identifier: Apache-2.0
// FOVEA_CHECK=1: valid calls of every operation run as without it.  Of each field of lengths,
// starts, pages, rows or indices the last entry, out of range, is named.  Every such field is met.
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "contract_call.h"

namespace contract {
namespace {

const bool asked = setenv("FOVEA_CHECK", "1", 1) == 0;  // before the first call reads it

struct Context {
  Context() {
    EXPECT_EQ(fovea_context_create(FOVEA_HOST, 0, &ctx), FOVEA_OK) << fovea_last_error();
  }
  ~Context() { fovea_context_destroy(ctx); }
  fovea_context* ctx = nullptr;
};

// The i32 fields whose values mean a place in another tensor.
const std::set<std::string> kLooked = {
    "start",      "query_start", "key_start", "query_len",     "key_len",      "key_first",
    "page_table", "cache_row",   "pair",      "index",         "row",          "keep_row",
    "block_len",  "len",         "state_row", "state_out_row", "snapshot_row", "output_from"};

class Inspect : public testing::TestWithParam<Case> {};

TEST_P(Inspect, NamesTheEntry) {
  ASSERT_TRUE(asked);
  Context context;
  Call call(GetParam());
  ASSERT_EQ(call.op->call(context.ctx, call.params.data()), FOVEA_OK) << fovea_last_error();
  for (const Field* f : call.tensors()) {
    if (!kLooked.count(f->name) || f->output || f->dtypes != Words{"i32"}) continue;
    // In a list with counts every number has a meaning.
    if (std::string(f->name) == "index" && call.op->find("index_count")) continue;
    const fovea_tensor& x = call.params[f->name];
    auto* value = static_cast<int32_t*>(x.data);
    int64_t last = 0, entries = 1;
    for (int i = 0; i < x.ndim; ++i) last += (x.shape[i] - 1) * x.stride[i], entries *= x.shape[i];
    if (entries == 0) continue;
    const int32_t before = value[last];
    // How many rows and keys blocks have, the contract does not say.
    const bool blocks = call.op->find("row_forced") || call.op->find("vertical");
    for (const int32_t wrong : {-2, 1 << 20}) {
      if (blocks && wrong > 0) continue;
      value[last] = wrong;
      EXPECT_EQ(call.op->call(context.ctx, call.params.data()), FOVEA_INVALID_ARGUMENT)
          << f->name << " " << wrong;
      const std::string text = fovea_last_error();
      EXPECT_EQ(text.rfind(std::string(call.op->name) + ": " + f->name + "[", 0), 0u) << text;
      EXPECT_NE(text.find(" is " + std::to_string(wrong) + ", wanted "), text.npos) << text;
    }
    value[last] = before;
    EXPECT_EQ(call.op->call(context.ctx, call.params.data()), FOVEA_OK) << fovea_last_error();
  }
}

INSTANTIATE_TEST_SUITE_P(Every, Inspect, testing::ValuesIn(small_cases()),
                         [](const auto& info) { return info.param.op + "_" + info.param.name; });

TEST(InspectCases, HaveEveryField) {
  std::set<std::string> met;
  for (const Case& c : small_cases()) {
    Call call(c);
    for (const Field* f : call.tensors())
      if (kLooked.count(f->name) && !f->output && f->dtypes == Words{"i32"}) met.insert(f->name);
  }
  EXPECT_EQ(met, kLooked);
}

}  // namespace
}  // namespace contract
