// SPDX-License-Identifier: Apache-2.0
// The gradients of x_delta_backward's low rank on Hopper, from H, U, dY, V and W that the chains
// left: a block for each chunk of 64 tokens, head and 64 channels.  Letters are those of
// backward_key_tile_sm90.cuh; up'_t is up_t without the decay of t, and 2^D'_ts that without t's.
//   E_ts = scale |q_t|^-1 dO_t . U_s,  F_ts = scale |q_t|^-1 |k_s|^-1 dO_t . V_s, s <= t
//   M_ts = dY_t . U_s,                 N_ts = |k_s|^-1 dY_t . V_s, s < t
//   dq_t = scale |q_t|^-1 2^P_t . (H dO_t) + sum over s <= t of 2^D_ts . (E_ts b_s + F_ts k_s)
//   da_t = 2^E_t . (H dY_t)                + sum over s < t of 2^D'_ts . (M_ts b_s + N_ts k_s)
//   db_s = scale 2^S_s . (W U_s)           + sum over t of E_ts 2^D_ts . q_t + M_ts 2^D'_ts . a_t
//   dk_s = scale |k_s|^-1 2^S_s . (W V_s)  + sum over t of F_ts 2^D_ts . q_t + N_ts 2^D'_ts . a_t
//   dlog_j = all . <H, W> + sum over s < j of what W gave to b_s . db_s + k_s . dk_s
//            + sum over t >= j of q_t . dq_t - b_t . db_t - k_t . dk_t without W's part
//            + sum over t > j of a_t . da_t
//
//   | phase | who                                 | what | | 1     | a warp: 16 tokens, 32 channels
//   | H dO, H dY, W U, W V; E and F, or M and N      | | 2     | a thread: a channel of 16 tokens
//   | q up, a up', b down, k down; totals            | | 3     | a warp, as in 1 | products between
//   blocks                        | | 4     | a thread, as in 2                   | within its
//   block; gradients; sums              | | 5     | a thread, as in 2                   | norms,
//   gates, stores                           |
// Barriers are those of backward_key_tile_sm90.cuh.
#pragma once
#include "cuda/block/reduce.cuh"
#include "ops/delta/backward.cuh"
#include "ops/delta/chunk_sm90.cuh"

namespace fovea::cuda {

template <int D_>
struct DeltaLowGradientShape90 {
  static constexpr int Dtype = FOVEA_BF16, D = D_, Parts = D / 64, Stages = 2, threads = 256;
  using TileH = Swizzled<kChainColumns, D>;
  using Panel = Swizzled<64, 64>;
  // Of 64 value columns: dO, dY, U, V, then H and W of the block's channels.
  static constexpr int at_dy = Panel::bytes, at_u = 2 * Panel::bytes, at_v = 3 * Panel::bytes;
  static constexpr int at_h = 4 * Panel::bytes, at_w = 5 * Panel::bytes;
  static constexpr int stage_bytes = 6 * Panel::bytes;
  // Then in their place: E, F, M, N, and the scaled rows; then sums in f32.
  static constexpr int at_q = 4 * Panel::bytes, at_a = 5 * Panel::bytes;
  static constexpr int at_b = 6 * Panel::bytes, at_k = 7 * Panel::bytes;
  static constexpr int sum_bytes = kChainTokens * 64 * 4;
  static constexpr int panel_bytes = Stages * stage_bytes;
  static_assert(8 * Panel::bytes <= panel_bytes && 5 * sum_bytes <= panel_bytes);
};

template <class Shape>
struct DeltaLowGradientShared90 : sm90::SharedLayout {
  int rows = tiles(4 * Shape::Panel::bytes);  // Q, A, B, K
  int panels = tiles(Shape::panel_bytes);
  int decays = of<float>(kChainTokens * 64);   // [token][channel]
  int pairs = of<float4>(4 * 16 * 16);         // E, F, M, N within a block: [block][s][t]
  int norm = of<float>(2 * kChainTokens);      // |k|^-1, |q|^-1; 0 past the last token
  int dots = of<float>(2 * 2 * kChainTokens);  // q . dq, k . dk, of 32 channels
  int total = of<float>(4 * 64);               // [block][channel], as what follows
  int states = of<float>(4 * 64);              // <H, W>, of a quarter of value columns
  int own = of<float>(4 * 64);
  int carry = of<float>(4 * 64);
  int full = barriers(Shape::Stages + 1);
};

template <class Shape>
class DeltaLowGradient90 {
  static constexpr int Dtype = Shape::Dtype, D = Shape::D;
  static constexpr int kSums = 4, kRows = 16;  // of a warp: blocks of 8 channels, tokens
  using TileH = typename Shape::TileH;
  using Panel = typename Shape::Panel;
  using Sums = float[kSums][4];
  using Scores = float[8][4];
  static constexpr DeltaLowGradientShared90<Shape> kShared = DeltaLowGradientShared90<Shape>();

 public:
  static constexpr int shared_bytes = kShared.bytes;

  __device__ DeltaLowGradient90(const DeltaBackwardWork90& work, unsigned char* base)
      : w_(work),
        a_(work.b.forward),
        base_(base),
        at_(shared_address(base)),
        lane_(threadIdx.x % 32),
        warp_(sm90::uniform(threadIdx.x / 32)),
        channel_(threadIdx.x % 64),
        block_(sm90::uniform(threadIdx.x / 64)) {}

  __device__ void run(uint32_t block) {
    if (!find(block)) return;
    begin();
    load_norms();
    find_decays();
    {
      Sums dq, da, of_b, of_k;
      Scores x, y;
      float states;
      multiply(dq, da, of_b, of_k, x, y, states);
      floats(kShared.states)[block_ * 64 + channel_] = states;
      write_score(x, 2 * half()), write_score(y, 2 * half() + 1);
      scale_rows();
      __syncthreads();
      Sums db, dk;
      join_blocks(dq, da, of_b, of_k, db, dk);
      __syncthreads();
      keep_all(dq, da, of_b, of_k, db, dk);
    }
    __syncthreads();
    within();
    __syncthreads();
    gates();
    rows();
  }

 private:
  __device__ float* floats(int at) const { return reinterpret_cast<float*>(base_ + at); }
  __device__ uint32_t full(int stage) const { return at_ + kShared.full + 8 * stage; }
  __device__ uint32_t panels(int stage) const {
    return at_ + kShared.panels + stage * Shape::stage_bytes;
  }
  // Sums in f32: 0 dq, 1 da, 2 db, 3 dk, 4 what W gave to b . db + k . dk.
  __device__ float* sums(int which, int t) const {
    return floats(kShared.panels + which * Shape::sum_bytes) + t * 64;
  }
  __device__ float& sum(int which, int t) const { return sums(which, t)[channel_ ^ t % 4 * 8]; }
  __device__ float& decay(int t) const { return floats(kShared.decays)[t * 64 + channel_]; }
  // The thread's channel of a row of Q (0), A, B or K (3): 0 past the last token.
  __device__ static int at(int t, int channel) {
    return static_cast<int>(Panel::at(t, channel / 8)) + channel % 8 * 2;
  }
  __device__ float one(int which, int t) const {
    const unsigned char* from = base_ + kShared.rows + which * Panel::bytes + at(t, channel_);
    return t < left_ ? float_of(uint32_t{*reinterpret_cast<const uint16_t*>(from)} << 16) : 0.f;
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
      const uint32_t barrier = full(Shape::Stages);
      const auto row = [&](int which, const CUtensorMap& map, int head) {
        sm90::tma_load_box(at_ + kShared.rows + which * Panel::bytes, map, barrier, 64 * part_,
                           token_, head, batch_);
      };
      sm90::barrier_expect(barrier, 4 * Panel::bytes);
      row(0, w_.forward.q, head_ / w_.forward.query_share);
      row(1, w_.forward.low_a, head_), row(2, w_.forward.low_b, head_);
      row(3, w_.forward.k, head_ / w_.forward.key_share);
    }
    __syncthreads();
  }
  // A value tile, to its stage.
  __device__ void load(int tile) const {
    const uint32_t to = panels(tile % Shape::Stages), barrier = full(tile % Shape::Stages);
    const int64_t at = (slot_ * a_.heads + head_) * w_.forward.tiles + tile;
    const int64_t channels = part_ * int64_t{Panel::bytes};
    sm90::barrier_expect(barrier, Shape::stage_bytes);
    sm90::tma_load_box(to, w_.dout, barrier, tile * kChainColumns, token_, head_, batch_);
    sm90::tma_load(to + Shape::at_dy, w_.answers + at * Panel::bytes, Panel::bytes, barrier);
    sm90::tma_load(to + Shape::at_u, w_.updates + at * Panel::bytes, Panel::bytes, barrier);
    sm90::tma_load_box(to + Shape::at_v, w_.forward.v, barrier, tile * kChainColumns, token_,
                       static_cast<int>(a_.value_head(head_)), batch_);
    sm90::tma_load(to + Shape::at_h, w_.states + at * TileH::bytes + channels, Panel::bytes,
                   barrier);
    sm90::tma_load(to + Shape::at_w, w_.slopes + at * TileH::bytes + channels, Panel::bytes,
                   barrier);
  }

  // As the forward's tiles have them.
  __device__ void load_norms() const {
    const int i = static_cast<int>(threadIdx.x), t = i % 64;
    if (i >= 2 * kChainTokens) return;
    const int64_t at = slot_ * a_.heads + head_;
    const unsigned char* from = i < kChainTokens
                                    ? w_.forward.inverses + at * delta_low_bytes(D)
                                    : w_.forward.scores + at * delta_low_query_bytes(D);
    floats(kShared.norm)[i] =
        t < left_ ? reinterpret_cast<const float*>(from + kDeltaTile)[t] : 0.f;
  }
  // Of the thread's tokens and channel.
  __device__ void find_decays() const {
    const Log2Gate gate(a_, head_);
    load_gates(floats(kShared.decays));
    if (gate.kind == Log2Map::log) decays_of<Log2Map::log>(gate);
    if (gate.kind == Log2Map::power) decays_of<Log2Map::power>(gate);
    if (gate.kind == Log2Map::bounded) decays_of<Log2Map::bounded>(gate);
    if (gate.kind == Log2Map::softplus) decays_of<Log2Map::softplus>(gate);
  }
  // The raw gates with their bias, of a batch of loads, to [token][channel].
  __device__ void load_gates(float* to) const {
    const float bias = a_.bias ? *a_.bias.at(head_, channel()) : 0.f;
    const int64_t step = a_.gate_key.view.stride[1];
    int64_t at = a_.gate_key.offset(batch_, token_ + kRows * block_, head_, channel());
    const bool wide = a_.gate_key.dtype == FOVEA_F32;
    float x[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i, at += step) {
      x[i] = 0;
      if (kRows * block_ + i >= left_) continue;
      x[i] = wide ? a_.gate_key.view.template as<const float>()[at]
                  : float_of(uint32_t{a_.gate_key.view.template as<const uint16_t>()[at]} << 16);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) to[(kRows * block_ + i) * 64 + channel_] = x[i] + bias;
  }
  template <Log2Map Kind>
  __device__ void decays_of(const Log2Gate& gate) const {
#pragma unroll 8
    for (int i = 0; i < kRows; ++i) {
      const int t = kRows * block_ + i;
      float more = 0;
      if (t < left_ && a_.gate_head)
        more = gate.template of<Kind>(a_.gate_head(batch_, token_ + t, head_));
      const float log = gate.template of<Kind>(decay(t)) + more;
      decay(t) = t < left_ ? exp2_fast(log < kGateLeast ? kGateLeast : log) : 1.f;
    }
  }

  __device__ int first_row() const {
    return kRows * (warp_ % 4);
  }
  __device__ int half() const {
    return warp_ / 4;
  }
  template <int N>
  __device__ static void clear(float (&x)[N][4]) {
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) x[j][i] = 0;
  }

  // dq = dO H, da = dY H, of_b = U W, of_k = V W, of the warp's tokens and channels.  x and y: dO
  // or dY, by the warp's half, with U' and V'.  <H, W> of the thread's channel.
  __device__ __forceinline__ void multiply(Sums& dq, Sums& da, Sums& of_b, Sums& of_k, Scores& x,
                                           Scores& y, float& states) const {
    clear(dq), clear(da), clear(of_b), clear(of_k), clear(x), clear(y);
    states = 0;
    const uint32_t rows = Panel::at(first_row() + outer_row(lane_), outer_chunk(lane_));
    const uint32_t tokens = Panel::at(inner_row(lane_), first_row() / 8 + inner_chunk(lane_));
    const uint32_t columns = Panel::at(outer_row(lane_), outer_chunk(lane_));
    const uint32_t inner = Panel::at(inner_row(lane_), inner_chunk(lane_));
#pragma unroll 1
    for (int tile = 0; tile < w_.forward.tiles; ++tile) {
      const int stage = tile % Shape::Stages;
      const uint32_t at = panels(stage);
      sm90::barrier_wait(full(stage), tile / Shape::Stages & 1);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const uint32_t step = k * kRows * kPanelRowBytes;
        uint32_t dout[4], dy[4], u[4], v[4], row[4];
        load_matrices(dout, Panel::pair(at + rows, k));
        load_matrices(dy, Panel::pair(at + Shape::at_dy + rows, k));
        load_matrices_transposed(u, at + Shape::at_u + tokens + step);
        load_matrices(v, Panel::pair(at + Shape::at_v + rows, k));
#pragma unroll
        for (int i = 0; i < 4; ++i) row[i] = half() ? dy[i] : dout[i];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          uint32_t h[4], w[4];
          const uint32_t from = (at + columns + step) ^ half() * 64;
          load_matrices_transposed(h, Panel::pair(from + Shape::at_h, j));
          load_matrices_transposed(w, Panel::pair(from + Shape::at_w, j));
          mma<Dtype>(dq[2 * j], dout, h[0], h[1]);
          mma<Dtype>(dq[2 * j + 1], dout, h[2], h[3]);
          mma<Dtype>(da[2 * j], dy, h[0], h[1]);
          mma<Dtype>(da[2 * j + 1], dy, h[2], h[3]);
          mma<Dtype>(of_b[2 * j], u, w[0], w[1]);
          mma<Dtype>(of_b[2 * j + 1], u, w[2], w[3]);
          mma<Dtype>(of_k[2 * j], v, w[0], w[1]);
          mma<Dtype>(of_k[2 * j + 1], v, w[2], w[3]);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (kRows * j > first_row()) continue;
          uint32_t s[4], z[4];
          load_matrices_transposed(s, Panel::pair(at + Shape::at_u + columns + step, j));
          load_matrices(z, Panel::pair(at + Shape::at_v + inner, k) + j * kRows * kPanelRowBytes);
          mma<Dtype>(x[2 * j], row, s[0], s[1]);
          mma<Dtype>(x[2 * j + 1], row, s[2], s[3]);
          mma<Dtype>(y[2 * j], row, z[0], z[1]);
          mma<Dtype>(y[2 * j + 1], row, z[2], z[3]);
        }
      }
      const unsigned char* h = base_ + (at + Shape::at_h - at_);
#pragma unroll 4
      for (int i = 0; i < kRows; ++i) {
        const unsigned char* from = h + this->at(kRows * block_ + i, channel_);
        states =
            fmaf(float_of(uint32_t{*reinterpret_cast<const uint16_t*>(from)} << 16),
                 float_of(uint32_t{*reinterpret_cast<const uint16_t*>(from + Panel::bytes)} << 16),
                 states);
      }
      __syncthreads();
      if (threadIdx.x == 0 && tile + Shape::Stages < w_.forward.tiles) load(tile + Shape::Stages);
    }
  }

  // ---- phase 2

  // E (0), F, M or N (3), once no warp reads panels: as tiles, and in f32 within a block.
  __device__ __forceinline__ void write_score(Scores& x, int which) const {
    const float* norm = floats(kShared.norm);
    const int first = first_row() + lane_ / 4, pair = lane_ % 4 * 2, later = which / 2;
    float row[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int t = first + 8 * h;
      row[h] = later ? (t < left_ ? 1.f : 0.f) : t >= from_ ? a_.scale * norm[64 + t] : 0.f;
    }
    float* pairs = floats(kShared.pairs) + warp_ % 4 * 1024 + which;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int t = first + c / 2 * 8, s = 8 * j + pair + c % 2;
        const float by = which % 2 ? row[c / 2] * norm[s] : row[c / 2];
        // Rows past the last token are of others: 0 times NaN is NaN.
        x[j][c] = s + later <= t && by != 0 ? by * x[j][c] : 0;
        if (j / 2 == warp_ % 4) pairs[(s % kRows * kRows + t % kRows) * 4] = x[j][c];
      }
    }
    uint32_t p[1][4][4];
    pack_operand<Dtype>(p, reinterpret_cast<const float(&)[1][8][4]>(x));
    const uint32_t to = at_ + kShared.panels + which * Panel::bytes +
                        Panel::at(first_row() + outer_row(lane_), outer_chunk(lane_));
#pragma unroll
    for (int k = 0; k < 4; ++k) sm90::store_matrices(Panel::pair(to, k), p[0][k]);
  }
  // The thread's channel of q up, a up', b down and k down.
  __device__ __forceinline__ void scale_rows() const {
    sm90::barrier_wait(full(Shape::Stages), 0);
    float by = 1;
#pragma unroll 4
    for (int i = 0; i < kRows; ++i) {
      const int t = kRows * block_ + i;
      put(Shape::at_a, t, one(1, t) * by);
      by *= decay(t);
      put(Shape::at_q, t, one(0, t) * by);
    }
    floats(kShared.total)[block_ * 64 + channel_] = by;
    by = 1;
#pragma unroll 4
    for (int i = kRows - 1; i >= 0; --i) {
      const int t = kRows * block_ + i;
      put(Shape::at_b, t, one(2, t) * by), put(Shape::at_k, t, one(3, t) * by);
      by *= decay(t);
    }
  }

  // ---- phase 3

  // x and y past a block of tokens.
  __device__ __forceinline__ void pass(Sums& x, Sums& y, int block) const {
    const float* total = floats(kShared.total) + block * 64 + half() * 32 + lane_ % 4 * 2;
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
  // dq and da to before the warp's tokens, the others to after them.
  __device__ __forceinline__ void join_blocks(Sums& dq, Sums& da, Sums& of_b, Sums& of_k, Sums& db,
                                              Sums& dk) const {
    const float* norm = floats(kShared.norm) + first_row() + lane_ / 4;
    const int first = first_row() + lane_ / 4;
    times(dq, first >= from_ ? a_.scale * norm[64] : 0.f,
          first + 8 >= from_ ? a_.scale * norm[72] : 0.f);
    times(da, first < left_ ? 1.f : 0.f, first + 8 < left_ ? 1.f : 0.f);
    times(of_b, first < left_ ? a_.scale : 0.f, first + 8 < left_ ? a_.scale : 0.f);
    times(of_k, a_.scale * norm[0], a_.scale * norm[8]);
    clear(db), clear(dk);
    const int own = warp_ % 4;
    const uint32_t f = at_ + kShared.panels;
    const uint32_t rows = Panel::at(first_row() + outer_row(lane_), outer_chunk(lane_));
    const uint32_t columns = Panel::at(inner_row(lane_), 2 * own + inner_chunk(lane_));
    const uint32_t channels =
        Panel::at(outer_row(lane_), outer_chunk(lane_)) ^ static_cast<uint32_t>(half() * 64);
#pragma unroll 1
    for (int n = 0; n < own; ++n) {
      pass(dq, da, n);
      const uint32_t from = f + channels + n * kRows * kPanelRowBytes;
      uint32_t x[4][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) load_matrices(x[i], f + i * Panel::bytes + (rows ^ n * 32));
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        uint32_t b[4], k[4];
        load_matrices_transposed(b, Panel::pair(from + Shape::at_b, j));
        load_matrices_transposed(k, Panel::pair(from + Shape::at_k, j));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          mma<Dtype>(dq[2 * j + i], x[0], b[2 * i], b[2 * i + 1]);
          mma<Dtype>(dq[2 * j + i], x[1], k[2 * i], k[2 * i + 1]);
          mma<Dtype>(da[2 * j + i], x[2], b[2 * i], b[2 * i + 1]);
          mma<Dtype>(da[2 * j + i], x[3], k[2 * i], k[2 * i + 1]);
        }
      }
    }
#pragma unroll 1
    for (int n = 3; n > own; --n) {
      pass(db, dk, n), pass(of_b, of_k, n);
      const uint32_t step = n * kRows * kPanelRowBytes;
      uint32_t x[4][4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        load_matrices_transposed(x[i], f + i * Panel::bytes + columns + step);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        uint32_t q[4], a[4];
        load_matrices_transposed(q, Panel::pair(f + Shape::at_q + channels + step, j));
        load_matrices_transposed(a, Panel::pair(f + Shape::at_a + channels + step, j));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          mma<Dtype>(db[2 * j + i], x[0], q[2 * i], q[2 * i + 1]);
          mma<Dtype>(db[2 * j + i], x[2], a[2 * i], a[2 * i + 1]);
          mma<Dtype>(dk[2 * j + i], x[1], q[2 * i], q[2 * i + 1]);
          mma<Dtype>(dk[2 * j + i], x[3], a[2 * i], a[2 * i + 1]);
        }
      }
    }
  }
  // db and dk with W's part, and what that is of the gates.
  __device__ __forceinline__ void keep_all(const Sums& dq, const Sums& da, const Sums& of_b,
                                           const Sums& of_k, Sums& db, Sums& dk) const {
#pragma unroll
    for (int j = 0; j < kSums; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int t = first_row() + lane_ / 4 + 8 * h, c = half() * 32 + 8 * j + lane_ % 4 * 2;
        const unsigned char* from = base_ + kShared.rows + at(t, c);
        const auto b = *reinterpret_cast<const uint32_t*>(from + 2 * Panel::bytes);
        const auto k = *reinterpret_cast<const uint32_t*>(from + 3 * Panel::bytes);
        const bool there = t < left_;
        const auto give = [&](int which, float x, float y) {
          *reinterpret_cast<float2*>(sums(which, t) + (c ^ t % 4 * 8)) = make_float2(x, y);
        };
        const int i = 2 * h;
        give(0, dq[j][i], dq[j][i + 1]), give(1, da[j][i], da[j][i + 1]);
        give(2, db[j][i] + of_b[j][i], db[j][i + 1] + of_b[j][i + 1]);
        give(3, dk[j][i] + of_k[j][i], dk[j][i + 1] + of_k[j][i + 1]);
        give(4, there ? float_of(b << 16) * of_b[j][i] + float_of(k << 16) * of_k[j][i] : 0.f,
             there ? float_of(b & 0xffff0000u) * of_b[j][i + 1] +
                         float_of(k & 0xffff0000u) * of_k[j][i + 1]
                   : 0.f);
      }
  }

  // ---- phase 4

  __device__ void within() const {
    float dq[kRows], da[kRows], g[kRows], q[kRows], a[kRows], b[kRows], k[kRows];
    const int first = kRows * block_;
    float by = 1;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int t = first + i;
      q[i] = one(0, t), a[i] = one(1, t), b[i] = one(2, t), k[i] = one(3, t), g[i] = decay(t);
      da[i] = by * sum(1, t), by *= g[i], dq[i] = by * sum(0, t);
    }
    by = 1;
#pragma unroll
    for (int i = kRows - 1; i >= 0; --i) {
#pragma unroll
      for (int n = 2; n < 5; ++n) sum(n, first + i) *= by;
      by *= g[i];
    }
    const float4* pairs = reinterpret_cast<const float4*>(base_ + kShared.pairs) + block_ * 256;
    float* dots = floats(kShared.dots) + warp_ % 2 * kChainTokens + first;
    float owns = 0, carries = 0;
#pragma unroll
    for (int s = 0; s < kRows; ++s) {
      const float4 diagonal = pairs[s * kRows + s];
      dq[s] = fmaf(diagonal.x, b[s], fmaf(diagonal.y, k[s], dq[s]));
      float in_b = diagonal.x * q[s], in_k = diagonal.y * q[s], d = 1;
#pragma unroll
      for (int t = s + 1; t < kRows; ++t) {
        const float4 f = pairs[s * kRows + t];
        const float x = d * a[t];
        da[t] = fmaf(d, fmaf(f.z, b[s], f.w * k[s]), da[t]);
        in_b = fmaf(f.z, x, in_b), in_k = fmaf(f.w, x, in_k);
        d *= g[t];
        const float y = d * q[t];
        dq[t] = fmaf(d, fmaf(f.x, b[s], f.y * k[s]), dq[t]);
        in_b = fmaf(f.x, y, in_b), in_k = fmaf(f.y, y, in_k);
      }
      const int t = first + s;
      const float db = sum(2, t) + in_b, dk = sum(3, t) + in_k, carry = sum(4, t);
      const float own = q[s] * dq[s] - (b[s] * db + k[s] * dk - carry);
      sum(0, t) = dq[s], sum(1, t) = da[s], sum(2, t) = db, sum(3, t) = dk;
      // Of the gates: what the token's own takes, and what earlier ones take besides.
      g[s] = own, owns += own + a[s] * da[s], carries += carry;
      if (D == 64 && a_.l2_norm) {
        const float of_q = lanes_sum<32>(q[s] * dq[s]), of_k = lanes_sum<32>(k[s] * dk);
        if (lane_ == 0) dots[s] = of_q, dots[2 * kChainTokens + s] = of_k;
      }
    }
#pragma unroll
    for (int s = 0; s < kRows; ++s) decay(first + s) = g[s];
    floats(kShared.own)[block_ * 64 + channel_] = owns;
    floats(kShared.carry)[block_ * 64 + channel_] = carries;
  }

  // ---- phase 5

  __device__ float dot(int which, int t) const {
    const float* from = floats(kShared.dots) + which * 2 * kChainTokens + t;
    return from[0] + from[kChainTokens];
  }
  __device__ void gates() const {
    if (!w_.dgate_key && !w_.b.terms.dg) return;
    const int first = kRows * block_;
    float states = 0, all = 1, before = 0, after = 0;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      states += floats(kShared.states)[n * 64 + channel_];
      all *= floats(kShared.total)[n * 64 + channel_];
      if (n < block_) before += floats(kShared.carry)[n * 64 + channel_];
      if (n > block_) after += floats(kShared.own)[n * 64 + channel_];
    }
    before += decayed(all, a_.scale * states);
#pragma unroll 4
    for (int i = 0; i < kRows; ++i) {
      float& carry = sum(4, first + i);
      const float own = carry;
      carry = before, before += own;
    }
    const int last = min(kRows, left_ - first);
    const float rate = a_.rate_of(head_);
    const float* raw = floats(kShared.pairs) + channel_;  // no thread reads pairs any more
    if (w_.dgate_key) load_gates(floats(kShared.pairs));
#pragma unroll 1
    for (int i = last - 1; i >= 0; --i) {
      const int t = first + i;
      after += decay(t);
      give_gate(t, rate, raw[t * 64], after + sum(4, t));
      after += one(1, t) * sum(1, t);
    }
  }
  __device__ __forceinline__ void give_gate(int t, float rate, float raw, float x) const {
    const int64_t row = (int64_t{batch_} * a_.s + token_ + t) * a_.heads + head_;
    if (w_.b.terms.dg) w_.b.terms.dg[row * D + channel()] = x;
    if (!w_.dgate_key) return;
    const float slope = a_.gate(raw, rate).slope;
    w_.dgate_key.store(x == 0 || slope == 0 ? 0 : x * slope, batch_, token_ + t, head_, channel());
  }

  __device__ void rows() const {
    give(0, w_.dq, w_.b.terms.dq, 64, 0), give(1, w_.dlow_a, w_.b.terms.dp, -1, -1);
    give(2, w_.dlow_b, w_.b.terms.db, -1, -1), give(3, w_.dk, w_.b.terms.dk, 0, 1);
  }
  // To the output, through its norm where it has one; or as terms of q^ or k^.
  __device__ __forceinline__ void give(int which, const Floats<4>& to, float* term, int norms,
                                       int dots) const {
    const int first = kRows * block_, last = min(kRows, left_ - first);
    const float* norm = floats(kShared.norm) + norms;
    if (to) {
      const int64_t step = to.view.stride[1];
      int64_t at = to.offset(batch_, token_ + first, head_, channel());
#pragma unroll 4
      for (int i = 0; i < last; ++i, at += step) {
        const int t = first + i;
        float x = sum(which, t);
        if (D == 64 && norms >= 0 && a_.l2_norm)
          x = fmaf(-norm[t] * norm[t] * dot(dots, t), one(which, t), x);
        to.view.template as<uint16_t>()[at] = static_cast<uint16_t>(pack<Dtype>(x, x));
      }
    } else if (term) {
#pragma unroll 1
      for (int i = 0; i < last; ++i) {
        const int t = first + i;
        const int64_t row = (int64_t{batch_} * a_.s + token_ + t) * a_.heads + head_;
        term[row * D + channel()] = norms >= 0 ? sum(which, t) / norm[t] : sum(which, t);
      }
    }
  }

  const DeltaBackwardWork90& w_;
  const Recur& a_;
  unsigned char* base_;
  uint32_t at_;
  const int lane_, warp_;
  const int channel_, block_;  // of a thread: one of 64 channels, tokens from 16 block on
  int64_t slot_;
  int head_, batch_, token_, left_, from_, part_;
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    delta_low_gradient_sm90_kernel(const __grid_constant__ DeltaBackwardWork90 work) {
  extern __shared__ __align__(1024) unsigned char shared[];
  DeltaLowGradient90<Shape>(work, shared).run(blockIdx.x);
}

}  // namespace fovea::cuda
