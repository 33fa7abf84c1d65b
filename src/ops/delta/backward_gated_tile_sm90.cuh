// SPDX-License-Identifier: Apache-2.0
// What the gradients of a chunk under key gates have in common, with a low rank or without: the
// chunk of a block, its decays, its scores and sums in shared memory, and the gates' own gradients.
// A block has 64 channels.  A thread has a channel: of 16 tokens in phases 2 and 4, else of its
// share.  A warp has 16 tokens.
#pragma once
#include "ops/delta/backward.cuh"
#include "ops/delta/chunk_sm90.cuh"

namespace fovea::cuda {

// Shared has places of rows, panels, decays, pairs, norm and total.
//   Tokens: a thread's share.
//   Columns: channels of a warp.
template <class Shape, class Shared, int Tokens, int Columns>
class DeltaGatedGradient90 {
 protected:
  static constexpr int Dtype = Shape::Dtype, D = Shape::D;
  static constexpr int kSums = Columns / 8, kRows = 16;  // of a warp: blocks of channels, tokens
  static constexpr int kTokens = Tokens;
  using Panel = typename Shape::Panel;
  using Sums = float[kSums][4];
  using Scores = float[8][4];
  static constexpr Shared kShared = Shared();

  __device__ DeltaGatedGradient90(const DeltaBackwardWork90& work, unsigned char* base)
      : w_(work),
        a_(work.b.forward),
        base_(base),
        at_(shared_address(base)),
        lane_(threadIdx.x % 32),
        warp_(sm90::uniform(threadIdx.x / 32)),
        channel_(threadIdx.x % 64),
        share_(sm90::uniform(threadIdx.x / 64)) {}

  __device__ float* floats(int at) const { return reinterpret_cast<float*>(base_ + at); }
  // Rows of sums in f32, where panels were.
  __device__ float* sums(int which, int t) const {
    return floats(kShared.panels + which * Shape::sum_bytes) + t * 64;
  }
  __device__ float& sum(int which, int t) const { return sums(which, t)[channel_ ^ t % 4 * 8]; }
  __device__ float& decay(int t) const { return floats(kShared.decays)[t * 64 + channel_]; }
  // Where a row's channel lies in a panel.
  __device__ static int at(int t, int channel) {
    return static_cast<int>(Panel::at(t, channel / 8)) + channel % 8 * 2;
  }
  __device__ static float wide(const unsigned char* from) {
    return float_of(uint32_t{*reinterpret_cast<const uint16_t*>(from)} << 16);
  }
  // The thread's channel of a row of Q, K and the others, once clear_rows() has run.
  __device__ float one(int which, int t) const {
    return wide(base_ + kShared.rows + which * Panel::bytes + at(t, channel_));
  }
  __device__ void put(int to, int t, float x) const {
    *reinterpret_cast<uint16_t*>(base_ + kShared.panels + to + at(t, channel_)) =
        static_cast<uint16_t>(pack<Dtype>(x, x));
  }
  __device__ int channel() const { return 64 * part_ + channel_; }

  __device__ bool find(uint32_t block) {
    const auto heads = static_cast<uint32_t>(a_.heads);
    part_ = static_cast<int>(block % Shape::Parts), block /= Shape::Parts;
    const uint32_t slot = block / heads;
    head_ = static_cast<int>(block - slot * heads), slot_ = slot;
    const int64_t sequence = a_.run.start ? w_.forward.sequence_of(slot_)
                                          : slot / static_cast<uint32_t>(w_.forward.chunks);
    const RunTokens run = a_.run[sequence];
    const int64_t first = (slot_ - w_.forward.slot(sequence, run.begin)) * kChainTokens;
    if (first >= run.count) return false;
    left_ = static_cast<int>(clamp_i64(run.count - first, 0, kChainTokens));
    from_ = static_cast<int>(clamp_i64(run.from - first, 0, kChainTokens));
    token_ = static_cast<int>(run.begin + first), batch_ = static_cast<int>(run.batch);
    return true;
  }

  // As the forward's tiles have them.
  __device__ void load_norms(int inverse_bytes, int score_bytes) const {
    const int i = static_cast<int>(threadIdx.x), t = i % 64;
    if (i >= 2 * kChainTokens) return;
    const int64_t at = slot_ * a_.heads + head_;
    const unsigned char* from = i < kChainTokens ? w_.forward.inverses + at * inverse_bytes
                                                 : w_.forward.scores + at * score_bytes;
    floats(kShared.norm)[i] =
        t < left_ ? reinterpret_cast<const float*>(from + kDeltaTile)[t] : 0.f;
  }
  // Of the thread's tokens and channel.
  __device__ void find_decays() const {
    const Log2Gate gate(a_, head_);
    float raw[kTokens];
    load_gates(raw);
#pragma unroll
    for (int i = 0; i < kTokens; ++i) decay(kTokens * share_ + i) = raw[i];
    if (gate.kind == Log2Map::log) decays_of<Log2Map::log>(gate);
    if (gate.kind == Log2Map::power) decays_of<Log2Map::power>(gate);
    if (gate.kind == Log2Map::bounded) decays_of<Log2Map::bounded>(gate);
    if (gate.kind == Log2Map::softplus) decays_of<Log2Map::softplus>(gate);
  }
  // The raw gates with their bias, all loads at once.
  __device__ __forceinline__ void load_gates(float (&x)[kTokens]) const {
    const float bias = a_.bias ? *a_.bias.at(head_, channel()) : 0.f;
    const int64_t step = a_.gate_key.view.stride[1];
    const int first = kTokens * share_;
    const int64_t at = a_.gate_key.offset(batch_, token_ + first, head_, channel());
    if (a_.gate_key.dtype == FOVEA_F32) {
      const float* from = a_.gate_key.view.template as<const float>() + at;
#pragma unroll
      for (int i = 0; i < kTokens; ++i, from += step) x[i] = first + i < left_ ? *from : 0.f;
    } else {
      const uint16_t* from = a_.gate_key.view.template as<const uint16_t>() + at;
#pragma unroll
      for (int i = 0; i < kTokens; ++i, from += step)
        x[i] = float_of(first + i < left_ ? uint32_t{*from} << 16 : 0u);
    }
#pragma unroll
    for (int i = 0; i < kTokens; ++i) x[i] += bias;
  }
  template <Log2Map Kind>
  __device__ __forceinline__ void decays_of(const Log2Gate& gate) const {
    const bool heads = static_cast<bool>(a_.gate_head);
#pragma unroll 4
    for (int i = 0; i < kTokens; ++i) {
      const int t = kTokens * share_ + i;
      float log = gate.template of<Kind>(decay(t));
      if (heads && t < left_)
        log += gate.template of<Kind>(a_.gate_head(batch_, token_ + t, head_));
      decay(t) = t < left_ ? exp2_fast(log < kGateLeast ? kGateLeast : log) : 1.f;
    }
  }

  __device__ int first_row() const {
    return kRows * (warp_ % 4);
  }
  // Which channels are the warp's, and which scores.
  __device__ int group() const {
    return warp_ / 4;
  }
  template <int N>
  __device__ static void clear(float (&x)[N][4]) {
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) x[j][i] = 0;
  }

  // A weighed score: pairs within blocks of 16 tokens, all as a tile.
  __device__ __forceinline__ void give_score(const Scores& x, float* pairs, int tile) const {
    const int pair = lane_ % 4 * 2;
    const int own = warp_ % 4, from = pair * kRows + lane_ / 4;
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c)
        pairs[((8 * j + c % 2) * kRows + from + c / 2 * 8) * 2] = own < 2
                                                                      ? own ? x[2 + j][c] : x[j][c]
                                                                  : own < 3 ? x[4 + j][c]
                                                                            : x[6 + j][c];
    uint32_t p[1][4][4];
    pack_operand<Dtype>(p, reinterpret_cast<const float(&)[1][8][4]>(x));
    const uint32_t to =
        at_ + kShared.panels + tile + Panel::at(first_row() + outer_row(lane_), outer_chunk(lane_));
#pragma unroll
    for (int k = 0; k < 4; ++k) sm90::store_matrices(Panel::pair(to, k), p[0][k]);
  }
  // x and y past a block of tokens.
  __device__ __forceinline__ void pass(Sums& x, Sums& y, int block) const {
    const float* total = floats(kShared.total) + block * 64 + group() * Columns + lane_ % 4 * 2;
#pragma unroll
    for (int j = 0; j < kSums; ++j) {
      const float2 by = *reinterpret_cast<const float2*>(total + 8 * j);
#pragma unroll
      for (int i = 0; i < 4; ++i) x[j][i] *= i % 2 ? by.y : by.x, y[j][i] *= i % 2 ? by.y : by.x;
    }
  }
  __device__ __forceinline__ static void times(Sums& x, float low, float high) {
#pragma unroll
    for (int j = 0; j < kSums; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float by = i / 2 ? high : low;
        x[j][i] = by == 0 ? 0 : by * x[j][i];
      }
  }
  // The gates' gradients of the thread's tokens: terms, and through their maps.
  __device__ __forceinline__ void give_gates(float (&x)[kTokens],
                                             const float (&raw)[kTokens]) const {
    const int first = kTokens * share_;
    if (w_.b.terms.dg) {
      const int64_t row = (int64_t{batch_} * a_.s + token_ + first) * a_.heads + head_;
      give(x, w_.b.terms.dg + row * D + channel(), a_.heads * D);
    }
    if (!w_.dgate_key) return;
    times_slopes(x, raw);
    const int64_t at = w_.dgate_key.offset(batch_, token_ + first, head_, channel());
    const int64_t step = w_.dgate_key.view.stride[1];
    if (w_.dgate_key.dtype == FOVEA_F32)
      give(x, w_.dgate_key.view.template as<float>() + at, step);
    else
      give(x, w_.dgate_key.view.template as<uint16_t>() + at, step);
  }
  __device__ void times_slopes(float (&x)[kTokens], const float (&raw)[kTokens]) const {
    if (a_.gate.map == FOVEA_X_GATE_MAP_LOG && !(a_.gate.bound > 0)) {
#pragma unroll
      for (int i = 0; i < kTokens; ++i) x[i] = raw[i] == -INFINITY ? 0 : x[i];
      return;
    }
    const float rate = a_.rate_of(head_);
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      const int t = kTokens * share_ + i;
      decay(t) = raw[i], sum(Shape::slope_sums, t) = x[i];
    }
#pragma unroll 1
    for (int t = kTokens * share_; t < kTokens * share_ + kTokens; ++t) {
      const float slope = a_.gate(decay(t), rate).slope, of = sum(Shape::slope_sums, t);
      sum(Shape::slope_sums, t) = of == 0 || slope == 0 ? 0 : of * slope;
    }
#pragma unroll
    for (int i = 0; i < kTokens; ++i) x[i] = sum(Shape::slope_sums, kTokens * share_ + i);
  }
  // A value of each of the thread's tokens.
  template <class T>
  __device__ __forceinline__ void give(const float (&x)[kTokens], T* to, int64_t step) const {
    const int last = left_ - kTokens * share_;
#pragma unroll
    for (int i = 0; i < kTokens; ++i, to += step) {
      if (i >= last) continue;
      if constexpr (sizeof(T) == 4)
        *to = x[i];
      else
        *to = static_cast<uint16_t>(pack<Dtype>(x[i], x[i]));
    }
  }

  const DeltaBackwardWork90& w_;
  const Recur& a_;
  unsigned char* base_;
  uint32_t at_;
  const int lane_, warp_;
  const int channel_, share_;  // of a thread: one of 64 channels, its share of the tokens
  int64_t slot_;
  int head_, batch_, token_, left_, from_, part_;
};

}  // namespace fovea::cuda
