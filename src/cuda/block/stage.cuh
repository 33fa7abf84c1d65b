// SPDX-License-Identifier: Apache-2.0
// Matrix products of a block in f32 FMA, operands of any fp dtype, strides and width.
//   multiply_nt: acc[m][n] += sum_c A[m][c] B[n][c]     multiply_nn: acc[m][c] += sum_n P[m][n]
//   X[n][c]
// 256 threads as 16 x 16 (ty, tx).  Thread rows are m = ty + 16 r, so each row of P is written and
// read by one warp.  Columns are n = tx + 16 c (nt), 64 chunk + 4 tx + c (nn).
// Shared memory: A 16 R x 68, B or X 64 x 68, P 16 R x 68 floats.  A pitch of 68 keeps float4 rows
// aligned and spreads 16 of them over the banks.
// A step has 64 columns.  B's next 64 are loaded under the products of these.  A's are not: caches
// hold them, and a second block needs the registers.
// Barriers: one before a tile is overwritten, one before it is read.
#pragma once
#include "core/chunk.h"
#include "cuda/tile/convert.cuh"

namespace fovea::cuda {

constexpr int kStageThreads = 256;
constexpr int kStageTile = 64;  // rows of B and X, columns of a step
constexpr int kStagePitch = 68;

// Rows of a tensor as a matrix: width columns, zero past them.
struct Operand {
  const void* data;
  int64_t column_stride;
  int32_t dtype, width;
  bool chunked;  // every row starts on a multiple of four elements
};

inline Operand operand_of(const View<4>& view, int32_t dtype, int64_t width) {
  const size_t bytes = dtype == FOVEA_F32 ? 4 : 2;
  return {view.data, view.stride[3], dtype, static_cast<int32_t>(width), chunked(view, bytes, 4)};
}

// Not inlined: unaligned rows are rare, and would cost the common path registers.
inline __device__ __noinline__ float4 load_four_single(const Operand& x, int64_t row, int column) {
  float out[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    out[i] = column + i < x.width
                 ? load_float(x.data, x.dtype, row + (column + i) * x.column_stride)
                 : 0.f;
  return {out[0], out[1], out[2], out[3]};
}

// Four columns of the row that starts at element `row`; a row < 0 is all zero.
__device__ __forceinline__ float4 load_four(const Operand& x, int64_t row, int column) {
  if (row < 0 || column >= x.width) return {0, 0, 0, 0};
  if (!x.chunked || column + 4 > x.width) return load_four_single(x, row, column);
  if (x.dtype == FOVEA_F32)
    return *reinterpret_cast<const float4*>(static_cast<const float*>(x.data) + row + column);
  const uint2 bits =
      *reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(x.data) + row + column);
  float2 low, high;
  if (x.dtype == FOVEA_F16) {
    low = __half22float2(reinterpret_cast<const __half2&>(bits.x));
    high = __half22float2(reinterpret_cast<const __half2&>(bits.y));
  } else {
    low = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(bits.x));
    high = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(bits.y));
  }
  return {low.x, low.y, high.x, high.y};
}

// An infinity becomes NaN, which every sum that takes it shows.
__device__ __forceinline__ float only_numbers(float x) {
  return fmaf(x, 0.f, x);
}

// The three tiles of a block in dynamic shared memory.
template <int R>
struct FmaTiles {
  float *a, *b, *p;
  __device__ explicit FmaTiles(float* base)
      : a(base), b(a + 16 * R * kStagePitch), p(b + kStageTile * kStagePitch) {}
  static constexpr int64_t bytes() {
    return (2 * 16 * R + kStageTile) * kStagePitch * static_cast<int64_t>(sizeof(float));
  }
};

// Rows [0, 16 Passes) x 64 columns from `column` on; load(row, column) gives four of them.
template <int Passes, class Load>
__device__ __forceinline__ void fetch(float4 (&r)[Passes], const Load& load, int column) {
#pragma unroll
  for (int i = 0; i < Passes; ++i)
    r[i] = load(threadIdx.x / 16 + 16 * i, column + 4 * static_cast<int>(threadIdx.x % 16));
}

template <int Passes>
__device__ __forceinline__ void commit(float* s, const float4 (&r)[Passes]) {
#pragma unroll
  for (int i = 0; i < Passes; ++i)
    *reinterpret_cast<float4*>(s + (threadIdx.x / 16 + 16 * i) * kStagePitch +
                               4 * (threadIdx.x % 16)) = r[i];
}

template <int R, class LoadA, class LoadB>
__device__ __forceinline__ void multiply_nt(float (&acc)[R][4], const FmaTiles<R>& s, int width,
                                            const LoadA& load_a, const LoadB& load_b) {
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
  float4 next_b[4];
  fetch(next_b, load_b, 0);
  for (int column = 0; column < width; column += kStageTile) {
    float4 now_a[R];
    fetch(now_a, load_a, column);
    __syncthreads();
    commit(s.a, now_a), commit(s.b, next_b);
    __syncthreads();
    if (column + kStageTile < width) fetch(next_b, load_b, column + kStageTile);
    const int steps = width - column < kStageTile ? width - column : kStageTile;
#pragma unroll 2
    for (int k = 0; k < steps; k += 4) {
      float4 a[R], b[4];
#pragma unroll
      for (int r = 0; r < R; ++r)
        a[r] = *reinterpret_cast<const float4*>(s.a + (ty + 16 * r) * kStagePitch + k);
#pragma unroll
      for (int c = 0; c < 4; ++c)
        b[c] = *reinterpret_cast<const float4*>(s.b + (tx + 16 * c) * kStagePitch + k);
#pragma unroll
      for (int r = 0; r < R; ++r)
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          acc[r][c] = fmaf(a[r].x, b[c].x, acc[r][c]);
          acc[r][c] = fmaf(a[r].y, b[c].y, acc[r][c]);
          acc[r][c] = fmaf(a[r].z, b[c].z, acc[r][c]);
          acc[r][c] = fmaf(a[r].w, b[c].w, acc[r][c]);
        }
    }
  }
}

// P from the thread's nt tile to shared memory, for multiply_nn.
template <int R>
__device__ __forceinline__ void put_p(const FmaTiles<R>& s, const float (&p)[R][4]) {
  __syncwarp();
#pragma unroll
  for (int r = 0; r < R; ++r)
#pragma unroll
    for (int c = 0; c < 4; ++c)
      s.p[(threadIdx.x / 16 + 16 * r) * kStagePitch + threadIdx.x % 16 + 16 * c] = p[r][c];
  __syncwarp();
}

// The products of one chunk of multiply_nn, where P is not +0.
template <int R>
__device__ __forceinline__ void select_nn(float (&acc)[R][4], const FmaTiles<R>& s, int terms) {
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
#pragma unroll 1
  for (int n = 0; n < terms; ++n) {
    const float4 x = *reinterpret_cast<const float4*>(s.b + n * kStagePitch + 4 * tx);
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const float p = s.p[(ty + 16 * r) * kStagePitch + n];
      if (__float_as_uint(p) == 0) continue;
      acc[r][0] = fmaf(p, x.x, acc[r][0]), acc[r][1] = fmaf(p, x.y, acc[r][1]);
      acc[r][2] = fmaf(p, x.z, acc[r][2]), acc[r][3] = fmaf(p, x.w, acc[r][3]);
    }
  }
}

// Not 0 where one of the four is an infinity or NaN.
__device__ __forceinline__ float non_finite(const float4& x) {
  return fmaf(x.x, 0.f, x.y * 0.f) + fmaf(x.z, 0.f, x.w * 0.f);
}

// `terms` rows of X count, the rest of P is zero; load_x(row, column) as above.
// A masked pair has a P of +0.  It is skipped, so a NaN in X cannot leak.  A computed zero is -0
// and is multiplied.  Tiles of X without infinities and NaN need no test of P.
template <int R, int Chunks, class LoadX>
__device__ __forceinline__ void multiply_nn(float (&acc)[Chunks][R][4], const FmaTiles<R>& s,
                                            int width, int terms, const LoadX& load_x) {
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
  float4 next[4];
  fetch(next, load_x, 0);
#pragma unroll
  for (int chunk = 0; chunk < Chunks; ++chunk) {
    if (chunk * kStageTile >= width) break;
    float any_non_finite = 0;
#pragma unroll
    for (const float4& x : next) any_non_finite += non_finite(x);
    __syncthreads();
    commit(s.b, next);
    const bool select = __syncthreads_or(any_non_finite != 0);
    if ((chunk + 1) * kStageTile < width) fetch(next, load_x, (chunk + 1) * kStageTile);
    if (select) {
      select_nn(acc[chunk], s, terms);
      continue;
    }
#pragma unroll 2
    for (int n = 0; n < terms; n += 4) {
      float4 p[R], x[4];
#pragma unroll
      for (int r = 0; r < R; ++r)
        p[r] = *reinterpret_cast<const float4*>(s.p + (ty + 16 * r) * kStagePitch + n);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        x[i] = *reinterpret_cast<const float4*>(s.b + (n + i) * kStagePitch + 4 * tx);
#pragma unroll
      for (int r = 0; r < R; ++r) {
        const float row[4] = {p[r].x, p[r].y, p[r].z, p[r].w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          acc[chunk][r][0] = fmaf(row[i], x[i].x, acc[chunk][r][0]);
          acc[chunk][r][1] = fmaf(row[i], x[i].y, acc[chunk][r][1]);
          acc[chunk][r][2] = fmaf(row[i], x[i].z, acc[chunk][r][2]);
          acc[chunk][r][3] = fmaf(row[i], x[i].w, acc[chunk][r][3]);
        }
      }
    }
  }
}

// Row r of a thread's sums, times `factor`: `width` columns, `step` elements apart, from `at` on.
template <int Chunks, int R>
__device__ __forceinline__ void store_columns(void* out, int32_t dtype, int64_t at, int64_t step,
                                              int width, float factor,
                                              const float (&acc)[Chunks][R][4], int r) {
#pragma unroll
  for (int chunk = 0; chunk < Chunks; ++chunk)
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int column = chunk * kStageTile + 4 * static_cast<int>(threadIdx.x % 16) + c;
      if (column < width) store_float(out, dtype, at + column * step, acc[chunk][r][c] * factor);
    }
}

// f<Chunks>() for sums of `width` columns, Chunks of `Least` at least.
template <int Least = 1, class F>
void with_chunks(int64_t width, const F& f) {
  if (Least <= 1 && width <= kStageTile)
    f.template operator()<Least <= 1 ? 1 : Least>();
  else if (width <= 2 * kStageTile)
    f.template operator()<2>();
  else if (width <= 4 * kStageTile)
    f.template operator()<4>();
  else
    f.template operator()<9>();
}

}  // namespace fovea::cuda
