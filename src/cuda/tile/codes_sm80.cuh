// SPDX-License-Identifier: Apache-2.0
// 8-bit codes in shared memory as f16 operands of mma.sync (mma_sm80.cuh), exactly.
//   A tile of codes is a Swizzled tile of pairs: R rows of C codes are R x C / 2 elements.
//   ldmatrix gives a lane words of four codes.  A word becomes two words of two f16 numbers:
//
//   | tile            | a word holds                      | of it  | becomes            |
//   | K, [key][k]     | k 4t .. 4t + 3 of key g           | near() | b[0], b[1]         |
//   | V, [key][k] (T) | columns 2g, 2g + 1 of keys 2t, +1 | far()  | b of either column |
//
//   with g = lane / 4, t = lane % 4.  So k 0 1 4 5 8 9 12 13, 2 3 6 7 .. of 16 stand in this order
//   in q, too, and two tiles of 8 sums hold the even and the odd columns.
#pragma once
#include "cuda/tile/mma_sm80.cuh"

namespace fovea::cuda {

// x y + z of two f16 numbers.
__device__ __forceinline__ uint32_t fma_pairs(uint32_t x, uint32_t y, uint32_t z) {
  uint32_t r;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(z));
  return r;
}

// Codes 0, 1 and 2, 3 of a word, or 0, 2 and 1, 3 of it.
struct CodePairs {
  uint32_t low, high;
};

// Codes of e4m3.  Below compute capability 8.9 a code's bits in place are code / 2^8.  140 times
// 448 is finite and 140 times 480 is not; 0 times these is NaN.  So a code that is NaN becomes NaN.
struct E4m3Codes {
  __device__ explicit E4m3Codes(int32_t) {}
  __device__ __forceinline__ CodePairs near(uint32_t w) const {
#if __CUDA_ARCH__ >= 890
    return convert(w);
#else
    return {widened(__byte_perm(w, 0, 0x1404)), widened(__byte_perm(w, 0, 0x3424))};
#endif
  }
  __device__ __forceinline__ CodePairs far(uint32_t w) const {
#if __CUDA_ARCH__ >= 890
    return convert(__byte_perm(w, 0, 0x3120));
#else
    return {widened(w << 8), widened(w)};
#endif
  }

 private:
#if __CUDA_ARCH__ >= 890
  __device__ __forceinline__ static CodePairs convert(uint32_t w) {
    CodePairs r;
    asm("{ .reg .b16 low, high;\n mov.b32 {low, high}, %2;\n cvt.rn.f16x2.e4m3x2 %0, low;\n"
        "cvt.rn.f16x2.e4m3x2 %1, high; }"
        : "=r"(r.low), "=r"(r.high)
        : "r"(w));
    return r;
  }
#else
  // The upper byte of each half.
  __device__ __forceinline__ static uint32_t widened(uint32_t w) {
    constexpr uint32_t kSign = 0x80008000u;
    const uint32_t value = fma_pairs((w & kSign) | (w >> 1 & 0x3f803f80u), 0x5c005c00u, kSign);
    return fma_pairs(fma_pairs(value, 0x58605860u, kSign), 0, value);
  }
#endif
};

// Codes of e4m3 or e5m2; those are the upper byte of an f16.
struct FloatCodes {
  const bool e4m3;

  __device__ explicit FloatCodes(int32_t format) : e4m3(format == FOVEA_E4M3) {}
  __device__ __forceinline__ CodePairs near(uint32_t w) const {
    if (e4m3) return E4m3Codes(0).near(w);
    return {__byte_perm(w, 0, 0x1404), __byte_perm(w, 0, 0x3424)};
  }
  __device__ __forceinline__ CodePairs far(uint32_t w) const {
    if (e4m3) return E4m3Codes(0).far(w);
    return {__byte_perm(w, 0, 0x2404), __byte_perm(w, 0, 0x3414)};
  }
};

// i8: 1024 + (code + 128), less 1152.
struct IntegerCodes {
  __device__ explicit IntegerCodes(int32_t) {}
  __device__ __forceinline__ CodePairs near(uint32_t w) const { return of(w, 0x4140, 0x4342); }
  __device__ __forceinline__ CodePairs far(uint32_t w) const { return of(w, 0x4240, 0x4341); }

 private:
  __device__ __forceinline__ static CodePairs of(uint32_t w, uint32_t low, uint32_t high) {
    w ^= 0x80808080u;
    const auto number = [&](uint32_t bytes) {
      return fma_pairs(__byte_perm(w, 0x64646464u, bytes), 0x3c003c00u, 0xe480e480u);
    };
    return {number(low), number(high)};
  }
};

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
