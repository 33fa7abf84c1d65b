// SPDX-License-Identifier: Apache-2.0
#include "core/dtype.h"
#include "core/fields.h"
#include "core/list_rows.h"
#include "core/program.h"
#include "ops/pooled/signed.h"
#include "ops/quantised/parts.h"

namespace fovea {
namespace {

constexpr char kOp[] = "x_pooled_forward";
using Params = fovea_x_pooled_forward_params;

// What the call's lists and summaries measure.
struct Blocks {
  int64_t r, key_b;              // sequences; batch of columns
  int64_t rows, keys;            // of a block
  int64_t rows_most, keys_most;  // of a sequence
  int64_t n, u, x, keep;
  bool packed_rows, box, any;  // any: there are rows and heads
};

void check_summaries(const Params& p) {
  const bool box = p.measure == FOVEA_X_SELECT_MEASURE_BOX;
  check_needs(kOp, p.column_low, "column_low", p.column, "column");
  check_together(kOp, p.summary, "summary", p.old_len, "old_len");
  if (p.summary.data && p.column.data)
    refuse("%s: summary is given with column, wanted one of them", kOp);
  const int64_t d = p.q.shape[3], parts = box ? 2 : 1;
  if (p.summary.data && p.summary.shape[3] != parts * d)
    refuse("%s: summary.shape[3] (summary_width) is %lld, wanted %lld: %lld part%s of k's columns",
           kOp, lld(p.summary.shape[3]), lld(parts * d), lld(parts), box ? "s" : "");
  if (!p.row.data && p.column.data && p.column.shape[3] != d)
    refuse("%s: column.shape[3] (row_width) is %lld without row, wanted %lld as in q", kOp,
           lld(p.column.shape[3]), lld(d));
  if (p.row.data && !p.column.data && p.row.shape[3] != d)
    refuse("%s: row.shape[3] (row_width) is %lld without column, wanted %lld as in k", kOp,
           lld(p.row.shape[3]), lld(d));
  if (p.column.data) {
    if (p.column_similar_least.data)
      refuse("%s: column_similar_least is given with column, wanted one of them", kOp);
    return;
  }
  if (p.summary.data && p.column_similar_least.data)
    refuse("%s: column_similar_least is given with summary, wanted one of them", kOp);
  if (p.k.dtype != p.q.dtype)
    refuse("%s: k.dtype is %s without column, wanted %s as in q", kOp, dtype_name(p.k.dtype),
           dtype_name(p.q.dtype));
  // A sequence that reads no row of the cache has no summaries but the caller's.
  if (p.cache_row.data && !p.summary.data)
    refuse("%s: cache_row is given without column and summary, wanted one of them", kOp);
  if (p.cache_row.data && !p.page_table.data)
    refuse("%s: cache_row is given without page_table and column, wanted one of them", kOp);
}

void check_rows(const Params& p, int64_t block_rows) {
  if (!p.row_similar_least.data) return;
  if (p.row.data) refuse("%s: row_similar_least is given with row, wanted one of them", kOp);
  if (block_rows == 1)
    refuse("%s: row_similar_least is given with block_rows = 1, wanted blocks of rows", kOp);
  if (p.reduce) refuse("%s: row_similar_least is given with reduce = %d, wanted 0", kOp, p.reduce);
}

void check_subset(const Params& p, int64_t block_rows) {
  if (!p.subset) return;
  const int64_t d = p.q.shape[3];
  if (p.measure != FOVEA_X_SELECT_MEASURE_BOX)
    refuse("%s: subset is %lld with measure = %d, wanted 0, or measure box", kOp, lld(p.subset),
           p.measure);
  if (p.row.data || p.column.data)
    refuse("%s: %s is given with subset = %lld, wanted one of them", kOp,
           p.row.data ? "row" : "column", lld(p.subset));
  if (block_rows > 1)
    refuse("%s: block_rows is %lld with subset = %lld, wanted 1", kOp, lld(block_rows),
           lld(p.subset));
  if (p.subset > d)
    refuse("%s: subset is %lld, wanted 1 .. %lld, or 0 for all columns", kOp, lld(p.subset),
           lld(d));
  if (d > kSignedWidthMost)
    fail(FOVEA_UNSUPPORTED, "%s: q.shape[3] (d) is %lld with subset = %lld, wanted at most %lld",
         kOp, lld(d), lld(p.subset), lld(kSignedWidthMost));
  const int64_t h = p.q.shape[2], g = p.k.shape[2];
  if (h && (!g || h % g))
    refuse("%s: k.shape[2] (g) is %lld, wanted a divisor of q's %lld heads", kOp, lld(g), lld(h));
}

// The most entries that a list may have, of u.
int64_t most_entries(const Params& p, const Blocks& a) {
  const bool all = p.rule != FOVEA_X_SELECT_RULE_TOP_K || p.scope || p.row_similar_least.data ||
                   p.column_similar_least.data;
  if (all) return a.u;
  const auto some = [&](int64_t n) { return std::min(n, a.u); };
  int64_t forced = some(p.force_first) + some(p.force_previous) + some(p.force_last);
  if (p.force_own) forced += a.rows / a.keys + 2;
  const double share = static_cast<double>(p.ratio) * static_cast<double>(a.u);
  const int64_t k = p.ratio > 0 && share < static_cast<double>(a.u) ? static_cast<int64_t>(share)
                    : p.ratio > 0                                   ? a.u
                                                                    : some(p.count);
  const int64_t extra = some(p.min_extra);
  const int64_t taken = p.forced_count ? std::max(k, forced + extra) : std::max(k, extra) + forced;
  return some(std::max(taken, some(p.min_keep)));
}

// Which fields attention of codes has, and which it has not.
void check_codes(const Params& p) {
  check_flag(kOp, "quantise", p.quantise);
  if (!p.quantise) {
    for (const auto& [field, value] : {std::pair{"code", p.code},
                                       {"v_code", p.v_code},
                                       {"q_group", p.q_group},
                                       {"k_group", p.k_group},
                                       {"v_group", p.v_group},
                                       {"q_block", p.q_block},
                                       {"k_block", p.k_block},
                                       {"v_block", p.v_block},
                                       {"k_smooth", p.k_smooth},
                                       {"p_format", p.p_format},
                                       {"accumulate", p.accumulate}})
      if (value) refuse("%s: %s is %d without quantise, wanted 0", kOp, field, value);
    return;
  }
  for (const auto& [field, x] : {std::pair{"query_len", &p.query_len},
                                 {"key_len", &p.key_len},
                                 {"page_table", &p.page_table},
                                 {"cache_row", &p.cache_row},
                                 {"k_scale", &p.k_scale},
                                 {"v_scale", &p.v_scale}})
    if (x->data) refuse("%s: %s is given with quantise, wanted one of them", kOp, field);
}

Blocks read_blocks(const Params& p) {
  check_codes(p);
  if (p.block_rows < 0 || p.block_rows > kListRowsMost)
    refuse("%s: block_rows is %d, wanted 1 .. %lld, or 0 for 1", kOp, p.block_rows,
           lld(kListRowsMost));
  if (p.block_keys < 0 || p.block_keys > kListKeysMost)
    refuse("%s: block_keys is %d, wanted 1 .. %lld, or 0 for 64", kOp, p.block_keys,
           lld(kListKeysMost));
  for (const auto& [field, value] : {std::pair{"lists", p.lists},
                                     {"query_max", p.query_max},
                                     {"key_max", p.key_max},
                                     {"count", p.count},
                                     {"min_keep", p.min_keep},
                                     {"min_extra", p.min_extra},
                                     {"force_first", p.force_first},
                                     {"force_previous", p.force_previous},
                                     {"force_last", p.force_last},
                                     {"subset", p.subset}})
    check_not_negative(kOp, field, value);
  check_number(kOp, "ratio", p.ratio, "count");
  if (p.rule == FOVEA_X_SELECT_RULE_NONE)
    refuse("%s: rule is %d (none), wanted one that takes by score", kOp, p.rule);
  if (p.normalise == FOVEA_X_SELECT_NORMALISE_WEIGHTED)
    refuse("%s: normalise is %d (weighted), wanted another: there are no weights", kOp,
           p.normalise);
  check_needs(kOp, p.index_count, "index_count", p.index, "index");
  if (p.index.data && p.lists && p.lists != p.index.shape[1])
    refuse("%s: lists is %lld with index of %lld heads (x), wanted 0 or as many", kOp, lld(p.lists),
           lld(p.index.shape[1]));

  Blocks a{};
  a.rows = p.block_rows ? p.block_rows : 1, a.keys = p.block_keys ? p.block_keys : 64;
  check_summaries(p), check_rows(p, a.rows), check_subset(p, a.rows);
  a.box = p.measure == FOVEA_X_SELECT_MEASURE_BOX;
  a.packed_rows = p.query_start.data != nullptr;
  const bool packed_keys = p.key_start.data != nullptr, paged = p.page_table.data != nullptr;
  const int64_t s = p.q.shape[1], t = p.k.shape[1];
  a.r = a.packed_rows ? p.query_start.shape[0] - 1
        : packed_keys ? p.key_start.shape[0] - 1
                      : p.q.shape[0];
  a.key_b = packed_keys ? 1 : a.r;
  const int64_t capacity = paged ? far_product(p.page_table.shape[1], t) : t;
  a.rows_most = bounded(p.query_max, s), a.keys_most = bounded(p.key_max, capacity);

  a.n = a.rows == 1 ? s : a.packed_rows ? s / a.rows + a.r : ceil_of(s, a.rows);
  if (p.row.data && p.row.shape[1] < a.n)
    refuse("%s: row.shape[1] (n) is %lld, wanted at least %lld: blocks of %lld rows", kOp,
           lld(p.row.shape[1]), lld(a.n), lld(a.rows));
  if (p.index.data && (p.row.data || a.rows > 1)) a.n = p.index.shape[2];
  const int64_t u = packed_keys ? t / a.keys + a.r : ceil_of(a.keys_most, a.keys);
  const fovea_tensor& given = p.column.data ? p.column : p.summary;
  a.u = given.data ? given.shape[1] : u;
  if (a.u < u)
    refuse("%s: %s.shape[1] (u) is %lld, wanted at least %lld: blocks of %lld keys", kOp,
           p.column.data ? "column" : "summary", lld(a.u), lld(u), lld(a.keys));
  if (!a.keys_most) a.u = 0;
  a.x = p.lists ? p.lists : p.reduce ? 1 : p.row.data ? p.row.shape[2] : p.q.shape[2];
  a.keep = most_entries(p, a);
  if (p.index.data) a.x = p.index.shape[1], a.keep = p.index.shape[3];
  const int64_t heads = p.q.shape[2];
  if (!heads && p.index.data && a.x)
    refuse("%s: index.shape[1] (x) is %lld, wanted 0 as q has no heads", kOp, lld(a.x));
  if (!heads) a.x = 0;
  a.any = s && heads;
  return a;
}

// `count` columns of x from `first` on.
fovea_tensor columns_of(fovea_tensor x, int64_t first, int64_t count) {
  x = from(x, 3, first);
  x.shape[3] = count;
  return x;
}

[[gnu::noinline]] void pool_keys(Program& program, const Params& p, const Blocks& a,
                                 fovea_x_select_block_params& select) {
  const int64_t g = p.k.shape[2], d = p.k.shape[3];
  fovea_x_pool_forward_params pool{};
  pool.x = p.k, pool.key_start = p.key_start, pool.key_len = p.key_len;
  pool.page_table = p.page_table, pool.cache_row = p.cache_row;
  pool.key_max = p.key_max, pool.block = a.keys;
  pool.want = a.box ? FOVEA_X_SUMMARY_MAX | FOVEA_X_SUMMARY_MIN : FOVEA_X_SUMMARY_MEAN;
  pool.y =
      p.summary.data ? p.summary : program.array(FOVEA_F32, {a.key_b, a.u, g, a.box ? 2 * d : d});
  pool.old_len = p.old_len;
  if (p.column_similar_least.data) {
    pool.similar_least = p.column_similar_least;
    pool.dissimilar = program.array(FOVEA_U8, {a.key_b, g, a.u});
    select.column_forced = pool.dissimilar;
  }
  program.run(pool);
  // Signed rows are as wide as both parts.
  select.column = p.subset ? pool.y : columns_of(pool.y, 0, d);
  if (a.box && !p.subset) select.column_low = columns_of(pool.y, d, d);
}

[[gnu::noinline]] void pool_rows(Program& program, const Params& p, const Blocks& a,
                                 fovea_x_select_block_params& select) {
  const int64_t b = p.q.shape[0], h = p.q.shape[2], d = p.q.shape[3];
  fovea_x_pool_forward_params pool{};
  pool.x = p.q, pool.key_start = p.query_start, pool.key_len = p.query_len;
  pool.key_max = p.query_max, pool.block = a.rows;
  pool.y = program.array(FOVEA_F32, {b, a.n, h, d});
  if (p.row_similar_least.data) {
    pool.similar_least = p.row_similar_least;
    pool.dissimilar = program.array(FOVEA_U8, {b, h, a.n});
    select.row_forced = pool.dissimilar;
  }
  program.run(pool);
  select.row = pool.y;
}

[[gnu::noinline]] fovea_tensor sign_rows(Program& program, const Params& p, const Blocks& a) {
  const int64_t b = p.q.shape[0], s = p.q.shape[1], h = p.q.shape[2], d = p.q.shape[3];
  const fovea_tensor y = program.array(FOVEA_F32, {b, s, h, 2 * d});
  SignedRows part{};
  part.q = view_of<4>(p.q), part.y = view_of<4>(y), part.dtype = p.q.dtype;
  Sequences& rows = part.sequences;
  rows.query_start = int_vector(p.query_start), rows.query_len = int_vector(p.query_len);
  rows.count = a.r, rows.s = s, rows.query_max = a.rows_most;
  part.h = h, part.g = p.k.shape[2], part.d = d, part.subset = p.subset;
  program.run(choose("x_pooled_signed", program.context(), part, signed_rows_host,
                     FOVEA_CUDA_KERNELS(signed_rows_simt)));
  return y;
}

void rules(const Params& p, const Blocks& a, fovea_x_select_block_params& select) {
  select.cover_head = p.cover_head;
  select.query_start = p.query_start, select.key_start = p.key_start;
  select.query_len = p.query_len, select.key_len = p.key_len;
  select.query_max = a.rows_most, select.key_max = a.keys_most;
  select.count = p.count, select.min_keep = p.min_keep, select.min_extra = p.min_extra;
  select.force_first = p.force_first, select.force_previous = p.force_previous;
  select.force_last = p.force_last, select.force_own = p.force_own;
  select.forced_count = p.forced_count;
  select.scale = p.select_scale, select.ratio = p.ratio, select.cover = p.cover;
  select.threshold = p.threshold;
  select.measure = p.measure, select.normalise = p.normalise, select.reduce = p.reduce;
  select.rule = p.rule, select.scope = p.scope, select.causal = p.causal;
  select.block_rows = static_cast<int32_t>(a.rows);
  select.block_keys = static_cast<int32_t>(a.keys);
}

// Lists of row blocks: select's outputs.
[[gnu::noinline]] fovea_x_select_block_params choose_blocks(Program& program, const Params& p,
                                                            const Blocks& a) {
  fovea_x_select_block_params part{};
  rules(p, a, part);
  part.column = p.column, part.column_low = p.column_low;
  if (!p.column.data && (a.any || p.summary.data)) pool_keys(program, p, a, part);
  // Columns of keys that there are not.
  if (!a.keys_most) part.column.shape[1] = part.column_low.shape[1] = 0;
  part.row = p.row.data ? p.row : Program::given(p.q);
  if (p.row.data) part.row.shape[1] = a.n;
  if (!p.row.data && a.rows > 1 && a.any) pool_rows(program, p, a, part);
  if (p.subset && a.any) {
    part.row = sign_rows(program, p, a), part.measure = FOVEA_X_SELECT_MEASURE_DOT;
    if (part.scale == 0) part.scale = read_scale(kOp, "scale", 0, p.q.shape[3], "1 / sqrt(d)");
  }
  const int64_t b = p.q.shape[0];
  part.index = program.output(p.index, FOVEA_I32, {b, a.x, a.n, a.keep});
  part.index_count = program.output(p.index_count, FOVEA_I32, {b, a.x, a.n});
  // Without rows there are no lists.
  if (a.any) program.run(part);
  return part;
}

// What attention over lists has with and without codes.
template <class To>
To attention(const Params& p, const Blocks& a, const fovea_x_select_block_params& lists) {
  To part{};
  part.q = p.q, part.k = p.k, part.v = p.v, part.o = p.o, part.lse = p.lse;
  part.sink_logit = p.sink_logit;
  part.query_start = p.query_start, part.key_start = p.key_start;
  part.query_max = p.query_max, part.key_max = p.key_max;
  part.index = lists.index, part.index_count = lists.index_count;
  part.block_rows = static_cast<int32_t>(a.rows), part.block_keys = static_cast<int32_t>(a.keys);
  part.scale = p.scale, part.softcap = p.softcap, part.skip_margin = p.skip_margin;
  part.causal = p.causal;
  return part;
}

[[gnu::noinline]] void attend(Program& program, const Params& p, const Blocks& a,
                              const fovea_x_select_block_params& lists) {
  auto part = attention<fovea_x_sparse_forward_params>(p, a, lists);
  part.k_scale = p.k_scale, part.v_scale = p.v_scale;
  part.query_len = p.query_len, part.key_len = p.key_len;
  part.page_table = p.page_table, part.cache_row = p.cache_row;
  program.run(part);
}

[[gnu::noinline]] void attend_codes(Program& program, const Params& p, const Blocks& a,
                                    const fovea_x_select_block_params& lists) {
  auto part = attention<fovea_x_quantised_forward_params>(p, a, lists);
  part.code = p.code, part.v_code = p.v_code;
  part.q_group = p.q_group, part.k_group = p.k_group, part.v_group = p.v_group;
  part.q_block = p.q_block, part.k_block = p.k_block, part.v_block = p.v_block;
  part.k_smooth = p.k_smooth, part.p_format = p.p_format, part.accumulate = p.accumulate;
  run_quantised_forward(program, part);
}

void body(Program& program, const Params& p) {
  const Blocks a = read_blocks(p);
  const fovea_x_select_block_params lists = choose_blocks(program, p, a);
  p.quantise ? attend_codes(program, p, a, lists) : attend(program, p, a, lists);
}

}  // namespace

Plan plan(const Context& ctx, const Params& p) {
  return compose(kOp, ctx, p, body);
}

}  // namespace fovea
