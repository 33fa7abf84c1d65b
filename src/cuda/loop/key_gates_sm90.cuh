// SPDX-License-Identifier: Apache-2.0
// Key gates of a chunk of 64 tokens on Hopper: raw gates as decays, and the products of rows q_t
// and k_s under them, for a block of which a lane owns two channels of eight tokens.
//   A_ts = sum over c of q_tc k_sc w_tsc,   w_tsc the product of the decays after s up to t
// With h the highest bit in which t and s differ, h >= 4, a boundary b = t / h * h lies between
// them:
//   w_ts = (decays from b up to t) (decays after s up to b - 1)
// Both are products of decays that they cover, so any gate is safe and -inf resets.  A row is left
// or right of its level's boundary by its bit h: one tile of 64 scaled rows a level serves a
// product of tensor cores.  Within four tokens A is summed in f32.
#pragma once
#include "core/recur.h"
#include "cuda/block/softmax.cuh"
#include "cuda/loop/chain.h"
#include "cuda/tile/convert.cuh"
#include "cuda/tile/mma_sm80.cuh"

namespace fovea::cuda {

constexpr int kGateTokens = 8;  // of a lane
constexpr int kGateGroups = kChainTokens / kGateTokens;
constexpr int kGateLevels = 4;                       // h = 32, 16, 8, 4
constexpr int kNear = 4;                             // tokens whose scores are summed in f32
constexpr int kNearPairs = kNear * (kNear + 1) / 2;  // (t, s): t (t + 1) / 2 + s
constexpr int kNearParts = kGateTokens / kNear;

__device__ __forceinline__ float2 operator*(float2 x, float2 y) {
  return make_float2(x.x * y.x, x.y * y.y);
}
// log2(1 + 2^x), to 2^-19 of it: 2^-|x| is at most 1, where a polynomial serves.
__device__ __forceinline__ float softplus2(float x) {
  const float e = exp2_fast(-fabsf(x));
  float y = 0.0200166500f;
  y = fmaf(y, e, -0.0946268097f);
  y = fmaf(y, e, 0.213943212f);
  y = fmaf(y, e, -0.338377198f);
  y = fmaf(y, e, 0.477496364f);
  y = fmaf(y, e, -0.721144092f);
  y = fmaf(y, e, 1.44269298f);
  return fmaf(y, e, max_or_nan(x, 0));
}

// A raw gate with its bias as a decay: GateMap and its exponential.
struct DecayMap {
  float factor, floor;

  __device__ DecayMap(const GateMap& gate, float rate) {
    const bool rated =
        gate.map == FOVEA_X_GATE_MAP_SOFTPLUS || gate.map == FOVEA_X_GATE_MAP_BOUNDED;
    factor = rated ? -exp_of(rate) : -1 / gate.tau;
    floor = gate.bound > 0 ? -gate.bound * kLog2E : kNegativeInfinity;
  }
  // x: times log2 e.
  template <int Map>
  __device__ float decay(float x) const {
    if constexpr (Map == FOVEA_X_GATE_MAP_SOFTPLUS)
      x = factor * softplus2(x);
    else if constexpr (Map == FOVEA_X_GATE_MAP_BOUNDED)
      x = __fdividef(floor, 1 + exp2_fast(factor * x));
    else if constexpr (Map == FOVEA_X_GATE_MAP_LOG_SIGMOID)
      x = factor * softplus2(-x);
    else if constexpr (Map == FOVEA_X_GATE_MAP_EXP)
      x = -kLog2E * exp2_fast(x);
    return exp2_fast(max_or_nan(x, floor));
  }
  template <int Map>
  __device__ void decays(float2 (&a)[kGateTokens], float2 bias, int left) const {
    bias.x *= kLog2E, bias.y *= kLog2E;
#pragma unroll
    for (int i = 0; i < kGateTokens; ++i)
      a[i] = make_float2(decay<Map>(fmaf(a[i].x, kLog2E, bias.x)),
                         decay<Map>(fmaf(a[i].y, kLog2E, bias.y)));
    if (left == kGateTokens) return;
#pragma unroll
    for (int i = 0; i < kGateTokens; ++i)
      if (i >= left) a[i] = make_float2(1, 1);
  }
  // Of the lane's first `left` tokens; the rest have none.
  __device__ void operator()(const GateMap& gate, float2 (&a)[kGateTokens], float2 bias,
                             int left) const {
    switch (gate.map) {
      case FOVEA_X_GATE_MAP_SOFTPLUS:
        return decays<FOVEA_X_GATE_MAP_SOFTPLUS>(a, bias, left);
      case FOVEA_X_GATE_MAP_BOUNDED:
        return decays<FOVEA_X_GATE_MAP_BOUNDED>(a, bias, left);
      case FOVEA_X_GATE_MAP_LOG_SIGMOID:
        return decays<FOVEA_X_GATE_MAP_LOG_SIGMOID>(a, bias, left);
      case FOVEA_X_GATE_MAP_EXP:
        return decays<FOVEA_X_GATE_MAP_EXP>(a, bias, left);
      default:
        return decays<FOVEA_X_GATE_MAP_LOG>(a, bias, left);
    }
  }
};

// Two neighbouring channels of eight tokens, of which `left` are read.  `pairs`: they are
// neighbours in memory, aligned as one.  Until unpack_channels(), 16-bit elements are a word in x:
// whatever asks for a value waits for memory.
__device__ __forceinline__ void load_channels(float2 (&to)[kGateTokens], const Floats<4>& x,
                                              int64_t first, bool pairs, int left) {
  const auto each = [&](auto* at, auto load) {
    if (left == kGateTokens) {
#pragma unroll
      for (int i = 0; i < kGateTokens; ++i, at += x.view.stride[1]) to[i] = load(at);
      return;
    }
#pragma unroll
    for (int i = 0; i < kGateTokens; ++i, at += x.view.stride[1])
      to[i] = i < left ? load(at) : make_float2(0, 0);
  };
  const int64_t next = pairs ? 1 : x.view.stride[3];
  if (x.dtype == FOVEA_F32) {
    const auto* from = static_cast<const float*>(x.view.data) + first;
    if (pairs)
      each(from, [](const float* at) { return *reinterpret_cast<const float2*>(at); });
    else
      each(from, [=](const float* at) { return make_float2(at[0], at[next]); });
    return;
  }
  const auto* from = static_cast<const uint16_t*>(x.view.data) + first;
  if (pairs)
    each(from,
         [](const uint16_t* at) { return make_float2(*reinterpret_cast<const float*>(at), 0); });
  else
    each(from, [=](const uint16_t* at) {
      return make_float2(float_of(at[0] | uint32_t{at[next]} << 16), 0);
    });
}
template <int Dtype>
__device__ __forceinline__ void unpack_channels(float2 (&x)[kGateTokens], int32_t dtype) {
  if (dtype == FOVEA_F32) return;
#pragma unroll
  for (int i = 0; i < kGateTokens; ++i) x[i] = pair_of<Dtype>(bits_of(x[i].x));
}

// The sums over a warp's lanes of N values, each in the lanes of one index: x[0] is that of
// `index`, if not -1.
template <int N, int Step = 16>
__device__ __forceinline__ void sum_lanes(float (&x)[N], int& index, int left = N, int first = 0) {
  constexpr int kHalf = (N + 1) / 2;
  float kept[kHalf];
  if constexpr (N == 1) {
    kept[0] = x[0] + __shfl_xor_sync(~0u, x[0], Step);
  } else {
    const bool high = threadIdx.x & Step;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float other = kHalf + i < N ? x[kHalf + i < N ? kHalf + i : 0] : 0.f;
      kept[i] = (high ? other : x[i]) + __shfl_xor_sync(~0u, high ? x[i] : other, Step);
    }
    first += high ? kHalf : 0;
    left = high ? left - kHalf : left < kHalf ? left : kHalf;
  }
  if constexpr (Step > 1)
    sum_lanes<kHalf, Step / 2>(kept, index, left, first);
  else
    index = left > 0 ? first : -1;
  x[0] = kept[0];
}

// A 16 x 8 tile of scores of one level: rows of its tile of scaled rows.
struct LevelTile {
  uint32_t level, left, right;  // the first of 16 left rows, of 8 right ones

  static constexpr uint32_t kCount = 20;
  // Level 4 has 4 + 4 right rows, which lie 8 apart; of level 8 the upper left rows count.
  __device__ explicit LevelTile(uint32_t i) : level(i < 8 ? 0 : i / 4 % 8 - 1) {
    const uint32_t j = i % 4;
    left = 16 * j, right = 16 * j;
    if (level == 0) left = 32 + i / 4 % 2 * 16, right = 8 * j;
    if (level == 1) left = 32 * (j / 2) + 16, right = 32 * (j / 2) + 8 * (j % 2);
  }
  __device__ uint32_t right_row(uint32_t n) const {
    return right + n + (level == 3 && n >= 4 ? 4 : 0);
  }
  // Whether row i of 16 and column n of 8 are on the two sides of one boundary.
  __device__ bool counts(uint32_t i, uint32_t n) const {
    if (level == 2) return i >= 8;
    return level != 3 || (i % 8 >= 4 && i / 8 == n / 4);
  }
};

// Chunk of 8 columns of a row of a swizzled tile whose columns are one panel, or of its first
// panel.
__device__ __forceinline__ uint32_t panel_place(uint32_t row, uint32_t chunk) {
  return row * kPanelRowBytes + (chunk ^ row % 8) * 16;
}

// Its sums; `rows` is the level's tile.
template <int Dtype, int D>
__device__ __forceinline__ void level_product(float (&sums)[4], const LevelTile& at, uint32_t rows,
                                              uint32_t lane) {
  using Tile = Swizzled<kChainTokens, D>;
  const uint32_t a = rows + panel_place(at.left + lane % 16, lane / 16);
  const uint32_t b = rows + panel_place(at.right_row(lane % 8), lane / 8);
#pragma unroll
  for (int c = 0; c < 4; ++c) sums[c] = 0;
#pragma unroll
  for (int k = 0; k < D / 32; ++k) {
    uint32_t left[2][4], right[4];
    load_matrices(right, (b ^ (k % 2 * 64)) + k / 2 * Tile::panel_bytes);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      load_matrices(left[i], Tile::pair(a, 2 * k + i));
      mma<Dtype>(sums, left[i], right[2 * i], right[2 * i + 1]);
    }
  }
}

}  // namespace fovea::cuda
