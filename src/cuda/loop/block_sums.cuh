// SPDX-License-Identifier: Apache-2.0
// Sums of e^x, and the largest x, of a row over blocks of keys, by the two fragments of the sweeps.
//   BlockSums     64 blocks of any size, in shared memory, from tiles of a block's pairs (Pairs:
//                 block/pairs_fma.cuh, block/pairs_mma.cuh); any number of key tiles may add
//   block_powers  blocks of 64 keys in registers, from a wgmma fragment whose lse is known
#pragma once
#include "cuda/block/softmax.cuh"
#include "cuda/block/stage.cuh"

namespace fovea::cuda {

// (m, l) and (n, k) of the same block: the larger of m and n, and both sums below it.
__device__ __forceinline__ float2 join_powers(float2 x, float2 y) {
  const float top = fmaxf(x.x, y.x), base = top == -INFINITY ? 0 : top;
  return {top, x.y * expf(x.x - base) + y.y * expf(y.x - base)};
}

// A row belongs to the warp that owns it.
template <class Pairs>
struct BlockSums {
  float2 pooled[Pairs::own][kStageTile + 1];  // largest, sum; a row off by one bank pair

  // By all pairs of a thread, then __syncwarp().
  __device__ __forceinline__ void clear(int r, int c) {
    pooled[Pairs::own_of(r)][Pairs::other_of(c)] = {-INFINITY, 0};
  }
  // ln of the sum or the largest; -inf: no key.
  __device__ __forceinline__ float value(int r, int c, bool max) const {
    const float2 of = pooled[Pairs::own_of(r)][Pairs::other_of(c)];
    return max && of.y == of.y ? of.x : of.x + logf(of.y);
  }
  // Adds the logits x of keys [j0, j1) to the blocks from u0 on.
  __device__ __forceinline__ void add(Pairs& pairs, const float (&x)[Pairs::R][Pairs::C],
                                      int64_t block_keys, int64_t u0, int64_t j0, int64_t j1) {
    const int64_t first = j0 / block_keys, last = (j1 - 1) / block_keys;
    if (first == last) {
#pragma unroll
      for (int r = 0; r < Pairs::R; ++r) {
        float top = -INFINITY, sum = 0;
#pragma unroll
        for (int c = 0; c < Pairs::C; ++c) top = fmaxf(top, x[r][c]);
        top = Pairs::max(top);
        const float base = top == -INFINITY ? 0 : top;
#pragma unroll
        for (int c = 0; c < Pairs::C; ++c) sum += expf(x[r][c] - base);
        sum = Pairs::sum(sum);
        float2& slot = pooled[Pairs::own_of(r)][first - u0];
        if (Pairs::leads()) slot = join_powers(slot, {top, sum});
      }
      return;
    }
    if constexpr (requires { pairs.taken(0); }) {
      pairs.put(x);
      constexpr int kRows = 2 * Pairs::R;  // of a warp
      const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
      const int blocks = static_cast<int>(last - first) + 1;
      for (int n = lane; n < blocks * kRows; n += 32) {
        const int m = 2 * warp + n % 2 + n / 2 % Pairs::R * 16;
        const int64_t u = first + n / kRows;
        const int64_t begin = u * block_keys > j0 ? u * block_keys - j0 : 0;
        const int64_t end = (u + 1) * block_keys < j1 ? (u + 1) * block_keys - j0 : j1 - j0;
        const float* from = pairs.taken(m);
        float top = -INFINITY, sum = 0;
        for (int64_t j = begin; j < end; ++j) top = fmaxf(top, from[j]);
        const float base = top == -INFINITY ? 0 : top;
        for (int64_t j = begin; j < end; ++j) sum += expf(from[j] - base);
        float2& slot = pooled[m][u - u0];
        slot = join_powers(slot, {top, sum});
      }
    }
  }
};

// Of the keys of 64 that lie in x[8 half_tile ..]: the sum, or the largest, of 2^(factor x - lse)
// of the lane's row (`half`: the one 8 below); every lane of a quad gets it.  -1: sees(column) of
// no key; a NaN is in the sum alone.
template <int N, class Sees>
__device__ __forceinline__ float block_powers(const float (&x)[N][4], int half_tile, int half,
                                              float factor, float lse, bool max, Sees sees) {
  float sum = 0, most = 0, seen = 0;
#pragma unroll
  for (int j = 8 * half_tile; j < 8 * half_tile + 8; ++j)
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const bool in = sees(j * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + c);
      const float p = in ? exp2_fast(fmaf(x[j][2 * half + c], factor, -lse)) : 0.f;
      sum += p, most = fmaxf(most, p);
      if (in) seen = 1.f;
    }
  sum = quad_sum(sum);
  most = quad_max(most);  // by all lanes of the warp, also those whose sum is NaN
  if (max && sum == sum) sum = most;
  return quad_max(seen) == 0.f ? -1.f : sum;
}

// Two blocks that are one.
__device__ __forceinline__ float join_blocks(float x, float y, bool max) {
  if (x != x || y != y) return x + y;
  if (x < 0.f && y < 0.f) return -1.f;
  x = fmaxf(x, 0.f), y = fmaxf(y, 0.f);
  return max ? fmaxf(x, y) : x + y;
}

}  // namespace fovea::cuda
