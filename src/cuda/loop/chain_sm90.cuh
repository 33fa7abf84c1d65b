// SPDX-License-Identifier: Apache-2.0
// Parts of a recurrence that goes through a sequence in chunks of 64 tokens on Hopper: the decays
// of a chunk under a head gate, and the state of a warpgroup.
//   The state is transposed in registers, as sums of wgmma: 64 value columns as rows, D key
//   columns. Packed, it is the A operand of the next product, or a tile [value][key] in shared
//   memory. With g the log gates of a chunk, log2: P_t = sum of g up to t, S_s = sum of g after s,
//   D_ts = sum of g after s up to t.  Their powers are products of the decays 2^g of the rows that
//   they cover, never quotients: gates of -inf reset exactly.  Blocks of 8 rows have prefix
//   products, suffix products and a total each.
#pragma once
#include <type_traits>

#include "core/recur.h"
#include "cuda/block/softmax.cuh"
#include "cuda/loop/chain.h"
#include "cuda/tile/mma_sm80.cuh"
#include "cuda/tile/pipeline_sm90.cuh"

namespace fovea::cuda {

// Decays of a chunk, in shared memory.
struct ChainDecay {
  static constexpr int kBlock = 72;  // 64 and a pad, so that four blocks share no bank

  float row[64];        // scale 2^P_t: of what row t reads of the state before the chunk
  float suffix[64];     // select_s 2^S_s: of what token s adds to the state after it
  float within[64];     // 2^(of P_t, what the block of t adds)
  float before[7][64];  // [I - 1][s]: scale select_s 2^(of D_ts, what rows before block I add), I >
                        // block of s
  float block[8][kBlock];  // scale select_s 2^D_ts within a block, at(t, s); 0 where s > t
  float all;               // 2^(the sum of g)

  __device__ static int at(int t, int s) { return t * 8 + s; }
};

// The tokens lane and lane + 32 of chunks, for a warp.
struct ChainGates {
  float gate[2], select[2];

  // As they are in memory, from the chunk's first token on, of which `left` belong to the sequence.
  __device__ void load(const Recur& a, const RunTokens& run, int64_t first, int64_t head,
                       int64_t left) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int i = static_cast<int>(threadIdx.x % 32) + 32 * h;
      const int64_t at = run.begin + first + i;
      gate[h] = select[h] = 0;
      if (i >= left) continue;
      if (a.gate_head) gate[h] = a.gate_head(run.batch, at, head);
      select[h] = a.select_of(run.batch, at, head);
    }
  }
  // Of what load() read, gates as decays.
  __device__ void map(const Recur& a, float shift, float rate, int64_t left) {
#pragma unroll
    for (int h = 0; h < 2; ++h)
      gate[h] = a.gate_head && static_cast<int>(threadIdx.x % 32) + 32 * h < left
                    ? exp2_fast(a.gate(gate[h] + shift, rate).value * kLog2E)
                    : 1;
  }

  // After map().
  __device__ void decays(ChainDecay& to, float scale) const {
    const int lane = threadIdx.x % 32, in = lane % 8;
    float prefix[2], suffix[2], total[8];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float up = gate[h], down = gate[h];
#pragma unroll
      for (int step = 1; step < 8; step *= 2) {
        const float above = __shfl_up_sync(~0u, up, step, 8);
        const float below = __shfl_down_sync(~0u, down, step, 8);
        if (in >= step) up *= above;
        if (in + step < 8) down *= below;
      }
      down = __shfl_down_sync(~0u, down, 1, 8);
      prefix[h] = up, suffix[h] = in == 7 ? 1 : down;
#pragma unroll
      for (int i = 0; i < 4; ++i) total[4 * h + i] = __shfl_sync(~0u, up, 8 * i + 7);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int b = 4 * h + lane / 8, i = lane + 32 * h;
      const float factor = scale * select[h];
      float earlier = scale, later = suffix[h], decay = factor;
#pragma unroll
      for (int other = 0; other < 8; ++other) {
        if (other < b) earlier *= total[other];
        if (other > b) to.before[other - 1][i] = factor * later, later *= total[other];
      }
      to.row[i] = earlier * prefix[h];
      to.suffix[i] = select[h] * later;
      to.within[i] = prefix[h];
#pragma unroll
      for (int t = 0; t < 8; ++t) {
        const float next = __shfl_sync(~0u, gate[h], lane / 8 * 8 + t);
        if (t > in) decay *= next;
        to.block[b][ChainDecay::at(t, in)] = t < in ? 0 : decay;
      }
    }
    if (lane == 0)
      to.all = total[0] * total[1] * (total[2] * total[3]) *
               (total[4] * total[5] * (total[6] * total[7]));
  }
};

// The state of a warpgroup; a lane has value columns row and row + 8, key columns 8 j + 2 t, + 1.
template <int D>
struct ChainState {
  float x[D / 8][4];

  __device__ static int row() { return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4; }
  // Calls visit(sum, element) for those of a state in memory: of f32, or of bf16.
  template <class Visit>
  __device__ void each(const Floats<4>& states, int64_t of, int64_t head, int64_t column,
                       Visit visit) {
    const int64_t first = states.offset(of, head, threadIdx.x % 4 * 2, column + row());
    const auto walk = [&](auto* at) {
#pragma unroll
      for (int j = 0; j < D / 8; ++j, at += 8 * states.view.stride[2])
#pragma unroll
        for (int c = 0; c < 4; ++c)
          visit(x[j][c], at[c % 2 * states.view.stride[2] + c / 2 * 8 * states.view.stride[3]]);
    };
    if (states.dtype == FOVEA_F32)
      walk(static_cast<float*>(states.view.data) + first);
    else
      walk(static_cast<Bf16*>(states.view.data) + first);
  }
  // Row `of` of the states, value columns from `column` on; of < 0: zeros.
  __device__ void load(const Floats<4>& states, int64_t of, int64_t head, int64_t column) {
    if (of >= 0)
      return each(states, of, head, column, [](float& x, auto from) { x = to_float(from); });
#pragma unroll
    for (int j = 0; j < D / 8; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) x[j][c] = 0;
  }
  // Columns of the identity, from `column` on.
  __device__ void identity(int column) {
#pragma unroll
    for (int j = 0; j < D / 8; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c)
        x[j][c] =
            8 * j + static_cast<int>(threadIdx.x) % 4 * 2 + c % 2 == column + row() + c / 2 * 8;
  }
  __device__ void store(const Floats<4>& states, int64_t of, int64_t head, int64_t column) {
    each(states, of, head, column, [](float x, auto& to) {
      to = fovea::from_float<std::remove_reference_t<decltype(to)>>(x);
    });
  }
  // x = decay x + added; where the decay is 0 nothing is left.
  __device__ void advance(float decay, const float (&added)[D / 8][4]) {
    if (decay == 0) {
#pragma unroll
      for (int j = 0; j < D / 8; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c) x[j][c] = added[j][c];
      return;
    }
#pragma unroll
    for (int j = 0; j < D / 8; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) x[j][c] = fmaf(decay, x[j][c], added[j][c]);
  }
  // x = all[key] x + added, where some of `all` may be 0.
  __device__ void advance(const float* all, bool zeros, const float (&added)[D / 8][4]) {
    const int pair = threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < D / 8; ++j) {
      const float2 two = *reinterpret_cast<const float2*>(all + 8 * j + pair);
      const float by[2] = {two.x, two.y};
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float next = fmaf(by[c % 2], x[j][c], added[j][c]);
        x[j][c] = zeros && by[c % 2] == 0 ? added[j][c] : next;
      }
    }
  }
  // Drops what is not finite in channels that the chunk resets: its product with 0 is NaN.
  __device__ void clear(const float* all) {
    const int pair = threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < D / 8; ++j) {
      const float2 two = *reinterpret_cast<const float2*>(all + 8 * j + pair);
      const float by[2] = {two.x, two.y};
#pragma unroll
      for (int c = 0; c < 4; ++c)
        if (by[c % 2] == 0 && !(fabsf(x[j][c]) < __builtin_huge_valf())) x[j][c] = 0;
    }
  }
  // As a tile [value][key] of 16-bit elements.  f16 ends at 65504: a value column whose state goes
  // past 2^13 is divided by a power of two, times[value].
  template <int Dtype>
  __device__ void publish(uint32_t tile, float* times) const {
    using Tile = Swizzled<kChainColumns, D>;
    const int lane = threadIdx.x % 32, first = threadIdx.x % 128 / 32 * 16;
    float by[2] = {1, 1};
    if constexpr (Dtype == FOVEA_F16) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float most = 0;
#pragma unroll
        for (int j = 0; j < D / 8; ++j)
          most = fmaxf(most, fmaxf(fabsf(x[j][2 * h]), fabsf(x[j][2 * h + 1])));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
        const int past = static_cast<int>(bits_of(most) >> 23) - (127 + 12);
        if (past > 0) by[h] = float_of(static_cast<uint32_t>(127 - past) << 23);
        if (lane % 4 == 0)
          times[row() + 8 * h] = past > 0 ? float_of(static_cast<uint32_t>(127 + past) << 23) : 1.f;
      }
    }
    const uint32_t to = tile + Tile::at(first + outer_row(lane), outer_chunk(lane));
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      uint32_t packed[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&from)[4] = x[2 * k + i / 2];
        const float scale = by[i % 2];
        packed[i] = Dtype == FOVEA_F16
                        ? pack<Dtype>(from[i % 2 * 2] * scale, from[i % 2 * 2 + 1] * scale)
                        : pack<Dtype>(from[i % 2 * 2], from[i % 2 * 2 + 1]);
      }
      sm90::store_matrices(Tile::pair(to, k), packed);
    }
  }
};

// d += A V of a chunk: A a tile [t][s], V [s][column].
template <int Dtype>
__device__ __forceinline__ void add_scored(float (&d)[kChainColumns / 8][4], uint64_t a,
                                           uint64_t v) {
#pragma unroll
  for (int k = 0; k < kChainTokens / 16; ++k)
    sm90::Wgmma<Dtype, kChainColumns>::template ss<1>(d, a + 2 * k, v + k * 128, true);
}

// V' of a chunk, 16 of its rows a warp, as the A operand; token s times suffix[s].
template <int Dtype>
__device__ __forceinline__ void load_values(uint32_t (&a)[kChainTokens / 16][4], uint32_t tile,
                                            const float* suffix) {
  using Tile = Swizzled<kChainTokens, kChainColumns>;
  const int lane = threadIdx.x % 32, pair = lane % 4 * 2;
  const int chunk = threadIdx.x % 128 / 32 * 2 + inner_chunk(lane);
#pragma unroll
  for (int k = 0; k < kChainTokens / 16; ++k) {
    load_matrices_transposed(a[k], tile + Tile::at(16 * k + inner_row(lane), chunk));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 by = *reinterpret_cast<const float2*>(suffix + 16 * k + i / 2 * 8 + pair);
      float low, high;
      if constexpr (Dtype == FOVEA_BF16)
        low = float_of(a[k][i] << 16), high = float_of(a[k][i] & 0xffff0000u);
      else
        low = to_float(F16{static_cast<uint16_t>(a[k][i])}),
        high = to_float(F16{static_cast<uint16_t>(a[k][i] >> 16)});
      a[k][i] = pack<Dtype>(decayed(by.x, low), decayed(by.y, high));
    }
  }
}

// The scores of a chunk as the A operand of the product with V: row t, token s at most t.
//   p_ts = scale select_s 2^D_ts x_ts
template <int Dtype>
__device__ __forceinline__ void weigh_scores(uint32_t (&p)[kChainTokens / 16][4],
                                             float (&x)[kChainTokens / 8][4],
                                             const ChainDecay& decay) {
  const int warp = threadIdx.x % 128 / 32, row = threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
  const float within[2] = {decay.within[16 * warp + row], decay.within[16 * warp + row + 8]};
#pragma unroll
  for (int j = 0; j < kChainTokens / 8; ++j)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int own = 2 * warp + h;
      float2 by = {};
      if (j < own) {
        const float2 column =
            *reinterpret_cast<const float2*>(decay.before[own - 1] + 8 * j + pair);
        by = make_float2(within[h] * column.x, within[h] * column.y);
      } else if (j == own) {
        by = *reinterpret_cast<const float2*>(decay.block[own] + ChainDecay::at(row, pair));
      }
      x[j][2 * h] = decayed(by.x, x[j][2 * h]);
      x[j][2 * h + 1] = decayed(by.y, x[j][2 * h + 1]);
    }
  pack_operand<Dtype>(reinterpret_cast<uint32_t(&)[1][kChainTokens / 16][4]>(p),
                      reinterpret_cast<float(&)[1][kChainTokens / 8][4]>(x));
}
// The same of no gate.
template <int Dtype>
__device__ __forceinline__ void weigh_scores(uint32_t (&p)[kChainTokens / 16][4],
                                             float (&x)[kChainTokens / 8][4], float scale) {
  const int warp = threadIdx.x % 128 / 32, row = threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
#pragma unroll
  for (int j = 0; j < kChainTokens / 8; ++j)
#pragma unroll
    for (int c = 0; c < 4; ++c)
      x[j][c] = 8 * j + pair + c % 2 > 16 * warp + row + c / 2 * 8 ? 0 : x[j][c] * scale;
  pack_operand<Dtype>(reinterpret_cast<uint32_t(&)[1][kChainTokens / 16][4]>(p),
                      reinterpret_cast<float(&)[1][kChainTokens / 8][4]>(x));
}

}  // namespace fovea::cuda
