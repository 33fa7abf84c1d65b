// SPDX-License-Identifier: Apache-2.0
// The gradients of x_delta_backward on Hopper under a key gate, from H, U, dV and W that the chains
// left: a block for each chunk of 64 tokens and head.  g_t are the decays of a token, and a block
// of the chunk has 16 tokens: up_t is the product of g in t's block up to t, down_s that of those
// after s, total_I that of block I, and 2^D_ts the product after s up to t.
//   F_ts = scale |q_t|^-1 |k_s|^-1 dO_t . U_s, s <= t     G_ts = -|k_t|^-1 |k_s|^-1 dV_t . U_s, s <
//   t dq_t  = scale |q_t|^-1 2^P_t . (H dO_t) + sum over s <= t of F_ts 2^D_ts . k_s dk2_t =
//   -|k_t|^-1 2^P_t . (H dV_t)      + sum over s < t  of G_ts 2^D_ts . k_s dk_s  = C_s + I_s,  C_s
//   = scale |k_s|^-1 2^S_s . (W U_s) I_s   = sum over t >= s of F_ts 2^D_ts . q_t + sum over t > s
//   of G_ts 2^D_ts . k_t dlog_j = all . <H, W> + sum over s < j of k_s . C_s
//            + sum over t >= j of q_t . dq_t + k_t . dk2_t - k_t . I_t, for each channel
//   dbeta_t = (dV_t . v_t + k_t . dk2_t) / beta_t
// dk + dk2 is the gradient of k.  x / |x| takes x |x|^-2 (x . dx) off each.
// Between blocks of 16, products are of the tensor core: of (q up), (k up) and (k down).  Their
// sums go from block to block, times total_I of each block that they pass.  Within a block a thread
// has all its tokens and two channels, and goes through the pairs in f32.  So each decay is a
// product of decays that it covers, at most 1, and gates of -inf reset exactly.
//
//   | phase | who                                         | what | | 1     | a warp: 16 tokens, 64
//   channels, mma.sync    | H dO, H dV, W U; F or G                | | 2     | a thread: two
//   channels of 16 tokens         | q up, k up, k down; totals             | | 3     | a warp, as
//   in 1                             | products between blocks                | | 4     | a thread,
//   as in 2                           | within its block; dq, dk; sums         | | 5     | a
//   thread, as in 2                           | norms, gates, stores                   |
// Barriers of the block lie between them.
//
//   | barrier      | who arrives   | who waits   | what it guards                |
//   | panels full  | thread 0, TMA | all         | dO, dV, U, H, W of a tile     |
//   | rows full    | thread 0, TMA | all         | Q, K of the chunk             |
#pragma once
#include "cuda/block/reduce.cuh"
#include "ops/delta/backward.cuh"
#include "ops/delta/chunk_sm90.cuh"

namespace fovea::cuda {

template <int D_>
struct DeltaKeyGradientShape90 {
  static constexpr int Dtype = FOVEA_BF16, D = D_, Halves = D / 64, Stages = D / 64;
  static constexpr int threads = 2 * D, blocks = D == 64 ? 2 : 1;
  using TileQ = Swizzled<kChainTokens, D>;
  using TileH = Swizzled<kChainColumns, D>;
  using Panel = Swizzled<64, 64>;
  // Of 64 value columns.
  static constexpr int at_dv = Panel::bytes, at_u = 2 * Panel::bytes, at_h = 3 * Panel::bytes;
  static constexpr int at_w = at_h + TileH::bytes, stage_bytes = at_w + TileH::bytes;
  // Then in their place: F, G, and the scaled rows; then sums in f32.
  static constexpr int at_g = Panel::bytes, at_q = 2 * Panel::bytes;
  static constexpr int at_k = at_q + TileQ::bytes, at_columns = at_k + TileQ::bytes;
  static constexpr int sum_bytes = kChainTokens * D * 4;
  static constexpr int panel_bytes =
      Stages * stage_bytes > 4 * sum_bytes ? Stages* stage_bytes : 4 * sum_bytes;
  static_assert(at_columns + TileQ::bytes <= panel_bytes);
};

template <class Shape>
struct DeltaKeyGradientShared90 : sm90::SharedLayout {
  int rows = tiles(2 * Shape::TileQ::bytes);  // Q, K
  int panels = tiles(Shape::panel_bytes);
  int decays = of<float2>(kChainTokens * Shape::D / 2);    // [token][two channels]
  int pairs = of<float2>(4 * 16 * 16);                     // F, G within a block: [block][s][t]
  int norm = of<float>(2 * kChainTokens);                  // |k|^-1, |q|^-1; 0 past the last token
  int dots = of<float>(3 * Shape::Halves * kChainTokens);  // q . dq, k . (dk + dk2), k . dk2
  int total = of<float2>(4 * Shape::D / 2);                // [block][two channels], as what follows
  int states = of<float2>(4 * Shape::D / 2);               // <H, W>, of a quarter of value columns
  int own = of<float2>(4 * Shape::D / 2);
  int carry = of<float2>(4 * Shape::D / 2);
  int full = barriers(Shape::Stages + 1);
};

template <class Shape>
class DeltaKeyGradient90 {
  static constexpr int Dtype = Shape::Dtype, D = Shape::D, Halves = Shape::Halves;
  static constexpr int kSums = 8, kRows = 16, kPairs = D / 2;
  using TileQ = typename Shape::TileQ;
  using TileH = typename Shape::TileH;
  using Panel = typename Shape::Panel;
  using Sums = float[kSums][4];
  static constexpr DeltaKeyGradientShared90<Shape> kShared = DeltaKeyGradientShared90<Shape>();

 public:
  // The base is aligned: a kilobyte more would cost a block of each multiprocessor.
  static constexpr int shared_bytes = kShared.bytes;
  static_assert(Shape::blocks * (shared_bytes + 1024) <= 228 * 1024);

  __device__ DeltaKeyGradient90(const DeltaBackwardWork90& work, unsigned char* base)
      : w_(work),
        a_(work.b.forward),
        base_(base),
        at_(shared_address(base)),
        lane_(threadIdx.x % 32),
        warp_(sm90::uniform(threadIdx.x / 32)),
        pair_(threadIdx.x % kPairs),
        block_(sm90::uniform(threadIdx.x / kPairs)) {}

  __device__ void run(uint32_t block) {
    if (!find(block)) return;
    begin();
    load_norms();
    find_decays();
    {
      Sums dq, dk2, state, score[3 - Halves];
      float2 states;
      multiply(dq, dk2, state, score, states);
      float2s(kShared.states)[block_ * kPairs + pair_] = states;
      write_scores(score);
      scale_rows();
      __syncthreads();
      Sums dk;
      join_blocks(dq, dk2, state, dk);
      __syncthreads();
      keep(0, dq), keep(1, dk2), keep(2, dk), keep(3, state);
    }
    __syncthreads();
    within();
    __syncthreads();
    gates();
    rows();
    betas();
  }

 private:
  __device__ float* floats(int at) const { return reinterpret_cast<float*>(base_ + at); }
  __device__ float2* float2s(int at) const { return reinterpret_cast<float2*>(base_ + at); }
  __device__ uint32_t full(int stage) const { return at_ + kShared.full + 8 * stage; }
  __device__ uint32_t panels(int stage) const {
    return at_ + kShared.panels + stage * Shape::stage_bytes;
  }
  // Sums in f32: 0 dq, 1 dk2, then what the gates' sums take; 2 I, then dk + dk2; 3 C.
  __device__ float2& sum(int which, int t, int pair) const {
    return float2s(kShared.panels + which * Shape::sum_bytes)[t * kPairs + (pair ^ t % 4 * 4)];
  }
  __device__ float2& decay(int t) const { return float2s(kShared.decays)[t * kPairs + pair_]; }
  // The thread's two channels of a row of Q (0) or K (1): 0 past the last token.
  __device__ uint32_t two(int which, int t) const {
    const int at = kShared.rows + which * TileQ::bytes + TileQ::at(t, pair_ / 4) + pair_ % 4 * 4;
    return t < left_ ? *reinterpret_cast<const uint32_t*>(base_ + at) : 0;
  }
  __device__ static float low(uint32_t x) { return float_of(x << 16); }
  __device__ static float high(uint32_t x) { return float_of(x & 0xffff0000u); }

  __device__ bool find(uint32_t block) {
    const auto heads = static_cast<uint32_t>(a_.heads);
    const uint32_t slot = block / heads;
    head_ = static_cast<int>(block - slot * heads), slot_ = slot;
    const int64_t sequence = w_.forward.sequence_of(slot_);
    const RunTokens run = a_.run[sequence];
    const int64_t first = (slot_ - w_.forward.slot(sequence, run.begin)) * kChainTokens;
    if (first >= run.count) return false;
    left_ = static_cast<int>(clamp_i64(run.count - first, 0, kChainTokens));
    from_ = static_cast<int>(clamp_i64(run.from - first, 0, kChainTokens));
    token_ = static_cast<int>(run.begin + first), batch_ = static_cast<int>(run.batch);
    return true;
  }

  // ---- phase 1

  __device__ void begin() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i <= Shape::Stages; ++i) sm90::barrier_init(full(i), 1);
      sm90::barrier_init_done();
      for (int i = 0; i < Shape::Stages && i < w_.forward.tiles; ++i) load(i);
      const uint32_t rows = at_ + kShared.rows, barrier = full(Shape::Stages);
      sm90::barrier_expect(barrier, 2 * TileQ::bytes);
      sm90::tma_load_panels<TileQ>(rows, w_.forward.q, barrier, token_,
                                   head_ / w_.forward.query_share, batch_);
      sm90::tma_load_panels<TileQ>(rows + TileQ::bytes, w_.forward.k, barrier, token_,
                                   head_ / w_.forward.key_share, batch_);
    }
    __syncthreads();
  }
  // A value tile, to its stage.
  __device__ void load(int tile) const {
    const uint32_t to = panels(tile % Shape::Stages), barrier = full(tile % Shape::Stages);
    const int64_t at = (slot_ * a_.heads + head_) * w_.forward.tiles + tile;
    sm90::barrier_expect(barrier, Shape::stage_bytes);
    sm90::tma_load_box(to, w_.dout, barrier, tile * kChainColumns, token_, head_, batch_);
    sm90::tma_load_box(to + Shape::at_dv, w_.dv_map, barrier, tile * kChainColumns, token_, head_,
                       batch_);
    sm90::tma_load(to + Shape::at_u, w_.updates + at * Panel::bytes, Panel::bytes, barrier);
    sm90::tma_load(to + Shape::at_h, w_.states + at * TileH::bytes, TileH::bytes, barrier);
    sm90::tma_load(to + Shape::at_w, w_.slopes + at * TileH::bytes, TileH::bytes, barrier);
  }

  // As the forward's tiles have them.
  __device__ void load_norms() const {
    const int i = static_cast<int>(threadIdx.x), t = i % 64;
    if (i >= 2 * kChainTokens) return;
    const int64_t at = slot_ * a_.heads + head_;
    const unsigned char* from = i < kChainTokens ? w_.forward.inverses + at * delta_keys_bytes(D)
                                                 : w_.forward.scores + at * delta_query_bytes(D);
    floats(kShared.norm)[i] =
        t < left_ ? reinterpret_cast<const float*>(from + kDeltaTile)[t] : 0.f;
  }
  // Of the thread's tokens and channels.
  __device__ void find_decays() const {
    const Log2Gate gate(a_, head_);
    load_gates();
    if (gate.kind == Log2Map::log) decays_of<Log2Map::log>(gate);
    if (gate.kind == Log2Map::power) decays_of<Log2Map::power>(gate);
    if (gate.kind == Log2Map::bounded) decays_of<Log2Map::bounded>(gate);
    if (gate.kind == Log2Map::softplus) decays_of<Log2Map::softplus>(gate);
  }
  // The raw gates with their bias, of a batch of loads, to the places of decays.
  __device__ void load_gates() const {
    const float2 bias = make_float2(a_.bias ? *a_.bias.at(head_, 2 * pair_) : 0.f,
                                    a_.bias ? *a_.bias.at(head_, 2 * pair_ + 1) : 0.f);
    const int64_t step = a_.gate_key.view.stride[1];
    int64_t at = a_.gate_key.offset(batch_, token_ + kRows * block_, head_, 2 * pair_);
    const bool wide = a_.gate_key.dtype == FOVEA_F32;
    float2 x[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i, at += step) {
      x[i] = make_float2(0, 0);
      if (kRows * block_ + i >= left_) continue;
      if (wide) {
        x[i] = *reinterpret_cast<const float2*>(a_.gate_key.view.template as<const float>() + at);
      } else {
        const auto both =
            *reinterpret_cast<const uint32_t*>(a_.gate_key.view.template as<const uint16_t>() + at);
        x[i] = make_float2(low(both), high(both));
      }
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i)
      decay(kRows * block_ + i) = make_float2(x[i].x + bias.x, x[i].y + bias.y);
  }
  template <Log2Map Kind>
  __device__ void decays_of(const Log2Gate& gate) const {
#pragma unroll 8
    for (int i = 0; i < kRows; ++i) {
      const int t = kRows * block_ + i;
      const float2 x = decay(t);
      float more = 0;
      if (t < left_ && a_.gate_head)
        more = gate.template of<Kind>(a_.gate_head(batch_, token_ + t, head_));
      const float first = gate.template of<Kind>(x.x) + more;
      const float second = gate.template of<Kind>(x.y) + more;
      decay(t) = t < left_ ? make_float2(exp2_fast(first < kGateLeast ? kGateLeast : first),
                                         exp2_fast(second < kGateLeast ? kGateLeast : second))
                           : make_float2(1, 1);
    }
  }

  __device__ int first_row() const {
    return kRows * (warp_ % 4);
  }
  __device__ int half() const {
    return warp_ / 4;
  }
  __device__ static void clear(Sums& x) {
#pragma unroll
    for (int j = 0; j < kSums; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) x[j][i] = 0;
  }

  // dq = dO H, dk2 = dV H, state = U W, of the warp's tokens and channels.  score: dO U' or dV U',
  // by the warp's half; both where there is one.  <H, W> of the thread's channels.
  __device__ __forceinline__ void multiply(Sums& dq, Sums& dk2, Sums& state,
                                           Sums (&score)[3 - Halves], float2& states) const {
    clear(dq), clear(dk2), clear(state), clear(score[0]), clear(score[2 - Halves]);
    states = make_float2(0, 0);
    const uint32_t rows = Panel::at(first_row() + outer_row(lane_), outer_chunk(lane_));
    const uint32_t tokens = Panel::at(inner_row(lane_), first_row() / 8 + inner_chunk(lane_));
    const uint32_t columns = Panel::at(outer_row(lane_), outer_chunk(lane_));
#pragma unroll 1
    for (int tile = 0; tile < w_.forward.tiles; ++tile) {
      const int stage = tile % Shape::Stages;
      const uint32_t at = panels(stage);
      sm90::barrier_wait(full(stage), tile / Shape::Stages & 1);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const uint32_t step = k * kRows * kPanelRowBytes;
        const uint32_t channels = half() * TileH::panel_bytes + columns + step;
        uint32_t dout[4], dv[4], u[4], one[4];
        load_matrices(dout, Panel::pair(at + rows, k));
        load_matrices(dv, Panel::pair(at + Shape::at_dv + rows, k));
        load_matrices_transposed(u, at + Shape::at_u + tokens + step);
#pragma unroll
        for (int i = 0; i < 4; ++i) one[i] = half() ? dv[i] : dout[i];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          uint32_t h[4], w[4];
          load_matrices_transposed(h, Panel::pair(at + Shape::at_h + channels, j));
          load_matrices_transposed(w, Panel::pair(at + Shape::at_w + channels, j));
          mma<Dtype>(dq[2 * j], dout, h[0], h[1]);
          mma<Dtype>(dq[2 * j + 1], dout, h[2], h[3]);
          mma<Dtype>(dk2[2 * j], dv, h[0], h[1]);
          mma<Dtype>(dk2[2 * j + 1], dv, h[2], h[3]);
          mma<Dtype>(state[2 * j], u, w[0], w[1]);
          mma<Dtype>(state[2 * j + 1], u, w[2], w[3]);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (kRows * j > first_row()) continue;
          uint32_t s[4];
          load_matrices_transposed(s, Panel::pair(at + Shape::at_u + columns + step, j));
          mma<Dtype>(score[0][2 * j], Halves == 2 ? one : dout, s[0], s[1]);
          mma<Dtype>(score[0][2 * j + 1], Halves == 2 ? one : dout, s[2], s[3]);
          if constexpr (Halves == 1) {
            mma<Dtype>(score[1][2 * j], dv, s[0], s[1]);
            mma<Dtype>(score[1][2 * j + 1], dv, s[2], s[3]);
          }
        }
      }
      const unsigned char* h = base_ + (at + Shape::at_h - at_);
#pragma unroll 4
      for (int i = 0; i < kRows; ++i) {
        const int from = TileH::at(kRows * block_ + i, pair_ / 4) + pair_ % 4 * 4;
        const auto x = *reinterpret_cast<const uint32_t*>(h + from);
        const auto y = *reinterpret_cast<const uint32_t*>(h + TileH::bytes + from);
        states.x = fmaf(low(x), low(y), states.x), states.y = fmaf(high(x), high(y), states.y);
      }
      __syncthreads();
      if (threadIdx.x == 0 && tile + Shape::Stages < w_.forward.tiles) load(tile + Shape::Stages);
    }
  }

  // ---- phase 2

  // F and G, once no warp reads panels: as tiles, and in f32 what lies within a block.
  __device__ __forceinline__ void write_scores(Sums (&score)[3 - Halves]) const {
    write_score(score[0], half());
    if constexpr (Halves == 1) write_score(score[1], 1);
  }
  __device__ __forceinline__ void write_score(Sums& x, int which) const {
    const float* norm = floats(kShared.norm);
    const int first = first_row() + lane_ / 4, pair = lane_ % 4 * 2;
    float row[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int t = first + 8 * h;
      row[h] = which ? -norm[t] : t >= from_ ? a_.scale * norm[64 + t] : 0.f;
    }
    float* pairs = floats(kShared.pairs) + warp_ % 4 * 512 + which;
#pragma unroll
    for (int j = 0; j < kSums; ++j) {
      const float2 column = *reinterpret_cast<const float2*>(norm + 8 * j + pair);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int t = first + c / 2 * 8, s = 8 * j + pair + c % 2;
        const float by = row[c / 2] * (c % 2 ? column.y : column.x);
        // Rows past the last token are of others: 0 times NaN is NaN.
        x[j][c] = s + which <= t && by != 0 ? by * x[j][c] : 0;
        if (j / 2 == warp_ % 4) pairs[(s % kRows * kRows + t % kRows) * 2] = x[j][c];
      }
    }
    uint32_t p[1][kSums / 2][4];
    pack_operand<Dtype>(p, reinterpret_cast<const float(&)[1][kSums][4]>(x));
    const uint32_t to = at_ + kShared.panels + (which ? Shape::at_g : 0) +
                        Panel::at(first_row() + outer_row(lane_), outer_chunk(lane_));
#pragma unroll
    for (int k = 0; k < kSums / 2; ++k) sm90::store_matrices(Panel::pair(to, k), p[0][k]);
  }
  // The thread's channels of q up, k up and k down.
  __device__ __forceinline__ void scale_rows() const {
    sm90::barrier_wait(full(Shape::Stages), 0);
    unsigned char* to = base_ + kShared.panels;
    float2 by = make_float2(1, 1);
#pragma unroll 4
    for (int i = 0; i < kRows; ++i) {
      const int t = kRows * block_ + i, at = TileQ::at(t, pair_ / 4) + pair_ % 4 * 4;
      const float2 g = decay(t);
      by.x *= g.x, by.y *= g.y;
      const uint32_t q = two(0, t), k = two(1, t);
      *reinterpret_cast<uint32_t*>(to + Shape::at_q + at) =
          pack<Dtype>(low(q) * by.x, high(q) * by.y);
      *reinterpret_cast<uint32_t*>(to + Shape::at_k + at) =
          pack<Dtype>(low(k) * by.x, high(k) * by.y);
    }
    float2s(kShared.total)[block_ * kPairs + pair_] = by;
    by = make_float2(1, 1);
#pragma unroll 4
    for (int i = kRows - 1; i >= 0; --i) {
      const int t = kRows * block_ + i, at = TileQ::at(t, pair_ / 4) + pair_ % 4 * 4;
      const float2 g = decay(t);
      const uint32_t k = two(1, t);
      *reinterpret_cast<uint32_t*>(to + Shape::at_columns + at) =
          pack<Dtype>(low(k) * by.x, high(k) * by.y);
      by.x *= g.x, by.y *= g.y;
    }
  }

  // ---- phase 3

  // x past a block of tokens.
  __device__ __forceinline__ void pass(Sums& x, Sums& y, int block) const {
    const float2* total =
        float2s(kShared.total) + block * kPairs + half() * 32 + static_cast<int>(lane_ % 4);
#pragma unroll
    for (int j = 0; j < kSums; ++j) {
      const float2 by = total[4 * j];
#pragma unroll
      for (int i = 0; i < 4; ++i) x[j][i] *= i % 2 ? by.y : by.x, y[j][i] *= i % 2 ? by.y : by.x;
    }
  }
  __device__ __forceinline__ static void multiply(Sums& x, float low, float high) {
#pragma unroll
    for (int j = 0; j < kSums; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float by = i / 2 ? high : low;
        x[j][i] = by == 0 ? 0 : by * x[j][i];
      }
  }
  // dq and dk2 to before the warp's tokens, dk and state to after them.
  __device__ __forceinline__ void join_blocks(Sums& dq, Sums& dk2, Sums& state, Sums& dk) const {
    const float* norm = floats(kShared.norm) + first_row() + lane_ / 4;
    const bool there[2] = {first_row() + lane_ / 4 >= from_, first_row() + lane_ / 4 + 8 >= from_};
    multiply(dq, there[0] ? a_.scale * norm[64] : 0.f, there[1] ? a_.scale * norm[72] : 0.f);
    multiply(dk2, -norm[0], -norm[8]);
    multiply(state, a_.scale * norm[0], a_.scale * norm[8]);
    clear(dk);
    const int own = warp_ % 4;
    const uint32_t f = at_ + kShared.panels, g = f + Shape::at_g;
    const uint32_t rows = Panel::at(first_row() + outer_row(lane_), outer_chunk(lane_));
    const uint32_t columns = Panel::at(inner_row(lane_), 2 * own + inner_chunk(lane_));
    const uint32_t channels =
        half() * TileQ::panel_bytes + TileQ::at(outer_row(lane_), outer_chunk(lane_));
#pragma unroll 1
    for (int n = 0; n < own; ++n) {
      pass(dq, dk2, n);
      const uint32_t b = f + Shape::at_columns + channels + n * kRows * kPanelRowBytes;
      uint32_t x[4], y[4];
      load_matrices(x, f + (rows ^ n * 32)), load_matrices(y, g + (rows ^ n * 32));
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        uint32_t k[4];
        load_matrices_transposed(k, Panel::pair(b, j));
        mma<Dtype>(dq[2 * j], x, k[0], k[1]), mma<Dtype>(dq[2 * j + 1], x, k[2], k[3]);
        mma<Dtype>(dk2[2 * j], y, k[0], k[1]), mma<Dtype>(dk2[2 * j + 1], y, k[2], k[3]);
      }
    }
#pragma unroll 1
    for (int n = 3; n > own; --n) {
      pass(dk, state, n);
      const uint32_t step = n * kRows * kPanelRowBytes;
      uint32_t x[4], y[4];
      load_matrices_transposed(x, f + columns + step);
      load_matrices_transposed(y, g + columns + step);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        uint32_t q[4], k[4];
        load_matrices_transposed(q, Panel::pair(f + Shape::at_q + channels + step, j));
        load_matrices_transposed(k, Panel::pair(f + Shape::at_k + channels + step, j));
        mma<Dtype>(dk[2 * j], x, q[0], q[1]), mma<Dtype>(dk[2 * j + 1], x, q[2], q[3]);
        mma<Dtype>(dk[2 * j], y, k[0], k[1]), mma<Dtype>(dk[2 * j + 1], y, k[2], k[3]);
      }
    }
  }
  __device__ __forceinline__ void keep(int which, const Sums& x) const {
#pragma unroll
    for (int j = 0; j < kSums; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        sum(which, first_row() + lane_ / 4 + 8 * h, half() * 32 + 4 * j + lane_ % 4) =
            make_float2(x[j][2 * h], x[j][2 * h + 1]);
  }

  // ---- phase 4

  __device__ void within() const {
    float2 dq[kRows], dk2[kRows], g[kRows];
    uint32_t q[kRows], k[kRows];
    const int first = kRows * block_;
    float2 by = make_float2(1, 1);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      q[i] = two(0, first + i), k[i] = two(1, first + i), g[i] = decay(first + i);
      by.x *= g[i].x, by.y *= g[i].y;
      const float2 x = sum(0, first + i, pair_), y = sum(1, first + i, pair_);
      dq[i] = make_float2(by.x * x.x, by.y * x.y), dk2[i] = make_float2(by.x * y.x, by.y * y.y);
    }
    by = make_float2(1, 1);
#pragma unroll
    for (int i = kRows - 1; i >= 0; --i) {
      float2 &x = sum(2, first + i, pair_), &y = sum(3, first + i, pair_);
      x.x *= by.x, x.y *= by.y, y.x *= by.x, y.y *= by.y;
      by.x *= g[i].x, by.y *= g[i].y;
    }
    const float2* pairs = float2s(kShared.pairs) + block_ * 256;
    float* dots = floats(kShared.dots) + (Halves == 2 ? warp_ % 2 * kChainTokens : 0) + first;
    float2 owns = {}, carries = {};
#pragma unroll
    for (int s = 0; s < kRows; ++s) {
      const float2 key = make_float2(low(k[s]), high(k[s]));
      const float2 query = make_float2(low(q[s]), high(q[s]));
      const float diagonal = pairs[s * kRows + s].x;
      dq[s].x = fmaf(diagonal, key.x, dq[s].x), dq[s].y = fmaf(diagonal, key.y, dq[s].y);
      const float2 before = sum(2, first + s, pair_);
      float2 in = make_float2(fmaf(diagonal, query.x, before.x), fmaf(diagonal, query.y, before.y));
      float2 d = make_float2(1, 1);
#pragma unroll
      for (int t = s + 1; t < kRows; ++t) {
        const float2 f = pairs[s * kRows + t];
        d.x *= g[t].x, d.y *= g[t].y;
        const float x = d.x * key.x, y = d.y * key.y;
        dq[t].x = fmaf(f.x, x, dq[t].x), dq[t].y = fmaf(f.x, y, dq[t].y);
        dk2[t].x = fmaf(f.y, x, dk2[t].x), dk2[t].y = fmaf(f.y, y, dk2[t].y);
        in.x = fmaf(d.x, fmaf(f.x, low(q[t]), f.y * low(k[t])), in.x);
        in.y = fmaf(d.y, fmaf(f.x, high(q[t]), f.y * high(k[t])), in.y);
      }
      const float2 state = sum(3, first + s, pair_);
      const float2 dk = make_float2(in.x + state.x + dk2[s].x, in.y + state.y + dk2[s].y);
      const float2 carry = make_float2(key.x * state.x, key.y * state.y);
      const float2 own = make_float2(query.x * dq[s].x + key.x * dk2[s].x - key.x * in.x,
                                     query.y * dq[s].y + key.y * dk2[s].y - key.y * in.y);
      sum(0, first + s, pair_) = dq[s], sum(1, first + s, pair_) = own;
      sum(2, first + s, pair_) = dk, sum(3, first + s, pair_) = carry;
      owns.x += own.x, owns.y += own.y, carries.x += carry.x, carries.y += carry.y;
      const float sums[3] = {query.x * dq[s].x + query.y * dq[s].y, key.x * dk.x + key.y * dk.y,
                             key.x * dk2[s].x + key.y * dk2[s].y};
#pragma unroll
      for (int n = 0; n < 3; ++n) {
        const float whole = lanes_sum<32>(sums[n]);
        if (lane_ == 0) dots[n * Halves * kChainTokens + s] = whole;
      }
    }
    float2s(kShared.own)[block_ * kPairs + pair_] = owns;
    float2s(kShared.carry)[block_ * kPairs + pair_] = carries;
  }

  // ---- phase 5

  __device__ float dot(int which, int t) const {
    const float* from = floats(kShared.dots) + which * Halves * kChainTokens + t;
    return Halves == 2 ? from[0] + from[kChainTokens] : from[0];
  }
  __device__ void gates() const {
    if (!w_.dgate_key && !w_.b.terms.dg) return;
    const int first = kRows * block_;
    float2 states = {}, all = make_float2(1, 1), before = {}, after = {};
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const float2 x = float2s(kShared.states)[n * kPairs + pair_];
      const float2 total = float2s(kShared.total)[n * kPairs + pair_];
      const float2 own = float2s(kShared.own)[n * kPairs + pair_];
      const float2 carry = float2s(kShared.carry)[n * kPairs + pair_];
      states.x += x.x, states.y += x.y, all.x *= total.x, all.y *= total.y;
      if (n < block_) before.x += carry.x, before.y += carry.y;
      if (n > block_) after.x += own.x, after.y += own.y;
    }
    before.x += decayed(all.x, a_.scale * states.x);
    before.y += decayed(all.y, a_.scale * states.y);
#pragma unroll 4
    for (int i = 0; i < kRows; ++i) {
      float2& carry = sum(3, first + i, pair_);
      const float2 own = carry;
      carry = before;
      before.x += own.x, before.y += own.y;
    }
    const int last = min(kRows, left_ - first);
    const float rate = a_.rate_of(head_);
    if (w_.dgate_key) load_gates();
#pragma unroll 1
    for (int i = last - 1; i >= 0; --i) {
      const int t = first + i;
      const float2 own = sum(1, t, pair_), carry = sum(3, t, pair_);
      after.x += own.x, after.y += own.y;
      give_gates(t, rate, after.x + carry.x, after.y + carry.y);
    }
  }
  __device__ __forceinline__ void give_gates(int t, float rate, float x, float y) const {
    if (w_.b.terms.dg) {
      const int64_t at = ((int64_t{batch_} * a_.s + token_ + t) * a_.heads + head_) * D + 2 * pair_;
      *reinterpret_cast<float2*>(w_.b.terms.dg + at) = make_float2(x, y);
    }
    if (!w_.dgate_key) return;
    const float2 raw = decay(t);
    const float slopes[2] = {a_.gate(raw.x, rate).slope, a_.gate(raw.y, rate).slope};
    x = x == 0 || slopes[0] == 0 ? 0 : x * slopes[0];
    y = y == 0 || slopes[1] == 0 ? 0 : y * slopes[1];
    const int64_t to = w_.dgate_key.offset(batch_, token_ + t, head_, 2 * pair_);
    if (w_.dgate_key.dtype == FOVEA_F32)
      *reinterpret_cast<float2*>(w_.dgate_key.view.template as<float>() + to) = make_float2(x, y);
    else
      *reinterpret_cast<uint32_t*>(w_.dgate_key.view.template as<uint16_t>() + to) =
          pack<Dtype>(x, y);
  }

  __device__ void rows() const {
    if (w_.dq)
      direct(0, w_.dq, head_);
    else if (w_.b.terms.dq)
      terms(0, w_.b.terms.dq);
    if (w_.dk)
      direct(1, w_.dk, head_);
    else if (w_.b.terms.dk)
      terms(1, w_.b.terms.dk);
  }
  // Of q (0) or k (1), through its norm.
  __device__ void direct(int which, const Floats<4>& to, int head) const {
    const int first = kRows * block_, last = min(kRows, left_ - first);
    const float* norms = floats(kShared.norm) + (which ? 0 : kChainTokens);
    const int64_t step = to.view.stride[1];
    int64_t at = to.offset(batch_, token_ + first, head, 2 * pair_);
#pragma unroll 4
    for (int i = 0; i < last; ++i, at += step) {
      const int t = first + i;
      float2 x = sum(2 * which, t, pair_);
      if (a_.l2_norm) {
        const float norm = norms[t], by = -norm * norm * dot(which, t);
        const uint32_t row = two(which, t);
        x.x = fmaf(by, low(row), x.x), x.y = fmaf(by, high(row), x.y);
      }
      *reinterpret_cast<uint32_t*>(to.view.template as<uint16_t>() + at) = pack<Dtype>(x.x, x.y);
    }
  }
  // Of q^ or k^.
  __device__ void terms(int which, float* to) const {
    const int first = kRows * block_, last = min(kRows, left_ - first);
    const float* norms = floats(kShared.norm) + (which ? 0 : kChainTokens);
#pragma unroll 1
    for (int i = 0; i < last; ++i) {
      const int t = first + i;
      const float2 x = sum(2 * which, t, pair_);
      const float by = 1 / norms[t];
      const int64_t at = ((int64_t{batch_} * a_.s + token_ + t) * a_.heads + head_) * D + 2 * pair_;
      *reinterpret_cast<float2*>(to + at) = make_float2(by * x.x, by * x.y);
    }
  }
  __device__ void betas() const {
    const int t = static_cast<int>(threadIdx.x);
    if (!w_.betas || t >= left_) return;
    const int64_t token = token_ + t;
    const float* from = w_.betas + (batch_ * a_.s + token) * a_.heads + head_;
    float along = dot(2, t);
#pragma unroll 1
    for (int tile = 0; tile < w_.forward.tiles; ++tile)
      along += *from, from += a_.b * a_.s * a_.heads;
    const Sloped by = a_.beta_at(batch_, token, head_);
    const float beta =
        fabsf(by.value) < kDeltaLeastBeta ? copysignf(kDeltaLeastBeta, by.value) : by.value;
    const float x = along / beta;
    if (w_.dbeta) w_.dbeta.store(x == 0 || by.slope == 0 ? 0 : x * by.slope, batch_, token, head_);
    if (w_.b.terms.dbeta) w_.b.terms.dbeta[(batch_ * a_.s + token) * a_.heads + head_] = x;
  }

  const DeltaBackwardWork90& w_;
  const Recur& a_;
  unsigned char* base_;
  uint32_t at_;
  const int lane_, warp_;
  const int pair_, block_;  // of a thread: channels 2 pair, 2 pair + 1, tokens from 16 block on
  int64_t slot_;
  int head_, batch_, token_, left_, from_;
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, Shape::blocks)
    delta_key_gradient_sm90_kernel(const __grid_constant__ DeltaBackwardWork90 work) {
  extern __shared__ __align__(1024) unsigned char shared[];
  DeltaKeyGradient90<Shape>(work, shared).run(blockIdx.x);
}

}  // namespace fovea::cuda
