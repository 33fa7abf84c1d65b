// SPDX-License-Identifier: Apache-2.0
// Far keys are two parts: listed blocks below block_len, and the remainder, which key_first begins.
// key_shift = window hides from both what the window has.
#include "core/fields.h"
#include "core/list_rows.h"
#include "core/merge_parts.h"

namespace fovea {
namespace {

constexpr char kOp[] = "x_infllm_forward";
using Params = fovea_x_infllm_forward_params;

// The numbers of a call.
struct Memory {
  int64_t b, s, h;
  int64_t window, keys, block_rows, n;  // keys of a block, rows of a list row, list rows
  int64_t first, count, keep;           // blocks: of init_keys, of a list, entries it has room for
  bool any;                             // there are sequences, rows and heads
};

Memory read_memory(const Params& p) {
  if (p.block_keys < 0 || p.block_keys > kListKeysMost)
    refuse("%s: block_keys is %d, wanted 1 .. %lld, or 0 for 128", kOp, p.block_keys,
           lld(kListKeysMost));
  if (p.window < 0 || p.window > INT32_MAX)
    refuse("%s: window is %lld, wanted 1 .. 2^31 - 1, or 0 for 4096", kOp, lld(p.window));
  check_not_negative(kOp, "init_keys", p.init_keys);
  check_not_negative(kOp, "count", p.count);
  check_needs(kOp, p.index_count, "index_count", p.index, "index");
  Memory a{};
  a.b = p.q.shape[0], a.s = p.q.shape[1], a.h = p.q.shape[2];
  const int64_t heads = p.representative.shape[2];
  if (a.h && (!heads || a.h % heads))
    refuse("%s: representative.shape[2] is %lld, wanted a divisor of q's %lld heads", kOp,
           lld(heads), lld(a.h));
  a.window = p.window ? p.window : 4096, a.keys = p.block_keys ? p.block_keys : 128;
  if (p.init_keys % a.keys)
    refuse("%s: init_keys is %lld, wanted a multiple of block_keys = %lld", kOp, lld(p.init_keys),
           lld(a.keys));
  a.block_rows = a.s == 1 ? 1 : kListRowsMost, a.n = ceil_of(a.s, a.block_rows);
  const int64_t u = p.representative.shape[1], count = p.count ? p.count : 16;
  a.first = std::min(u, p.init_keys / a.keys);
  a.count = a.first + std::min(u - a.first, count);
  a.keep = p.index.data ? p.index.shape[1] : a.count;
  a.any = a.b && a.s && a.h;
  return a;
}

// x (b, entries) or (b) as the list of n list rows of one list head; without them x may be empty.
fovea_tensor as_list(const fovea_tensor& x, int64_t b, int64_t heads, int64_t n) {
  fovea_tensor y = x;
  y.ndim = x.ndim + 2;
  y.shape[0] = b, y.shape[1] = heads, y.stride[1] = 0, y.shape[2] = n, y.stride[2] = 0;
  if (x.ndim == 2) y.shape[3] = x.shape[1], y.stride[3] = x.stride[1];
  return y;
}

// x (b, h, t) as (b, h, 1, t).
fovea_tensor by_key(const fovea_tensor& x) {
  return reshaped(x, {x.shape[0], x.shape[1], 1, x.shape[2]},
                  {x.stride[0], x.stride[1], x.stride[1], x.stride[2]});
}

struct List {
  fovea_tensor index, count;  // (b, keep), (b)
};

// One list a sequence: the blocks of init_keys, and the best by the mean query.
[[gnu::noinline]] List choose(Program& program, const Params& p, const Memory& a) {
  const int64_t lists = a.any ? a.b : 0;
  const List list{program.output(p.index, FOVEA_I32, {lists, a.keep}),
                  program.output(p.index_count, FOVEA_I32, {lists})};
  if (!a.any) return list;
  fovea_x_pool_forward_params mean{};
  mean.x = p.q_far, mean.key_len = p.query_len, mean.block = a.s;
  mean.y = program.array(FOVEA_F32, {a.b, 1, a.h, p.q.shape[3]});
  program.run(mean);
  fovea_x_select_block_params part{};
  part.row = mean.y, part.column = Program::given(p.representative);
  part.query_len = p.query_len, part.key_len = p.block_len;
  part.index = as_list(list.index, a.b, 1, 1), part.index_count = as_list(list.count, a.b, 1, 1);
  part.count = a.count, part.force_first = a.first, part.forced_count = 1;
  part.scale = 1, part.reduce = FOVEA_X_SELECT_REDUCE_SUM;
  part.query_max = a.s, part.block_rows = static_cast<int32_t>(a.s);
  part.block_keys = static_cast<int32_t>(a.keys);
  program.run(part);
  return list;
}

// What the branches share.
template <class To>
To branch(const Params& p, const fovea_tensor& q, const fovea_tensor& k) {
  To to{};
  to.q = q, to.k = k, to.v = p.v;
  to.query_len = p.query_len, to.key_len = p.key_len, to.page_table = p.page_table;
  to.scale = p.scale, to.causal = 1;
  return to;
}

[[gnu::noinline]] void attend_window(Program& program, const Params& p, const Memory& a,
                                     const fovea_tensor& o, const fovea_tensor& lse) {
  auto part = branch<fovea_attention_forward_params>(p, p.q, p.k_window);
  part.o = o, part.lse = lse, part.window_left = a.window;
  program.run(part);
}

[[gnu::noinline]] void attend_remainder(Program& program, const Params& p, const Memory& a,
                                        const fovea_tensor& o, const fovea_tensor& lse) {
  auto part = branch<fovea_attention_forward_params>(p, p.q_far, p.k);
  part.o = o, part.lse = lse, part.key_first = p.block_len, part.key_shift = a.window;
  program.run(part);
}

[[gnu::noinline]] void attend_blocks(Program& program, const Params& p, const Memory& a,
                                     const List& list, const fovea_tensor& o,
                                     const fovea_tensor& lse) {
  auto part = branch<fovea_x_sparse_forward_params>(p, p.q_far, p.k);
  part.o = o, part.lse = lse, part.key_shift = a.window;
  part.key_len = p.block_len, part.context_len = p.key_len;
  const int64_t heads = a.h ? 1 : 0;
  part.index = as_list(list.index, a.b, heads, a.n);
  part.index_count = as_list(list.count, a.b, heads, a.n);
  part.block_rows = static_cast<int32_t>(a.block_rows);
  part.block_keys = static_cast<int32_t>(a.keys);
  program.run(part);
}

[[gnu::noinline]] fovea_tensor sum_window(Program& program, const Params& p, const Memory& a,
                                          const fovea_tensor& lse) {
  fovea_x_probe_forward_params part{};
  part.q = p.q, part.k = p.k_window, part.lse_in = lse;
  part.query_len = p.query_len, part.key_len = p.key_len, part.page_table = p.page_table;
  part.window_left = a.window, part.scale = p.scale, part.causal = 1;
  part.column_sum = program.array(FOVEA_F32, {a.b, a.h, p.local_score.shape[2]});
  program.run(part);
  return part.column_sum;
}

[[gnu::noinline]] void add_score(Program& program, const Params& p, const fovea_tensor& sum) {
  fovea_x_combine_forward_params part{};
  part.x = part.y = by_key(p.local_score), part.x2 = by_key(sum);
  program.run(part);
}

void body(Program& program, const Params& p) {
  const Memory a = read_memory(p);
  const fovea_tensor o = program.array(FOVEA_F32, {3, a.b, a.s, a.h, p.v.shape[3]});
  const fovea_tensor lse = program.array(FOVEA_F32, {3, a.b, a.h, a.s});
  attend_window(program, p, a, entry(o, 0), entry(lse, 0));
  attend_blocks(program, p, a, choose(program, p, a), entry(o, 1), entry(lse, 1));
  attend_remainder(program, p, a, entry(o, 2), entry(lse, 2));
  if (!a.any) return;  // o and lse have no element, and nothing is added
  const fovea_tensor all = merge_parts(program, p, o, lse, p.local_score.data);
  if (p.local_score.data) add_score(program, p, sum_window(program, p, a, all));
}

}  // namespace

Plan plan(const Context& ctx, const Params& p) {
  return compose(kOp, ctx, p, body);
}

}  // namespace fovea
