// SPDX-License-Identifier: Apache-2.0
// One warp's products of i8 codes on sm_80 and up: mma.sync m16n8k32 with sums in i32.  Fragments
// as in mma_sm80.cuh, with four codes where that has two numbers:
//   a[4]: rows g, g + 8 of k 4t .. 4t + 3, then the same with k + 16;  b[2]: column g, alike
// A tile of codes [row][k] is a Swizzled tile of pairs: C codes a row are C / 2 elements.
// Sums of a tile [row][token], as codes, are an a of the next product: of 16 tokens a lane has 2t,
// 2t + 1, 8 + 2t, 9 + 2t.  The other operand has tokens in that order, which is v_perm16 (quant.h).
#pragma once
#include "cuda/tile/copy.cuh"
#include "cuda/tile/mma_sm80.cuh"

namespace fovea::cuda {

__device__ __forceinline__ void mma_codes(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                          uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// sums[M][N] += A B' over Depth codes, A: M * 16 rows of a tile of codes, B: N * 8 rows of another.
// `a` and `b` are the lane's outer and inner addresses of the first 16 rows.
template <int M, int N, int Depth, class TileA, class TileB>
__device__ __forceinline__ void code_product(int32_t (&sums)[M][N][4], uint32_t a, uint32_t b) {
#pragma unroll
  for (int k = 0; k < Depth / 32; ++k) {
    uint32_t ra[M][4];
#pragma unroll
    for (int i = 0; i < M; ++i) load_matrices(ra[i], TileA::pair(a, k) + i * 16 * kPanelRowBytes);
#pragma unroll
    for (int j = 0; j < N / 2; ++j) {
      uint32_t rb[4];
      load_matrices(rb, TileB::pair(b, k) + j * 16 * kPanelRowBytes);
#pragma unroll
      for (int i = 0; i < M; ++i) {
        mma_codes(sums[i][2 * j], ra[i], rb[0], rb[1]);
        mma_codes(sums[i][2 * j + 1], ra[i], rb[2], rb[3]);
      }
    }
  }
}

// Codes of 64 tokens by column, in v_perm16's order: rows of 64 bytes in four chunks, permuted so
// that eight rows of one chunk touch all banks once.
template <int Columns>
struct TokenColumns {
  static constexpr int bytes = Columns * 64;
  __device__ static uint32_t at(int column, int chunk) {
    return column * 64 + (chunk ^ (column / 2 % 4)) * 16;
  }
  // The lane's row and chunk of ldmatrix: eight columns, all tokens.
  __device__ static uint32_t lane_at(int lane) { return at(lane % 8, lane / 8); }
};

// A thread's share of copying tile after tile of Rows x Columns elements of 16 bits, into a
// swizzled tile: addresses are found once, then advance.  Rows from `left` on and columns from
// `width` on are zeros, and are not read.
template <int Rows, int Columns, int Threads>
struct RowCursor {
  using Tile = Swizzled<Rows, Columns>;
  static constexpr int kStep = Threads / kPanelChunks;
  const uint16_t* at;
  int64_t step;  // elements of kStep rows
  int left, width;

  // Row 0 is at `from`; `count` rows and `columns` columns are there.
  __device__ __forceinline__ void start(const uint16_t* from, int64_t stride, int count,
                                        int columns) {
    const int row = threadIdx.x / kPanelChunks, column = threadIdx.x % kPanelChunks * kChunk;
    at = from + row * stride + column;
    step = kStep * stride, left = count - row, width = columns - column;
  }
  __device__ __forceinline__ void advance() { at += Rows / kStep * step, left -= Rows; }
  __device__ __forceinline__ void retreat() { at -= Rows / kStep * step, left += Rows; }
  __device__ __forceinline__ void copy(uint32_t to) const {
    to += Tile::at(threadIdx.x / kPanelChunks, threadIdx.x % kPanelChunks);
    if (Columns % 64 && static_cast<int>(threadIdx.x) % kPanelChunks * kChunk >= Columns) return;
    const uint16_t* from = at;
#pragma unroll
    for (int i = 0; i < Rows / kStep; ++i, from += step)
#pragma unroll
      for (int panel = 0; panel < Tile::panels; ++panel)
        copy_async(to + i * kStep * kPanelRowBytes + panel * Tile::panel_bytes, from + panel * 64,
                   i * kStep < left && panel * 64 < width);
  }
};

// The same of columns of 64 codes.
template <int Columns, int Threads>
struct ColumnCursor {
  static constexpr int kStep = Threads / 4;
  const int8_t* at;
  int64_t step;  // bytes of kStep columns
  int width;

  // Column 0 is at `from`, the next is `stride` bytes on; `columns` are there.
  __device__ __forceinline__ void start(const int8_t* from, int64_t stride, int columns) {
    const int column = threadIdx.x / 4;
    at = from + column * stride + threadIdx.x % 4 * 16;
    step = kStep * stride, width = columns - column;
  }
  __device__ __forceinline__ void advance(int64_t bytes) { at += bytes; }
  __device__ __forceinline__ void copy(uint32_t to) const {
    to += TokenColumns<Columns>::at(threadIdx.x / 4, threadIdx.x % 4);
    const int8_t* from = at;
#pragma unroll
    for (int i = 0; i < Columns / kStep; ++i, from += step)
      copy_async(to + i * kStep * 64, from, i * kStep < width);
  }
};

// sums[M][N] += factor A B: A M * 16 rows x 64 tokens of codes in registers, B N * 8 columns at
// `b`, the lane's address of the first eight.  factor: of rows g and g + 8.
template <int M, int N>
__device__ __forceinline__ void add_code_product(float (&sums)[M][N][4],
                                                 const uint32_t (&a)[M][2][4], uint32_t b,
                                                 const float (&factor)[M][2]) {
#pragma unroll
  for (int j = 0; j < N; ++j) {
    uint32_t rb[4];
    load_matrices(rb, b + j * 8 * 64);
#pragma unroll
    for (int i = 0; i < M; ++i) {
      int32_t part[4] = {};
      mma_codes(part, a[i][0], rb[0], rb[1]);
      mma_codes(part, a[i][1], rb[2], rb[3]);
#pragma unroll
      for (int c = 0; c < 4; ++c)
        sums[i][j][c] = fmaf(factor[i][c / 2], static_cast<float>(part[c]), sums[i][j][c]);
    }
  }
}

// Four numbers as codes: each times `factor` and rounded to nearest even.  A number of 1.5 2^23 and
// more ends with the bits of the integer that it is above that.
__device__ __forceinline__ uint32_t four_codes(float x0, float x1, float x2, float x3,
                                               float factor) {
  const auto code = [&](float x) { return __float_as_uint(fmaf(x, factor, 12582912.f)); };
  const uint32_t low = __byte_perm(code(x0), code(x1), 0x0040);
  return __byte_perm(low, __byte_perm(code(x2), code(x3), 0x0040), 0x5410);
}

// The words of the a operand of the next product that hold 16 tokens, those of x[2 n] and the next.
// factor: of rows g and g + 8.
__device__ __forceinline__ void code_words(uint32_t (&a)[2][4], const float (&x)[8][4], int n,
                                           const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i)
    a[n / 2][n % 2 * 2 + i] = four_codes(x[2 * n][2 * i], x[2 * n][2 * i + 1], x[2 * n + 1][2 * i],
                                         x[2 * n + 1][2 * i + 1], factor[i]);
}
// A tile of 16 rows x 64 tokens as that operand.
__device__ __forceinline__ void code_operand(uint32_t (&a)[2][4], const float (&x)[8][4],
                                             const float (&factor)[2]) {
#pragma unroll
  for (int n = 0; n < 4; ++n) code_words(a, x, n, factor);
}
__device__ __forceinline__ void code_operand(uint32_t (&a)[2][4], const float (&x)[8][4],
                                             float factor) {
  code_operand(a, x, {factor, factor});
}

}  // namespace fovea::cuda
