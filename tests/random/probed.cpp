// SPDX-License-Identifier: Apache-2.0
#include "random/fill.h"

namespace random_calls {
namespace {

constexpr int32_t kBlocks = 0, kColumns = 1, kLines = 2, kMeans = 3;

bool of_blocks(int64_t kind) {
  return kind == kBlocks || kind == kMeans;
}

void tensors(Draw& d) {
  const int64_t kind = d.below(4);
  d.set("kind", static_cast<int32_t>(kind));
  d.x("kind") = kind;
  for (const char* field : {"sample", "query_position"}) d.drop(field);
  if (of_blocks(kind)) d.drop("column");
  if (kind == kMeans) {
    for (const char* field : {"query_start", "key_start", "cache_row", "cover_head"}) d.drop(field);
  } else if (kind != kBlocks) {
    for (const char* field : {"query_start", "key_start", "query_len"}) d.drop(field);
    if (d.has("cache_row")) d.give("page_table");
    if (kind == kColumns) d.drop("index");
    if (d.one_in(2)) d.give("sample"), d.give("query_position");
  }
  if (!d.has("index")) d.drop("index_count");
  if (!d.has("column")) d.drop("column_count");
}

void letters(Draw& d) {
  d.x("keep") = d.one_of({0, 1, 2, 5, 17, 40}), d.x("columns") = d.one_of({0, 1, 3, 40});
  d.x("samples") = d.one_of({1, 2, 5, 17});
}

void extents(Draw& d) {
  const int64_t kind = d.x("kind");
  d.set("kind", static_cast<int32_t>(kind));
  int64_t rows = d.one_of({0, 1, 4, 16, 64, 128}), stride = 0;
  int64_t keys = of_blocks(kind) ? d.one_of({0, 1, 4, 16, 64, 512}) : 0;
  if (kind == kBlocks && d.one_in(3)) stride = d.one_of({2, 4}), rows = 16, keys = 32;
  d.set("block_rows", static_cast<int32_t>(rows)), d.set("block_keys", static_cast<int32_t>(keys));
  d.set<int64_t>("group_stride", stride);
  const int64_t unit = rows ? rows : 64, s = d.x("s");
  d.x("n") = unit == 1 ? s : d.has("query_start") ? s / unit + d.x("r") : ceil_div(s, unit);
  // Of a cache without rows, too, there are sums of all keys.
  if (d.has("cache_row")) d.x("t") = std::min<int64_t>(d.x("t"), 1 << 16);
  d.x("x") = kind == kMeans || d.one_in(2) ? d.x("h") : d.x("g");
  d.set<int64_t>("lists", d.x("x"));
  d.set("reduce", static_cast<int32_t>(d.below(3)));
}

void scalars(Draw& d) {
  const int64_t kind = d.x("kind");
  const auto some = [&](const char* field, bool may) {
    d.set<int64_t>(field, may && d.one_in(2) ? d.one_of({1, 2, 3, 8, 40, INT64_MAX}) : 0);
  };
  int32_t rule = static_cast<int32_t>(d.one_in(2) || kind == kMeans ? 0 : d.below(4));
  if (d.has("cover_head")) rule = static_cast<int32_t>(1 + d.below(3));
  d.set("rule", rule);
  some("count", !rule && kind != kMeans), some("force_first", true);
  some("force_previous", kind == kMeans), some("full_last", kind == kMeans && !d.has("query_len"));
  d.set("threshold", kind != kMeans ? 0.0f : d.one_in(4) ? 1.0f : 0.7f);
  some("slash_count", kind == kLines), some("slash_force_first", kind == kLines);
  some("first_keys", !of_blocks(kind)), some("last_keys", !of_blocks(kind));
  d.set<int64_t>("probe_rows",
                 !of_blocks(kind) && !d.has("sample") ? d.one_of({1, 2, 16, 64, INT64_MAX}) : 0);
  d.set("cover", rule && !d.has("cover_head") ? 0.6f : 0.0f);
  d.set("forced_count", static_cast<int32_t>(d.below(2)));
  d.set("force_own", static_cast<int32_t>(of_blocks(kind) ? d.below(2) : 0));
  d.set("reversed", static_cast<int32_t>(d.scalar<int64_t>("group_stride") ? d.below(2) : 0));
  if (kind == kLines || kind == kMeans) d.set<int32_t>("causal", 1);
  if (!of_blocks(kind)) d.set<int64_t>("query_max", 0);
  d.set("skip_margin", d.one_in(4) ? 2.0f : 0.0f);
}

const Rules kProbed({"x_probed_"}, {.tensors = tensors,
                                    .letters = letters,
                                    .extents = extents,
                                    .scalars = scalars,
                                    .rough = always});

}  // namespace
}  // namespace random_calls
