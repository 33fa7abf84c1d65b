// SPDX-License-Identifier: Apache-2.0
#include "core/fields.h"
#include "core/list_rows.h"
#include "core/program.h"
#include "ops/flex/budget.h"

namespace fovea {
namespace {

constexpr char kOp[] = "x_flex_forward";
using Params = fovea_x_flex_forward_params;

struct Flex {
  int64_t b, s, h, g, d;
  int64_t block, keys, columns;  // keys: the most of a sequence; columns: of the probe's sums
  int64_t n, u, keep;            // row blocks; key blocks; entries of a list
  int64_t last, dense_keys;      // rows that are probed; at most so many keys are dense
  bool any, dense;               // any: there are rows and heads.  dense: every sequence is
};

Flex read_flex(const Params& p) {
  if (p.block < 0 || p.block > kListRowsMost)
    refuse("%s: block is %d, wanted 1 .. %lld, or 0 for 128", kOp, p.block, lld(kListRowsMost));
  for (const auto& [field, value] : {std::pair{"key_max", p.key_max},
                                     {"min_budget", p.min_budget},
                                     {"max_budget", p.max_budget}})
    check_not_negative(kOp, field, value);
  if (p.max_budget && p.max_budget < p.min_budget)
    refuse("%s: max_budget is %lld with min_budget = %lld, wanted at least as much, or 0", kOp,
           lld(p.max_budget), lld(p.min_budget));
  check_number(kOp, "cover", p.cover, "the least budget");
  check_number(kOp, "threshold", p.threshold, "no block-sparse head");
  check_needs(kOp, p.index_count, "index_count", p.index, "index");
  Flex a{};
  a.b = p.q.shape[0], a.s = p.q.shape[1], a.h = p.q.shape[2], a.d = p.q.shape[3];
  a.g = p.k.shape[2];
  a.block = p.block ? p.block : 128;
  const int64_t t = p.k.shape[1];
  const bool paged = p.page_table.data != nullptr;
  a.keys = bounded(p.key_max, paged ? far_product(p.page_table.shape[1], t) : t);
  a.columns = paged ? a.keys : t;
  a.n = ceil_of(a.s, a.block), a.u = ceil_of(a.keys, a.block);
  if (p.index.data && p.index.shape[2] < a.n)
    refuse("%s: index.shape[2] (n) is %lld, wanted at least %lld: blocks of %lld rows", kOp,
           lld(p.index.shape[2]), lld(a.n), lld(a.block));
  if (p.index.data) a.n = p.index.shape[2];
  a.keep = p.index.data ? p.index.shape[3] : a.u;
  a.last = std::min(a.block, a.s);
  a.dense_keys = std::max(2 * a.block, p.min_budget);
  a.any = a.b && a.s && a.h;
  a.dense = !a.any || a.keys <= a.dense_keys;
  return a;
}

// Of the last rows' probabilities: sums of each key and each distance, and over blocks of them.
struct Sums {
  fovea_tensor keys, distances;           // (b, h, columns)
  fovea_tensor block_keys, block_spaces;  // (b, h, 1, u)
};

[[gnu::noinline]] Sums probe(Program& program, const Params& p, const Flex& a) {
  fovea_x_probe_forward_params part{};
  part.q = from(p.q, 1, a.s - a.last), part.k = p.k;
  part.key_len = p.key_len, part.page_table = p.page_table, part.key_max = a.keys;
  part.scale = p.scale, part.causal = 1;
  part.block_rows = part.block_keys = static_cast<int32_t>(a.block);
  part.column_sum = program.array(FOVEA_F32, {a.b, a.h, a.columns});
  part.diagonal_sum = program.array(FOVEA_F32, {a.b, a.h, a.columns});
  part.block_sum = program.array(FOVEA_F32, {a.b, a.h, 1, a.u});
  program.run(part);
  return {part.column_sum, part.diagonal_sum, part.block_sum, {}};
}

[[gnu::noinline]] fovea_tensor sum_distances(Program& program, const Flex& a,
                                             const fovea_tensor& x) {
  const fovea_tensor y = program.array(FOVEA_F32, {a.b, a.h, 1, a.u});
  fovea_x_pool_forward_params part{};
  part.x = reshaped(x, {a.b, a.keys, a.h, 1}, {x.stride[0], 1, x.stride[1], 1});
  part.y = reshaped(y, {a.b, a.u, a.h, 1}, {a.h * a.u, 1, a.u, 1});
  part.block = a.block, part.want = FOVEA_X_SUMMARY_SUM;
  program.run(part);
  return y;
}

// (b, h, 1): how many of a head's sums hold its share.
[[gnu::noinline]] fovea_tensor count_share(Program& program, const Params& p, const Flex& a,
                                           const fovea_tensor& sums) {
  fovea_x_select_block_params part{};
  part.score = reshaped(sums, {a.b, a.h, 1, a.keys}, {sums.stride[0], sums.stride[1], 0, 1});
  part.index_count = program.array(FOVEA_I32, {a.b, a.h, 1});
  part.key_len = p.key_len, part.query_max = 1, part.key_max = a.keys, part.block_keys = 1;
  part.rule = FOVEA_X_SELECT_RULE_TOP_P_GT, part.cover = p.cover;
  program.run(part);
  return part.index_count;
}

// Means of blocks, in f32.
[[gnu::noinline]] fovea_tensor means(Program& program, const fovea_tensor& x,
                                     const fovea_tensor& table, const fovea_tensor& len,
                                     int64_t block, int64_t most, int64_t blocks) {
  fovea_x_pool_forward_params part{};
  part.x = x, part.page_table = table, part.key_len = len;
  part.key_max = most, part.block = block;
  const int64_t b = table.data ? table.shape[0] : x.shape[0];
  part.y = program.array(FOVEA_F32, {b, blocks, x.shape[2], x.shape[3]});
  program.run(part);
  return part.y;
}

// (b): how many key blocks a sequence has.
[[gnu::noinline]] fovea_tensor count_blocks(Program& program, const Params& p, const Flex& a) {
  fovea_x_select_block_params part{};
  part.index_count = program.array(FOVEA_I32, {a.b, 1, 1});
  part.key_len = p.key_len, part.query_max = 1, part.key_max = a.keys;
  part.block_keys = static_cast<int32_t>(a.block);
  part.rule = FOVEA_X_SELECT_RULE_NONE, part.force_first = a.u;
  program.run(part);
  return reshaped(part.index_count, {a.b}, {1});
}

// (b, h): how far the probabilities of mean rows and mean keys are from the probed ones.
[[gnu::noinline]] fovea_tensor guess(Program& program, const Params& p, const Flex& a,
                                     const fovea_tensor& column) {
  fovea_x_probe_forward_params part{};
  part.q = means(program, from(p.q, 1, a.s - a.last), {}, {}, a.last, a.last, 1), part.k = column;
  if (p.key_len.data) part.key_len = count_blocks(program, p, a);
  part.scale = p.scale, part.column_sum = program.array(FOVEA_F32, {a.b, a.h, a.u});
  program.run(part);
  return part.column_sum;
}
[[gnu::noinline]] fovea_tensor compare(Program& program, const Flex& a, const fovea_tensor& probed,
                                       const fovea_tensor& guessed) {
  fovea_x_compare_forward_params part{};
  part.reference = reshaped(probed, {a.b, 1, a.h, a.u}, {a.h * a.u, 0, a.u, 1});
  part.candidate = reshaped(guessed, {1, a.b, 1, a.h, a.u}, {0, a.h * a.u, 0, a.u, 1});
  part.distance = program.array(FOVEA_F32, {1, a.b, a.h});
  part.measure = FOVEA_X_COMPARE_JSD;
  program.run(part);
  return reshaped(part.distance, {a.b, a.h}, {a.h, 1});
}

// What a head may choose: numbers of key blocks and of distances; mask, see FlexBudget.
struct Budget {
  fovea_tensor vertical, slash, mask;  // (b, h)
};

[[gnu::noinline]] Budget budget(Program& program, const Params& p, const Flex& a,
                                const fovea_tensor& distance, const fovea_tensor& keys,
                                const fovea_tensor& distances) {
  const Budget to{program.array(FOVEA_I32, {a.b, a.h}), program.array(FOVEA_I32, {a.b, a.h}),
                  program.array(FOVEA_U8, {a.b, a.h})};
  FlexBudget part{};
  part.sequences.key_len = int_vector(p.key_len), part.sequences.count = a.b;
  part.sequences.capacity = part.sequences.key_max = a.keys;
  part.distance = view_of<2>(distance), part.keys = view_of<2>(keys);
  part.distances = view_of<2>(distances), part.vertical = view_of<2>(to.vertical);
  part.slash = view_of<2>(to.slash), part.mask = view_of<2>(to.mask);
  part.b = a.b, part.h = a.h, part.block = a.block, part.dense_keys = a.dense_keys;
  const auto blocks = [&](int64_t budget) {
    return static_cast<int32_t>(std::min<int64_t>(ceil_of(budget, a.block), INT32_MAX));
  };
  part.least = blocks(p.min_budget), part.most = p.max_budget ? blocks(p.max_budget) : INT32_MAX;
  part.threshold = p.threshold;
  program.run(choose("x_flex_budget", program.context(), part, flex_budget_host,
                     FOVEA_CUDA_KERNELS(flex_budget_simt)));
  return to;
}

// Entries of a head, and how many.
struct List {
  fovea_tensor index, count;
};

// `count` of a head's blocks, the first among them.
[[gnu::noinline]] List choose_lines(Program& program, const Params& p, const Flex& a,
                                    const fovea_tensor& sums, const fovea_tensor& count) {
  fovea_x_select_block_params part{};
  part.score = sums, part.count_head = count;
  part.index = program.array(FOVEA_I32, {a.b, a.h, 1, a.u});
  part.index_count = program.array(FOVEA_I32, {a.b, a.h, 1});
  part.key_len = p.key_len, part.query_max = 1, part.key_max = a.keys;
  part.block_keys = static_cast<int32_t>(a.block);
  part.force_first = 1, part.forced_count = 1;
  program.run(part);
  return {reshaped(part.index, {a.b, a.h, a.u}, {a.h * a.u, a.u, 1}),
          reshaped(part.index_count, {a.b, a.h}, {a.h, 1})};
}

// (b, h, n, bytes): the key blocks on the lines.
[[gnu::noinline]] fovea_tensor draw_lines(Program& program, const Params& p, const Flex& a,
                                          const List& vertical, const List& slash) {
  fovea_x_select_line_params part{};
  part.vertical = vertical.index, part.vertical_count = vertical.count;
  part.slash = slash.index, part.slash_count = slash.count;
  part.bits_out = program.array(FOVEA_U8, {a.b, a.h, a.n, ceil_of(a.u, 8)});
  part.key_len = p.key_len, part.query_max = a.s, part.key_max = a.keys, part.in_blocks = 1;
  part.block_rows = part.block_keys = static_cast<int32_t>(a.block);
  program.run(part);
  return part.bits_out;
}

// What the lists of row blocks are written by.
fovea_x_select_block_params lists_of(Program& program, const Params& p, const Flex& a) {
  fovea_x_select_block_params part{};
  part.index = program.output(p.index, FOVEA_I32, {a.b, a.h, a.n, a.keep});
  part.index_count = program.output(p.index_count, FOVEA_I32, {a.b, a.h, a.n});
  part.key_len = p.key_len, part.query_max = a.s, part.key_max = a.keys, part.causal = 1;
  part.block_rows = part.block_keys = static_cast<int32_t>(a.block);
  return part;
}

// The blocks on the lines, and of block-sparse heads those of the largest pooled values.
[[gnu::noinline]] List choose_blocks(Program& program, const Params& p, const Flex& a,
                                     const fovea_tensor& column, const fovea_tensor& bits,
                                     const fovea_tensor& mask) {
  auto part = lists_of(program, p, a);
  part.row = means(program, p.q, {}, {}, a.block, a.s, a.n), part.column = column;
  part.forced = bits;
  part.block_mask = reshaped(mask, {a.b, a.h, a.n, bits.shape[3]}, {a.h, 1, 0, 0});
  part.scale = p.scale, part.normalise = FOVEA_X_SELECT_NORMALISE_SOFTMAX;
  part.scope = FOVEA_X_SELECT_SCOPE_HEAD, part.rule = FOVEA_X_SELECT_RULE_TOP_P_UNDER;
  part.cover = p.cover, part.force_own = 1;
  program.run(part);
  return {part.index, part.index_count};
}

// All key blocks that a row block sees.
[[gnu::noinline]] void list_all(Program& program, const Params& p, const Flex& a) {
  auto part = lists_of(program, p, a);
  part.rule = FOVEA_X_SELECT_RULE_NONE, part.force_first = a.u;
  // Columns of keys that there are not: key_max 0 is not that.
  if (!a.keys) part.column_forced = program.array(FOVEA_U8, {a.b, a.h, 0});
  program.run(part);
}

[[gnu::noinline]] List choose_lists(Program& program, const Params& p, const Flex& a) {
  Sums sums = probe(program, p, a);
  sums.block_spaces = sum_distances(program, a, sums.distances);
  const fovea_tensor keys = count_share(program, p, a, sums.keys);
  const fovea_tensor distances = count_share(program, p, a, sums.distances);
  const fovea_tensor column = means(program, p.k, p.page_table, p.key_len, a.block, a.keys, a.u);
  const fovea_tensor apart = compare(program, a, sums.block_keys, guess(program, p, a, column));
  const Budget of = budget(program, p, a, apart, keys, distances);
  const List vertical = choose_lines(program, p, a, sums.block_keys, of.vertical);
  const List slash = choose_lines(program, p, a, sums.block_spaces, of.slash);
  return choose_blocks(program, p, a, column, draw_lines(program, p, a, vertical, slash), of.mask);
}

void body(Program& program, const Params& p) {
  const Flex a = read_flex(p);
  fovea_x_sparse_forward_params part{};
  part.q = p.q, part.k = p.k, part.v = p.v, part.o = p.o, part.lse = p.lse;
  part.key_len = p.key_len, part.page_table = p.page_table, part.key_max = p.key_max;
  part.scale = p.scale, part.causal = 1;
  if (!a.dense) {
    const List lists = choose_lists(program, p, a);
    part.index = lists.index, part.index_count = lists.count;
    part.block_rows = part.block_keys = static_cast<int32_t>(a.block);
  } else if (p.index.data && a.any) {
    list_all(program, p, a);
  }
  program.run(part);
}

}  // namespace

Plan plan(const Context& ctx, const Params& p) {
  return compose(kOp, ctx, p, body);
}

}  // namespace fovea
