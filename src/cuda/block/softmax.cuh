// SPDX-License-Identifier: Apache-2.0
// The online softmax of the rows a lane shares with its quad (fragments of tile/mma_sm80.cuh).
// For scores x of a new tile, in units where the weight of a key is 2^(factor x):
//   m' = max(m, max x), alpha = 2^(factor (m - m')), p = 2^(factor (x - m')), l = alpha l + sum p
// The heaviest key of a row so far has p = 1 exactly.  A tile that raises no maximum leaves o
// alone. alpha's exponent is a difference of rounded products, so alpha is 1 where m stays.  Else a
// rounding error would grow with the number of tiles.
// m = -inf (nothing seen) counts as 0 in exponents, so an empty row keeps l = 0 without a NaN.
// l is the lane's own share; total() adds the quad's.
#pragma once
#include <cstdint>

namespace fovea::cuda {

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;
constexpr float kNegativeInfinity = -__builtin_huge_valf();

__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The larger or the smaller one, or NaN if one is.
__device__ __forceinline__ float max_or_nan(float x, float y) {
  float z;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}
__device__ __forceinline__ float min_or_nan(float x, float y) {
  float z;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}

// tanh(x) = 1 - 2 / (e^2x + 1): absolute error 2^-22, a tenth of what tanhf costs.
__device__ inline float tanh_fast(float x) {
  return 1.f - __fdividef(2.f, exp2_fast(x * (2.f * kLog2E)) + 1.f);
}

__device__ inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

template <int M>
struct OnlineSoftmax {
  float m[M][2], l[M][2];

  __device__ OnlineSoftmax() {
#pragma unroll
    for (int i = 0; i < M; ++i) m[i][0] = m[i][1] = kNegativeInfinity, l[i][0] = l[i][1] = 0.f;
  }

  // Scores become weights; `o` is rescaled when a maximum was raised.
  template <int N, int E>
  __device__ void step(float (&x)[M][N][4], float (&o)[M][E][4], float factor) {
    float alpha[M][2];
    if (weigh(x, alpha, factor)) rescale_o(o, alpha);
  }

  // Scores become weights, alpha the scale of the sums so far.  True: some row of the warp's is
  // to be rescaled.
  template <int N>
  __device__ bool weigh(float (&x)[M][N][4], float (&alpha)[M][2], float factor) {
    bool moved = false;
#pragma unroll
    for (int i = 0; i < M; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float top = m[i][half];
#pragma unroll
        for (int j = 0; j < N; ++j)
          top = fmaxf(top, fmaxf(x[i][j][2 * half], x[i][j][2 * half + 1]));
        top = quad_max(top);
        moved |= top > m[i][half];
        const float base = top == kNegativeInfinity ? 0.f : __fmul_rn(top, factor);
        alpha[i][half] = exp2_fast(__fmul_rn(m[i][half], factor) - base);
        m[i][half] = top;
        float sum = 0.f;
#pragma unroll
        for (int j = 0; j < N; ++j)
#pragma unroll
          for (int c = 2 * half; c < 2 * half + 2; ++c) {
            x[i][j][c] = exp2_fast(fmaf(x[i][j][c], factor, -base));
            sum += x[i][j][c];
          }
        l[i][half] = fmaf(l[i][half], alpha[i][half], sum);
      }
    return __any_sync(~0u, moved);
  }

  template <int E>
  __device__ static void rescale_o(float (&o)[M][E][4], const float (&alpha)[M][2]) {
#pragma unroll
    for (int i = 0; i < M; ++i)
#pragma unroll
      for (int j = 0; j < E; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c) o[i][j][c] *= alpha[i][c / 2];
  }

  // In units of log2.
  __device__ float top(int i, int half, float factor) const {
    return m[i][half] == kNegativeInfinity ? kNegativeInfinity : m[i][half] * factor;
  }
  __device__ float total(int i, int half) const {
    return quad_sum(l[i][half]);
  }
};

}  // namespace fovea::cuda
