// SPDX-License-Identifier: Apache-2.0
// 8-bit codes in shared memory as operands of mma.sync (mma_sm80.cuh), exactly.
//   A tile of codes is a Swizzled tile of pairs: R rows of C codes are R x C / 2 elements.
//   ldmatrix gives a lane words of four codes.  Codes 0 and 2 of a word, and 1 and 3, become two
//   16-bit numbers each:
//
//   | tile            | a word holds                      | codes 0, 2      | codes 1, 3          |
//   | K, [key][k]     | k 4t .. 4t + 3 of key g           | b[0]            | b[1]                |
//   | V, [key][k] (T) | columns 2g, 2g + 1 of keys 2t, +1 | b of column 2g  | b of column 2g + 1  |
//
//   with g = lane / 4, t = lane % 4.  So the 16 k of a step stand in the order
//   0 2 4 6 .. 14, 1 3 .. 15 in q, too, and two tiles of 8 sums hold the even and the odd columns.
#pragma once
#include "cuda/tile/mma_sm80.cuh"

namespace fovea::cuda {

// x y + z of two 16-bit numbers.
template <int Dtype>
__device__ __forceinline__ uint32_t fma_pairs(uint32_t x, uint32_t y, uint32_t z) {
  uint32_t r;
  if constexpr (Dtype == FOVEA_BF16)
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(z));
  else
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(z));
  return r;
}

// Codes of a float format, sign first, as Dtype: their bits in place are code / factor.
//   The largest finite code times `limit` is finite, those above it are not, and 0 times
//   these is NaN.  So a code that is NaN, and an infinite one, becomes NaN.
//
//   | format -> Dtype | factor | limit        |
//   | e4m3 -> bf16    | 2^120  | 1.125  2^119 |
//   | e5m2 -> bf16    | 2^112  | 2^112        |
//   | e4m3 -> f16     | 2^8    | 140          |
//   | e5m2 -> f16     | 1      | 0            |
template <int Dtype>
struct FloatCodes {
  int shift;
  uint32_t bits, factor, limit;

  __device__ explicit FloatCodes(int32_t format) {
    constexpr bool kWide = Dtype == FOVEA_BF16;
    const bool e4m3 = format == FOVEA_E4M3;
    shift = kWide ? (e4m3 ? 4 : 3) : (e4m3 ? 1 : 0);
    bits = (kWide ? (e4m3 ? 0x07f0u : 0x0fe0u) : (e4m3 ? 0x3f80u : 0x7f00u)) * kBoth;
    factor = (kWide ? (e4m3 ? 0x7b80u : 0x7780u) : (e4m3 ? 0x5c00u : 0x3c00u)) * kBoth;
    limit = (kWide ? (e4m3 ? 0x7b10u : 0x7780u) : (e4m3 ? 0x5860u : 0u)) * kBoth;
  }
  __device__ __forceinline__ uint32_t odd(uint32_t w) const {
    constexpr uint32_t kSign = 0x80008000u;
    const uint32_t value =
        fma_pairs<Dtype>((w & kSign) | ((w >> shift & bits) & ~kSign), factor, kSign);
    return fma_pairs<Dtype>(fma_pairs<Dtype>(value, limit, kSign), 0, value);
  }
  __device__ __forceinline__ uint32_t even(uint32_t w) const { return odd(w << 8); }

 private:
  static constexpr uint32_t kBoth = 0x00010001u;
};

// i8 as Dtype.
//   bf16: 128 + low seven bits, less 128 or 256 by the sign.
//   f16:  1024 + (code + 128), less 1152.
template <int Dtype>
struct IntegerCodes {
  __device__ explicit IntegerCodes(int32_t) {}
  __device__ __forceinline__ uint32_t even(uint32_t w) const {
    if constexpr (Dtype == FOVEA_BF16)
      return fma_pairs<Dtype>((w & 0x007f007fu) | 0x43004300u, 0x3f803f80u,
                              (w & 0x00800080u) | 0xc300c300u);
    else
      return fma_pairs<Dtype>((w & 0x00ff00ffu) ^ 0x64806480u, 0x3c003c00u, 0xe480e480u);
  }
  __device__ __forceinline__ uint32_t odd(uint32_t w) const { return even(w >> 8); }
};

// Four neighbouring numbers of a row of q in the order of its codes: two of a[i], two of a[i + 2].
__device__ __forceinline__ uint2 order_as_codes(uint2 x) {
  return {__byte_perm(x.x, x.y, 0x5410), __byte_perm(x.x, x.y, 0x7632)};
}

// Even and odd columns of 16, as two tiles of sums, in the usual order.
__device__ __forceinline__ void order_columns(float (&even)[4], float (&odd)[4]) {
  const int t = threadIdx.x % 4, from = threadIdx.x % 32 / 4 * 4 + t / 2;
#pragma unroll
  for (int half = 0; half < 4; half += 2) {
    // Columns 4t, + 1 and 4t + 2, + 3 become 2t, + 1 and 8 + 2t, + 1.
    const float mine[4] = {even[half], odd[half], even[half + 1], odd[half + 1]};
    float got[2][2];
#pragma unroll
    for (int tile = 0; tile < 2; ++tile)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float low = __shfl_sync(~0u, mine[c], from + 2 * tile);
        const float high = __shfl_sync(~0u, mine[2 + c], from + 2 * tile);
        got[tile][c] = t % 2 ? high : low;
      }
    even[half] = got[0][0], even[half + 1] = got[0][1];
    odd[half] = got[1][0], odd[half + 1] = got[1][1];
  }
}

}  // namespace fovea::cuda
