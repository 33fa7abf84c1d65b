// SPDX-License-Identifier: Apache-2.0
// The portable kernel, for every valid attention_backward.  The preprocess makes delta of each row,
// the postprocess the ordered sums of dalibi and dsink_logit.
#include "ops/attention/backward_simt.cuh"

#include "core/dtype.h"
#include "cuda/loop/zero.cuh"
#include "ops/attention/backward_simt_bias.cuh"
#include "ops/attention/kernels.h"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "attention_backward";
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
void launch_row_sums(Context& ctx, const BackwardSimt& b, View<2> out) {
  const Attend& a = b.call.forward;
  const bool over_r = !out.stride[0], over_h = !out.stride[1];
  if (!a.h) return;
  const int64_t count = a.sequences.count;
  RowSums sums{out, over_r ? count : 1, over_h ? a.h : 1, over_h ? 1 : a.h, 0};
  sums.elements = (over_r ? 1 : count) * sums.own_heads;
  launch<row_sums_kernel<Epilogue>>(ctx, kOp, sums.elements, kThreads, 0, b, sums);
}

void launch_bias(Context& ctx, const BackwardSimt& b) {
  const Attend& a = b.call.forward;
  const Sequences& q = a.sequences;
  const int64_t* stride = b.call.dbias.stride;
  if (!q.count || !a.b || !a.s || !a.h || !a.columns) return;
  // Packed sequences are apart in rows, padded ones on the batch axis.
  const bool sums[4] = {q.query_start ? !stride[2] : !stride[0], !stride[1], !stride[2],
                        !stride[3]};
  const int64_t all[4] = {q.count, a.h, ceil_div(q.query_max, kStageTile),
                          ceil_div(a.columns, kStageTile)};
  BiasTiles grid{{}, {}, sums[2], sums[3]};
  for (int i = 0; i < 4; ++i)
    grid.own[i] = sums[i] ? 1 : all[i], grid.summed[i] = sums[i] ? all[i] : 1;
  launch<bias_simt_kernel>(ctx, kOp, grid.work(), kStageThreads, FmaTiles<4>::bytes(), b, grid);
}

void enqueue(Context& ctx, const BackwardSimt& b) {
  const AttendBackward& call = b.call;
  backward_preprocess(ctx, b);
  if (call.dq || call.dalibi) gradient_simt<Owner::dq>(ctx, kOp, b);
  if (call.dk) gradient_simt<Owner::dk>(ctx, kOp, b);
  if (call.dv) gradient_simt<Owner::dv>(ctx, kOp, b);
  backward_postprocess(ctx, b);
}

Text offer(const Context&, const AttendBackward& call, Plan& plan) {
  plan.kernel += Text(".") + dtype_name(call.forward.dtype);
  const BackwardSlots slots(plan.workspace, call);
  plan.launch = [=](Context& ctx, void* base) { enqueue(ctx, slots.at(base, call)); };
  return "";
}

}  // namespace

BackwardSlots::BackwardSlots(Layout& layout, const AttendBackward& call) {
  const int64_t rows = call.forward.b * call.forward.h * call.forward.s;
  delta = layout.add<float>(rows);
  alibi = layout.add<float>(call.dalibi ? rows : 0);
}

BackwardSimt BackwardSlots::at(void* base, const AttendBackward& call) const {
  const Attend& a = call.forward;
  return {call,
          operand_of(a.q, a.dtype, a.d),
          operand_of(a.k, a.dtype, a.d),
          operand_of(a.v, a.dtype, a.e),
          operand_of(call.dout, a.o_dtype, a.e),
          delta.at(base),
          alibi.at(base)};
}

void backward_clear(Context& ctx, const BackwardSimt& b) {
  const AttendBackward& call = b.call;
  const Attend& a = call.forward;
  if (!ragged(a)) return;
  const int64_t key_b = a.sequences.key_start ? 1 : a.sequences.count;
  if (call.dq) zero(ctx, kOp, call.dq, a.dtype, {a.b, a.s, a.h, a.d});
  if (call.dk) zero(ctx, kOp, call.dk, a.dtype, {key_b, a.t, a.g, a.d});
  if (call.dv) zero(ctx, kOp, call.dv, a.dtype, {key_b, a.t, a.g, a.e});
  if (call.dbias) zero(ctx, kOp, call.dbias, FOVEA_F32, {a.b, a.h, a.s, a.columns});
}

void backward_preprocess(Context& ctx, const BackwardSimt& b) {
  const Attend& a = b.call.forward;
  backward_clear(ctx, b);
  const int64_t rows = a.sequences.count * a.sequences.query_max * a.h;
  launch<delta_kernel>(ctx, kOp, ceil_div(rows, kWarps), kThreads, 0, b, rows);
}

void backward_row_alibi(Context& ctx, BackwardSimt b) {
  b.call.dq = {};
  gradient_simt<Owner::dq>(ctx, kOp, b);
}

void backward_postprocess(Context& ctx, const BackwardSimt& b) {
  const AttendBackward& call = b.call;
  if (call.dbias) launch_bias(ctx, b);
  if (call.dalibi && call.forward.sequences.count) launch_row_sums<false>(ctx, b, call.dalibi);
  if (call.dsink_logit)
    launch_row_sums<true>(ctx, b, {call.dsink_logit.data, {0, call.dsink_logit.stride[0]}});
}

}  // namespace cuda

extern const Kernel<AttendBackward> attention_backward_simt = {"simt", cuda::offer};

}  // namespace fovea
