// SPDX-License-Identifier: Apache-2.0
// What the kernels of x_kv_decode share: the row tile of a key head, its queries as f16, and the
// online softmax of a warp.  Heads are the columns of the products; lane (r, t) = (lane / 4,
// lane % 4).
#pragma once
#include "cuda/block/softmax.cuh"
#include "cuda/loop/source.cuh"
#include "cuda/tile/convert.cuh"
#include "cuda/tile/mma_sm80.cuh"
#include "ops/kv/kernels.h"

namespace fovea::cuda {

constexpr float kLowest = -INFINITY;
constexpr float kFactorLeast = 1.17549435e-38f;

// Bytes from a page to the next, and from a tile of a page.
struct Step {
  uint32_t page, tile;
};

// What a row tile of a sequence sees.
struct Tile {
  Sequence q;
  int64_t row;            // of the cache
  int head, first, rows;  // first packed row, and how many there are
  int length, keys, values, low, high;
};

__device__ inline int limit_low(const Window& w, int64_t p) {
  return w.left > 0 && p - w.left + 1 > 0 ? static_cast<int>(p - w.left + 1) : 0;
}
__device__ inline int limit_high(const Window& w, int64_t p, int length) {
  return w.right > 0 && p + w.right < length ? static_cast<int>(p + w.right) : length;
}

// Packed rows [first, first + most) of a key head.  Where there are none, only rows is valid.
__device__ inline Tile tile_of(const Attend& a, const kv::Cache& cache, int packed,
                               int64_t sequence, int head, int first, int most) {
  Tile tile;
  tile.q = a.sequences[sequence];
  tile.head = head, tile.first = first;
  tile.rows = static_cast<int>(tile.q.rows) * packed;
  if (first >= tile.rows) return tile;
  tile.row = tile.q.key_batch;
  kv::State state{};
  if (tile.row >= 0) state = cache.state(tile.row);
  const int64_t length = min(state.length, a.sequences.key_max);
  tile.length = static_cast<int>(length);
  tile.keys = static_cast<int>(min(state.keys, length));
  tile.values = static_cast<int>(min(state.values, length));
  const int64_t back = length - tile.q.rows;
  const int until = min(first + most, tile.rows) - 1;
  tile.low = limit_low(a.mask.window, first / packed + back);
  tile.high = limit_high(a.mask.window, until / packed + back, tile.length);
  return tile;
}

// 2^e of a number's exponent and 2^-e; 1 where it is 0, subnormal or infinite.
struct Power {
  float up, down;
};
__device__ inline Power power_of(float most) {
  const uint32_t e = __float_as_uint(most) >> 23;
  if (e < 2 || e > 252) return {1.f, 1.f};
  return {__uint_as_float(e << 23), __uint_as_float((254 - e) << 23)};
}

// q of the lane's rows as f16 over a power of two; a weight is 2^(factor x).  Of each 16 channels a
// lane has Near: 4 t + 0 .. 3; else 2 t + 0, 1 and 8 more.
template <int Dtype, bool Near, int Tiles, int Columns>
__device__ inline void load_queries(const Attend& a, const Tile& tile, int packed,
                                    uint32_t (&q)[Tiles][Columns][2], float (&factor)[Columns][2]) {
  const int r = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int n = 0; n < Columns; ++n) {
    const int m = tile.first + 8 * n + r;
    const bool inside = m < tile.rows;
    const int i = m / packed, h = tile.head * packed + m % packed;
    const uint16_t* from =
        a.q.as<uint16_t>() + row_offset(tile.q, i, h, a.q.stride) + (Near ? 4 : 2) * t;
    uint2 words[Tiles];
    float most = 0;
#pragma unroll
    for (int k = 0; k < Tiles; ++k) {
      words[k] = uint2{0, 0};
      if (Near && inside) words[k] = *reinterpret_cast<const uint2*>(from + 16 * k);
      if (!Near && inside)
        words[k] = {*reinterpret_cast<const uint32_t*>(from + 16 * k),
                    *reinterpret_cast<const uint32_t*>(from + 16 * k + 8)};
      const float2 x = pair_of<Dtype>(words[k].x), y = pair_of<Dtype>(words[k].y);
      most = fmaxf(most, fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(y.x), fabsf(y.y))));
    }
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    const auto [up, down] = power_of(most);
#pragma unroll
    for (int k = 0; k < Tiles; ++k) {
      const float2 x = pair_of<Dtype>(words[k].x), y = pair_of<Dtype>(words[k].y);
      q[k][n][0] = pack<FOVEA_F16>(x.x * down, x.y * down);
      q[k][n][1] = pack<FOVEA_F16>(y.x * down, y.y * down);
    }
    // The factor of rows 2 t and 2 t + 1.
#pragma unroll
    for (int k = 0; k < 2; ++k)
      factor[n][k] =
          fmaxf(__shfl_sync(~0u, up, (2 * t + k) * 4) * a.score.scale * kLog2E, kFactorLeast);
  }
}

// Of two f16 numbers.
__device__ inline uint32_t mul_pairs(uint32_t x, uint32_t y) {
  uint32_t z;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
  return z;
}
__device__ inline uint32_t transposed(uint32_t x) {
  uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// A warp's softmax of 8 Columns packed rows; row 8 n + 2 t + k of lane (r, t).  A key's weight is
// 2^(factor x), factor > 0.
template <int Columns>
struct Softmax {
  float top[Columns][2], sum[Columns][2];
  __device__ Softmax() {
#pragma unroll
    for (int n = 0; n < Columns; ++n)
#pragma unroll
      for (int k = 0; k < 2; ++k) top[n][k] = kLowest, sum[n][k] = 0;
  }
  // x becomes 2^(factor (x - top)).  Lanes agree on a new top, and `o` shrinks, only where some
  // lane has a larger x: in most tiles none has.
  template <int N, int Tiles>
  __device__ void step(float (&x)[N][Columns][4], float (&o)[Tiles][Columns][4],
                       const float (&factor)[Columns][2]) {
    float most[Columns][2];
    bool above = false;
#pragma unroll
    for (int n = 0; n < Columns; ++n)
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        most[n][k] = kLowest;
#pragma unroll
        for (int i = 0; i < N; ++i)
          most[n][k] = fmaxf(most[n][k], fmaxf(x[i][n][k], x[i][n][k + 2]));
        above |= most[n][k] > top[n][k];
      }
    if (__any_sync(~0u, above)) raise(most, o, factor);
#pragma unroll
    for (int n = 0; n < Columns; ++n)
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const float base = top[n][k] == kLowest ? 0.f : top[n][k] * factor[n][k];
        float add = 0;
#pragma unroll
        for (int i = 0; i < N; ++i)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float& one = x[i][n][k + 2 * half];
            one = exp2_fast(fmaf(one, factor[n][k], -base)), add += one;
          }
        sum[n][k] += add;
      }
  }
  template <int Tiles>
  __device__ void raise(float (&most)[Columns][2], float (&o)[Tiles][Columns][4],
                        const float (&factor)[Columns][2]) {
#pragma unroll
    for (int lane = 4; lane < 32; lane *= 2)
#pragma unroll
      for (int n = 0; n < Columns; ++n)
#pragma unroll
        for (int k = 0; k < 2; ++k)
          most[n][k] = fmaxf(most[n][k], __shfl_xor_sync(~0u, most[n][k], lane));
#pragma unroll
    for (int n = 0; n < Columns; ++n)
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const float next = fmaxf(top[n][k], most[n][k]);
        const float shrink = top[n][k] == next ? 1.f : exp2_fast((top[n][k] - next) * factor[n][k]);
        top[n][k] = next, sum[n][k] *= shrink;
#pragma unroll
        for (int w = 0; w < Tiles; ++w) o[w][n][k] *= shrink, o[w][n][k + 2] *= shrink;
      }
  }
  __device__ float total(int n, int k) const {
    float all = sum[n][k];
#pragma unroll
    for (int lane = 4; lane < 32; lane *= 2) all += __shfl_xor_sync(~0u, all, lane);
    return all;
  }
};

// ---- for the choice

// Rows of f16 numbers or of words in chunks of `bytes`.
template <int N>
bool aligned(const View<N>& x, int bytes, int element, int rows_from) {
  if (reinterpret_cast<uintptr_t>(x.data) % bytes) return false;
  for (int i = 0; i < rows_from; ++i)
    if (x.stride[i] * element % bytes) return false;
  return true;
}

// Whether a page and `bytes` times a row of it are below 2^31 bytes.
template <int N>
bool steps_fit(const View<N>& x, int bytes) {
  return x.stride[0] <= INT_MAX / 4 && x.stride[1] <= INT_MAX / bytes;
}
// Bytes from page to page and tile to tile, which fit.
template <int N>
Step step_of(const View<N>& x, int element, int tile) {
  return {static_cast<uint32_t>(x.stride[0] * element),
          static_cast<uint32_t>(x.stride[1] * element * tile)};
}

// Tiles of a page, and their log2; -1: no power of two.
inline void set_pages(const kv::Cache& c, int tokens, int& tiles, int& shift) {
  tiles = static_cast<int>(c.page / tokens), shift = -1;
  for (int n = 0; n < 31; ++n)
    if (tiles == 1 << n) shift = n;
}

}  // namespace fovea::cuda
