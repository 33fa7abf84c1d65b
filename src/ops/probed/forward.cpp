// SPDX-License-Identifier: Apache-2.0
#include "core/fields.h"
#include "core/list_rows.h"
#include "core/program.h"

namespace fovea {
namespace {

constexpr char kOp[] = "x_probed_forward";
using Params = fovea_x_probed_forward_params;

// What the call's sums and lists measure.
struct Probed {
  int64_t r, rows, keys;         // sequences; rows and keys of a block
  int64_t rows_most, keys_most;  // of a sequence
  int64_t n, u, x, keep, columns;
  bool blocks, lines, means;  // blocks: lists of key blocks, by their means too
  bool any;                   // there are rows and heads
};

void check_only(bool given, const char* field, bool right, const char* kinds) {
  if (given && !right) refuse("%s: %s is given, wanted it with kind %s alone", kOp, field, kinds);
}

void check_means(const Params& p, bool means) {
  const char *of_means = "means", *of_others = "blocks, columns and lines";
  check_only(p.threshold != 0, "threshold", means, of_means);
  check_only(p.force_previous != 0, "force_previous", means, of_means);
  check_only(p.full_last != 0, "full_last", means, of_means);
  check_only(p.cover_head.data, "cover_head", !means, of_others);
  check_only(p.cover != 0, "cover", !means, of_others);
  check_only(p.count != 0, "count", !means, of_others);
  check_only(p.rule != 0, "rule", !means, of_others);
  check_only(p.cache_row.data, "cache_row", !means, of_others);
  if (!means) return;
  if (!(p.threshold > 0 && p.threshold <= 1))
    refuse("%s: threshold is %g with kind means, wanted > 0, <= 1", kOp, p.threshold);
  if (p.full_last && p.query_len.data)
    refuse("%s: full_last is %lld with query_len, wanted 0", kOp, lld(p.full_last));
}

void check_kind(const Params& p, const Probed& a) {
  const bool only_blocks = a.blocks && !a.means;
  const char *of_lists = "columns and lines", *of_blocks = "blocks",
             *of_key_blocks = "blocks and means";
  check_only(p.sample.data, "sample", !a.blocks, of_lists);
  check_only(p.probe_rows != 0, "probe_rows", !a.blocks, of_lists);
  check_only(p.first_keys != 0, "first_keys", !a.blocks, of_lists);
  check_only(p.last_keys != 0, "last_keys", !a.blocks, of_lists);
  check_only(p.column.data, "column", !a.blocks, of_lists);
  check_only(p.slash_count != 0, "slash_count", a.lines, "lines");
  check_only(p.slash_force_first != 0, "slash_force_first", a.lines, "lines");
  check_only(p.index.data, "index", a.blocks || a.lines, "blocks, lines and means");
  check_only(p.query_start.data, "query_start", only_blocks, of_blocks);
  check_only(p.key_start.data, "key_start", only_blocks, of_blocks);
  check_only(p.query_len.data, "query_len", a.blocks, of_key_blocks);
  check_only(p.query_max != 0, "query_max", a.blocks, of_key_blocks);
  check_only(p.group_stride != 0, "group_stride", only_blocks, of_blocks);
  check_only(p.force_own != 0, "force_own", a.blocks, of_key_blocks);
  check_only(p.reversed != 0, "reversed", only_blocks, of_blocks);
  check_only(p.block_keys != 0, "block_keys", a.blocks, of_key_blocks);
  check_together(kOp, p.sample, "sample", p.query_position, "query_position");
  check_means(p, a.means);
  if ((a.lines || a.means) && !p.causal)
    refuse("%s: causal is 0 with kind %s, wanted 1", kOp, a.lines ? "lines" : "means");
  if (a.blocks) return;
  if ((p.sample.data != nullptr) == (p.probe_rows != 0))
    refuse("%s: sample and probe_rows are %s, wanted one of them", kOp,
           p.sample.data ? "given together" : "both absent");
  if (p.cache_row.data && !p.page_table.data)
    refuse("%s: cache_row is given without page_table, wanted both with this kind", kOp);
}

void check_numbers(const Params& p) {
  if (p.kind < 0 || p.kind > FOVEA_X_PROBED_KIND_MEANS)
    refuse("%s: kind is %d, wanted a fovea_x_probed_kind", kOp, p.kind);
  for (const auto& [field, value] : {std::pair{"query_max", p.query_max},
                                     {"key_max", p.key_max},
                                     {"lists", p.lists},
                                     {"probe_rows", p.probe_rows},
                                     {"count", p.count},
                                     {"slash_count", p.slash_count},
                                     {"slash_force_first", p.slash_force_first},
                                     {"force_first", p.force_first},
                                     {"force_previous", p.force_previous},
                                     {"full_last", p.full_last},
                                     {"group_stride", p.group_stride}})
    check_not_negative(kOp, field, value);
  if (p.rule < 0 || p.rule > FOVEA_X_SELECT_RULE_TOP_P_UNDER)
    refuse("%s: rule is %d, wanted top_k or a top_p rule of fovea_x_select_rule", kOp, p.rule);
  if (p.block_rows < 0 || p.block_rows > kListRowsMost)
    refuse("%s: block_rows is %d, wanted 1 .. %lld, or 0 for 64", kOp, p.block_rows,
           lld(kListRowsMost));
  if (p.block_keys < 0 || p.block_keys > kListKeysMost)
    refuse("%s: block_keys is %d, wanted 1 .. %lld, or 0 for 64", kOp, p.block_keys,
           lld(kListKeysMost));
  check_needs(kOp, p.index_count, "index_count", p.index, "index");
  check_needs(kOp, p.column_count, "column_count", p.column, "column");
}

// List heads, by the first output of lists.
int64_t read_lists(const Params& p) {
  const bool index = p.index.data != nullptr;
  const int64_t x = index           ? p.index.shape[1]
                    : p.column.data ? p.column.shape[1]
                    : p.lists       ? p.lists
                                    : p.q.shape[2];
  if (p.lists && p.lists != x)
    refuse("%s: lists is %lld with %s of %lld heads (x), wanted 0 or as many", kOp, lld(p.lists),
           index ? "index" : "column", lld(x));
  return x;
}

Probed read_probed(const Params& p) {
  check_numbers(p);
  Probed a{};
  a.lines = p.kind == FOVEA_X_PROBED_KIND_LINES, a.means = p.kind == FOVEA_X_PROBED_KIND_MEANS;
  a.blocks = a.means || p.kind == FOVEA_X_PROBED_KIND_BLOCKS;
  check_kind(p, a);
  a.rows = p.block_rows ? p.block_rows : 64;
  a.keys = a.lines ? a.rows : p.block_keys ? p.block_keys : 64;
  const bool packed_rows = p.query_start.data != nullptr, packed_keys = p.key_start.data != nullptr;
  const int64_t s = p.q.shape[1], t = p.k.shape[1];
  a.r = packed_rows   ? p.query_start.shape[0] - 1
        : packed_keys ? p.key_start.shape[0] - 1
                      : p.q.shape[0];
  a.rows_most = bounded(p.query_max, s);
  a.keys_most = bounded(p.key_max, p.page_table.data ? far_product(p.page_table.shape[1], t) : t);
  a.n = a.rows == 1 ? s : packed_rows ? s / a.rows + a.r : ceil_of(s, a.rows);
  if (p.index.data && p.index.shape[2] > a.n) a.n = p.index.shape[2];
  a.u = !a.blocks ? a.keys_most : packed_keys ? t / a.keys + a.r : ceil_of(a.keys_most, a.keys);
  a.x = read_lists(p);
  if (a.means && a.x != p.q.shape[2])
    refuse("%s: %s is %lld with kind means, wanted %sthe %lld heads of q", kOp,
           p.index.data ? "index.shape[1] (x)" : "lists", lld(a.x), p.index.data ? "" : "0 or ",
           lld(p.q.shape[2]));
  a.any = s && p.q.shape[2];
  if (!a.any) a.u = 0;
  const auto some = [&](int64_t n) { return std::min(n, a.u); };
  const bool top_k = p.rule == FOVEA_X_SELECT_RULE_TOP_K && !a.means;
  const int64_t own = p.force_own ? a.rows / a.keys + 2 : 0;
  const int64_t most = top_k ? some(some(p.count) + some(p.force_first) + own) : a.u;
  a.columns = p.column.data ? p.column.shape[2] : most;
  a.keep = a.lines ? some(std::max(p.slash_count, p.slash_force_first)) : most;
  if (p.index.data) a.keep = p.index.shape[3];
  const bool given = p.index.data || p.column.data;
  if (!p.q.shape[2] && a.x && given)
    refuse("%s: %s.shape[1] (x) is %lld, wanted 0 as q has no heads", kOp,
           p.index.data ? "index" : "column", lld(a.x));
  if (!a.any && !given) a.x = p.q.shape[2] ? 1 : 0;
  return a;
}

template <class To>
void place(const Params& p, To& to) {
  to.query_start = p.query_start, to.key_start = p.key_start;
  to.query_len = p.query_len, to.key_len = p.key_len;
  to.page_table = p.page_table, to.cache_row = p.cache_row;
  to.query_max = p.query_max, to.key_max = p.key_max;
}

// Sums of the probabilities: of blocks, or of columns and of distances.
struct Sums {
  fovea_tensor block, column, diagonal;
};

[[gnu::noinline]] fovea_tensor pool_keys(Program& program, const Params& p, const Probed& a) {
  fovea_x_pool_forward_params part{};
  part.x = p.k, part.key_len = p.key_len, part.page_table = p.page_table;
  part.key_max = p.key_max, part.block = a.keys;
  part.y =
      program.array(static_cast<fovea_dtype>(p.k.dtype), {a.r, a.u, p.k.shape[2], p.k.shape[3]});
  program.run(part);
  return part.y;
}

// For each row of lse (b, h, s) the largest of its row block: x - x is 0 for rows that see a mean,
// and the others count nowhere.
[[gnu::noinline]] fovea_tensor largest_of_block(Program& program, const Params& p, const Probed& a,
                                                const fovea_tensor& lse) {
  const int64_t b = p.q.shape[0], s = p.q.shape[1], h = p.q.shape[2];
  fovea_x_pool_forward_params pool{};
  pool.x = by_row(lse), pool.key_len = p.query_len, pool.key_max = p.query_max;
  pool.block = a.rows, pool.want = FOVEA_X_SUMMARY_MAX;
  pool.y = program.array(FOVEA_F32, {b, ceil_of(s, a.rows), h, 1});
  program.run(pool);
  const fovea_tensor out = program.array(FOVEA_F32, {b, h, s});
  fovea_x_combine_forward_params part{};
  part.x = part.x2 = first_rows(by_row(lse), p.query_max);
  part.y = first_rows(by_row(out), p.query_max);
  part.coarse = pool.y, part.coarse.shape[1] = ceil_of(a.rows_most, a.rows);
  part.coefficient2 = -1, part.block_rows = a.rows, part.query_len = p.query_len;
  program.run(part);
  return out;
}

// Sums over the rows of row blocks of exp(score - l), by the means of key blocks.  l is one number
// for a row block, at least its largest score and at most that by ln(u): no sum of it overflows.
[[gnu::noinline]] fovea_tensor probe_means(Program& program, const Params& p, const Probed& a) {
  const int64_t b = p.q.shape[0], s = p.q.shape[1], h = p.q.shape[2];
  const fovea_tensor sums = program.array(FOVEA_F32, {b, a.x, a.n, a.u});
  if (!a.any || !a.u) return sums;
  fovea_x_probe_forward_params part{};
  part.q = p.q, part.k = pool_keys(program, p, a);
  part.query_len = p.query_len, part.query_max = p.query_max, part.context_len = p.key_len;
  part.scale = p.scale, part.causal = 1;
  part.key_step = a.keys, part.key_shift = a.keys - 1;
  // Without lengths the last row is at the last mean, not the last key.
  if (!p.key_len.data) part.key_shift -= a.keys_most - a.u;
  part.lse = program.array(FOVEA_F32, {b, h, s});
  program.run(part);
  part.lse_in = largest_of_block(program, p, a, part.lse), part.lse = {};
  part.block_sum = sums;
  part.block_rows = static_cast<int32_t>(a.rows), part.block_keys = 1;
  program.run(part);
  return sums;
}

// Without rows of q nothing is probed, and there are no lists.
[[gnu::noinline]] Sums probe(Program& program, const Params& p, const Probed& a) {
  if (a.means) return {probe_means(program, p, a), {}, {}};
  fovea_x_probe_forward_params part{};
  place(p, part);
  part.q = p.q, part.k = p.k;
  part.group_stride = p.group_stride, part.reversed = p.reversed, part.reduce = p.reduce;
  part.scale = p.scale, part.causal = p.causal;
  if (a.blocks) {
    part.block_rows = static_cast<int32_t>(a.rows), part.block_keys = static_cast<int32_t>(a.keys);
    part.block_sum = program.array(FOVEA_F32, {p.q.shape[0], a.x, a.n, a.any ? a.u : 0});
    if (a.any) program.run(part);
    return {part.block_sum, {}, {}};
  }
  // Of pages there are columns for the bounded keys, else for all of k.
  const bool paged = p.page_table.data != nullptr;
  if (paged) part.key_max = a.keys_most;
  const int64_t capacity = !a.any ? 0 : paged ? a.keys_most : p.k.shape[1];
  if (p.sample.data) part.q = p.sample, part.query_position = p.query_position;
  if (!p.sample.data && p.probe_rows < p.q.shape[1])
    part.q = from(p.q, 1, p.q.shape[1] - p.probe_rows);
  part.column_sum = program.array(FOVEA_F32, {a.r, a.x, capacity});
  if (a.lines) part.diagonal_sum = program.array(FOVEA_F32, {a.r, a.x, capacity});
  if (a.any) program.run(part);
  return {{}, part.column_sum, part.diagonal_sum};
}

// Entries of a list, and how many are wanted.
struct Lists {
  fovea_tensor index, count;
};

fovea_x_select_block_params rules(const Params& p) {
  fovea_x_select_block_params part{};
  part.cover_head = p.cover_head, part.key_len = p.key_len;
  part.count = p.count, part.force_first = p.force_first, part.cover = p.cover;
  part.rule = p.rule, part.forced_count = p.forced_count;
  return part;
}

// All that the last full_last row blocks may see, over what `part` chose for them.
[[gnu::noinline]] void fill_last(Program& program, const Params& p, const Probed& a,
                                 fovea_x_select_block_params& part) {
  const int64_t blocks = ceil_of(a.rows_most, a.rows);
  const int64_t first = blocks - std::min(blocks, p.full_last);
  part.score = from(part.score, 2, first), part.index = from(part.index, 2, first);
  part.index_count = from(part.index_count, 2, first);
  part.query_max = a.rows_most - first * a.rows;
  part.rule = FOVEA_X_SELECT_RULE_NONE, part.normalise = FOVEA_X_SELECT_NORMALISE_NONE;
  part.threshold = 0;
  part.force_first = 0, part.force_previous = a.u, part.force_own = 1;
  program.run(part);
}

[[gnu::noinline]] Lists choose_blocks(Program& program, const Params& p, const Probed& a,
                                      const fovea_tensor& sums) {
  auto part = rules(p);
  part.score = sums;
  part.query_start = p.query_start, part.key_start = p.key_start, part.query_len = p.query_len;
  part.query_max = a.rows_most, part.key_max = a.keys_most;
  part.force_own = p.force_own, part.causal = p.causal;
  part.block_rows = static_cast<int32_t>(a.rows), part.block_keys = static_cast<int32_t>(a.keys);
  if (a.means) {
    part.rule = FOVEA_X_SELECT_RULE_AT_LEAST, part.normalise = FOVEA_X_SELECT_NORMALISE_MAX;
    part.threshold = p.threshold, part.force_previous = p.force_previous;
  }
  const int64_t b = p.q.shape[0];
  part.index = program.output(p.index, FOVEA_I32, {b, a.x, a.n, a.keep});
  part.index_count = program.output(p.index_count, FOVEA_I32, {b, a.x, a.n});
  if (a.any) program.run(part);
  const Lists lists{part.index, part.index_count};
  if (a.any && p.full_last) fill_last(program, p, a, part);
  return lists;
}

// x (r, heads, ...) with one row of lists a head.
fovea_tensor one_row(const fovea_tensor& x) {
  fovea_tensor y = x;
  ++y.ndim;
  for (int i = y.ndim - 1; i > 2; --i) y.shape[i] = y.shape[i - 1], y.stride[i] = y.stride[i - 1];
  y.shape[2] = 1, y.stride[2] = 0;
  return y;
}

// `count` of the sums of each head: keys, or distances.
[[gnu::noinline]] Lists choose_keys(Program& program, fovea_x_select_block_params part,
                                    const Probed& a, const fovea_tensor& sums, Lists out) {
  part.score = one_row(sums);
  part.score.shape[3] = a.keys_most;
  part.index = one_row(out.index), part.index_count = one_row(out.count);
  part.query_max = 1, part.key_max = a.keys_most, part.block_keys = 1;
  if (a.any) program.run(part);
  return out;
}

Lists made(Program& program, const Probed& a, int64_t entries) {
  return {program.array(FOVEA_I32, {a.r, a.x, entries}), program.array(FOVEA_I32, {a.r, a.x})};
}

[[gnu::noinline]] Lists choose_columns(Program& program, const Params& p, const Probed& a,
                                       const fovea_tensor& sums) {
  Lists out = made(program, a, p.column.data ? 0 : a.columns);
  if (p.column.data) out.index = p.column;
  if (p.column_count.data) out.count = p.column_count;
  return choose_keys(program, rules(p), a, sums, out);
}

[[gnu::noinline]] void choose_lines(Program& program, const Params& p, const Probed& a,
                                    const fovea_tensor& sums, const Lists& columns,
                                    fovea_x_sparse_forward_params& attend) {
  fovea_x_select_block_params slashes{};
  slashes.key_len = p.key_len, slashes.count = p.slash_count, slashes.forced_count = 1;
  slashes.force_first = p.slash_force_first;
  const int64_t keep = std::min(std::max(p.slash_count, p.slash_force_first), a.u);
  const Lists slash = choose_keys(program, slashes, a, sums, made(program, a, keep));
  fovea_x_select_line_params part{};
  part.vertical = columns.index, part.vertical_count = columns.count;
  part.slash = slash.index, part.slash_count = slash.count;
  part.key_len = p.key_len, part.query_max = a.rows_most, part.key_max = a.keys_most;
  part.block_rows = static_cast<int32_t>(a.rows), part.block_keys = static_cast<int32_t>(a.keys);
  const int64_t b = p.q.shape[0];
  part.index = program.output(p.index, FOVEA_I32, {b, a.x, a.n, a.keep});
  part.index_count = program.output(p.index_count, FOVEA_I32, {b, a.x, a.n});
  part.column = program.array(FOVEA_I32, {b, a.x, a.n, columns.index.shape[2]});
  part.column_count = program.array(FOVEA_I32, {b, a.x, a.n});
  if (a.any && a.keys_most) program.run(part);
  attend.index = part.index, attend.index_count = part.index_count;
  attend.column = part.column, attend.column_count = part.column_count;
  attend.block_keys = part.block_keys, attend.entry_keys = 1;
}

// The keys of a head for each of its row blocks.
fovea_tensor each_row(const fovea_tensor& x, int64_t n) {
  fovea_tensor y = one_row(x);
  y.shape[2] = n;
  return y;
}

void body(Program& program, const Params& p) {
  const Probed a = read_probed(p);
  const Sums sums = probe(program, p, a);
  fovea_x_sparse_forward_params attend{};
  place(p, attend);
  if (a.blocks) {
    const Lists lists = choose_blocks(program, p, a, sums.block);
    attend.index = lists.index, attend.index_count = lists.count;
    attend.block_keys = static_cast<int32_t>(a.keys);
  } else {
    const Lists columns = choose_columns(program, p, a, sums.column);
    if (a.lines) {
      choose_lines(program, p, a, sums.diagonal, columns, attend);
    } else {
      attend.column = each_row(columns.index, a.n);
      attend.column_count = each_row(columns.count, a.n);
    }
  }
  attend.q = p.q, attend.k = p.k, attend.v = p.v, attend.o = p.o, attend.lse = p.lse;
  attend.sink_logit = p.sink_logit, attend.block_rows = static_cast<int32_t>(a.rows);
  attend.first_keys = p.first_keys, attend.last_keys = p.last_keys;
  attend.scale = p.scale, attend.softcap = p.softcap, attend.skip_margin = p.skip_margin;
  attend.causal = p.causal;
  program.run(attend);
}

}  // namespace

Plan plan(const Context& ctx, const Params& p) {
  return compose(kOp, ctx, p, body);
}

}  // namespace fovea
