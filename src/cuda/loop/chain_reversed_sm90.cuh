// SPDX-License-Identifier: Apache-2.0
// Parts of a chain that goes from the last chunk to the first, beside those of chain_sm90.cuh: its
// rows are tokens s, and it sums over the tokens t at or after s.
#pragma once
#include "cuda/loop/chain_sm90.cuh"

namespace fovea::cuda {

template <int Dtype>
__device__ __forceinline__ float2 unpack(uint32_t two) {
  if constexpr (Dtype == FOVEA_BF16)
    return make_float2(float_of(two << 16), float_of(two & 0xffff0000u));
  else
    return make_float2(to_float(F16{static_cast<uint16_t>(two)}),
                       to_float(F16{static_cast<uint16_t>(two >> 16)}));
}

// The scores of a chunk as the A operand of the product with what tokens t add: row s, token t at
// least s.  Bits equal those of weigh_scores, so what a pair adds to two gradients is one number.
//   p_st = scale 2^D_ts x_st, times select_s where `decay` has it
template <int Dtype>
__device__ __forceinline__ void weigh_later(uint32_t (&p)[kChainTokens / 16][4],
                                            float (&x)[kChainTokens / 8][4],
                                            const ChainDecay& decay) {
  const int warp = threadIdx.x % 128 / 32, row = threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
#pragma unroll
  for (int j = 0; j < kChainTokens / 8; ++j) {
    const float2 within = *reinterpret_cast<const float2*>(decay.within + 8 * j + pair);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int own = 2 * warp + h;
      float2 by = {};
      if (j > own) {
        const float before = decay.before[j > 0 ? j - 1 : 0][8 * own + row];
        by = make_float2(within.x * before, within.y * before);
      } else if (j == own) {
        by = make_float2(decay.block[own][ChainDecay::at(pair, row)],
                         decay.block[own][ChainDecay::at(pair + 1, row)]);
      }
      x[j][2 * h] = decayed(by.x, x[j][2 * h]);
      x[j][2 * h + 1] = decayed(by.y, x[j][2 * h + 1]);
    }
  }
  pack_operand<Dtype>(reinterpret_cast<uint32_t(&)[1][kChainTokens / 16][4]>(p),
                      reinterpret_cast<float(&)[1][kChainTokens / 8][4]>(x));
}
// The same of no gate.
template <int Dtype>
__device__ __forceinline__ void weigh_later(uint32_t (&p)[kChainTokens / 16][4],
                                            float (&x)[kChainTokens / 8][4], float scale) {
  const int warp = threadIdx.x % 128 / 32, row = threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
#pragma unroll
  for (int j = 0; j < kChainTokens / 8; ++j)
#pragma unroll
    for (int c = 0; c < 4; ++c)
      x[j][c] = 8 * j + pair + c % 2 < 16 * warp + row + c / 2 * 8 ? 0 : x[j][c] * scale;
  pack_operand<Dtype>(reinterpret_cast<uint32_t(&)[1][kChainTokens / 16][4]>(p),
                      reinterpret_cast<float(&)[1][kChainTokens / 8][4]>(x));
}

// A factor as m times a power of two, 1 <= |m| < 2; m of 0 is 1.  Weights with m instead of the
// factor round as those with the factor do, and something is left to divide where it is 0.
__device__ __forceinline__ float mantissa_of(float x) {
  return x == 0 ? 1.f : float_of((bits_of(x) & 0x807fffffu) | 0x3f800000u);
}

// state += scale added
template <int D>
__device__ __forceinline__ void add_scaled(ChainState<D>& state, const float (&added)[D / 8][4],
                                           float scale) {
#pragma unroll
  for (int j = 0; j < D / 8; ++j)
#pragma unroll
    for (int c = 0; c < 4; ++c) state.x[j][c] = fmaf(scale, added[j][c], state.x[j][c]);
}

}  // namespace fovea::cuda
