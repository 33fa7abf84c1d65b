// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "core/fields.h"
#include "core/list_fields.h"
#include "core/plans.h"
#include "ops/sparse/kernels.h"

namespace fovea {
namespace {

constexpr char kForward[] = "x_sparse_forward";
constexpr char kBackward[] = "x_sparse_backward";

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
