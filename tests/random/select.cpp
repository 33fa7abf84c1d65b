// SPDX-License-Identifier: Apache-2.0
#include "random/fill.h"

namespace random_calls {
namespace {

constexpr int kTopK = FOVEA_X_SELECT_RULE_TOP_K, kNone = FOVEA_X_SELECT_RULE_NONE;
constexpr int kAbove = FOVEA_X_SELECT_RULE_ABOVE;

// Scores are given or made of summaries, or nothing is scored.
void block_tensors(Draw& d) {
  const int64_t kind = d.below(8);
  for (const char* field : {"row", "column", "column_low", "score"}) d.drop(field);
  if (kind < 5) d.give("row"), d.give("column");
  if (kind == 4) d.give("column_low");
  if (kind == 5 || kind == 6) d.give("score");
  if (!d.one_in(3)) d.drop("block_mask");
  if (!d.one_in(3)) d.drop("column_forced");
  if (kind == 7) d.drop("column_weight");
  if (kind == 7 || d.has("column_weight")) d.drop("row_lse");
  if (!d.has("index")) d.drop("kept_score"), d.give("index_count");
}

void block_letters(Draw& d) {
  d.x("n") = d.length(), d.x("u") = d.length();
  d.x("keep") = d.one_of({0, 1, 2, 5, 17, 40, 300});
  d.x("t") = d.x("u"), d.x("s") = d.x("n");
}

void block_extents(Draw& d) {
  d.x("n") = d.x("s"), d.x("u") = d.x("t");
  const bool apart = d.one_in(2) || !(d.has("row") || d.has("score"));
  if (apart) d.x("x") = d.has("row") || d.has("score") ? d.x("h") : d.one_of({1, 2, 4});
  if (!apart)
    for (int64_t x : {1, 2, 4})
      if (d.x("h") % x == 0) d.x("x") = x;
  if (!d.has("row") && !d.has("score")) d.x("h") = d.x("x");
  if (d.x("g") == 0 || d.x("h") % d.x("g")) d.x("g") = 1;
  d.set("reduce", static_cast<int32_t>(apart && d.x("x") == d.x("h") ? d.below(2) * d.below(4)
                                                                     : 1 + d.below(3)));
  const int32_t rows = static_cast<int32_t>(d.one_of({0, 1, 3, 16, 64, 128}));
  const int32_t keys = static_cast<int32_t>(d.one_of({0, 1, 4, 16, 60, 64, 128}));
  d.set("block_rows", rows), d.set("block_keys", keys);
  const int64_t block = keys ? keys : 64;
  const bool scored = d.has("row") || d.has("score");
  const int64_t columns = std::min(d.x("u"), INT64_MAX / 1024);  // more are refused
  int64_t capacity = columns * block;
  d.set<int64_t>("remap_step", 0), d.set<int64_t>("remap_span", 0);
  if (scored && d.one_in(4) && block % 4 == 0) {
    const int64_t step = d.one_of({1, 2, 4}), span = d.one_of({1, 2, 5});
    d.set("remap_step", step), d.set("remap_span", span);
    d.drop("block_mask"), d.drop("column_forced");
    capacity = columns * (block / step) + span * (block / step) - 1;
  }
  if (!scored && !d.has("column_forced")) {
    capacity = 1 + d.below(1000);
  }
  d.x("capacity") = capacity, d.x("y") = ceil_div(capacity, block);
  // Packed, each sequence may have a partial block of its own.
  if (d.packed_rows()) d.x("n") += d.x("r");
}

void block_scalars(Draw& d) {
  const bool scored = d.has("row") || d.has("score");
  d.x("mask_bytes") = ceil_div(d.x("y"), 8);
  if (!scored && !d.has("column_forced")) d.set("key_max", d.x("capacity"));
  for (const char* field : {"count", "min_keep", "max_keep", "min_extra", "force_first",
                            "force_previous", "force_last"})
    d.set<int64_t>(field, d.one_in(3) ? d.one_of({1, 2, 3, 8, 40, INT64_MAX}) : 0);
  int32_t rule = static_cast<int32_t>(scored ? d.one_in(2) ? kTopK : d.below(7) : kNone);
  if (d.has("cover_head")) rule = static_cast<int32_t>(1 + d.below(3));
  if (d.has("count_head")) rule = kTopK;
  if (!scored) rule = kNone;
  d.set("rule", rule);
  d.set<float>("ratio", 0), d.set<float>("cover", 0), d.set<float>("threshold", 0);
  d.set<int32_t>("ratio_up", 0);
  if (rule != kTopK || d.has("count_head")) d.set<int64_t>("count", 0);
  if (rule == kTopK && !d.has("count_head") && d.one_in(3)) {
    d.set<int64_t>("count", 0), d.set("ratio", 0.3f);
    d.set<int32_t>("ratio_up", static_cast<int32_t>(d.below(2)));
  }
  if (rule > kTopK && rule < kAbove && !d.has("cover_head"))
    d.set("cover", d.one_in(2) ? 0.5f : 0.9f);
  if (rule == kAbove || rule == kAbove + 1) d.set("threshold", d.one_in(2) ? 0.1f : -1.0f);
  d.set<int32_t>("scope", d.has("count_head") || d.has("cover_head")
                              ? static_cast<int32_t>(d.below(2))
                              : static_cast<int32_t>(d.below(3)));
  d.set<int32_t>("measure", d.has("column_low"));
  d.set<int32_t>("normalise", d.has("column_weight") ? 2 : d.has("row_lse"));
  if (scored && !d.has("column_weight") && !d.has("row_lse") && d.one_in(2))
    d.set<int32_t>("normalise", static_cast<int32_t>(d.one_of({1, 3, 4})));
  d.set<int32_t>("reduce_raw", 0), d.set<int32_t>("complete", 0);
  d.set<int32_t>("force_own", static_cast<int32_t>(d.below(2)));
  d.set<int32_t>("forced_count", static_cast<int32_t>(d.below(2)));
}

bool counts(Filler& f, const Tensor& x) {
  if (x.field->name != "count_head") return false;
  f.places(x, 0, 9);
  return true;
}

// A rounding may decide what is taken: products, scores that are normalised, sums of masses.
bool rounds(const Call& call) {
  const auto& p = *reinterpret_cast<const fovea_x_select_block_params*>(call.params());
  const bool exact = p.row.dtype == FOVEA_F32 && p.column.dtype == FOVEA_F32;
  if (p.row.data && !exact) return true;
  for (const char* field : {"normalise", "reduce"})
    if (*reinterpret_cast<const int32_t*>(call.params() + call.op->find(field)->offset))
      return true;
  return false;
}

const Rules kBlock({"x_select_block"}, {.tensors = block_tensors,
                                        .letters = block_letters,
                                        .extents = block_extents,
                                        .scalars = block_scalars,
                                        .integers = counts,
                                        .rough = rounds});

// Codes, or queries and keys.
void token_tensors(Draw& d) {
  const bool codes = d.one_in(6);
  for (const char* field : {"q", "k", "code_q", "code"}) d.drop(field);
  for (const char* field : {"q", "k"})
    if (!codes) d.give(field);
  for (const char* field : {"code_q", "code"})
    if (codes) d.give(field);
  if (codes) d.drop("k_scale"), d.drop("weight");
  if (codes || !d.has("index")) d.drop("kept_mass");
  if (!d.has("index")) d.drop("kept_score"), d.give("index_count");
  if (d.has("weight")) d.drop("kept_mass");
}

void token_letters(Draw& d) {
  d.x("keep") = d.one_of({0, 1, 2, 5, 17, 40, 300});
  d.x("words") = d.one_of({1, 1, 2, 4});
  d.x("groups") = d.one_in(2) && d.x("d") % 2 == 0 ? 2 : 1;
}

void token_extents(Draw& d) {
  const bool apart = d.one_in(2);
  if (apart) d.x("x") = d.x("h");
  if (!apart)
    for (int64_t x : {1, 2, 4})
      if (d.x("h") % x == 0 && d.x("g") && (x % d.x("g") == 0 || d.x("g") % x == 0)) d.x("x") = x;
  d.set("reduce", static_cast<int32_t>(d.x("x") == d.x("h") ? 0 : 1 + d.below(3)));
}

void token_scalars(Draw& d) {
  for (const char* field : {"count", "first_keys", "last_keys", "force_last"})
    d.set<int64_t>(field, d.one_in(2) ? d.one_of({1, 2, 3, 8, 40, INT64_MAX}) : 0);
  d.set<int64_t>("block_keys", d.has("block_mask") ? d.one_of({0, 1, 7, 64}) : 0);
  d.set<int64_t>("pool_keys", 0), d.set<float>("ratio", 0), d.set<int64_t>("subset", 0);
  if (d.one_in(3)) d.set("ratio", 0.3f);
  int32_t measure = d.has("code") ? 2 : static_cast<int32_t>(d.one_of({0, 1, 3}));
  if (d.has("weight")) measure = 1;
  if (d.has("kept_mass")) measure = static_cast<int32_t>(d.one_of({0, 3}));
  if (measure == 3 && d.x("d") > 0) d.set<int64_t>("subset", 1 + d.below(d.x("d")));
  d.set("measure", measure);
  if (!d.has("kept_mass") && d.one_in(3))
    d.set<int64_t>("pool_keys", d.one_of({1, 5, 16, INT64_MAX})), d.set<float>("ratio", 0);
  if (d.has("block_mask")) {
    const int64_t block = d.scalar<int64_t>("block_keys") ? d.scalar<int64_t>("block_keys") : 64;
    const int64_t keys = d.has("page_table") ? d.x("pages") * d.x("page") : d.x("t");
    d.x("mask_bytes") = ceil_div(ceil_div(keys, block), 8);
  }
  d.set<int64_t>("key_step", d.one_in(4) ? 4 : 0);
  d.set<int64_t>("key_shift", d.one_in(4) ? d.below(9) - 3 : 0);
}

// The share of a subset's norm is a rounding on each backend, and so are sums of heads, and
// products on tensor cores.
bool token_rounds(const Call& call) {
  const auto& p = *reinterpret_cast<const fovea_x_select_token_params*>(call.params());
  const bool tensor_cores = p.q.data && p.k.dtype == p.q.dtype && p.q.dtype != FOVEA_F32;
  return p.measure == FOVEA_X_SELECT_SCORE_SUBSET || p.reduce || tensor_cores;
}

const Rules kToken({"x_select_token"}, {.tensors = token_tensors,
                                        .letters = token_letters,
                                        .extents = token_extents,
                                        .scalars = token_scalars,
                                        .rough = token_rounds});

// Lines, or bits.
void line_tensors(Draw& d) {
  const bool bits = d.one_in(3);
  for (const char* field : {"bits", "vertical", "slash"}) d.drop(field);
  if (bits) d.give("bits");
  if (!bits && !d.one_in(4)) d.give("vertical");
  if (!bits && (!d.has("vertical") || !d.one_in(4))) d.give("slash");
  if (!d.has("vertical")) d.drop("vertical_count");
  if (!d.has("slash")) d.drop("slash_count");
  if (bits) d.drop("column"), d.drop("column_count"), d.drop("bits_out");
  if (d.has("bits_out") && d.one_in(2)) d.drop("column"), d.drop("column_count");
  d.give("index_count");
}

void line_letters(Draw& d) {
  d.x("s") = d.length(), d.x("t") = d.length();
  d.x("keep") = d.one_of({0, 1, 3, 40}), d.x("columns") = d.one_of({0, 1, 3, 40});
}

void line_extents(Draw& d) {
  d.x("n") = d.x("s"), d.x("u") = d.length(), d.x("slashes") = d.length();
  d.x("x") = d.one_of({0, 1, 2, 3});
}

void line_scalars(Draw& d) {
  const bool lines = !d.has("bits");
  const int32_t block = static_cast<int32_t>(d.one_of({0, 1, 5, 16, 64}));
  d.set("block_rows", block);
  d.set("block_keys", lines ? block : static_cast<int32_t>(d.one_of({0, 1, 5, 64})));
  d.set<int64_t>("key_max", 1 + d.below(500));
  const bool keys = d.has("column") || d.has("column_count");
  const bool in_blocks = lines && !keys && d.one_in(2);
  d.set<int32_t>("in_blocks", in_blocks);
  d.set<int32_t>("aligned", lines && !in_blocks && (d.has("bits_out") || d.one_in(2)));
  d.set<int32_t>("causal", lines ? 0 : static_cast<int32_t>(d.below(2)));
  const int32_t each = d.scalar<int32_t>("block_keys");
  d.x("mask_bytes") = ceil_div(ceil_div(d.scalar<int64_t>("key_max"), each ? each : 64), 8);
}

// Ascending lines of a head; now and then any numbers, which no list may leave memory for.
bool line_numbers(Filler& f, const Tensor& x) {
  if (f.is(x, {"vertical_count", "slash_count"})) {
    f.places(x, 0, 60);
    return true;
  }
  if (!f.is(x, {"vertical", "slash"})) return false;
  if (f.one_in(8)) {
    f.places(x, 0, 400);
    return true;
  }
  int64_t last = -1, n = 0;
  const int64_t extent = x.view.shape[2];
  f.put<int32_t>(x, [&] {
    if (n++ % extent == 0) last = f.random(-3, 2);
    last += f.random(1, 9);
    return static_cast<int32_t>(last);
  });
  return true;
}

void heads_letters(Draw& d) {
  d.x("s") = d.one_of({0, 1, 2, 5, 5, 8});
}

void heads_scalars(Draw& d) {
  d.set<int64_t>("clusters", d.has("clusters_of") ? 0 : d.one_of({1, 2, 3, 100}));
}

bool cluster_counts(Filler& f, const Tensor& x) {
  if (x.field->name != "clusters_of") return false;
  f.places(x, 0, 9);
  return true;
}

const Rules kLine({"x_select_line"}, {.tensors = line_tensors,
                                      .letters = line_letters,
                                      .extents = line_extents,
                                      .scalars = line_scalars,
                                      .integers = line_numbers});
const Rules kHeads({"x_select_heads"}, {.letters = heads_letters,
                                        .scalars = heads_scalars,
                                        .integers = cluster_counts,
                                        .rough = always});

}  // namespace
}  // namespace random_calls
