// SPDX-License-Identifier: Apache-2.0
// The merge of one row's split-key partials (combine.cuh), by a warp.
#pragma once
#include "cuda/block/reduce.cuh"
#include "cuda/loop/combine.cuh"
#include "cuda/loop/score.cuh"

namespace fovea::cuda {

constexpr int kMergeColumns = 128;  // of a warp: four of a lane
constexpr int kMergeAtOnce = 8;     // splits whose loads are in flight together

// Four columns of a row of `width`, 0 past its end.
__device__ inline float4 load_four(const float* row, int64_t column, int64_t width) {
  if (width % 4 == 0)
    return column < width ? __ldcg(reinterpret_cast<const float4*>(row + column)) : float4{};
  return {column < width ? row[column] : 0.f, column + 1 < width ? row[column + 1] : 0.f,
          column + 2 < width ? row[column + 2] : 0.f, column + 3 < width ? row[column + 3] : 0.f};
}

// Columns [chunk kMergeColumns, ...) of row i of o, of head h.  Past L1: another block may have
// written them.
__device__ inline void combine_row(const Attend& a, const Partials& parts, int64_t batch, int64_t i,
                                   int64_t h, int64_t chunk) {
  const int lane = threadIdx.x % 32;
  const int64_t token = batch * parts.out.extent + i;
  // A lane holds the lse of one split of 32.
  const auto lse_of = [&](int first) {
    return first + lane < parts.splits ? __ldcg(parts.lse_row(first + lane, token, h)) : -INFINITY;
  };
  const float sink = a.score.sink_logit ? sink_logit(a.score, h) : -INFINITY;
  float top = sink;
  bool bad = sink != sink;  // fmaxf drops NaN, the row must not
  for (int first = 0; first < parts.splits; first += 32) {
    const float lse = lse_of(first);
    top = fmaxf(top, lse);
    bad |= lse != lse;
  }
  top = lanes_max<32>(top), bad = __any_sync(~0u, bad);
  float sum = 0;
  float4 acc{};
  const int64_t column = chunk * kMergeColumns + lane * 4;
  if (top > -INFINITY || bad) {
    for (int first = 0; first < parts.splits; first += 32) {
      const float lse = lse_of(first), mine = lse == -INFINITY ? 0.f : expf(lse - top);
      const uint32_t seen = __ballot_sync(~0u, lse != -INFINITY);
      const int count = min(parts.splits - first, 32);
      for (int c = 0; c < count; c += kMergeAtOnce) {
        float4 o[kMergeAtOnce];
#pragma unroll
        for (int i = 0; i < kMergeAtOnce; ++i)
          o[i] = seen >> c >> i & 1 ? load_four(parts.o_row(first + c + i, token, h), column, a.e)
                                    : float4{};
#pragma unroll
        for (int i = 0; i < kMergeAtOnce; ++i) {
          const float weight = __shfl_sync(~0u, mine, c + i);
          sum += weight;
          acc.x += weight * o[i].x, acc.y += weight * o[i].y;
          acc.z += weight * o[i].z, acc.w += weight * o[i].w;
        }
      }
    }
    if (a.score.sink_logit) sum += expf(sink - top);
  }
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
        sum == 0 ? -INFINITY : top + logf(sum);
}

}  // namespace fovea::cuda
