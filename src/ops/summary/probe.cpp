// SPDX-License-Identifier: Apache-2.0
#include "ops/summary/probe.h"

#include <cmath>

#include "core/fields.h"

namespace fovea {
namespace {

constexpr char kOp[] = "x_probe_forward";

void check_groups(const fovea_x_probe_forward_params& p, ProbeCall& c, int64_t rows, int64_t keys) {
  const char* op = kOp;
  if (p.group_stride < 0 || p.group_stride > (int64_t{1} << 20))
    refuse("%s: group_stride is %lld, wanted 1 .. 2^20, or 0 for 1", op, lld(p.group_stride));
  c.stride = p.group_stride ? p.group_stride : 1;
  check_flag(op, "reversed", p.reversed);
  if (c.stride == 1) {
    if (p.reversed) refuse("%s: reversed is 1 without group_stride, wanted 0", op);
    return;
  }
  c.reversed = p.reversed;
  if (rows % c.stride || keys % c.stride)
    refuse("%s: group_stride is %lld, wanted a divisor of block_rows = %lld and block_keys = %lld",
           op, lld(c.stride), lld(rows), lld(keys));
  for (const char* word :
       {p.lse.data ? "lse" : "", p.lse_in.data ? "lse_in" : "",
        p.column_sum.data ? "column_sum" : "", p.diagonal_sum.data ? "diagonal_sum" : "",
        p.query_position.data ? "query_position" : "", p.window_left ? "window_left" : "",
        p.window_right ? "window_right" : "", p.key_step ? "key_step" : "",
        p.key_shift ? "key_shift" : ""})
    if (*word) refuse("%s: %s is given with group_stride, wanted it absent", op, word);
}

int64_t read_block(const char* field, int32_t value) {
  if (value < 0) refuse("%s: %s is %d, wanted >= 1, or 0 for 64", kOp, field, value);
  return value ? value : 64;
}

void read_outputs(const fovea_x_probe_forward_params& p, ProbeCall& c) {
  const char* op = kOp;
  c.x = c.a.h;
  const char* name = "";
  for (const auto& [x, own] : {std::pair{&p.column_sum, "column_sum"},
                               {&p.diagonal_sum, "diagonal_sum"},
                               {&p.block_sum, "block_sum"},
                               {&p.block_max, "block_max"}})
    if (x->data) c.x = x->shape[1], name = own;
  if (c.a.h && (!c.x || c.a.h % c.x))
    refuse("%s: %s.shape[1] (x) is %lld, wanted a divisor of q's %lld heads", op, name, lld(c.x),
           lld(c.a.h));
  if (p.lse_in.data && p.lse.data) refuse("%s: lse is given with lse_in, wanted one of them", op);
  c.lse_in = view_of<3>(p.lse_in);
  c.column_sum = gradient_of<3>(p.column_sum), c.diagonal_sum = gradient_of<3>(p.diagonal_sum);
  c.block_sum = gradient_of<4>(p.block_sum), c.block_max = gradient_of<4>(p.block_max);
  c.columns = p.diagonal_sum.shape[2], c.a.columns = p.column_sum.shape[2];
  const fovea_tensor& blocks = p.block_sum.data ? p.block_sum : p.block_max;
  c.n = blocks.shape[2], c.u = blocks.shape[3];
  if (p.diagonal_sum.data && !c.a.mask.axis.by_index())
    refuse("%s: diagonal_sum is given with key_step = %lld and key_shift = %lld, wanted 1 and 0",
           op, lld(c.a.mask.axis.step), lld(c.a.mask.axis.shift));
  if (p.reduce < FOVEA_X_PROBE_REDUCE_SUM || p.reduce > FOVEA_X_PROBE_REDUCE_MAX)
    refuse("%s: reduce is %d, wanted a fovea_x_probe_reduce", op, p.reduce);
  c.reduce = p.reduce;
}

}  // namespace

Plan plan(const Context& ctx, const fovea_x_probe_forward_params& p) {
  const char* op = kOp;
  ProbeCall c{};
  Attend& a = c.a;
  a.q = view_of<4>(p.q), a.k = view_of<4>(p.k), a.lse = gradient_of<3>(p.lse);
  a.dtype = p.q.dtype;
  a.b = p.q.shape[0], a.s = p.q.shape[1], a.h = p.q.shape[2], a.d = p.q.shape[3];
  a.t = p.k.shape[1], a.g = p.k.shape[2];
  if (a.h && (!a.g || a.h % a.g))
    refuse("%s: k.shape[2] (g) is %lld, wanted a divisor of q's %lld heads: (b, s, h, d)", op,
           lld(a.g), lld(a.h));
  if (a.d < 1) refuse("%s: q.shape[3] (d) is %lld, wanted >= 1", op, lld(a.d));
  if (a.d > kWidthMax)
    fail(FOVEA_UNSUPPORTED, "%s: q.shape[3] (d) is %lld, wanted at most %lld", op, lld(a.d),
         lld(kWidthMax));
  if (p.key_start.data && (p.page_table.data || p.cache_row.data))
    refuse("%s: key_start is given with %s, wanted one of them", op,
           p.page_table.data ? "page_table" : "cache_row");
  read_sequences(a, op, p);
  place_keys(a.sequences, op, "k", p.k, p.page_table, p.key_max);
  a.sequences.cache_row = int_vector(p.cache_row);
  a.mask.window = read_window(op, p);
  read_sinks(a.mask.window, op, p);
  read_axis(a, op, p);
  a.mask.query_position = view_of<3>(p.query_position);
  if (p.query_position.data && p.context_len.data)
    refuse("%s: context_len is given with query_position, wanted one of them", op);
  const int64_t rows = read_block("block_rows", p.block_rows);
  const int64_t keys = read_block("block_keys", p.block_keys);
  check_groups(p, c, rows, keys);
  c.unit_rows = rows / c.stride, c.unit_keys = keys / c.stride, c.causal = p.causal;
  a.score.scale =
      read_scale(op, "scale", p.scale, a.d, "1 / sqrt(d)") / static_cast<float>(c.stride);
  read_outputs(p, c);
  const bool no_rows = !a.s || !a.sequences.query_max, no_keys = !a.sequences.key_max;
  if (no_rows || (no_keys && !a.lse)) a.h = c.x;  // nothing is each head's own
  return choose(op, ctx, c, probe_forward_host,
                FOVEA_CUDA_KERNELS(probe_forward_sm90, probe_forward_simt));
}

}  // namespace fovea
