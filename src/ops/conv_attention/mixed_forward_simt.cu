// SPDX-License-Identifier: Apache-2.0
// x_multi_token_forward in f32 FMA, panel by panel (mixed_panel.cuh): every dtype, width, stride
// and number of taps.
//   p = softmax of B (a block owns a row of a head), R = p mixed (a thread owns a key of a group)
//   o = R v
// Multi-Token Attention (2504.00927).
#include "core/dtype.h"
#include "ops/conv_attention/mixed_panel.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "x_multi_token_forward";

__global__ void __launch_bounds__(kStageThreads)
    panel_softmax_kernel(const __grid_constant__ Panel call, int64_t work) {
  __shared__ PanelPlaces s;
  __shared__ float s_part[kStageThreads / 32];
  const Attend& a = call.attend();
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t row = w % call.own, all = w / call.own, head = all % a.h;
    open_sequence(call.conv(), s, all / a.h);
    const int64_t out = call.first + row - call.conv().history;
    if (out >= s.out.count) continue;
    float* p = call.line(call.p, all, row);
    float top = -INFINITY, sum = 0.f;
    for (int64_t j = threadIdx.x; j < s.seq.keys; j += kStageThreads) top = fmaxf(top, p[j]);
    top = lanes_max<32>(top);
    if (threadIdx.x % 32 == 0) s_part[threadIdx.x / 32] = top;
    __syncthreads();
    top = s_part[0];
#pragma unroll
    for (int n = 1; n < kStageThreads / 32; ++n) top = fmaxf(top, s_part[n]);
    __syncthreads();
    // A logit that is no number is no maximum, but makes its row's sum one.
    for (int64_t j = threadIdx.x; j < s.seq.keys; j += kStageThreads) {
      p[j] = p[j] == -INFINITY ? 0.f : expf(p[j] - top);
      sum += p[j];
    }
    sum = block_sum<kStageThreads>(sum, s_part);
    if (threadIdx.x == 0) s_part[0] = sum;
    __syncthreads();
    sum = s_part[0];
    for (int64_t j = threadIdx.x; j < call.pitch; j += kStageThreads)
      p[j] = j < s.seq.keys && sum != 0.f ? p[j] / sum : 0.f;
    if (threadIdx.x == 0 && a.lse)
      a.lse.as()[s.seq.batch * a.lse.stride[0] + head * a.lse.stride[1] +
                 (s.out.begin + out) * a.lse.stride[2]] = sum == 0.f ? -INFINITY : top + logf(sum);
  }
}

template <int G>
__global__ void __launch_bounds__(kStageThreads)
    panel_after_kernel(const __grid_constant__ Panel call, int64_t work) {
  const int group = static_cast<int>(call.m.group);
  const int64_t groups = call.attend().h / group, chunks = call.pitch / kStageTile;
  for (int64_t w = blockIdx.x * int64_t{kStageThreads / kStageTile} + threadIdx.x / kStageTile;
       w < work; w += gridDim.x * int64_t{kStageThreads / kStageTile}) {
    const int64_t j = w % chunks * kStageTile + threadIdx.x % kStageTile;
    const int64_t row = w / chunks % call.own, all = w / chunks / call.own * group;
    const int64_t base = all / group % groups * group;
    float* const p = call.line(call.p, all, row) + j;
    const int64_t apart = call.rows() * call.pitch;
    float x[G];
    read_group(x, p, apart, group);
    mix(call.m.after, false, base, group, x);
    write_group(p, x, apart, group);
  }
}

void enqueue(Context& ctx, const Panel& call) {
  const Attend& a = call.attend();
  panel_logits<false>(ctx, kOp, call);
  const int64_t rows = call.heads() * call.own;
  launch<panel_softmax_kernel>(ctx, kOp, rows, kStageThreads, 0, call, rows);
  if (call.m.after)
    with_group(call.m.group, [&]<int G> {
      const int64_t work = rows / call.m.group * (call.pitch / kStageTile);
      launch<panel_after_kernel<G>>(ctx, kOp, ceil_div(work, kStageThreads / kStageTile),
                                    kStageThreads, 0, call, work);
    });
  panel_sum<PanelSum::o>(ctx, kOp, call, operand_of(a.v, a.dtype, a.e));
}

Text offer(const Context&, const MixedAttend& m, Plan& plan) {
  const ConvAttend& c = m.conv;
  const Attend& a = c.attend;
  plan.kernel += Text(".") + dtype_name(a.dtype);
  const int64_t longest = clamp_i64(a.sequences.query_max - c.history, 0, INT64_MAX);
  MixedAttendBackward all{};
  all.conv.forward = c, all.before = m.before, all.after = m.after, all.group = m.group;
  const Panel call(all, longest, false);
  const auto s = plan.workspace.add<float>(call.heads() * call.score_rows() * call.pitch);
  const auto p = plan.workspace.add<float>(call.heads() * call.rows() * call.pitch);
  plan.launch = [=](Context& ctx, void* base) {
    Panel now = call;
    now.s = s.at(base), now.p = p.at(base);
    if (!now.heads()) return;
    for (int64_t row = 0; row < longest; row += now.own) {
      now.first = c.history + row;
      enqueue(ctx, now);
    }
  };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<MixedAttend> multi_token_forward_simt = {"simt", cuda::offer};

}  // namespace fovea
