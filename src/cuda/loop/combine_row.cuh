// SPDX-License-Identifier: Apache-2.0
// The merge of one row's split-key partials (combine.cuh), by a warp.
#pragma once
#include "cuda/block/reduce.cuh"
#include "cuda/loop/combine.cuh"
#include "cuda/loop/score.cuh"

namespace fovea::cuda {

constexpr int kMergeColumns = 128;  // of a warp: four of a lane

// One more of what its block wrote before the barrier is there for who sees the count.
__device__ inline int count_arrival(int32_t* count) {
  int before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(count)
               : "memory");
  return before;
}

// Four columns of a row of `width`, 0 past its end.
__device__ inline float4 load_four(const float* row, int64_t column, int64_t width) {
  if (width % 4 == 0)
    return column < width ? __ldcg(reinterpret_cast<const float4*>(row + column)) : float4{};
  return {column < width ? row[column] : 0.f, column + 1 < width ? row[column + 1] : 0.f,
          column + 2 < width ? row[column + 2] : 0.f, column + 3 < width ? row[column + 3] : 0.f};
}

// Columns [chunk kMergeColumns, ...) of row i of o, of head h.  Past L1: another block may have
// written them.  AtOnce: splits whose loads are in flight together, the first before any lse is
// looked at.
template <int AtOnce = 8>
__device__ inline void combine_row(const Attend& a, const Partials& parts, int64_t batch, int64_t i,
                                   int64_t h, int64_t chunk) {
  const int lane = threadIdx.x % 32;
  const int64_t partial = parts.row(0, batch * parts.out.extent + i, h);
  const int64_t column = chunk * kMergeColumns + lane * 4;
  // A lane holds the lse of one split of 32.
  const auto lse_of = [&](int split) {
    return split < parts.splits ? __ldcg(parts.lse + partial + split * parts.rows) : -INFINITY;
  };
  float4 part[AtOnce];
  const auto load = [&](int first) {
#pragma unroll
    for (int c = 0; c < AtOnce; ++c) {
      part[c] = float4{};
      if (first + c < parts.splits)
        part[c] = load_four(parts.o + (partial + (first + c) * parts.rows) * parts.e, column, a.e);
    }
  };
  float mine = lse_of(lane);
  load(0);
  float top = mine;
  for (int split = 32 + lane; split - lane < parts.splits; split += 32)
    top = fmaxf(top, lse_of(split));
  const float sink = a.score.sink_logit ? sink_logit(a.score, h) : -INFINITY;
  top = fmaxf(lanes_max<32>(top), sink);
  const float base = top == -INFINITY ? 0.f : top;  // NaN stays in the weights
  float sum = 0;
  float4 acc{};
  for (int first = 0;;) {
    // A split in which the row saw no key may have any o.
    const float weight = mine == -INFINITY ? 0.f : expf(mine - base);
    const uint32_t any = __ballot_sync(~0u, mine != -INFINITY);
#pragma unroll
    for (int c = 0; c < AtOnce; ++c) {
      const float w = __shfl_sync(~0u, weight, (first + c) % 32);
      const bool seen = any >> (first + c) % 32 & 1;
      sum += w;
      acc.x += seen ? w * part[c].x : 0.f, acc.y += seen ? w * part[c].y : 0.f;
      acc.z += seen ? w * part[c].z : 0.f, acc.w += seen ? w * part[c].w : 0.f;
    }
    first += AtOnce;
    if (first >= parts.splits) break;
    if (first % 32 == 0) mine = lse_of(first + lane);
    load(first);
  }
  if (a.score.sink_logit) sum += expf(sink - base);
  const float inverse = sum == 0 ? 0 : 1 / sum;
  const int64_t* o = a.o.stride;
  const int64_t row = batch * o[0] + i * o[1] + h * o[2];
  const float out[4] = {acc.x, acc.y, acc.z, acc.w};
#pragma unroll
  for (int n = 0; n < 4; ++n)
    if (column + n < a.e)
      store_float(a.o.data, a.o_dtype, row + (column + n) * o[3], out[n] * inverse);
  if (a.lse && chunk == 0 && lane == 0)
    a.lse.as()[batch * a.lse.stride[0] + h * a.lse.stride[1] + i * a.lse.stride[2]] =
        sum == 0 ? -INFINITY : base + logf(sum);
}

}  // namespace fovea::cuda
