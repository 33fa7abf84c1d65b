// SPDX-License-Identifier: Apache-2.0
// The merge of one row's split-key partials (combine.cuh), by a warp.
#pragma once
#include "cuda/block/reduce.cuh"
#include "cuda/loop/combine.cuh"
#include "cuda/loop/score.cuh"
#include "cuda/tile/mma_sm80.cuh"

namespace fovea::cuda {

constexpr int kMergeColumns = 128;  // of a warp: four of a lane

// Counts one arrival.  Whoever sees the count sees what the block wrote before its barrier.
__device__ inline int count_arrival(int32_t* count) {
  int before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(count)
               : "memory");
  return before;
}

// Four columns from `row` on, of which `left` are inside the row: 0 past its end.
template <bool Pieces>
__device__ inline float4 load_four(const float* row, int64_t left, int64_t width) {
  if (Pieces || width % 4 == 0) return __ldcg(reinterpret_cast<const float4*>(row));
  return {row[0], left > 1 ? row[1] : 0.f, left > 2 ? row[2] : 0.f, left > 3 ? row[3] : 0.f};
}

// Four columns at once; `offset` is aligned to them.
__device__ inline void store_four(void* data, int32_t dtype, int64_t offset, const float (&x)[4]) {
  if (dtype == FOVEA_F32)
    *reinterpret_cast<float4*>(static_cast<float*>(data) + offset) = {x[0], x[1], x[2], x[3]};
  else
    *reinterpret_cast<uint2*>(static_cast<uint16_t*>(data) + offset) =
        dtype == FOVEA_BF16 ? uint2{pack<FOVEA_BF16>(x[0], x[1]), pack<FOVEA_BF16>(x[2], x[3])}
                            : uint2{pack<FOVEA_F16>(x[0], x[1]), pack<FOVEA_F16>(x[2], x[3])};
}

// Splits of a row merged so far: a lane has four columns of acc.
struct MergedSplits {
  float top, sum;  // of weights relative to top
  float4 acc;

  // What weights are relative to; NaN stays in them.
  __device__ float base() const { return top == -INFINITY ? 0.f : top; }
};

// Where a row's partials of split 0 lie, of which a lane has four columns.
struct PartialRow {
  const float *lse, *o;
  int64_t step, left;  // elements of o between two splits; columns from the lane's first on
  __device__ PartialRow(const Attend& a, const Partials& parts, int64_t token, int64_t h,
                        int64_t chunk)
      : step(parts.rows * parts.e) {
    const int64_t partial = parts.row(0, token, h),
                  column = chunk * kMergeColumns + threadIdx.x % 32 * 4;
    lse = parts.lse + partial, o = parts.o + partial * parts.e + column, left = a.e - column;
  }
};

// Merges splits [begin, end) of a row.  Loads bypass L1: another block may have written the
// partials.
// AtOnce: splits whose loads are in flight together, the first before any lse is used.
// Pieces: rows of o are contiguous and aligned (core/pieces.h): a lane has four columns or none.
template <int AtOnce, bool Pieces>
__device__ inline MergedSplits merge_splits(const Partials& parts, const PartialRow& row, int begin,
                                            int end, float sink) {
  const int lane = threadIdx.x % 32, there = row.left > 0 ? end : 0;
  const float* next = row.o + begin * row.step;
  // A lane holds the lse of one split of 32.
  const auto lse_of = [&](int split) {
    return split < end ? __ldcg(row.lse + split * parts.rows) : -INFINITY;
  };
  float4 part[AtOnce];
  const auto load = [&](int first) {
#pragma unroll
    for (int c = 0; c < AtOnce; ++c) {
      part[c] = float4{};
      if (first + c < there) part[c] = load_four<Pieces>(next, row.left, parts.e);
      next += row.step;
    }
  };
  float mine = lse_of(begin + lane);
  load(begin);
  MergedSplits merged{mine, 0, {}};
  for (int split = begin + 32 + lane; split - lane < end; split += 32)
    merged.top = fmaxf(merged.top, lse_of(split));
  merged.top = fmaxf(lanes_max<32>(merged.top), sink);
  const float base = merged.base();
  float4& acc = merged.acc;
  for (int first = 0;;) {
    const float weight = mine == -INFINITY ? 0.f : expf(mine - base);
    // A split without keys for this row has left its o unwritten.
    const bool none = begin + first - first % 32 + lane < end && mine == -INFINITY;
    if (const uint32_t empty = __ballot_sync(~0u, none)) {
#pragma unroll
      for (int c = 0; c < AtOnce; ++c)
        if (empty >> (first + c) % 32 & 1) part[c] = float4{};
    }
#pragma unroll
    for (int c = 0; c < AtOnce; ++c) {
      const float w = __shfl_sync(~0u, weight, (first + c) % 32);
      merged.sum += w;
      acc.x = fmaf(w, part[c].x, acc.x), acc.y = fmaf(w, part[c].y, acc.y);
      acc.z = fmaf(w, part[c].z, acc.z), acc.w = fmaf(w, part[c].w, acc.w);
    }
    first += AtOnce;
    if (begin + first >= end) break;
    if (first % 32 == 0) mine = lse_of(begin + first + lane);
    load(begin + first);
  }
  return merged;
}

// Columns [chunk kMergeColumns, ...) of row i and head h.
template <bool Pieces>
__device__ inline void store_merged(const Attend& a, MergedSplits merged, int64_t batch, int64_t i,
                                    int64_t h, int64_t chunk, float sink) {
  const int lane = threadIdx.x % 32;
  const int64_t column = chunk * kMergeColumns + lane * 4;
  if (a.score.sink_logit) merged.sum += expf(sink - merged.base());
  const float inverse = merged.sum == 0 ? 0 : 1 / merged.sum;
  const int64_t* o = a.o.stride;
  const int64_t row = batch * o[0] + i * o[1] + h * o[2];
  const float4& acc = merged.acc;
  const float out[4] = {acc.x * inverse, acc.y * inverse, acc.z * inverse, acc.w * inverse};
  if constexpr (Pieces) {
    if (column < a.e) store_four(a.o.data, a.o_dtype, row + column, out);
  } else {
#pragma unroll
    for (int n = 0; n < 4; ++n)
      if (column + n < a.e) store_float(a.o.data, a.o_dtype, row + (column + n) * o[3], out[n]);
  }
  if (a.lse && chunk == 0 && lane == 0)
    a.lse.as()[batch * a.lse.stride[0] + h * a.lse.stride[1] + i * a.lse.stride[2]] =
        merged.sum == 0 ? -INFINITY : merged.base() + logf(merged.sum);
}

__device__ inline float sink_of(const Attend& a, int64_t h) {
  return a.score.sink_logit ? sink_logit(a.score, h) : -INFINITY;
}

// The whole merge of columns [chunk kMergeColumns, ...) of row i and head h.
template <int AtOnce = 8, bool Pieces = false>
__device__ inline void combine_row(const Attend& a, const Partials& parts, int64_t batch, int64_t i,
                                   int64_t h, int64_t chunk) {
  const PartialRow row(a, parts, batch * parts.out.extent + i, h, chunk);
  const float sink = sink_of(a, h);
  store_merged<Pieces>(a, merge_splits<AtOnce, Pieces>(parts, row, 0, parts.splits, sink), batch, i,
                       h, chunk, sink);
}

}  // namespace fovea::cuda
