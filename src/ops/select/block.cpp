// SPDX-License-Identifier: Apache-2.0
#include "ops/select/block.h"

#include <algorithm>

#include "core/fields.h"

namespace fovea {
namespace {

constexpr char kOp[] = "x_select_block";

using Params = fovea_x_select_block_params;

void check_enum(const char* field, int32_t value, int32_t last, const char* name) {
  if (value < 0 || value > last) refuse("%s: %s is %d, wanted a %s", kOp, field, value, name);
}

void check_float(const char* field, float value) {
  if (!(value == value)) refuse("%s: %s is %g, wanted a number", kOp, field, value);
}

void read_enums(SelectBlock& a, const Params& p) {
  check_enum("measure", p.measure, FOVEA_X_SELECT_MEASURE_BOX, "fovea_x_select_measure");
  check_enum("normalise", p.normalise, FOVEA_X_SELECT_NORMALISE_MAX, "fovea_x_select_normalise");
  check_enum("reduce", p.reduce, FOVEA_X_SELECT_REDUCE_MAX, "fovea_x_select_reduce");
  check_enum("rule", p.rule, FOVEA_X_SELECT_RULE_NONE, "fovea_x_select_rule");
  check_enum("scope", p.scope, FOVEA_X_SELECT_SCOPE_ALL, "fovea_x_select_scope");
  a.box = p.measure == FOVEA_X_SELECT_MEASURE_BOX;
  a.normalise = p.normalise, a.reduce = p.reduce, a.scope = p.scope;
  a.rule_none = p.rule == FOVEA_X_SELECT_RULE_NONE;
  a.rule = a.rule_none ? PickRule::count : static_cast<PickRule>(p.rule);
  const std::pair<const char*, int32_t> flags[] = {
      {"reduce_raw", p.reduce_raw}, {"ratio_up", p.ratio_up}, {"forced_count", p.forced_count},
      {"force_own", p.force_own},   {"complete", p.complete}, {"causal", p.causal}};
  for (const auto& [field, value] : flags) check_flag(kOp, field, value);
  a.reduce_raw = p.reduce_raw, a.ratio_up = p.ratio_up, a.forced_count = p.forced_count;
  a.force_own = p.force_own, a.complete = p.complete, a.causal = p.causal;
  if (a.complete && !a.causal) refuse("%s: complete is 1 without causal, wanted both", kOp);
  if (a.reduce_raw && !a.reduce) refuse("%s: reduce_raw is 1 without reduce, wanted 0", kOp);
}

void read_numbers(SelectBlock& a, const Params& p) {
  const std::pair<const char*, int64_t> counts[] = {{"query_max", p.query_max},
                                                    {"key_max", p.key_max},
                                                    {"count", p.count},
                                                    {"min_keep", p.min_keep},
                                                    {"max_keep", p.max_keep},
                                                    {"min_extra", p.min_extra},
                                                    {"force_first", p.force_first},
                                                    {"force_previous", p.force_previous},
                                                    {"force_last", p.force_last},
                                                    {"remap_step", p.remap_step},
                                                    {"remap_span", p.remap_span},
                                                    {"block_rows", p.block_rows},
                                                    {"block_keys", p.block_keys}};
  for (const auto& [field, value] : counts) check_not_negative(kOp, field, value);
  a.count = p.count, a.min_keep = p.min_keep, a.max_keep = p.max_keep, a.min_extra = p.min_extra;
  a.force_first = p.force_first, a.force_previous = p.force_previous, a.force_last = p.force_last;
  check_number(kOp, "scale", p.scale, "the default");
  check_number(kOp, "ratio", p.ratio, "count");
  check_number(kOp, "cover", p.cover, "nothing");
  check_float("threshold", p.threshold);
  a.ratio = p.ratio, a.cover = p.cover, a.threshold = p.threshold;
  const bool top_k = p.rule == FOVEA_X_SELECT_RULE_TOP_K;
  const bool cumulative =
      p.rule >= FOVEA_X_SELECT_RULE_TOP_P_GE && p.rule <= FOVEA_X_SELECT_RULE_TOP_P_UNDER;
  const bool threshold =
      p.rule == FOVEA_X_SELECT_RULE_ABOVE || p.rule == FOVEA_X_SELECT_RULE_AT_LEAST;
  const auto unused = [&](bool set, bool used, const char* field, const char* rules) {
    if (set && !used)
      refuse("%s: %s is given with rule = %d, wanted one of %s", kOp, field, p.rule, rules);
  };
  unused(p.count, top_k, "count", "top_k"), unused(p.ratio > 0, top_k, "ratio", "top_k");
  unused(p.ratio_up, top_k, "ratio_up", "top_k");
  unused(p.count_head.data, top_k, "count_head", "top_k");
  unused(p.cover > 0, cumulative, "cover", "top_p_ge, top_p_gt and top_p_under");
  unused(p.cover_head.data, cumulative, "cover_head", "top_p_ge, top_p_gt and top_p_under");
  unused(p.threshold != 0, threshold, "threshold", "above and at_least");
  if ((p.count > 0) + (p.ratio > 0) + (p.count_head.data != nullptr) > 1)
    refuse("%s: count, ratio and count_head are given together, wanted one of them", kOp);
  if (p.ratio_up && !(p.ratio > 0)) refuse("%s: ratio_up is 1 without ratio, wanted 0", kOp);
  if (p.cover > 0 && p.cover_head.data)
    refuse("%s: cover and cover_head are given together, wanted one of them", kOp);
  if (a.scope == FOVEA_X_SELECT_SCOPE_ALL && (p.count_head.data || p.cover_head.data))
    refuse("%s: %s is given with scope all, wanted one number for all heads", kOp,
           p.count_head.data ? "count_head" : "cover_head");
}

void read_tensors(SelectBlock& a, const Params& p) {
  check_together(kOp, p.row, "row", p.column, "column");
  check_needs(kOp, p.kept_score, "kept_score", p.index, "index");
  if (p.row.data && p.score.data)
    refuse("%s: row and score are given together, wanted one of them", kOp);
  if (!p.row.data && !p.score.data && p.rule != FOVEA_X_SELECT_RULE_NONE)
    refuse("%s: row and score are absent with rule = %d, wanted one of them", kOp, p.rule);
  if (!p.index.data && !p.index_count.data)
    refuse("%s: index and index_count are both absent, wanted one of them or both", kOp);
  if (a.box && !p.row.data) refuse("%s: measure is box without row, wanted row and column", kOp);
  if (a.box != (p.column_low.data != nullptr))
    refuse("%s: column_low is %s with measure = %d, wanted it for box alone", kOp,
           p.column_low.data ? "given" : "absent", p.measure);
  if (a.box && p.column_low.dtype != p.column.dtype)
    refuse("%s: column_low.dtype is %d, wanted %d as in column", kOp, p.column_low.dtype,
           p.column.dtype);
  if ((a.normalise == FOVEA_X_SELECT_NORMALISE_WEIGHTED) != (p.column_weight.data != nullptr))
    refuse("%s: column_weight is %s with normalise = %d, wanted it for weighted alone", kOp,
           p.column_weight.data ? "given" : "absent", p.normalise);
  if (!p.row.data && !p.score.data && a.normalise)
    refuse("%s: normalise is %d without scores, wanted 0", kOp, a.normalise);
  if (p.row_lse.data && a.normalise != FOVEA_X_SELECT_NORMALISE_SOFTMAX)
    refuse("%s: row_lse is given with normalise = %d, wanted it for softmax alone", kOp,
           a.normalise);
  if (p.row_lse.data && p.reduce_raw)
    refuse("%s: row_lse is given with reduce_raw = 1, wanted one of them", kOp);
  a.row = view_of<4>(p.row), a.column = view_of<4>(p.column);
  a.column_low = view_of<4>(p.column_low), a.score = view_of<4>(p.score);
  a.column_weight = view_of<3>(p.column_weight), a.row_lse = view_of<3>(p.row_lse);
  a.block_mask = view_of<4>(p.block_mask);
  a.forced = view_of<4>(p.forced), a.row_forced = view_of<3>(p.row_forced);
  a.column_forced = view_of<3>(p.column_forced), a.count_head = view_of<2>(p.count_head);
  a.cover_head = view_of<1>(p.cover_head), a.index = view_of<4>(p.index);
  a.index_count = view_of<3>(p.index_count), a.kept_score = view_of<4>(p.kept_score);
  a.kept_mass = view_of<3>(p.kept_mass), a.score_out = view_of<4>(p.score_out);
  a.row_dtype = p.row.dtype, a.column_dtype = p.column.dtype;
}

void read_heads(SelectBlock& a, const Params& p) {
  const fovea_tensor& list = p.index.data ? p.index : p.index_count;
  a.b = list.shape[0], a.x = list.shape[1], a.n = list.shape[2];
  a.keep = p.index.data ? p.index.shape[3] : 0;
  a.h = p.row.data ? p.row.shape[2] : p.score.data ? p.score.shape[1] : a.x;
  a.g = p.column.data          ? p.column.shape[2]
        : p.column_weight.data ? p.column_weight.shape[1]
        : p.column_forced.data ? p.column_forced.shape[1]
                               : a.h;
  a.d = p.row.data ? p.row.shape[3] : 0;
  const char* name = p.index.data ? "index" : "index_count";
  const char* heads_of = p.row.data ? "row" : p.score.data ? "score" : name;
  if (a.h && (!a.g || a.h % a.g))
    refuse("%s: %s (g) is %lld, wanted a divisor of the %lld heads of %s", kOp,
           p.column.data          ? "column.shape[2]"
           : p.column_weight.data ? "column_weight.shape[1]"
                                  : "column_forced.shape[1]",
           lld(a.g), lld(a.h), heads_of);
  if (a.reduce ? a.h != 0 && (!a.x || a.h % a.x) : a.x != a.h)
    refuse("%s: %s.shape[1] (x) is %lld, wanted %s %lld heads of %s", kOp, name, lld(a.x),
           a.reduce ? "a divisor of the" : "without reduce the", lld(a.h), heads_of);
  if (a.reduce && !a.h && a.x)
    refuse("%s: %s.shape[1] (x) is %lld, wanted 0 as there are no heads", kOp, name, lld(a.x));
  if (p.row.data && a.d < 1) refuse("%s: row.shape[3] (d) is 0, wanted >= 1", kOp);
  if (a.d > kWidthMax)
    fail(FOVEA_UNSUPPORTED, "%s: row.shape[3] (d) is %lld, wanted at most %lld", kOp, lld(a.d),
         lld(kWidthMax));
  a.scale = p.scale > 0 ? p.scale : a.row ? read_scale(kOp, "scale", 0, a.d, "1 / sqrt(d)") : 1.0f;
}

// How many keys columns cover, and how many key blocks that makes.
void read_blocks(SelectBlock& a, const Params& p) {
  a.block_rows = p.block_rows ? p.block_rows : 1;
  a.block_keys = p.block_keys ? p.block_keys : 64;
  a.remap_step = p.remap_step, a.remap_span = p.remap_span;
  a.step = a.span = a.block_keys;
  constexpr int64_t span_most = 1 << 16;
  if (a.remap_step) {
    if (a.block_keys % a.remap_step)
      refuse("%s: remap_step is %lld, wanted a divisor of block_keys = %lld", kOp,
             lld(a.remap_step), lld(a.block_keys));
    if (a.remap_span < 1 || a.remap_span > span_most)
      refuse("%s: remap_span is %lld, wanted 1 .. %lld", kOp, lld(a.remap_span), lld(span_most));
    if (!a.scored()) refuse("%s: remap_step is given without scores, wanted 0", kOp);
    for (const auto& [x, field] :
         {std::pair{&p.block_mask, "block_mask"}, std::pair{&p.column_forced, "column_forced"}})
      if (x->data)
        refuse("%s: %s is given with remap_step, wanted none: it names columns", kOp, field);
    a.step = a.block_keys / a.remap_step, a.span = a.step * a.remap_span;
  } else if (a.remap_span) {
    refuse("%s: remap_span is %lld without remap_step, wanted 0", kOp, lld(a.remap_span));
  }
  const bool columns = p.column.data || p.score.data || p.column_forced.data;
  int64_t capacity = p.key_max;
  if (columns) {
    a.u = p.column.data  ? p.column.shape[1]
          : p.score.data ? p.score.shape[3]
                         : p.column_forced.shape[2];
    capacity = far_product(a.u, a.step) + (a.remap_step ? a.span - 1 : 0);
  } else if (!p.key_max) {
    refuse("%s: key_max is 0 without columns, wanted the longest sequence of keys", kOp);
  }
  a.y = capacity / a.block_keys + (capacity % a.block_keys != 0);
  if (!columns) a.u = a.y;
  if (a.y > INT32_MAX)
    fail(FOVEA_UNSUPPORTED, "%s: there are %lld key blocks, wanted at most %d: index is i32", kOp,
         lld(a.y), INT32_MAX);
  const char* of = p.column.data  ? "column"
                   : p.score.data ? "score"
                   : columns      ? "column_forced"
                                  : "key_max";
  if (p.score_out.data && p.score_out.shape[3] != a.y)
    refuse("%s: score_out.shape[3] (y) is %lld, wanted %lld: key blocks of %s", kOp,
           lld(p.score_out.shape[3]), lld(a.y), of);
  for (const auto& [x, field] :
       {std::pair{&p.block_mask, "block_mask"}, std::pair{&p.forced, "forced"}})
    if (x->data && x->shape[3] != (a.y + 7) / 8)
      refuse(
          "%s: %s.shape[3] (mask_bytes) is %lld, wanted %lld: a bit for each of %lld key blocks "
          "of "
          "%s",
          kOp, field, lld(x->shape[3]), lld((a.y + 7) / 8), lld(a.y), of);
  Sequences& q = a.sequences;
  q.query_start = int_vector(p.query_start), q.key_start = int_vector(p.key_start);
  q.query_len = int_vector(p.query_len), q.key_len = int_vector(p.key_len);
  q.s = far_product(a.n, a.block_rows), q.capacity = capacity;
  q.count = p.query_start.data ? p.query_start.shape[0] - 1 : a.b;
  q.query_max = p.query_max && p.query_max < q.s ? p.query_max : q.s;
  q.key_max = p.key_max && p.key_max < capacity ? p.key_max : capacity;
}

}  // namespace

Plan plan(const Context& ctx, const Params& p) {
  SelectBlock a{};
  read_enums(a, p);
  read_numbers(a, p);
  read_tensors(a, p);
  read_heads(a, p);
  read_blocks(a, p);
  return choose(kOp, ctx, a, x_select_block_host,
                FOVEA_CUDA_KERNELS(x_select_block_rows, x_select_block_given_sm80,
                                   x_select_block_sm90, x_select_block_sm80, x_select_block_simt));
}

}  // namespace fovea
