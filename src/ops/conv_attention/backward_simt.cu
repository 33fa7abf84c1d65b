// SPDX-License-Identifier: Apache-2.0
// The kernel of last resort: takes every valid conv_attention_backward.

#include "core/dtype.h"
#include "cuda/block/reduce.cuh"
#include "ops/conv_attention/backward.cuh"
#include "ops/conv_attention/strip_simt.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "conv_attention_backward";
constexpr int kWarps = kStageThreads / 32;

// delta_i = <dout_i, o_i>, (b, h, rows_out).  A warp owns a row.
__global__ void __launch_bounds__(kStageThreads)
    delta_kernel(const __grid_constant__ ConvAttendBackward b, float* delta, int64_t work) {
  const ConvAttend& c = b.forward;
  const Attend& a = c.attend;
  const int lane = threadIdx.x % 32;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t w = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; w < work;
       w += stride) {
    const int64_t i = w % c.rows_out, h = w / c.rows_out % a.h, batch = w / c.rows_out / a.h;
    const auto at = [&](const int64_t* x) { return batch * x[0] + i * x[1] + h * x[2]; };
    const int64_t o = at(a.o.stride), dout = at(b.dout.stride);
    float sum = 0;
    for (int64_t n = lane; n < a.e; n += 32)
      sum += load_float(a.o.data, a.o_dtype, o + n * a.o.stride[3]) *
             load_float(b.dout.data, a.o_dtype, dout + n * b.dout.stride[3]);
    sum = lanes_sum<32>(sum);
    if (lane == 0) delta[w] = sum;
  }
}

template <ConvOwner Owner>
void run(Context& ctx, const ConvBackwardSimt& call, int64_t width) {
  with_chunks(width, [&]<int Chunks> { conv_gradient_simt<Owner, Chunks>(ctx, call); });
}

void enqueue(Context& ctx, const ConvBackwardSimt& call) {
  const ConvAttendBackward& b = call.b;
  const Attend& a = b.forward.attend;
  conv_clear(ctx, b);
  if (!a.h) return;
  const int64_t rows = a.b * a.h * b.forward.rows_out;
  launch<delta_kernel>(ctx, kOp, ceil_div(rows, kWarps), kStageThreads, 0, b, call.delta, rows);
  if (b.dq || b.dweight) run<ConvOwner::rows>(ctx, call, b.dq ? a.d : 1);
  if (b.dk) run<ConvOwner::dk>(ctx, call, a.d);
  if (b.dv) run<ConvOwner::dv>(ctx, call, a.e);
  conv_add_dweight(ctx, b, {call.dweight, call.row_tiles});
}

Text offer(const Context&, const ConvAttendBackward& b, Plan& plan) {
  const ConvAttend& c = b.forward;
  const Attend& a = c.attend;
  plan.kernel += Text(".") + dtype_name(a.dtype);
  const ConvBackwardSimt call(b);
  const auto delta = plan.workspace.add<float>(a.b * a.h * c.rows_out);
  const auto dweight = plan.workspace.add<double>(
      b.dweight ? a.sequences.count * a.h * call.row_tiles * c.taps() : 0);
  plan.launch = [=](Context& ctx, void* base) {
    ConvBackwardSimt now = call;
    now.delta = delta.at(base), now.dweight = dweight.at(base);
    enqueue(ctx, now);
  };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<ConvAttendBackward> conv_attention_backward_simt = {"simt", cuda::offer};

}  // namespace fovea
