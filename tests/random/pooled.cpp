// SPDX-License-Identifier: Apache-2.0
#include "random/fill.h"

namespace random_calls {
namespace {

// Who makes the columns.
enum Kind : int64_t { made, given, kept };

void tensors(Draw& d) {
  const int64_t kind = d.below(3);
  d.x("kind") = kind;
  for (const char* field : {"column", "column_low", "summary", "old_len"}) d.drop(field);
  if (kind == given) d.give("column");
  if (kind == given && d.one_in(2)) d.give("column_low");
  if (kind == kept) d.give("summary"), d.give("old_len");
  if (kind != made) d.drop("column_similar_least");
  if (kind != given) d.drop("k_scale"), d.drop("v_scale");
  if (kind == given && d.one_in(2)) d.give("row");
  if (kind == kept && d.has("key_start")) d.drop("page_table");
  if (kind != given && d.has("cache_row")) d.give("page_table");
  if (kind == made) d.drop("cache_row");
  if (d.has("row") || d.one_in(2)) d.drop("row_similar_least");
  if (!d.has("index")) d.drop("index_count");
  if (d.has("index") && d.one_in(2)) d.give("index_count");
}

void letters(Draw& d) {
  d.x("keep") = d.one_of({0, 1, 2, 5, 17, 40});
  d.x("groups") = 1;
  d.x("row_width") = d.one_of({1, 8, 13, 64});
  d.x("page") = d.one_of({1, 2, 8, 16, 16, 32, 64, 5, 48});
}

void extents(Draw& d) {
  const bool similar = d.has("row_similar_least");
  const int64_t rows = similar ? d.one_of({2, 16, 64, 128}) : d.one_of({0, 1, 1, 4, 16, 64, 128});
  const int64_t keys = d.one_of({0, 1, 4, 16, 17, 64, 128, 512});
  d.set("block_rows", static_cast<int32_t>(rows)), d.set("block_keys", static_cast<int32_t>(keys));
  const int64_t row_unit = rows ? rows : 1, key_unit = keys ? keys : 64;
  const int64_t pages = std::min<int64_t>(ceil_div(d.x("t"), d.x("page")), 12);
  const int64_t s = d.x("s"), t = d.has("page_table") ? pages * d.x("page") : d.x("t");
  d.x("n") = row_unit == 1
                 ? s
                 : (d.has("query_start") ? s / row_unit + d.x("r") : ceil_div(s, row_unit)) +
                       d.one_of({0, 0, 1});
  d.x("u") =
      (d.has("key_start") ? t / key_unit + d.x("r") : ceil_div(t, key_unit)) + d.one_of({0, 0, 1});
  d.set("measure", static_cast<int32_t>(d.has("column") ? d.has("column_low") : d.below(2)));
  const bool signs = d.scalar<int32_t>("measure") && rows < 2 && !d.has("column") &&
                     !d.has("row") && d.x("d") <= 288;
  d.set<int64_t>("subset", signs && d.one_in(2) ? 1 + d.below(std::max<int64_t>(d.x("d"), 1)) : 0);
  d.x("summary_width") = d.x("d") * (d.scalar<int32_t>("measure") ? 2 : 1);
  if (!d.has("row") || !d.has("column")) d.x("row_width") = d.x("d");
  d.x("row_heads") = d.x("h"), d.x("column_heads") = d.x("g");
  const bool apart = similar || d.one_in(2);
  d.x("x") = apart ? d.x("h") : d.x("g");
  d.set<int64_t>("lists", apart && d.one_in(2) ? 0 : d.x("x"));
  d.set("reduce", static_cast<int32_t>(apart ? 0 : 1 + d.below(3)));
  if (!d.x("x")) d.set<int64_t>("lists", 0);
}

void scalars(Draw& d) {
  for (const char* field :
       {"count", "min_keep", "min_extra", "force_first", "force_previous", "force_last"})
    d.set<int64_t>(field, d.one_in(3) ? d.one_of({1, 2, 3, 8, INT64_MAX}) : 0);
  int32_t rule = static_cast<int32_t>(d.one_in(2) ? 0 : d.below(6));
  if (d.has("cover_head")) rule = static_cast<int32_t>(1 + d.below(3));
  d.set("rule", rule);
  d.set<float>("ratio", 0), d.set<float>("cover", 0), d.set<float>("threshold", 0);
  if (rule) d.set<int64_t>("count", 0);
  if (!rule && d.one_in(3)) d.set<int64_t>("count", 0), d.set("ratio", 0.3f);
  if (rule >= 1 && rule <= 3 && !d.has("cover_head")) d.set("cover", d.one_in(2) ? 0.5f : 0.9f);
  if (rule > 3) d.set("threshold", d.one_in(2) ? 0.1f : -1.0f);
  d.set("scope", static_cast<int32_t>(d.below(d.has("cover_head") ? 2 : 3)));
  d.set("normalise", static_cast<int32_t>(d.one_of({0, 1, 3, 4})));
  d.set("forced_count", static_cast<int32_t>(d.below(2)));
  d.set("force_own", static_cast<int32_t>(d.below(2)));
  d.set("skip_margin", d.one_in(4) ? 2.0f : 0.0f);
}

// Attention of codes, where the call may have it: fovea_x_code, groups, p_format.
void codes(Draw& d) {
  for (const char* field : {"quantise", "code", "v_code", "q_group", "k_group", "v_group",
                            "q_block", "k_block", "v_block", "k_smooth", "p_format", "accumulate"})
    d.set(field, 0);
  bool may = d.scalar<int32_t>("block_keys") % 64 == 0 && d.x("kind") != given;
  for (const char* field : {"query_len", "key_len", "page_table", "cache_row"})
    may = may && !d.has(field);
  if (!may || d.one_in(2)) return;
  d.set("quantise", 1);
  if (d.one_in(2)) return;
  d.set("code", 1), d.set("v_group", 4), d.set("p_format", 1);
  d.set("k_smooth", static_cast<int32_t>(d.below(2)));
  d.set("q_block", static_cast<int32_t>(d.one_of({0, 64, 128})));
  d.set("k_block", static_cast<int32_t>(d.one_of({0, 64, 128})));
}
void numbers(Draw& d) {
  scalars(d), codes(d);
}

bool lengths(Filler& f, const Tensor& x) {
  if (!f.is(x, {"old_len"})) return false;
  f.places(x, 0, f.keys());
  return true;
}

const Rules kPooled({"x_pooled_"}, {.tensors = tensors,
                                    .letters = letters,
                                    .extents = extents,
                                    .scalars = numbers,
                                    .integers = lengths,
                                    .rough = always});

}  // namespace
}  // namespace random_calls
