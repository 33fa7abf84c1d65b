// SPDX-License-Identifier: Apache-2.0
// quant_quantize for every width, layout and dtype.
//   a = max |y|,  scale = a / 448,  code = e4m3(y 448 / a),  y = x or its rotation
// A block of four warps owns one head of a unit of 128 tokens; a warp has every fourth token, its
// columns in a row of shared memory, where the butterflies of the rotation run.  It reads x twice:
// for the largest magnitude and for the codes.  Shared memory: 4 d floats.
#include "core/dtype.h"
#include "cuda/launch.h"
#include "ops/quant/quantize.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "quant_quantize";
constexpr int kWarps = 4;
constexpr int64_t kWidthMost = 3072;  // 48 KB of rows

template <class X>
__device__ void load_row(const Quantize& a, const CodeUnit& unit, int64_t head, int64_t i,
                         float* row) {
  const int lane = threadIdx.x % 32;
  const X* x = a.x.as<X>() + unit.batch * a.x.stride[0] + (unit.token + i) * a.x.stride[1] +
               head * a.x.stride[2];
  __syncwarp();
  for (int64_t c = lane; c < a.d; c += 32) {
    const float y = to_float(x[c * a.x.stride[3]]);
    row[c] = a.run && flips(a.seed, c) ? -y : y;
  }
  __syncwarp();
  if (!a.run) return;
  for (int64_t step = 1; step < a.run; step *= 2) {
    for (int64_t c = lane; c < a.d; c += 32) {
      if (c & step) continue;
      const float low = row[c], high = row[c + step];
      row[c] = low + high, row[c + step] = low - high;
    }
    __syncwarp();
  }
  const float root = root_of(a.run);
  for (int64_t c = lane; c < a.d; c += 32) row[c] *= root;
}

template <class X>
__device__ float greatest_of(const Quantize& a, const CodeUnit& unit, int64_t head, int64_t begin,
                             int64_t end, float* row, uint32_t* s_top) {
  float top = 0;
  for (int64_t i = begin + threadIdx.x / 32; i < end; i += kWarps) {
    load_row<X>(a, unit, head, i, row);
    for (int64_t c = threadIdx.x % 32; c < a.d; c += 32) top = greatest(top, fabsf(row[c]));
  }
  return block_greatest(top, s_top);
}

template <class X>
__device__ void store_codes(const Quantize& a, const CodeUnit& unit, int64_t head, int64_t begin,
                            int64_t end, float factor, float* row) {
  for (int64_t i = begin + threadIdx.x / 32; i < end; i += kWarps) {
    const bool there = i < unit.tokens;
    if (there && factor != 0) load_row<X>(a, unit, head, i, row);
    const auto code_of = [&](int64_t c) {
      return there && factor != 0 ? from_float<E4m3>(row[c] * factor) : E4m3{0};
    };
    if (a.code && there)
      for (int64_t c = threadIdx.x % 32; c < a.d; c += 32)
        a.code.as<E4m3>()[unit.batch * a.code.stride[0] + (unit.token + i) * a.code.stride[1] +
                          head * a.code.stride[2] + c * a.code.stride[3]] = code_of(c);
    if (a.code_t && unit.column < a.padded)
      for (int64_t c = threadIdx.x % 32; c < a.d; c += 32)
        a.code_t.as<E4m3>()[unit.batch * a.code_t.stride[0] + head * a.code_t.stride[1] +
                            c * a.code_t.stride[2] +
                            (unit.column + (a.permutes ? permuted(i) : i)) * a.code_t.stride[3]] =
            code_of(c);
  }
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
    if (pass == Pass::maxima) {
      const float top = greatest_of<X>(a, unit, head, 0, unit.tokens, row, s_top);
      if (threadIdx.x == 0) most[w] = top;
      continue;
    }
    const ScaleRange range = scales_of(a, unit);
    if (pass == Pass::codes) {
      const CodeScale group(sequence_greatest(a, unit, slot, head, most, s_top));
      if (range.count && threadIdx.x == 0)
        put_scale(a, unit, head, range.first, unit.tokens ? group.scale : 0);
      store_codes<X>(a, unit, head, 0, kCodeRun, group.factor, row);
      continue;
    }
    for (int64_t i = 0; i * a.block < kCodeRun; ++i) {
      const int64_t begin = i * a.block, rows = clamp_i64(unit.tokens - begin, 0, a.block);
      const CodeScale group(greatest_of<X>(a, unit, head, begin, begin + rows, row, s_top));
      if (i < range.count && threadIdx.x == 0)
        put_scale(a, unit, head, range.first + i, rows ? group.scale : 0);
      store_codes<X>(a, unit, head, begin, begin + a.block, group.factor, row);
    }
  }
}

std::string refuses(const Context&, const Quantize& a) {
  if (a.d > kWidthMost)
    return "d = " + std::to_string(a.d) + " is above " + std::to_string(kWidthMost);
  return "";
}

std::string offer(const Context& ctx, const Quantize& a, Plan& plan) {
  if (std::string why = refuses(ctx, a); !why.empty()) return why;
  const int64_t work = unit_count(a) * a.h;
  const Slot<float> most = plan.workspace.add<float>(a.block ? 0 : work);
  plan.kernel += std::string(".") + dtype_name(a.x_dtype);
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
