// SPDX-License-Identifier: Apache-2.0
#include "cuda/loop/backward_rows.cuh"

#include "core/dtype.h"
#include "core/pieces.h"
#include "core/reasons.h"
#include "cuda/loop/zero.cuh"

namespace fovea::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

// delta = <dout, o> - dlse; a warp owns a row.
__global__ void __launch_bounds__(kThreads)
    delta_kernel(const __grid_constant__ BackwardSimt b, int64_t work) {
  const Attend& a = b.call.forward;
  const int lane = threadIdx.x % 32;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t w = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; w < work;
       w += stride) {
    const int64_t h = w % a.h, i = w / a.h % a.sequences.query_max;
    const Sequence seq = a.sequences[w / a.h / a.sequences.query_max];
    if (i >= seq.rows) continue;
    const int64_t o = row_offset(seq, i, h, a.o.stride);
    const int64_t dout = row_offset(seq, i, h, b.call.dout.stride);
    float sum = 0;
    for (int64_t c = lane; c < a.e; c += 32)
      sum += load_float(a.o.data, a.o_dtype, o + c * a.o.stride[3]) *
             load_float(b.call.dout.data, a.o_dtype, dout + c * b.call.dout.stride[3]);
    sum = lanes_sum<32>(sum);
    const View<3>& dlse = b.call.dlse;
    if (dlse) sum -= dlse.as()[lse_offset(seq, i, h, dlse.stride)];
    if (lane == 0) b.delta[row_stats_offset(a, seq, h, i)] = sum;
  }
}

// dalibi and dsink_logit: a block owns an element and sums its rows over `sequences` x `heads`,
// from its own (r, h) on.
struct RowSums {
  View<2> out;                  // (r, h)
  int64_t sequences, heads;     // what an element sums over
  int64_t own_heads, elements;  // distinct elements
};

template <bool Epilogue>
__global__ void __launch_bounds__(kThreads)
    row_sums_kernel(const __grid_constant__ BackwardSimt b, const __grid_constant__ RowSums sums) {
  __shared__ double s_sum[kWarps];
  const Attend& a = b.call.forward;
  for (int64_t w = blockIdx.x; w < sums.elements; w += gridDim.x) {
    const int64_t r0 = w / sums.own_heads, h0 = w % sums.own_heads;
    double sum = 0;
    for (int64_t r = r0; r < r0 + sums.sequences; ++r) {
      const Sequence seq = a.sequences[r];
      for (int64_t h = h0; h < h0 + sums.heads; ++h)
        for (int64_t i = threadIdx.x; i < seq.rows; i += kThreads) {
          const int64_t at = row_stats_offset(a, seq, h, i);
          if (!Epilogue) {
            sum += b.row_alibi[at];
            continue;
          }
          const float lse = a.lse.as()[lse_offset(seq, i, h, a.lse.stride)];
          if (lse != -INFINITY) sum -= expf(sink_logit(a.score, h) - lse) * b.delta[at];
        }
    }
    sum = block_sum<kThreads>(sum, s_sum);
    if (threadIdx.x == 0)
      sums.out.as()[r0 * sums.out.stride[0] + h0 * sums.out.stride[1]] = static_cast<float>(sum);
  }
}

template <bool Epilogue>
void launch_row_sums(Context& ctx, const char* op, const BackwardSimt& b, View<2> out) {
  const Attend& a = b.call.forward;
  const bool over_r = !out.stride[0], over_h = !out.stride[1];
  if (!a.h) return;
  const int64_t count = a.sequences.count;
  RowSums sums{out, over_r ? count : 1, over_h ? a.h : 1, over_h ? 1 : a.h, 0};
  sums.elements = (over_r ? 1 : count) * sums.own_heads;
  launch<row_sums_kernel<Epilogue>>(ctx, op, sums.elements, kThreads, 0, b, sums);
}

}  // namespace

Text gradients_refuse(const AttendBackward& call) {
  const Attend& a = call.forward;
  const Sequences& q = a.sequences;
  const int64_t rows[3] = {a.b, a.s, a.h}, keys[3] = {q.key_start ? 1 : q.count, a.t, a.g};
  const auto fits = [](const GradientView& x, const int64_t(&extent)[3]) {
    return !x || in_pieces(x, extent, 16 / dtype_bytes(x.dtype));
  };
  if (!fits(call.dq, rows)) return reason_rows("dq");
  if (!fits(call.dk, keys)) return reason_rows("dk");
  if (!fits(call.dv, keys)) return reason_rows("dv");
  return "";
}

void clear_gradients(Context& ctx, const char* op, const AttendBackward& call) {
  const Attend& a = call.forward;
  const int64_t key_b = a.sequences.key_start ? 1 : a.sequences.count;
  if (!ragged(a)) return;
  if (call.dq) zero(ctx, op, call.dq, call.dq.dtype, {a.b, a.s, a.h, a.d});
  if (call.dk) zero(ctx, op, call.dk, call.dk.dtype, {key_b, a.t, a.g, a.d});
  if (call.dv) zero(ctx, op, call.dv, call.dv.dtype, {key_b, a.t, a.g, a.e});
}

void row_deltas(Context& ctx, const char* op, const BackwardSimt& b) {
  const Attend& a = b.call.forward;
  const int64_t rows = a.sequences.count * a.sequences.query_max * a.h;
  launch<delta_kernel>(ctx, op, ceil_div(rows, kWarps), kThreads, 0, b, rows);
}

void sum_alibi(Context& ctx, const char* op, const BackwardSimt& b) {
  if (b.call.dalibi && b.call.forward.sequences.count)
    launch_row_sums<false>(ctx, op, b, b.call.dalibi);
}

void sum_sinks(Context& ctx, const char* op, const BackwardSimt& b) {
  const View<1>& to = b.call.dsink_logit;
  if (to) launch_row_sums<true>(ctx, op, b, {to.data, {0, to.stride[0]}});
}

}  // namespace fovea::cuda
