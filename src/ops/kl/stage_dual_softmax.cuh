// SPDX-License-Identifier: Apache-2.0
// Both online softmaxes of a thread's own rows (block/pairs_fma.cuh) and their cross term:
//   X = max x, l_x = sum e^(x - X), Y and l_y likewise, c = sum e^(x - X) ((x - X) - (y - Y))
//   kl = c / l_x - ln l_x + ln l_y,  lse = X + ln l_x, Y + ln l_y
#pragma once
#include "cuda/block/pairs_fma.cuh"

namespace fovea::cuda {

// The sums of a thread's rows; l and c are its own share.
template <class Pairs>
struct StageDualSoftmax {
  static constexpr int R = Pairs::R, C = Pairs::C;
  float m[2][R], l[2][R], c[R];

  __device__ StageDualSoftmax() {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      m[0][r] = m[1][r] = -INFINITY;
      l[0][r] = l[1][r] = c[r] = 0;
    }
  }
  __device__ __forceinline__ void add(const float (&x)[R][C], const float (&y)[R][C]) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      float top[2] = {m[0][r], m[1][r]}, base[2], moved[2], rescale[2];
#pragma unroll
      for (int i = 0; i < C; ++i) top[0] = fmaxf(top[0], x[r][i]), top[1] = fmaxf(top[1], y[r][i]);
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        top[side] = Pairs::max(top[side]);
        base[side] = top[side] == -INFINITY ? 0 : top[side];
        moved[side] = m[side][r] == -INFINITY ? 0 : m[side][r] - base[side];
        rescale[side] = expf(m[side][r] - base[side]);
        m[side][r] = top[side];
      }
      c[r] = rescale[0] * fmaf(moved[0] - moved[1], l[0][r], c[r]);
      l[0][r] *= rescale[0], l[1][r] *= rescale[1];
#pragma unroll
      for (int i = 0; i < C; ++i) {
        if (x[r][i] == -INFINITY && y[r][i] == -INFINITY) continue;  // unseen
        const float u = x[r][i] - base[0], w = y[r][i] - base[1], p = expf(u);
        l[0][r] += p, l[1][r] += expf(w);
        c[r] = fmaf(p, u - w, c[r]);
      }
    }
  }
  // Of both sides, 0 for a row that has seen nothing.
  __device__ __forceinline__ void lse(float (&to)[2][R]) const {
#pragma unroll
    for (int side = 0; side < 2; ++side)
#pragma unroll
      for (int r = 0; r < R; ++r) {
        const float sum = Pairs::sum(l[side][r]);
        to[side][r] = sum == 0 ? 0 : m[side][r] + logf(sum);
      }
  }
};

// What a row's sums come to.
struct DualRow {
  float kl, lse[2];
};
template <class Pairs>
__device__ __forceinline__ DualRow dual_row(const StageDualSoftmax<Pairs>& state, int r) {
  const float sum[2] = {Pairs::sum(state.l[0][r]), Pairs::sum(state.l[1][r])};
  const float cross = Pairs::sum(state.c[r]);
  if (sum[0] == 0) return {0, {-INFINITY, -INFINITY}};
  const float log[2] = {logf(sum[0]), logf(sum[1])};
  return {cross / sum[0] - log[0] + log[1], {state.m[0][r] + log[0], state.m[1][r] + log[1]}};
}

}  // namespace fovea::cuda
