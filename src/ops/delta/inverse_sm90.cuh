// SPDX-License-Identifier: Apache-2.0
// T = (1 + M)^-1 of a chunk of 64 tokens by four warps, M strictly lower triangular and in shared
// memory in f32.  By blocks of 16 rows: warp w inverts block (w, w) by forward substitution, a
// column a lane.  Then it makes row w of T from right to left, in registers:
//   T_wJ = -(sum over J < K <= w of T_wK M_KJ) T_JJ
// Products are of tf32; for f16 each operand has two parts.
#pragma once
#include "cuda/tile/mma_sm80.cuh"
#include "cuda/tile/mma_sm90.cuh"
#include "ops/delta/forward.cuh"

namespace fovea::cuda {

constexpr int kInverseStride = 68;  // of rows of M: fragments of tf32 touch all banks

template <int Dtype>
class DeltaInverse {
  using TileT = Swizzled<kChainTokens, kChainTokens>;
  static constexpr bool kSplit = Dtype == FOVEA_F16;

 public:
  // Rows of M, its blocks up to the diagonal.
  __device__ explicit DeltaInverse(float* m) : m_(m) {}

  // Block (w, w) of M becomes that of T; lanes 16 apart do the same.
  __device__ void invert_block() const {
    const int in = threadIdx.x % 16, warp = threadIdx.x % 128 / 32;
    float* block = m_ + 16 * warp * (kInverseStride + 1);
    float x[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      float sum = i == in ? 1.f : 0.f;
#pragma unroll
      for (int l = 0; l < i; l += 4) {
        const float4 row = *reinterpret_cast<const float4*>(block + i * kInverseStride + l);
        const float four[4] = {row.x, row.y, row.z, row.w};
#pragma unroll
        for (int n = 0; n < 4; ++n)
          if (l + n < i) sum = fmaf(-four[n], x[l + n], sum);
      }
      x[i] = sum;
    }
    __syncwarp();
    if (threadIdx.x % 32 < 16) {
#pragma unroll
      for (int i = 0; i < 16; ++i) block[i * kInverseStride + in] = x[i];
    }
  }

  // Once all warps have called invert_block(): row w of T, its columns times beta, to a swizzled
  // tile in the place of M.  meet() is a barrier of the four warps.
  template <class Meet>
  __device__ void write(const float* times, Meet meet) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32, pair = lane % 4 * 2;
    const auto block = [&](int i, int j) { return m_ + 16 * i * kInverseStride + 16 * j; };
    float t[4][2][4] = {};  // [j]: of block column w - j
    uint32_t packed[4][4];
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float2 two = *reinterpret_cast<const float2*>(
            block(warp, warp) + (lane / 4 + 8 * h) * kInverseStride + 8 * n + pair);
        t[0][n][2 * h] = two.x, t[0][n][2 * h + 1] = two.y;
      }
#pragma unroll
    for (int j = 1; j < 4; ++j) {
      if (j > warp) continue;
      float sum[2][4] = {};
#pragma unroll
      for (int k = 0; k < j; ++k) add_product(sum, t[k], block(warp - k, warp - j));
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) sum[n][c] = -sum[n][c];
      add_product(t[j], sum, block(warp - j, warp - j));
    }
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        packed[j][2 * n] = packed[j][2 * n + 1] = 0;
        if (j > warp) continue;
        const float2 beta =
            *reinterpret_cast<const float2*>(times + 16 * (warp - j) + 8 * n + pair);
#pragma unroll
        for (int h = 0; h < 2; ++h)
          packed[j][2 * n + h] = pack<Dtype>(t[j][n][2 * h] * beta.x, t[j][n][2 * h + 1] * beta.y);
      }
    meet();
    const uint32_t to =
        shared_address(m_) + TileT::at(16 * warp + outer_row(lane), outer_chunk(lane));
    // Block columns right of the diagonal are zeros.
#pragma unroll
    for (int j = 0; j < 4; ++j)
      sm90::store_matrices(TileT::pair(to, (warp + 4 - j) % 4), packed[j]);
  }

 private:
  // d += a B of 16 x 16: `a` sums of a warp, B in m_.  Columns of a and rows of B are taken in an
  // order in which sums are an operand.
  __device__ void add_product(float (&d)[2][4], const float (&a)[2][4], const float* b) const {
    const int row = threadIdx.x % 4 * 2, column = threadIdx.x % 32 / 4;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const float from[4] = {a[k][0], a[k][2], a[k][1], a[k][3]};
      uint32_t high[4], low[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        high[i] = to_tf32(from[i]);
        if (kSplit) low[i] = to_tf32(from[i] - float_of(high[i]));
      }
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        uint32_t bh[2], bl[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float x = b[(8 * k + row + i) * kInverseStride + 8 * n + column];
          bh[i] = to_tf32(x);
          if (kSplit) bl[i] = to_tf32(x - float_of(bh[i]));
        }
        if (kSplit) mma_tf32(d[n], low, bh[0], bh[1]), mma_tf32(d[n], high, bl[0], bl[1]);
        mma_tf32(d[n], high, bh[0], bh[1]);
      }
    }
  }

  float* const m_;
};

}  // namespace fovea::cuda
