// SPDX-License-Identifier: Apache-2.0
// quant_dequantize for every call: y = code * scale, + mean, rotated back.
// A block of four warps owns one head of a unit of 128 tokens, a warp every fourth token.  With a
// rotation its columns lie in a row of shared memory: 4 d floats.
#include "core/dtype.h"
#include "core/reasons.h"
#include "cuda/launch.h"
#include "ops/quant/dequantize.h"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "quant_dequantize";
constexpr int kWarps = 4;
constexpr int64_t kWidthMost = 3072;  // 48 KB of rows

template <class Y>
__global__ void __launch_bounds__(32 * kWarps)
    dequantize_any_kernel(const __grid_constant__ Dequantize a) {
  extern __shared__ float s_rows[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t work = unit_count(a) * a.h;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t slot = w / a.h, head = w - slot * a.h;
    const CodeUnit unit = unit_at(a, slot);
    if (unit.sequence < 0) continue;
    for (int64_t i = warp; i < unit.tokens; i += kWarps)
      restore_token<Y, 32>(a, unit, head, i, lane, s_rows + warp * a.d);
  }
}

Text offer(const Context&, const Dequantize& a, Plan& plan) {
  if (a.d > kWidthMost) return reason("d", a.d, "at most " + Text::number(kWidthMost));
  plan.kernel += Text(".") + dtype_name(a.y_dtype);
  plan.launch = [a](Context& ctx, void*) {
    const int64_t bytes = a.run ? kWarps * a.d * int64_t{sizeof(float)} : 0;
    with_fp(a.y_dtype, [&](auto y) {
      launch<dequantize_any_kernel<decltype(y)>>(ctx, kOp, unit_count(a) * a.h, 32 * kWarps, bytes,
                                                 a);
    });
  };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<Dequantize> quant_dequantize_any = {"any", cuda::offer};

}  // namespace fovea
