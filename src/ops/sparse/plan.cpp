// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "core/fields.h"
#include "core/plans.h"
#include "ops/sparse/kernels.h"

namespace fovea {
namespace {

constexpr char kForward[] = "x_sparse_forward";
constexpr char kBackward[] = "x_sparse_backward";

template <class P>
constexpr bool kIsForward = requires(P p) {
  p.column;
};

void check_block(const char* op, const char* field, int64_t value, int64_t most, bool wanted,
                 const char* why) {
  if (wanted ? value >= 1 && value <= most : value == 0) return;
  refuse("%s: %s is %lld, wanted %s%lld%s", op, field, lld(value), wanted ? "1 .. " : "",
         wanted ? lld(most) : 0LL, wanted ? "" : why);
}

// Which lists need which others, and the sizes of blocks.
template <class P>
void check_list(const char* op, const P& p, bool listed) {
  check_needs(op, p.index_count, "index_count", p.index, "index");
  check_needs(op, p.key_begin, "key_begin", p.index, "index");
  check_needs(op, p.tile, "tile", p.index, "index");
  check_together(op, p.tile, "tile", p.tile_bits, "tile_bits");
  if (p.row_begin.data && !listed)
    refuse("%s: row_begin is given without a list, wanted index too", op);
  for (const auto& [x, name] : {std::pair{&p.row_begin, "row_begin"}, {&p.key_begin, "key_begin"}})
    for (const auto& [y, other] : {std::pair{&p.query_start, "query_start"}, {&p.tile, "tile"}})
      if (x->data && y->data)
        refuse("%s: %s is given with %s, wanted one of them", op, name, other);
  check_block(op, "block_rows", p.block_rows, kListRowsMost, listed && !p.row_begin.data,
              p.row_begin.data ? " with row_begin" : " without a list");
  const bool blocks = p.index.data && !p.key_begin.data;
  const char* none = p.key_begin.data ? " with key_begin" : " without index";
  check_block(op, "block_keys", p.block_keys, kListKeysMost, blocks, none);
  if (p.entry_keys) check_block(op, "entry_keys", p.entry_keys, p.block_keys, blocks, none);
  check_not_negative(op, "first_keys", p.first_keys);
  check_not_negative(op, "last_keys", p.last_keys);
  for (const auto& [x, name] : {std::pair{p.first_keys, "first_keys"}, {p.last_keys, "last_keys"}})
    if (x && !listed)
      refuse("%s: %s is %lld without a list, wanted 0: every key is seen", op, name, lld(x));
  if (!p.tile.data) return;
  if (p.tile_bits.shape[1] != p.block_rows)
    refuse("%s: tile_bits.shape[1] (tile_rows) is %lld, wanted block_rows = %d", op,
           lld(p.tile_bits.shape[1]), p.block_rows);
  if (p.tile_bits.shape[2] != (p.block_keys + 7) / 8)
    refuse("%s: tile_bits.shape[2] (tile_bytes) is %lld, wanted %d: a bit for each of %d keys", op,
           lld(p.tile_bits.shape[2]), (p.block_keys + 7) / 8, p.block_keys);
}

// `heads`: the tensor that says how many heads have a list, nullptr: none does.
template <class P>
SparseList read_list(const char* op, const P& p, const Attend& a, const fovea_tensor* heads) {
  SparseList list{};
  list.index = view_of<4>(p.index), list.index_count = view_of<3>(p.index_count);
  list.row_begin = view_of<3>(p.row_begin), list.key_begin = view_of<3>(p.key_begin);
  list.tile = view_of<4>(p.tile), list.tile_bits = view_of<3>(p.tile_bits);
  list.keep = p.index.shape[3], list.u = p.key_begin.shape[2] - 1;
  list.tiles = p.tile_bits.shape[0];
  list.block_rows = p.block_rows, list.block_keys = p.block_keys;
  list.entry_keys = p.entry_keys ? p.entry_keys : p.block_keys;
  constexpr int64_t all = int64_t{1} << 48;  // leaves room for sums
  list.first_keys = std::min(all, p.first_keys), list.last_keys = std::min(all, p.last_keys);
  if constexpr (kIsForward<P>) {
    list.index_bias = view_of<4>(p.index_bias);
    list.column = view_of<4>(p.column), list.column_count = view_of<3>(p.column_count);
    list.columns = p.column.shape[3];
  }
  list.x = heads ? heads->shape[1] : 1, list.group = 1;
  if (a.h && (!list.x || a.h % list.x))
    refuse("%s: the lists have %lld heads (x), wanted a divisor of q's %lld heads", op, lld(list.x),
           lld(a.h));
  if (list.x) list.group = a.h / list.x;
  check_list(op, p, list.listed());
  if (!list.listed()) return list;

  list.n = heads->shape[2];
  if (list.row_begin) return list;
  const bool packed = p.query_start.data != nullptr;
  const int64_t blocks = packed ? a.s / list.block_rows + a.sequences.count
                                : a.s / list.block_rows + (a.s % list.block_rows != 0);
  const int64_t wanted = list.block_rows == 1 ? a.s : blocks;
  if (list.n < wanted)
    refuse(
        "%s: the lists have %lld rows (n), wanted at least %lld: %lld rows of q in blocks of %d%s",
        op, lld(list.n), lld(wanted), lld(a.s), p.block_rows,
        packed && list.block_rows > 1 ? ", and one more for each sequence" : "");
  return list;
}

// What forward and backward share.
template <class P>
Attend shared(const char* op, const P& p, const fovea_tensor& table) {
  Attend a{};
  read_operands(a, op, p, p.v, "v");
  read_sequences(a, op, p);
  place_keys(a.sequences, op, "k", p.k, table, p.key_max);
  a.columns = a.sequences.capacity;
  a.mask.window = read_window(op, p);
  read_sinks(a.mask.window, op, p);
  read_score(a, op, p);
  return a;
}

SparseAttend resolve(const fovea_x_sparse_forward_params& p) {
  SparseAttend call{};
  Attend& a = call.attend = shared(kForward, p, p.page_table);
  read_axis(a, kForward, p);
  read_codes(a, kForward, p, p.v);
  a.sequences.cache_row = int_vector(p.cache_row);
  if (p.key_start.data && p.cache_row.data)
    refuse("%s: key_start is given with cache_row, wanted one of them", kForward);
  if (p.key_start.data && p.page_table.data)
    refuse("%s: key_start is given with page_table, wanted one of them", kForward);
  if (p.q_value.data) {
    a.q_value = view_of<4>(p.q_value);
    if (p.scale == 0)
      a.score.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(a.d + a.e)));
  }
  check_not_negative(kForward, "splits", p.splits);
  a.splits = p.splits;
  check_needs(kForward, p.column_count, "column_count", p.column, "column");
  check_needs(kForward, p.index_bias, "index_bias", p.index, "index");
  const fovea_tensor* heads = p.index.data    ? &p.index
                              : p.column.data ? &p.column
                              : p.mass.data   ? &p.mass
                                              : nullptr;
  call.list = read_list(kForward, p, a, heads);
  if (p.index_bias.data && p.block_keys != 1)
    refuse("%s: index_bias is given with block_keys = %d, wanted 1: a bias for each key", kForward,
           p.block_keys);
  if (p.q_value.data && p.head_map.data)
    refuse("%s: q_value is given with head_map, wanted one of them", kForward);
  call.head_map = view_of<2>(p.head_map), call.skip_head = int_vector(p.skip_head);
  call.mass = view_of<3>(p.mass), call.skipped = static_cast<int64_t*>(p.skipped.data);
  check_number(kForward, "skip_margin", p.skip_margin, "nothing skipped");
  call.skip_margin = p.skip_margin;
  if (p.skip_margin > 0 && p.splits > 1)
    refuse("%s: splits is %d with skip_margin, wanted 0 or 1", kForward, p.splits);
  if (!a.sequences.query_max) a.sequences.count = 0;  // nothing is each sequence's own
  return call;
}

SparseBackward resolve(const fovea_x_sparse_backward_params& p) {
  SparseBackward call{};
  AttendBackward& b = call.attend;
  b.forward = shared(kBackward, p, fovea_tensor{});
  call.list = read_list(kBackward, p, b.forward, p.index.data ? &p.index : nullptr);
  b.dout = view_of<4>(p.dout), b.dlse = view_of<3>(p.dlse);
  b.dq = gradient_view(p.dq), b.dk = gradient_view(p.dk), b.dv = gradient_view(p.dv);
  b.dsink_logit = gradient_of<1>(p.dsink_logit);
  if (!b.forward.sequences.query_max && !b.dk && !b.dv)
    b.forward.sequences.count = 0;  // nothing is each sequence's own
  const SparseList& list = call.list;
  const bool unlisted = list.listed() && !list.n && !list.first_keys && !list.last_keys;
  if ((!b.forward.s || (unlisted && !b.dq)) && !b.dsink_logit)
    b.forward.h = 0;  // nothing is each head's own
  check_flag(kBackward, "nondeterministic", p.nondeterministic);
  b.nondeterministic = p.nondeterministic != 0;
  check_needs(kBackward, p.dsink_logit, "dsink_logit", p.sink_logit, "sink_logit");
  return call;
}

// The fields that attention.h has too.
template <class To, class P>
To dense_params(const P& p) {
  To to{};
  to.struct_size = sizeof(To);
  to.q = p.q, to.k = p.k, to.v = p.v, to.o = p.o, to.lse = p.lse;
  to.query_start = p.query_start, to.key_start = p.key_start;
  to.query_len = p.query_len, to.key_len = p.key_len;
  to.sink_logit = p.sink_logit;
  to.query_max = p.query_max, to.key_max = p.key_max;
  to.window_left = p.window_left, to.window_right = p.window_right, to.sink_keys = p.sink_keys;
  to.scale = p.scale, to.softcap = p.softcap, to.causal = p.causal;
  return to;
}

}  // namespace

Plan plan(const Context& ctx, const fovea_x_sparse_forward_params& p) {
  const SparseAttend call = resolve(p);
  if (!call.list.listed() && !call.head_map && !call.skip_head && !call.mass && !call.skipped &&
      call.skip_margin == 0) {
    auto dense = dense_params<fovea_attention_forward_params>(p);
    dense.q_value = p.q_value, dense.page_table = p.page_table, dense.cache_row = p.cache_row;
    dense.k_scale = p.k_scale, dense.v_scale = p.v_scale, dense.context_len = p.context_len;
    dense.key_step = p.key_step, dense.key_shift = p.key_shift, dense.splits = p.splits;
    return plan(ctx, dense);
  }
  return choose(kForward, ctx, call, x_sparse_forward_host,
                FOVEA_CUDA_KERNELS(x_sparse_forward_sm90, x_sparse_columns_sm90, x_sparse_wide_sm90,
                                   x_sparse_forward_sm80, x_sparse_forward_simt));
}

Plan plan(const Context& ctx, const fovea_x_sparse_backward_params& p) {
  const SparseBackward call = resolve(p);
  if (!call.list.listed()) {
    auto dense = dense_params<fovea_attention_backward_params>(p);
    dense.dout = p.dout, dense.dlse = p.dlse;
    dense.dq = p.dq, dense.dk = p.dk, dense.dv = p.dv, dense.dsink_logit = p.dsink_logit;
    dense.nondeterministic = p.nondeterministic;
    return plan(ctx, dense);
  }
  return choose(kBackward, ctx, call, x_sparse_backward_host,
                FOVEA_CUDA_KERNELS(x_sparse_backward_sm90, x_sparse_backward_simt));
}

}  // namespace fovea
