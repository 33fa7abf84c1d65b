// SPDX-License-Identifier: Apache-2.0
// One warp's matrix work on sm_80 and up: mma.sync m16n8k16 with 16-bit operands and f32 sums.
// Fragments, with g = lane / 4 and t = lane % 4:
//   sums d[4]: rows g, g + 8 (d[0..1], d[2..3]), columns 2t, 2t + 1
//   a[4]:      rows g, g + 8, then the same with k + 8; two k each.  Two neighbouring sums, packed,
//              are an a: P of one product feeds the next without a shuffle
//   b[2]:      column g, k 2t, 2t + 1, then k + 8
#pragma once
#include <cstdint>

#include "cuda/tile/layout.cuh"
#include "fovea/core.h"

namespace fovea::cuda {

template <int Dtype>
__device__ inline void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  static_assert(Dtype == FOVEA_F16 || Dtype == FOVEA_BF16);
  if constexpr (Dtype == FOVEA_BF16)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// f32 rounded to the 10 bits of fraction that a tf32 operand has.
__device__ inline uint32_t to_tf32(float x) {
  uint32_t r;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
  return r;
}
// m16n8k8 of tf32.  a[4]: rows g, g + 8 of column t, then of t + 4; b: column g, k t, then t + 4.
__device__ inline void mma_tf32(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline void load_matrices(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ inline void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// Two values rounded to nearest even; `low` is the element of the lower address.
template <int Dtype>
__device__ inline uint32_t pack(float low, float high) {
  uint32_t r;
  if constexpr (Dtype == FOVEA_BF16)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

// A lane's row and chunk of ldmatrix.x4 in a swizzled tile:
//   outer  16 rows of an a operand, or 16 k of a transposed b: row lane % 16, chunk lane / 16
//   inner  16 columns of a b operand stored [column][k]: rows 0-7 | 8-15 by lane / 16
__device__ inline int outer_row(int lane) {
  return lane % 16;
}
__device__ inline int outer_chunk(int lane) {
  return lane / 16;
}
__device__ inline int inner_row(int lane) {
  return lane % 8 + lane / 16 * 8;
}
__device__ inline int inner_chunk(int lane) {
  return lane / 8 % 2;
}

// sums[M][N] += A B' over Depth, A: M * 16 rows of a swizzled tile, B: N * 8 rows of another, both
// [row][k].  `a` and `b` are the lane's outer and inner addresses of the first 16 rows.
template <int Dtype, int M, int N, int Depth, class TileA, class TileB>
__device__ inline void product_rows(float (&sums)[M][N][4], uint32_t a, uint32_t b) {
#pragma unroll
  for (int k = 0; k < Depth / 16; ++k) {
    uint32_t ra[M][4];
#pragma unroll
    for (int i = 0; i < M; ++i) load_matrices(ra[i], TileA::pair(a, k) + i * 16 * kPanelRowBytes);
#pragma unroll
    for (int j = 0; j < N / 2; ++j) {
      uint32_t rb[4];
      load_matrices(rb, TileB::pair(b, k) + j * 16 * kPanelRowBytes);
#pragma unroll
      for (int i = 0; i < M; ++i) {
        mma<Dtype>(sums[i][2 * j], ra[i], rb[0], rb[1]);
        mma<Dtype>(sums[i][2 * j + 1], ra[i], rb[2], rb[3]);
      }
    }
  }
}

// sums[M][N] += A B over Depth, A in registers as packed sums (a[i][k] = 16 rows x 16 k), B a
// swizzled tile [k][column].  `b` is the lane's outer address of the first 16 k.
template <int Dtype, int M, int N, int Depth, class TileB>
__device__ inline void product_columns(float (&sums)[M][N][4],
                                       const uint32_t (&a)[M][Depth / 16][4], uint32_t b) {
#pragma unroll
  for (int k = 0; k < Depth / 16; ++k)
#pragma unroll
    for (int j = 0; j < N / 2; ++j) {
      uint32_t rb[4];
      load_matrices_transposed(rb, TileB::pair(b, j) + k * 16 * kPanelRowBytes);
#pragma unroll
      for (int i = 0; i < M; ++i) {
        mma<Dtype>(sums[i][2 * j], a[i][k], rb[0], rb[1]);
        mma<Dtype>(sums[i][2 * j + 1], a[i][k], rb[2], rb[3]);
      }
    }
}

// A tile of sums as the a operand of the next product.
template <int Dtype, int M, int N>
__device__ inline void pack_operand(uint32_t (&a)[M][N / 2][4], const float (&sums)[M][N][4]) {
#pragma unroll
  for (int i = 0; i < M; ++i)
#pragma unroll
    for (int k = 0; k < N / 2; ++k) {
      a[i][k][0] = pack<Dtype>(sums[i][2 * k][0], sums[i][2 * k][1]);
      a[i][k][1] = pack<Dtype>(sums[i][2 * k][2], sums[i][2 * k][3]);
      a[i][k][2] = pack<Dtype>(sums[i][2 * k + 1][0], sums[i][2 * k + 1][1]);
      a[i][k][3] = pack<Dtype>(sums[i][2 * k + 1][2], sums[i][2 * k + 1][3]);
    }
}

// Transposes a 4 x 4 of words inside each quad: lane t ends with word t of lanes 0..3.  A lane's
// two columns of each of four 8-column tiles become eight neighbouring columns of one tile.
__device__ inline void quad_transpose(uint32_t (&w)[4]) {
  const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t got = __shfl_xor_sync(~0u, odd ? w[i] : w[i + 1], 1);
    (odd ? w[i] : w[i + 1]) = got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t got = __shfl_xor_sync(~0u, high ? w[i] : w[i + 2], 2);
    (high ? w[i] : w[i + 2]) = got;
  }
}

}  // namespace fovea::cuda
