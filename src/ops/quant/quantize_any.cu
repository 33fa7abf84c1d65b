// SPDX-License-Identifier: Apache-2.0
// quant_quantize for every width, layout, dtype, group and format.
//   a = max |y|,  scale = a / most,  code = y most / a,  y = x or its rotation, less a mean
// A block of W = 4 warps, 1 where rows are long, owns one head of a unit of 128 tokens.  A warp
// takes pairs of tokens in turn, whose columns lie in two rows of shared memory; a third row has
// the factors of micro groups.  Passes over x, the last alone where nothing asks for the others:
//   sums     a warp adds up 128 / W tokens as a tree: row n of its 8 rows has the sum of 2^n tokens
//   maxima   of halves of units, or of a unit's columns
//   codes    each token twice where its group's factor is not known: magnitudes, then codes
// After sums and maxima fold (quantize.cuh) makes a sequence's means, scales and factors of units'.
#include "core/dtype.h"
#include "core/reasons.h"
#include "cuda/launch.h"
#include "ops/quant/quantize.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "quant_quantize";
constexpr int64_t kWidthMost = 3072;  // 96 KB of 8 rows
constexpr int kSumRows = 8, kRows = 3;

struct Place {
  CodeUnit unit;
  int64_t slot, head;
};

// A unit's means for its sequence; of a block of 128 the means themselves.
template <class X>
__device__ void sum_unit(const Quantize& a, const Place& at, const Partials& to, float* rows) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  float* own = rows + warp * kSumRows * a.d;
  const int tokens = kCodeRun / warps, levels = 31 - __clz(tokens);
  float* current = own + levels * a.d;
  for (int i = 0; i < tokens; ++i) {
    const int64_t token = warp * tokens + i;
    if (token < at.unit.tokens) load_token<X, 32>(a, at.unit, at.head, token, lane, current);
    for (int64_t c = lane; c < a.d; c += 32) {
      float sum = token < at.unit.tokens ? current[c] : 0;
      int level = 0;
      for (; i >> level & 1; ++level) sum = own[level * a.d + c] + sum;
      own[level * a.d + c] = sum;
    }
  }
  __syncthreads();
  for (int64_t c = threadIdx.x; c < a.d; c += blockDim.x) {
    const auto of = [&](int w) { return rows[(w * kSumRows + levels) * a.d + c]; };
    const float sum = warps == 4 ? (of(0) + of(1)) + (of(2) + of(3)) : of(0);
    if (a.smooth == FOVEA_SMOOTH_SEQUENCE)
      to.columns[(at.slot * a.h + at.head) * a.d + c] = sum;
    else if (at.unit.column < a.padded)
      mean_row(a, at.unit, at.head)[c * a.mean.stride[3]] = mean_of(a, sum, at.unit.tokens);
  }
}

__device__ inline float row_greatest(const Quantize& a, const float* row) {
  float top = 0;
  for (int64_t c = threadIdx.x % 32; c < a.d; c += 32) top = greatest(top, fabsf(row[c]));
  return float_of(__reduce_max_sync(~0u, bits_of(top)));
}

// Magnitudes of a unit's parts to s_part, as bits: those of numbers >= 0 are ordered as these are.
template <class X>
__device__ void part_maxima(const Quantize& a, const Place& at, const float* mean, float* row,
                            uint32_t* s_part) {
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  for (int i = threadIdx.x; i < kCodeRun; i += blockDim.x) s_part[i] = 0;
  __syncthreads();
  for (int i = threadIdx.x / 32; i < at.unit.tokens; i += warps) {
    load_token<X, 32>(a, at.unit, at.head, i, lane, row, mean);
    const float top = row_greatest(a, row);
    if (lane == 0) atomicMax(&s_part[part_of(a, i)], bits_of(top));
  }
  __syncthreads();
}

// Magnitudes of a unit's columns, or of its halves.
template <class X>
__device__ void unit_maxima(const Quantize& a, const Place& at, const float* mean,
                            const Partials& to, float* rows, uint32_t* s_part) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  float *row = rows + 2 * warp * a.d, *top = row + a.d;
  const int64_t item = at.slot * a.h + at.head;
  if (!a.channel()) {
    part_maxima<X>(a, at, mean, row, s_part);
    if (threadIdx.x < 2) to.halves[2 * item + threadIdx.x] = float_of(s_part[threadIdx.x]);
    return;
  }
  for (int64_t c = lane; c < a.d; c += 32) top[c] = 0;
  for (int64_t i = warp; i < at.unit.tokens; i += warps) {
    load_token<X, 32>(a, at.unit, at.head, i, lane, row, mean);
    for (int64_t c = lane; c < a.d; c += 32) top[c] = greatest(top[c], fabsf(row[c]));
  }
  __syncthreads();
  for (int64_t c = threadIdx.x; c < a.d; c += blockDim.x) {
    float most = 0;
    for (int w = 0; w < warps; ++w) most = greatest(most, rows[(2 * w + 1) * a.d + c]);
    to.columns[item * a.d + c] = most;
  }
}

// Codes whose scales are of 16 or 32 columns of a token, or of code_t.
template <class X>
__device__ void code_runs(const Quantize& a, const Place& at, const float* mean, float* rows) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  float *row = rows + warp * kRows * a.d, *factor = row + 2 * a.d;
  const int64_t micro = a.micro(), runs = (a.d + micro - 1) / micro;
  const auto load = [&](int64_t i) {
    for (int64_t j = 0; j < 2 && i + j < at.unit.tokens; ++j)
      load_token<X, 32>(a, at.unit, at.head, i + j, lane, row + j * a.d, mean);
  };
  if (!a.transposed()) {
    for (int64_t i = 2 * warp; i < kCodeRun; i += 2 * warps) {
      load(i);
      for (int64_t j = 0; j < 2 && i + j < at.unit.tokens; ++j)
        scale_runs<32>(a, at.unit, at.head, i + j, lane, row + j * a.d, factor + j * runs);
      store_pair<32>(a, at.unit, at.head, i, lane, row,
                     [&](int j, int64_t c) { return factor[j * runs + c / micro]; });
    }
    return;
  }
  if (at.unit.column >= a.padded) return;
  for (int64_t begin = warp * micro; begin < kCodeRun; begin += warps * micro) {
    for (int64_t c = lane; c < a.d; c += 32) factor[c] = 0;
    for (int64_t i = begin; i < begin + micro; i += 2) {
      load(i);
      for (int64_t j = 0; j < 2 && i + j < at.unit.tokens; ++j)
        for (int64_t c = lane; c < a.d; c += 32)
          factor[c] = greatest(factor[c], fabsf(row[j * a.d + c]));
    }
    for (int64_t c = lane; c < a.d; c += 32)
      factor[c] = put_run(a, at.unit, at.head, c, begin, factor[c]);
    for (int64_t i = begin; i < begin + micro; i += 2) {
      load(i);
      store_pair<32>(a, at.unit, at.head, i, lane, row, [&](int, int64_t c) { return factor[c]; });
    }
  }
}

template <class X>
__device__ void code_unit(const Quantize& a, const Place& at, const float* mean,
                          const Partials& from, float* rows, uint32_t* s_part) {
  if (a.micro()) return code_runs<X>(a, at, mean, rows);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  float* row = rows + warp * kRows * a.d;
  const float* channel = from.factors + (at.unit.sequence * a.h + at.head) * a.d;
  if (!a.channel()) {
    if (a.wide()) {
      if (threadIdx.x < 2)
        s_part[threadIdx.x] = bits_of(from.halves[2 * (at.slot * a.h + at.head) + threadIdx.x]);
      __syncthreads();
    } else {
      part_maxima<X>(a, at, mean, row, s_part);
      scale_parts(a, at.unit, at.head, s_part);
    }
  }
  for (int i = 2 * warp; i < kCodeRun; i += 2 * warps) {
    for (int j = 0; j < 2 && i + j < at.unit.tokens; ++j)
      load_token<X, 32>(a, at.unit, at.head, i + j, lane, row + j * a.d, mean);
    store_pair<32>(a, at.unit, at.head, i, lane, row, [&](int j, int64_t c) {
      return a.channel() ? channel[c] : float_of(s_part[part_of(a, i + j)]);
    });
  }
}

template <class X>
__global__ void __launch_bounds__(128)
    quantize_any_kernel(const __grid_constant__ Quantize a, Pass pass,
                        const __grid_constant__ Partials partials) {
  extern __shared__ float s_rows[];
  __shared__ uint32_t s_part[kCodeRun];
  const int64_t work = unit_count(a) * a.h;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t slot = w / a.h;
    const Place at{unit_at(a, slot), slot, w - slot * a.h};
    if (at.unit.sequence < 0) continue;
    __syncthreads();
    if (pass == Pass::sums) {
      sum_unit<X>(a, at, partials, s_rows);
      continue;
    }
    const float* mean = a.smooth && at.unit.tokens ? mean_row(a, at.unit, at.head) : nullptr;
    if (pass == Pass::maxima)
      unit_maxima<X>(a, at, mean, partials, s_rows, s_part);
    else
      code_unit<X>(a, at, mean, partials, s_rows, s_part);
  }
}

// Warps of a block, so that their rows fit.
int warps_of(int64_t d, int rows) {
  return 4 * rows * d * int64_t{sizeof(float)} <= 96 * 1024 ? 4 : 1;
}

template <class X>
void run(Context& ctx, const Quantize& a, const Partials& partials) {
  const int64_t work = unit_count(a) * a.h;
  const auto pass = [&](Pass pass) {
    const int rows = pass == Pass::sums ? kSumRows : kRows, warps = warps_of(a.d, rows);
    launch<quantize_any_kernel<X>>(ctx, kOp, work, 32 * warps,
                                   warps * rows * a.d * int64_t{sizeof(float)}, a, pass, partials);
  };
  if (a.smooth) pass(Pass::sums);
  if (a.smooth == FOVEA_SMOOTH_SEQUENCE) launch_fold(ctx, a, partials, Fold::means);
  if (a.wide() || a.channel()) pass(Pass::maxima);
  if (a.wide()) launch_fold(ctx, a, partials, Fold::blocks);
  if (a.channel()) launch_fold(ctx, a, partials, Fold::scales);
  pass(Pass::codes);
}

Text offer(const Context&, const Quantize& a, Plan& plan) {
  if (a.d > kWidthMost) return reason("d", a.d, "at most " + Text::number(kWidthMost));
  const PartialSlots slots(a, plan);
  plan.kernel += Text(".") + dtype_name(a.x_dtype);
  plan.launch = [a, slots](Context& ctx, void* base) {
    with_fp(a.x_dtype, [&](auto x) {
      run<decltype(x)>(ctx, a, slots.at(base));
      launch_delta(ctx, a);
    });
  };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<Quantize> quant_quantize_any = {"any", cuda::offer};

}  // namespace fovea
