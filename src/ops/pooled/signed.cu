// SPDX-License-Identifier: Apache-2.0
// Signed rows: a block owns a token and a key head.  Sums are in the order of heads and of columns.
#include "cuda/launch.h"
#include "cuda/loop/pick.cuh"
#include "cuda/tile/convert.cuh"
#include "ops/pooled/signed.h"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "x_pooled_forward";
constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    signed_kernel(const __grid_constant__ SignedRows a, int64_t work) {
  using Pick = BlockPick<kThreads>;
  __shared__ typename Pick::Shared s;
  __shared__ float s_sum[kSignedWidthMost], s_size[kSignedWidthMost];
  const Pick pick(s);
  const int d = static_cast<int>(a.d);
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const Token token = token_at(a.sequences, w / a.g);
    if (token.number < 0) continue;
    const int64_t first = w % a.g * a.group(), batch = token.sequence.batch;
    const int64_t row = token.sequence.row_begin + token.index;
    const auto load = [&](int64_t n, int c) {
      return load_float(a.q.data, a.dtype,
                        batch * a.q.stride[0] + row * a.q.stride[1] + (first + n) * a.q.stride[2] +
                            c * a.q.stride[3]);
    };
    __syncthreads();
    for (int c = threadIdx.x; c < d; c += kThreads) {
      float sum = 0, size = 0;
      for (int64_t n = 0; n < a.group(); ++n) {
        const float x = load(n, c);
        sum = __fadd_rn(sum, x), size = __fadd_rn(size, fabsf(x));
      }
      s_sum[c] = sum, s_size[c] = size;
    }
    __syncthreads();
    // A column of NaN comes last, and is still a column.
    const auto key = [&](int64_t c) { return max(pick_key(s_size[c]), kPickNone + 1); };
    const PickCut cut = pick.cut_after(d, key, a.subset, d);
    for (int64_t n = 0; n < a.group(); ++n) {
      // Every thread sums in the order of columns.
      float all = 0, part = 0;
      for (int c = 0; c < d; ++c) {
        const float x = fabsf(load(n, c));
        all = __fadd_rn(all, x);
        if (cut.takes(key(c), c)) part = __fadd_rn(part, x);
      }
      const float factor = part > 0 ? __fdiv_rn(1.f, __fsqrt_rn(__fdiv_rn(part, all))) : 0.f;
      float* const y = a.y.at(batch, row, first + n);
      for (int c = threadIdx.x; c < d; c += kThreads) {
        const float x = cut.takes(key(c), c) ? __fmul_rn(load(n, c), factor) : 0.f;
        y[c] = s_sum[c] > 0 ? x : 0.f, y[d + c] = s_sum[c] > 0 ? 0.f : x;
      }
    }
  }
}

}  // namespace
}  // namespace cuda

extern const Kernel<SignedRows> signed_rows_simt = {
    "simt", [](const Context&, const SignedRows& a, Plan& plan) {
      plan.launch = [a](Context& ctx, void*) {
        const int64_t work = token_slots(a.sequences) * a.g;
        cuda::launch<cuda::signed_kernel>(ctx, cuda::kOp, work, cuda::kThreads, 0, a, work);
      };
      return Text();
    }};

}  // namespace fovea
