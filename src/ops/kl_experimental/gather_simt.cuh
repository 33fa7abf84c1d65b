// SPDX-License-Identifier: Apache-2.0
// Rows and keys that lists bring together, in f32 FMA: eight lanes take a pair, so a warp takes
// four.
//   Lane l of the eight has columns 4 l .. 4 l + 3 of every 32.  The row (or key) that a warp's
//   pairs share lies in shared memory as f32, the other side is read where it is.
#pragma once
#include "cuda/block/reduce.cuh"
#include "ops/kl/stage_sides.cuh"
#include "ops/kl_experimental/gather.h"

namespace fovea::cuda {

constexpr int kPairLanes = 8, kWarpPairs = 32 / kPairLanes;
constexpr int kGatherThreads = 128, kGatherWarps = kGatherThreads / 32;

struct GatherSimt {
  KlGather a;
  StageSide side[2];
  int64_t pitch;  // columns of a row in shared memory, of either side
  int64_t work;
  explicit GatherSimt(const KlGather& request)
      : a(request),
        side{stage_side(a.kl.first, a.kl.h), stage_side(a.kl.second, a.kl.h)},
        pitch(ceil_div(a.kl.first.width > a.kl.second.width ? a.kl.first.width : a.kl.second.width,
                       4 * kPairLanes) *
              4 * kPairLanes),
        work(0) {}
};

// Row i of the sequence, or its key j.
__device__ __forceinline__ int64_t q_place(const StageSide& side, const Sequence& q, int64_t h,
                                           int64_t i) {
  return q.batch * side.q_stride[0] + (q.row_begin + i) * side.q_stride[1] + h * side.q_stride[2];
}
__device__ __forceinline__ int64_t k_place(const StageSide& side, const Sequence& q, int64_t h,
                                           int64_t j) {
  return q.key_batch * side.k_stride[0] + (q.key_begin + j) * side.k_stride[1] +
         h / side.group * side.k_stride[2];
}

// A row to shared memory, zeros up to `pitch`; threads `first`, `first` + `step`, ...
__device__ __forceinline__ void put_row(float* to, const Operand& x, int64_t at, int64_t pitch,
                                        int first, int step) {
  for (int column = 4 * first; column < pitch; column += 4 * step)
    *reinterpret_cast<float4*>(to + column) = load_four(x, at, column);
}

// <row of x at `at`, s>; at < 0: 0.
__device__ __forceinline__ float pair_product(const Operand& x, int64_t at, const float* s) {
  float sum = 0;
#pragma unroll 4
  for (int column = 4 * (threadIdx.x % kPairLanes); column < x.width; column += 4 * kPairLanes) {
    const float4 a = load_four(x, at, column), b = *reinterpret_cast<const float4*>(s + column);
    sum = fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, sum))));
  }
  return lanes_sum<kPairLanes>(sum);
}

// The same, and the row's columns of this lane kept; Chunks of 32 columns.
template <int Chunks>
__device__ __forceinline__ float pair_product(const Operand& x, int64_t at, const float* s,
                                              float4 (&keep)[Chunks]) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < Chunks; ++i) {
    const int column = 4 * (threadIdx.x % kPairLanes) + i * 4 * kPairLanes;
    keep[i] = load_four(x, at, column);
    if (column >= x.width) continue;
    const float4 a = keep[i], b = *reinterpret_cast<const float4*>(s + column);
    sum = fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, sum))));
  }
  return lanes_sum<kPairLanes>(sum);
}

// Key that entry n of a row's list names; -1: none.
__device__ __forceinline__ int64_t list_entry(const KlGather& a, const Sequence& q, int64_t h,
                                              int64_t i, int64_t n) {
  if (n >= a.n) return -1;
  const int64_t* stride = a.index.stride;
  const int64_t j = a.index.as<int32_t>()[row_place(q, h, i, stride) + n * stride[3]];
  return j < q.keys ? j : -1;
}

// What a row's pairs of scores are worth to side `own`, kl = KL(0 || 1): of 1 gain (R - P), of 0
// gain P (ln P - ln R - kl).
struct RowSlope {
  float gain = 0, lse[2] = {0, 0}, kl = 0;

  __device__ RowSlope() {}
  __device__ RowSlope(const KlGather& a, const Sequence& q, int64_t h, int64_t i)
      : gain(row_value(a.dkl, q, h, i)) {
    if (gain == 0) return;
    lse[0] = row_value(a.kl.first.lse, q, h, i), lse[1] = row_value(a.kl.second.lse, q, h, i);
    kl = row_value(a.kl.kl, q, h, i);
  }
  __device__ float operator()(int own, float x, float y) const {
    const float u = x - lse[0], v = y - lse[1], p = expf(u);
    return gain * (own ? expf(v) - p : p * (u - v - kl));
  }
};

// Sums over some entries of a list, in any grouping:
//   X = max x, l_x = sum e^(x - X), Y and l_y likewise, c = sum e^(x - X) ((x - X) - (y - Y))
struct ListSums {
  float m[2] = {-INFINITY, -INFINITY}, l[2] = {}, c = 0;

  __device__ __forceinline__ void join(const ListSums& more) {
    float top[2], mine[2], theirs[2];
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      top[side] = fmaxf(m[side], more.m[side]);
      mine[side] = top[side] == m[side] ? 0 : m[side] - top[side];
      theirs[side] = top[side] == more.m[side] ? 0 : more.m[side] - top[side];
    }
    c = expf(mine[0]) * moved(c, l[0], mine) + expf(theirs[0]) * moved(more.c, more.l[0], theirs);
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      l[side] = l[side] * expf(mine[side]) + more.l[side] * expf(theirs[side]);
      m[side] = top[side];
    }
  }
  // c of the sums l_x about other maxima.
  __device__ static float moved(float c, float l, const float (&by)[2]) {
    return l == 0 ? 0 : fmaf(by[0] - by[1], l, c);
  }
  __device__ __forceinline__ ListSums other(int lane) const {
    ListSums x;
#pragma unroll
    for (int side = 0; side < 2; ++side)
      x.m[side] = __shfl_xor_sync(~0u, m[side], lane),
      x.l[side] = __shfl_xor_sync(~0u, l[side], lane);
    x.c = __shfl_xor_sync(~0u, c, lane);
    return x;
  }
};

// What a row's sums come to.
__device__ __forceinline__ void put_list(const KlGather& a, const Sequence& q, int64_t h, int64_t i,
                                         const ListSums& sums) {
  const bool empty = sums.l[0] == 0;
  const float log[2] = {logf(sums.l[0]), logf(sums.l[1])};
  const auto put = [&](const View<3>& to, float value) {
    if (to) to.as()[row_place(q, h, i, to.stride)] = value;
  };
  put(a.kl.kl, empty ? 0 : sums.c / sums.l[0] - log[0] + log[1]);
  put(a.kl.first.lse, empty ? -INFINITY : sums.m[0] + log[0]);
  put(a.kl.second.lse, empty ? -INFINITY : sums.m[1] + log[1]);
}

}  // namespace fovea::cuda
