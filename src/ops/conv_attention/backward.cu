// SPDX-License-Identifier: Apache-2.0
#include "ops/conv_attention/backward.cuh"

#include "cuda/block/reduce.cuh"
#include "cuda/loop/zero.cuh"
#include "cuda/tile/convert.cuh"
#include "cuda/tile/order.cuh"

namespace fovea::cuda {
namespace {

constexpr char kOp[] = "conv_attention_backward";
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

// A block owns an element of dweight and sums over what a stride of 0 folds into it.
__global__ void __launch_bounds__(kThreads)
    add_dweight_kernel(const __grid_constant__ ConvAttendBackward b, TapParts parts, int64_t work) {
  pdl_wait();
  __shared__ double s_sum[kWarps];
  const ConvAttend& c = b.forward;
  const Attend& a = c.attend;
  const int64_t* stride = b.dweight.stride;
  const int64_t extent[3] = {a.h, c.kernel_rows, c.kernel_columns};
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    int64_t from[3], count[3], rest = w, offset = 0, folded = 1;
    for (int i = 2; i >= 0; --i) {
      const int64_t own = stride[i] ? extent[i] : 1;
      from[i] = rest % own, rest /= own;
      offset += from[i] * stride[i];
      count[i] = stride[i] ? 1 : extent[i];
      folded *= count[i];
    }
    double sum = 0;
    for (int64_t n = 0; n < folded; ++n) {
      const int64_t v = from[2] + n % count[2], u = from[1] + n / count[2] % count[1],
                    h = from[0] + n / count[2] / count[1];
      const int64_t all = a.sequences.count * parts.parts;
      for (int64_t part = threadIdx.x; part < all; part += kThreads) {
        const int64_t r = part / parts.parts;
        const int64_t at = (r * a.h + h) * parts.parts + part % parts.parts;
        sum += parts.sums[at * c.taps() + u * c.kernel_columns + v];
      }
    }
    sum = block_sum<kThreads>(sum, s_sum);
    if (threadIdx.x == 0) b.dweight.as()[offset] = static_cast<float>(sum);
  }
}

}  // namespace

void conv_clear(Context& ctx, const ConvAttendBackward& b) {
  const Attend& a = b.forward.attend;
  if (!ragged(a) && a.h) return;
  const int64_t key_b = a.sequences.key_start ? 1 : a.sequences.count;
  if (b.dq) zero(ctx, kOp, b.dq, a.dtype, {a.b, a.s, a.h, a.d});
  if (b.dk) zero(ctx, kOp, b.dk, a.dtype, {key_b, a.t, a.g, a.d});
  if (b.dv) zero(ctx, kOp, b.dv, a.dtype, {key_b, a.t, a.g, a.e});
}

void conv_add_dweight(Context& ctx, const ConvAttendBackward& b, const TapParts& parts) {
  if (!b.dweight) return;
  const ConvAttend& c = b.forward;
  const int64_t extent[3] = {c.attend.h, c.kernel_rows, c.kernel_columns};
  int64_t work = c.attend.h ? 1 : 0;
  for (int i = 0; i < 3; ++i) work *= b.dweight.stride[i] ? extent[i] : 1;
  launch_pdl<add_dweight_kernel>(ctx, kOp, work, kThreads, 0, b, parts, work);
}

}  // namespace fovea::cuda
