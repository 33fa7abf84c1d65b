// SPDX-License-Identifier: Apache-2.0
#include "random/fill.h"

namespace random_calls {
namespace {

constexpr int64_t kBlocks = 3;

// q and k as their own index, an index, codes, or an index of blocks.
void tensors(Draw& d) {
  const int64_t kind = d.below(4);
  d.x("kind") = kind;
  for (const char* field : {"index_k", "index_k_scale"})
    if (kind != 1) d.drop(field);
  for (const char* field : {"index_q", "weight"})
    if (kind != 1 && kind != kBlocks) d.drop(field);
  d.drop("block_k");
  for (const char* field : {"code_q", "code"}) d.drop(field);
  if (kind == 1) d.give("index_q"), d.give("index_k");
  if (kind == 2) d.give("code_q"), d.give("code");
  if (kind == kBlocks) {
    d.give("index_q"), d.give("block_k");
    for (const char* field : {"v_mean", "key_start", "context_len"}) d.drop(field);
  }
  if (kind == 2 || d.has("weight") || d.has("query_start")) d.drop("v_mean");
  if (!d.has("index")) d.drop("index_count");
}

void letters(Draw& d) {
  d.x("keep") = d.one_of({0, 1, 2, 5, 17, 40});
  d.x("code_words") = d.one_of({1, 2, 4});
  d.x("index_groups") = 1, d.x("groups") = 1;
  d.x("index_width") = d.one_of({1, 8, 13, 64});
  d.x("page") = d.one_of({1, 2, 4, 8, 16, 16, 32, 64, 64, 128, 5, 48});
}

void extents(Draw& d) {
  d.x("index_heads") = d.x("h"), d.x("index_keys") = d.x("g");
  const bool apart = d.one_in(2);
  d.x("x") = apart ? d.x("h") : d.x("g");
  d.set<int64_t>("lists", apart && d.one_in(2) ? 0 : d.x("x"));
  d.set("reduce", static_cast<int32_t>(apart ? 0 : 1 + d.below(3)));
  if (!d.x("x")) d.set<int64_t>("lists", 0);
  const int64_t step = d.x("kind") == kBlocks ? d.one_of({1, 2, 4, 16, 128}) : 0;
  d.set<int64_t>("index_step", step);
  const int64_t page = d.x("page"), pages = std::min<int64_t>(ceil_div(d.x("t"), page), 12);
  const int64_t keys = d.has("page_table") ? pages * page : d.x("t");
  d.x("blocks") = step ? keys / step + 1 + d.below(3) : 0;
}

void scalars(Draw& d) {
  for (const char* field : {"count", "force_last"})
    d.set<int64_t>(field, d.one_in(2) ? d.one_of({1, 2, 3, 8, 40, INT64_MAX}) : 0);
  for (const char* field : {"first_keys", "last_keys"})
    d.set<int64_t>(field, d.one_in(3) ? d.one_of({1, 3, 8}) : 0);
  d.set<int64_t>("pool_keys", 0), d.set<float>("ratio", 0), d.set<int64_t>("subset", 0);
  if (d.one_in(3)) d.set("ratio", 0.3f);
  int32_t measure = d.x("kind") == 2 ? 2 : static_cast<int32_t>(d.one_of({0, 1, 3}));
  if (d.has("weight")) measure = 1;
  if (d.has("v_mean")) measure = static_cast<int32_t>(d.one_of({0, 3}));
  const bool own = d.x("kind") == 1 || d.x("kind") == kBlocks;
  const int64_t width = own ? d.x("index_width") : d.x("d");
  if (measure == 3 && width > 0) d.set<int64_t>("subset", 1 + d.below(width));
  d.set("measure", measure);
  if (!d.has("v_mean") && d.one_in(3))
    d.set<int64_t>("pool_keys", d.one_of({1, 5, 16, 128})), d.set<float>("ratio", 0);
  if (d.x("kind") != kBlocks) return;
  for (const char* field :
       {"pool_keys", "window_left", "window_right", "sink_keys", "first_keys", "last_keys"})
    d.set<int64_t>(field, 0);
  d.set<float>("ratio", 0), d.set<int32_t>("causal", 1);
}

const Rules kIndexed({"x_indexed_"}, {.tensors = tensors,
                                      .letters = letters,
                                      .extents = extents,
                                      .scalars = scalars,
                                      .rough = always});

}  // namespace
}  // namespace random_calls
