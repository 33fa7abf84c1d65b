// SPDX-License-Identifier: Apache-2.0
// A two-dimensional convolution of a warp's 16 rows on tensor cores:
//   y[m][n] = sum_dv w[d][v] s[m - d][n + v]        d < rows, v < columns
// s is f16 in shared memory as [block of 8 columns][row][8], so a shift by rows is an address.
//   | operand | holds                                                                            |
//   | A       | 16 k: 8 columns of s at the two shifts d = 2 p, 2 p + 1                          |
//   | B       | the band of taps from these to 8 columns of y; all blocks share it, in registers |
// The band `ahead` leads from a block of s to the block of y that many before it.
// Where the last shift is odd and y reads two blocks of s, they share one operand.
// A tap row past the last is 0 and reads the last one's row again, so no other row's NaN is read.
#pragma once
#include "cuda/tile/mma_sm80.cuh"

namespace fovea::cuda {

// Pairs: of row shifts.  Ahead: blocks of s that a block of y reads, 8 (Ahead - 1) >= columns - 1.
template <int Pairs, int Ahead>
struct TapBands {
  static constexpr int pairs = Pairs, ahead = Ahead;
  uint32_t at[Pairs];  // the lane's row of a block, in bytes
  uint32_t b[Pairs][Ahead][2];

  // Whether shift 2 p is the last and has no partner.
  __device__ __forceinline__ static bool alone(int p, int rows) {
    return Ahead == 2 && p == Pairs - 1 && rows == 2 * p + 1;
  }
  // The lane's rows: `row` is the warp's first, rows outside [first, last] are read as the nearest.
  __device__ __forceinline__ void place(int row, int first, int last, int rows) {
#pragma unroll
    for (int p = 0; p < Pairs; ++p) at[p] = row_of(p, row, first, last, rows);
  }
  // A lane's part of a band.  tap(d, v): w[d][v].
  template <class Tap>
  __device__ __forceinline__ static uint2 band(int lane, int p, int ahead, int rows, int columns,
                                               const Tap& tap) {
    float w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int d = alone(p, rows) ? 2 * p : 2 * p + i / 2,
                block = alone(p, rows) ? 2 * ahead + i / 2 : ahead,
                v = 8 * block + lane % 4 * 2 + i % 2 - lane / 4;
      w[i] = d < rows && v >= 0 && v < columns ? tap(d, v) : 0.f;
    }
    return make_uint2(pack<FOVEA_F16>(w[0], w[1]), pack<FOVEA_F16>(w[2], w[3]));
  }
  // The same for a whole warp, which loads each tap once, all at once.  A lane has column lane - 7
  // of every tap row, and passes it to other lanes' bands by shuffles.
  template <class Tap>
  __device__ __forceinline__ void load(int rows, int columns, const Tap& tap) {
    static_assert(8 * Ahead + 7 <= 32);
    const int lane = threadIdx.x % 32, v = lane - 7;
    float w[2 * Pairs];
#pragma unroll
    for (int d = 0; d < 2 * Pairs; ++d) w[d] = d < rows && v >= 0 && v < columns ? tap(d, v) : 0.f;
#pragma unroll
    for (int d = 0; d < 2 * Pairs; ++d) {
      const uint32_t two = pack<FOVEA_F16>(w[d], __shfl_down_sync(~0u, w[d], 1));
#pragma unroll
      for (int i = 0; i < Ahead; ++i)
        b[d / 2][i][d % 2] = __shfl_sync(~0u, two, 8 * i + lane % 4 * 2 - lane / 4 + 7);
    }
    if (alone(Pairs - 1, rows)) b[Pairs - 1][0][1] = b[Pairs - 1][Ahead - 1][0];
  }
  // Of a table of all lanes' parts, [pair][lane][ahead].
  static constexpr int table_bytes = Pairs * Ahead * 32 * 8;

  // y of N blocks.  block(i): address of block i of s, i < N + Ahead - 1.
  template <int N, class Block>
  __device__ __forceinline__ void convolve(float (&y)[N][4], int rows, const Block& block) const {
    clear(y);
#pragma unroll
    for (int p = 0; p < Pairs; ++p) add_some(y, b[p], p, rows, at[p], block);
  }
  // The same with the bands from a table, a pair at a time: registers for one.
  template <int N, class Block>
  __device__ __forceinline__ static void convolve(float (&y)[N][4], uint32_t table, int row,
                                                  int first, int rows, const Block& block) {
    const int lane = threadIdx.x % 32, own = row + lane % 16, least = max(own - rows + 1, first);
    clear(y);
#pragma unroll
    for (int p = 0; p < Pairs; ++p) {
      uint32_t b[Ahead][2];
      load(b, table, p);
      add_some(y, b, p, rows, max(own - lane / 16 - 2 * p, least) * 16, block);
    }
  }

 private:
  __device__ __forceinline__ static uint32_t row_of(int p, int row, int first, int last, int rows) {
    const int lane = threadIdx.x % 32, d = min(2 * p + lane / 16, rows - 1);
    return static_cast<uint32_t>(min(max(row + lane % 16 - d, first), last)) * 16;
  }
  __device__ __forceinline__ static void load(uint32_t (&b)[Ahead][2], uint32_t table, int p) {
    const uint32_t at = table + (p * 32 + threadIdx.x % 32) * (Ahead * 8);
    if constexpr (Ahead == 2) {
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(b[0][0]), "=r"(b[0][1]), "=r"(b[1][0]), "=r"(b[1][1])
                   : "r"(at)
                   : "memory");
    } else {
#pragma unroll
      for (int i = 0; i < Ahead; ++i)
        asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
                     : "=r"(b[i][0]), "=r"(b[i][1])
                     : "r"(at + i * 8)
                     : "memory");
    }
  }
  template <int N>
  __device__ __forceinline__ static void clear(float (&y)[N][4]) {
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) y[j][c] = 0.f;
  }
  template <int N, class Block>
  __device__ __forceinline__ static void add_some(float (&y)[N][4], const uint32_t (&b)[Ahead][2],
                                                  int p, int rows, uint32_t at,
                                                  const Block& block) {
    if (alone(p, rows))
      add_alone(y, b, at, block);
    else
      add(y, b, at, block);
  }
  template <int N, class Block>
  __device__ __forceinline__ static void add_alone(float (&y)[N][4], const uint32_t (&b)[Ahead][2],
                                                   uint32_t at, const Block& block) {
    static_assert(N % 2 == 0);
    at += threadIdx.x % 32 / 16 * (block(1) - block(0));
    uint32_t a[2][4];
#pragma unroll
    for (int i = 0; i <= N; i += 2) {
      const uint32_t(&old)[4] = a[i / 2 % 2 ^ 1];
      uint32_t(&now)[4] = a[i / 2 % 2];
      load_matrices(now, block(i) + at);
      if (i > 0) mma<FOVEA_F16>(y[i - 1], {old[2], old[3], now[0], now[1]}, b[0][0], b[0][1]);
      if (i < N) mma<FOVEA_F16>(y[i], now, b[0][0], b[0][1]);
    }
  }
  template <int N, class Block>
  __device__ __forceinline__ static void add(float (&y)[N][4], const uint32_t (&b)[Ahead][2],
                                             uint32_t at, const Block& block) {
#pragma unroll
    for (int i = 0; i < N + Ahead - 1; ++i) {
      uint32_t a[4];
      load_matrices(a, block(i) + at);
#pragma unroll
      for (int ahead = 0; ahead < Ahead; ++ahead)
        if (i - ahead >= 0 && i - ahead < N)
          mma<FOVEA_F16>(y[i - ahead], a, b[ahead][0], b[ahead][1]);
    }
  }
};

}  // namespace fovea::cuda
