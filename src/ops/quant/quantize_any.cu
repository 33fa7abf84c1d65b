// SPDX-License-Identifier: Apache-2.0
// quant_quantize for every width, layout and dtype.
//   a = max |y|,  scale = a / 448,  code = e4m3(y 448 / a),  y = x or its rotation
// A block of four warps owns one head of a unit of 128 tokens, a warp every fourth token.  Its
// columns lie in a row of shared memory, where the butterflies of the rotation run.  It reads x
// twice: for the largest magnitude and for the codes.  Shared memory: 4 d floats.
#include "core/dtype.h"
#include "core/reasons.h"
#include "cuda/launch.h"
#include "ops/quant/quantize.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "quant_quantize";
constexpr int kWarps = 4;
constexpr int64_t kWidthMost = 3072;  // 48 KB of rows

template <class X>
__device__ float greatest_of(const Quantize& a, const CodeUnit& unit, int64_t head,
                             const CodePart& part, float* row, uint32_t* s_top) {
  float top = 0;
  const int lane = threadIdx.x % 32;
  for (int64_t i = part.begin + threadIdx.x / 32; i < part.begin + part.tokens; i += kWarps) {
    load_token<X, 32>(a, unit, head, i, lane, row);
    for (int64_t c = lane; c < a.d; c += 32) top = greatest(top, fabsf(row[c]));
  }
  return block_greatest(top, s_top);
}

template <class X>
__global__ void __launch_bounds__(32 * kWarps)
    quantize_any_kernel(const __grid_constant__ Quantize a, Pass pass, float* most) {
  extern __shared__ float s_rows[];
  __shared__ uint32_t s_top[2];
  float* row = s_rows + threadIdx.x / 32 * a.d;
  const int64_t work = unit_count(a) * a.h;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t slot = w / a.h, head = w % a.h;
    const CodeUnit unit = unit_at(a, slot);
    if (unit.sequence < 0) continue;
    float whole = 0;
    if (pass == Pass::codes) whole = sequence_greatest(a, unit, slot, head, most, s_top);
    for (int i = 0; i < CodePart::count(a); ++i) {
      const CodePart part(a, unit, i);
      const float top =
          pass == Pass::codes ? whole : greatest_of<X>(a, unit, head, part, row, s_top);
      if (pass == Pass::maxima) {
        if (threadIdx.x == 0) most[w] = top;
        continue;
      }
      const CodeScale group(top);
      if (threadIdx.x == 0) put_scale(a, unit, head, part, group.scale);
      const int lane = threadIdx.x % 32;
      for (int64_t i = part.begin + threadIdx.x / 32; i < part.end; i += kWarps) {
        if (i < unit.tokens && group.factor != 0) load_token<X, 32>(a, unit, head, i, lane, row);
        store_token<32>(a, unit, head, i, group.factor, lane, row);
      }
    }
  }
}

Text offer(const Context&, const Quantize& a, Plan& plan) {
  if (a.d > kWidthMost) return reason("d", a.d, "at most " + Text::number(kWidthMost));
  const int64_t work = unit_count(a) * a.h;
  const Slot<float> most = plan.workspace.add<float>(a.block ? 0 : work);
  plan.kernel += Text(".") + dtype_name(a.x_dtype);
  plan.launch = [a, work, most](Context& ctx, void* base) {
    with_fp(a.x_dtype, [&](auto x) {
      const auto run = [&](Pass pass) {
        launch<quantize_any_kernel<decltype(x)>>(ctx, kOp, work, 32 * kWarps,
                                                 kWarps * a.d * int64_t{sizeof(float)}, a, pass,
                                                 most.at(base));
      };
      if (a.block) return run(Pass::all);
      run(Pass::maxima);
      run(Pass::codes);
    });
  };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<Quantize> quant_quantize_any = {"any", cuda::offer};

}  // namespace fovea
