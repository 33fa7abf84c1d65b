// SPDX-License-Identifier: Apache-2.0
// What the kernels over lists share: the call, what a row's logits are worth to a gradient, and
// the sums of both softmaxes.
#pragma once
#include "cuda/block/reduce.cuh"
#include "cuda/loop/list_transpose.cuh"
#include "ops/kl/stage_sides.cuh"
#include "ops/kl_experimental/gather.h"

namespace fovea::cuda {

inline constexpr char kGatherForward[] = "x_kl_gather_forward";
inline constexpr char kGatherBackward[] = "x_kl_gather_backward";

inline KeyLists lists_of(const KlGather& a) {
  return {a.index, a.kl.sequences, a.kl.h, a.n};
}

// What a row's pairs of scores are worth to side `own`, kl = KL(0 || 1): of 1 gain (R - P), of 0
// gain P (ln P - ln R - kl).
struct RowDscore {
  float gain = 0, lse[2] = {0, 0}, kl = 0;

  __device__ RowDscore() {}
  __device__ RowDscore(const KlGather& a, const Sequence& q, int64_t h, int64_t i)
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
//   kl = c / l_x - ln l_x + ln l_y,  lse = X + ln l_x, Y + ln l_y
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

// Zeros for gradients of rows and keys that belong to no sequence.
inline void clear_gradients(Context& ctx, const KlGather& a) {
  if (!ragged(a.kl)) return;
  for (const KlSide* side : {&a.kl.first, &a.kl.second})
    zero_gradients(ctx, kGatherBackward, a.kl, *side, a.kl.h, a.kl.t);
}

}  // namespace fovea::cuda
