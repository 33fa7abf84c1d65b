// SPDX-License-Identifier: Apache-2.0
// The gradients of x_delta_backward on Hopper under a key gate, from H, U, dV and W that the chains
// left: a block for each chunk of 64 tokens, head and 64 channels.  At d = 128 the two blocks of a
// head are a cluster.  g_t are the decays of a token, and a block of the chunk has 16 tokens: up_t
// is the product of g in t's block up to t, down_s that of those after s, total_I that of block I,
// and 2^D_ts the product after s up to t.
//
//   F_ts  = scale |q_t|^-1 |k_s|^-1 dO_t . U_s, s <= t
//   G_ts  = -|k_t|^-1 |k_s|^-1 dV_t . U_s, s < t
//   dq_t  = scale |q_t|^-1 2^P_t . (H dO_t) + sum over s <= t of F_ts 2^D_ts . k_s
//   dk2_t = -|k_t|^-1 2^P_t . (H dV_t) + sum over s < t of G_ts 2^D_ts . k_s
//   dk_s  = C_s + I_s,  C_s = scale |k_s|^-1 2^S_s . (W U_s)
//   I_s   = sum over t >= s of F_ts 2^D_ts . q_t + sum over t > s of G_ts 2^D_ts . k_t
//   dlog_j = all . <H, W> + sum over s < j of k_s . C_s
//            + sum over t >= j of q_t . dq_t + k_t . dk2_t - k_t . I_t, for each channel
//   dbeta_t = (dV_t . v_t + k_t . dk2_t) / beta_t
//
// dk + dk2 is the gradient of k.  x / |x| takes x |x|^-2 (x . dx) off each.
// Between blocks of 16, products are of the tensor core: of (q up), (k up) and (k down).  Their
// sums go from block to block, times total_I of each block that they pass.  Within a block a thread
// has all its tokens of a channel, and goes through the pairs in f32.  So each decay is a product
// of decays that it covers, at most 1, and gates of -inf reset exactly.
//
//   | phase | who                                      | what                               |
//   | 1     | a warp: 16 tokens, 32 channels, mma.sync | F or G; H dO, H dV, W U            |
//   | 2     | a thread: a channel of 16 tokens         | q up, k up, k down; totals         |
//   | 3     | a warp, as in 1                          | products between blocks            |
//   | 4     | a thread, as in 2                        | within its block; dq, dk; sums     |
//   | 5     | a thread, as in 2                        | norms, gates, stores               |
//
// Barriers of the block lie between them, and one of the cluster between 4 and 5: q . dq, k . dk
// and k . dk2 are sums over all channels.
//
//   | barrier      | who arrives   | who waits   | what it guards                       |
//   | tile full    | thread 0, TMA | all         | dO, dV, U of a value tile, by parity |
//   | states full  | thread 0, TMA | all         | H, W of a value tile, by parity      |
//   | rows full    | thread 0, TMA | all         | Q, K of the chunk                    |
//   | cluster      | all           | all         | first: dots of the other block may   |
//   |              |               |             | be written; second: they are there   |
#pragma once
#include "cuda/block/reduce.cuh"
#include "ops/delta/backward_gated_tile_sm90.cuh"

namespace fovea::cuda {

template <int D_>
struct DeltaKeyGradientShape90 {
  static constexpr int Dtype = FOVEA_BF16, D = D_, Parts = D / 64, threads = 256, blocks = 2;
  using TileH = Swizzled<kChainColumns, D>;
  using Panel = Swizzled<64, 64>;
  // A ring of panels: of a value tile dO, dV and U, then H and W of the block's channels.
  static constexpr int kPanels = 8, kRowPanels = 3, kTilePanels = 5;
  // Then in their place: F, G, and the scaled rows; then sums in f32.
  static constexpr int at_g = Panel::bytes, at_q = 2 * Panel::bytes, at_k = 3 * Panel::bytes;
  static constexpr int at_columns = 4 * Panel::bytes;
  static constexpr int sum_bytes = kChainTokens * 64 * 4, slope_sums = 3;
  static_assert(4 * sum_bytes == kPanels * Panel::bytes);
};

template <class Shape>
struct DeltaKeyGradientShared90 : sm90::SharedLayout {
  int rows = tiles(2 * Shape::Panel::bytes);  // Q, K
  int panels = tiles(Shape::kPanels * Shape::Panel::bytes);
  int decays = of<float>(kChainTokens * 64);  // [token][channel]
  int pairs = of<float2>(4 * 16 * 16);        // F, G within a block: [block][s][t]
  int norm = of<float>(2 * kChainTokens);     // |k|^-1, |q|^-1; 0 past the last token
  // q . dq, k . (dk + dk2), k . dk2: [sum][32 channels of the head][token]
  int dots = of<float>(3 * 2 * Shape::Parts * kChainTokens);
  int total = of<float>(4 * 64);   // [block][channel], as what follows
  int states = of<float>(4 * 64);  // <H, W>, of a quarter of value columns
  int own = of<float>(4 * 64);
  int carry = of<float>(4 * 64);
  int full = barriers(5);
};

template <class Shape>
class DeltaKeyGradient90 : DeltaGatedGradient90<Shape, DeltaKeyGradientShared90<Shape>, 16, 32> {
  using Base = DeltaGatedGradient90<Shape, DeltaKeyGradientShared90<Shape>, 16, 32>;
  using Base::base_, Base::at_, Base::lane_, Base::warp_, Base::channel_, Base::share_;
  using Base::Dtype, Base::D, Base::kSums, Base::kRows, Base::kShared, Base::w_, Base::a_;
  using Base::one, Base::put, Base::channel, Base::first_row, Base::group;
  using Base::part_, Base::floats, Base::sums, Base::sum, Base::decay, Base::at, Base::wide;
  using Base::slot_, Base::head_, Base::batch_, Base::token_, Base::left_, Base::from_;
  using typename Base::Panel, typename Base::Sums, typename Base::Scores;
  using TileH = typename Shape::TileH;
  static constexpr int Parts = Shape::Parts;

 public:
  // The base is aligned: a kilobyte more would cost a block of each multiprocessor.
  static constexpr int shared_bytes = kShared.bytes;
  static_assert(Shape::blocks * (shared_bytes + 1024) <= 228 * 1024);

  __device__ DeltaKeyGradient90(const DeltaBackwardWork90& work, unsigned char* base)
      : Base(work, base) {}

  __device__ void run(uint32_t block) {
    if (!Base::find(block)) return;
    begin();
    Base::load_norms(delta_keys_bytes(D), delta_query_bytes(D));
    Base::find_decays();
    __syncthreads();
    if constexpr (Parts > 1) sm90::cluster_arrive();
    {
      Sums dq, dk2, state;
      Scores score;
      float states;
      multiply(dq, dk2, state, score, states);
      floats(kShared.states)[share_ * 64 + channel_] = states;
      write_score(score, group());
      scale_rows();
      __syncthreads();
      Sums dk;
      join_blocks(dq, dk2, state, dk);
      __syncthreads();
      keep(0, dq), keep(1, dk2), keep(2, dk), keep(3, state);
    }
    __syncthreads();
    if constexpr (Parts > 1) sm90::cluster_wait();
    within();
    float raw[kRows] = {};
    if (w_.dgate_key) Base::load_gates(raw);
    if constexpr (Parts > 1)
      sm90::cluster_arrive(), sm90::cluster_wait();
    else
      __syncthreads();
    gates(raw);
    rows();
    betas();
  }

 private:
  __device__ uint32_t full(int i) const { return at_ + kShared.full + 8 * i; }
  __device__ uint32_t rows_full(int tile) const { return full(tile % 2); }
  __device__ uint32_t states_full(int tile) const { return full(2 + tile % 2); }
  __device__ uint32_t panel(int tile, int i) const {
    const int n = tile * Shape::kTilePanels + i;
    return at_ + kShared.panels + n % Shape::kPanels * Panel::bytes;
  }
  // Sums in f32: 0 dq, 1 dk2, then what the gates' sums take; 2 I, then dk + dk2; 3 C.
  // ---- phase 1

  // By one thread, while the others load gates.
  __device__ void begin() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < 5; ++i) sm90::barrier_init(full(i), 1);
      sm90::barrier_init_done();
      load_tile(0), load_states(0), load_tile(1);
      const uint32_t rows = at_ + kShared.rows, barrier = full(4);
      sm90::barrier_expect(barrier, 2 * Panel::bytes);
      sm90::tma_load_box(rows, w_.forward.q, barrier, 64 * part_, token_,
                         head_ / w_.forward.query_share, batch_);
      sm90::tma_load_box(rows + Panel::bytes, w_.forward.k, barrier, 64 * part_, token_,
                         head_ / w_.forward.key_share, batch_);
    }
  }
  __device__ int64_t place(int tile) const {
    return (slot_ * a_.heads + head_) * w_.forward.tiles + tile;
  }
  // dO, dV and U of a value tile, if there is one.
  __device__ void load_tile(int tile) const {
    if (tile >= w_.forward.tiles) return;
    const uint32_t barrier = rows_full(tile);
    sm90::barrier_expect(barrier, 3 * Panel::bytes);
    sm90::tma_load_box(panel(tile, 0), w_.dout, barrier, tile * kChainColumns, token_, head_,
                       batch_);
    sm90::tma_load_box(panel(tile, 1), w_.dv_map, barrier, tile * kChainColumns, token_, head_,
                       batch_);
    sm90::tma_load(panel(tile, 2), w_.updates + place(tile) * Panel::bytes, Panel::bytes, barrier);
  }
  // H and W of it, the block's channels.
  __device__ void load_states(int tile) const {
    if (tile >= w_.forward.tiles) return;
    const uint32_t barrier = states_full(tile);
    const int64_t at = place(tile) * TileH::bytes + part_ * int64_t{Panel::bytes};
    sm90::barrier_expect(barrier, 2 * Panel::bytes);
    sm90::tma_load(panel(tile, 3), w_.states + at, Panel::bytes, barrier);
    sm90::tma_load(panel(tile, 4), w_.slopes + at, Panel::bytes, barrier);
  }

  // dq = dO H, dk2 = dV H, state = U W, of the warp's tokens and channels.  score: dO U' or dV U',
  // by the warp's half.  <H, W> of the thread's channel.
  __device__ __forceinline__ void multiply(Sums& dq, Sums& dk2, Sums& state, Scores& score,
                                           float& states) const {
    Base::clear(dq), Base::clear(dk2), Base::clear(state), Base::clear(score);
    states = 0;
#pragma unroll 1
    for (int tile = 0; tile < w_.forward.tiles; ++tile) {
      sm90::barrier_wait(rows_full(tile), tile / 2 & 1);
      multiply_scores(score, tile);
      sm90::barrier_wait(states_full(tile), tile / 2 & 1);
      multiply_states(dq, dk2, state, tile);
      const unsigned char* h = base_ + (panel(tile, 3) - at_);
      const unsigned char* w = base_ + (panel(tile, 4) - at_);
#pragma unroll 4
      for (int i = 0; i < kRows; ++i) {
        const int from = at(kRows * share_ + i, channel_);
        states = fmaf(wide(h + from), wide(w + from), states);
      }
      __syncthreads();
      if (threadIdx.x == 0) load_states(tile + 1), load_tile(tile + 2);
    }
  }
  __device__ __forceinline__ void multiply_scores(Scores& score, int tile) const {
    const uint32_t rows =
        panel(tile, group()) + Panel::at(first_row() + outer_row(lane_), outer_chunk(lane_));
    const uint32_t u = panel(tile, 2) + Panel::at(outer_row(lane_), outer_chunk(lane_));
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      uint32_t row[4];
      load_matrices(row, Panel::pair(rows, k));
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (kRows * j > first_row()) continue;
        uint32_t s[4];
        load_matrices_transposed(s, Panel::pair(u + k * kRows * kPanelRowBytes, j));
        mma<Dtype>(score[2 * j], row, s[0], s[1]);
        mma<Dtype>(score[2 * j + 1], row, s[2], s[3]);
      }
    }
  }
  __device__ __forceinline__ void multiply_states(Sums& dq, Sums& dk2, Sums& state,
                                                  int tile) const {
    const uint32_t rows = Panel::at(first_row() + outer_row(lane_), outer_chunk(lane_));
    const uint32_t tokens = Panel::at(inner_row(lane_), first_row() / 8 + inner_chunk(lane_));
    const uint32_t columns =
        Panel::at(outer_row(lane_), outer_chunk(lane_)) ^ static_cast<uint32_t>(group() * 64);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint32_t step = k * kRows * kPanelRowBytes;
      uint32_t dout[4], dv[4], u[4];
      load_matrices(dout, Panel::pair(panel(tile, 0) + rows, k));
      load_matrices(dv, Panel::pair(panel(tile, 1) + rows, k));
      load_matrices_transposed(u, panel(tile, 2) + tokens + step);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        uint32_t h[4], w[4];
        load_matrices_transposed(h, Panel::pair(panel(tile, 3) + columns + step, j));
        load_matrices_transposed(w, Panel::pair(panel(tile, 4) + columns + step, j));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          mma<Dtype>(dq[2 * j + i], dout, h[2 * i], h[2 * i + 1]);
          mma<Dtype>(dk2[2 * j + i], dv, h[2 * i], h[2 * i + 1]);
          mma<Dtype>(state[2 * j + i], u, w[2 * i], w[2 * i + 1]);
        }
      }
    }
  }

  // ---- phase 2

  // F (0) or G (1), once no warp reads panels: as tiles, and in f32 what lies within a block.
  __device__ __forceinline__ void write_score(Scores& x, int which) const {
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
    for (int j = 0; j < 8; ++j) {
      const float2 column = *reinterpret_cast<const float2*>(norm + 8 * j + pair);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int t = first + c / 2 * 8, s = 8 * j + pair + c % 2;
        const float by = row[c / 2] * (c % 2 ? column.y : column.x);
        // Rows past the last token are of others: 0 times NaN is NaN.
        x[j][c] = s + which <= t && by != 0 ? by * x[j][c] : 0;
      }
    }
    Base::give_score(x, pairs, which * Shape::at_g);
  }
  // The thread's rows past the last token are 0, not those of another sequence.
  __device__ void clear_rows() const {
#pragma unroll 1
    for (int t = max(left_, kRows * share_); t < kRows * share_ + kRows; ++t)
#pragma unroll
      for (int which = 0; which < 2; ++which)
        *reinterpret_cast<uint16_t*>(base_ + kShared.rows + which * Panel::bytes +
                                     at(t, channel_)) = 0;
  }
  // The thread's channel of q up, k up and k down.
  __device__ __forceinline__ void scale_rows() const {
    sm90::barrier_wait(full(4), 0);
    clear_rows();
    float by = 1;
#pragma unroll 4
    for (int i = 0; i < kRows; ++i) {
      const int t = kRows * share_ + i;
      by *= decay(t);
      put(Shape::at_q, t, one(0, t) * by), put(Shape::at_k, t, one(1, t) * by);
    }
    floats(kShared.total)[share_ * 64 + channel_] = by;
    by = 1;
#pragma unroll 4
    for (int i = kRows - 1; i >= 0; --i) {
      const int t = kRows * share_ + i;
      put(Shape::at_columns, t, one(1, t) * by);
      by *= decay(t);
    }
  }

  // ---- phase 3

  // dq and dk2 to before the warp's tokens, dk and state to after them.
  __device__ __forceinline__ void join_blocks(Sums& dq, Sums& dk2, Sums& state, Sums& dk) const {
    const float* norm = floats(kShared.norm) + first_row() + lane_ / 4;
    const bool there[2] = {first_row() + lane_ / 4 >= from_, first_row() + lane_ / 4 + 8 >= from_};
    Base::times(dq, there[0] ? a_.scale * norm[64] : 0.f, there[1] ? a_.scale * norm[72] : 0.f);
    Base::times(dk2, -norm[0], -norm[8]);
    Base::times(state, a_.scale * norm[0], a_.scale * norm[8]);
    Base::clear(dk);
    const int own = warp_ % 4;
    const uint32_t f = at_ + kShared.panels, g = f + Shape::at_g;
    const uint32_t rows = Panel::at(first_row() + outer_row(lane_), outer_chunk(lane_));
    const uint32_t columns = Panel::at(inner_row(lane_), 2 * own + inner_chunk(lane_));
    const uint32_t channels =
        Panel::at(outer_row(lane_), outer_chunk(lane_)) ^ static_cast<uint32_t>(group() * 64);
#pragma unroll 1
    for (int n = 0; n < own; ++n) {
      Base::pass(dq, dk2, n);
      const uint32_t from = f + Shape::at_columns + channels + n * kRows * kPanelRowBytes;
      uint32_t x[4], y[4];
      load_matrices(x, f + (rows ^ n * 32)), load_matrices(y, g + (rows ^ n * 32));
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        uint32_t k[4];
        load_matrices_transposed(k, Panel::pair(from, j));
        mma<Dtype>(dq[2 * j], x, k[0], k[1]), mma<Dtype>(dq[2 * j + 1], x, k[2], k[3]);
        mma<Dtype>(dk2[2 * j], y, k[0], k[1]), mma<Dtype>(dk2[2 * j + 1], y, k[2], k[3]);
      }
    }
#pragma unroll 1
    for (int n = 3; n > own; --n) {
      Base::pass(dk, state, n);
      const uint32_t step = n * kRows * kPanelRowBytes;
      uint32_t x[4], y[4];
      load_matrices_transposed(x, f + columns + step);
      load_matrices_transposed(y, g + columns + step);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
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
      for (int h = 0; h < 2; ++h) {
        const int t = first_row() + lane_ / 4 + 8 * h, c = group() * 32 + 8 * j + lane_ % 4 * 2;
        *reinterpret_cast<float2*>(sums(which, t) + (c ^ t % 4 * 8)) =
            make_float2(x[j][2 * h], x[j][2 * h + 1]);
      }
  }

  // ---- phase 4

  __device__ __forceinline__ void within() const {
    float dq[kRows], dk2[kRows], g[kRows], q[kRows], k[kRows];
    const int first = kRows * share_;
    float by = 1;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int t = first + i;
      q[i] = one(0, t), k[i] = one(1, t), g[i] = decay(t);
      by *= g[i], dq[i] = by * sum(0, t), dk2[i] = by * sum(1, t);
    }
    by = 1;
#pragma unroll
    for (int i = kRows - 1; i >= 0; --i) {
      sum(2, first + i) *= by, sum(3, first + i) *= by;
      by *= g[i];
    }
    const float4* pairs = reinterpret_cast<const float4*>(base_ + kShared.pairs) + share_ * 128;
    float owns = 0, carries = 0, dots[3][4];
#pragma unroll
    for (int s = 0; s < kRows; ++s) {
      float in = sum(2, first + s), d = 1;
#pragma unroll
      for (int two = s / 2; two < kRows / 2; ++two) {
        const float4 f = pairs[s * kRows / 2 + two];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int t = 2 * two + i;
          const float x = i ? f.z : f.x, y = i ? f.w : f.y;
          if (t == s) dq[s] = fmaf(x, k[s], dq[s]), in = fmaf(x, q[s], in);
          if (t <= s) continue;
          d *= g[t];
          const float key = d * k[s];
          dq[t] = fmaf(x, key, dq[t]), dk2[t] = fmaf(y, key, dk2[t]);
          in = fmaf(d, fmaf(x, q[t], y * k[t]), in);
        }
      }
      const float state = sum(3, first + s), dk = in + state + dk2[s], carry = k[s] * state;
      const float own = q[s] * dq[s] + k[s] * dk2[s] - k[s] * in;
      sum(0, first + s) = dq[s], sum(1, first + s) = own;
      sum(2, first + s) = dk, sum(3, first + s) = carry;
      owns += own, carries += carry;
      dots[0][s % 4] = q[s] * dq[s], dots[1][s % 4] = k[s] * dk, dots[2][s % 4] = k[s] * dk2[s];
      if (s % 4 == 3) give_dots(dots, first + s - 3);
    }
    floats(kShared.own)[share_ * 64 + channel_] = owns;
    floats(kShared.carry)[share_ * 64 + channel_] = carries;
  }
  // Sums over the warp's channels of four tokens, to both blocks: lanes from 8 i on have token i.
  __device__ __forceinline__ void give_dots(const float (&x)[3][4], int first) const {
    const bool high = lane_ & 16, odd = lane_ & 8;
    const int place = (2 * part_ + warp_ % 2) * kChainTokens + first + lane_ / 8;
#pragma unroll
    for (int n = 0; n < 3; ++n) {
      float two[2];
#pragma unroll
      for (int i = 0; i < 2; ++i)
        two[i] =
            (high ? x[n][i + 2] : x[n][i]) + __shfl_xor_sync(~0u, high ? x[n][i] : x[n][i + 2], 16);
      const float mine = (odd ? two[1] : two[0]) + __shfl_xor_sync(~0u, odd ? two[0] : two[1], 8);
      const float whole = lanes_sum<8>(mine);
      if (lane_ % 8) continue;
      const int at = n * 2 * Parts * kChainTokens + place;
      floats(kShared.dots)[at] = whole;
      if constexpr (Parts > 1)
        sm90::store_cluster(at_ + kShared.dots + 4 * at, static_cast<uint32_t>(part_ ^ 1), whole);
    }
  }

  // ---- phase 5

  __device__ float dot(int which, int t) const {
    const float* from = floats(kShared.dots) + which * 2 * Parts * kChainTokens + t;
    float x = from[0];
#pragma unroll
    for (int i = 1; i < 2 * Parts; ++i) x += from[i * kChainTokens];
    return x;
  }
  __device__ void gates(const float (&raw)[kRows]) const {
    if (!w_.dgate_key && !w_.b.terms.dg) return;
    const int first = kRows * share_;
    float states = 0, all = 1, before = 0, after = 0;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      states += floats(kShared.states)[n * 64 + channel_];
      all *= floats(kShared.total)[n * 64 + channel_];
      if (n < share_) before += floats(kShared.carry)[n * 64 + channel_];
      if (n > share_) after += floats(kShared.own)[n * 64 + channel_];
    }
    before += decayed(all, a_.scale * states);
    float carry[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) carry[i] = before, before += sum(3, first + i);
#pragma unroll
    for (int i = kRows - 1; i >= 0; --i) {
      if (first + i < left_) after += sum(1, first + i);
      carry[i] += after;
    }
    Base::give_gates(carry, raw);
  }
  __device__ void rows() const {
    give_rows(0, w_.dq, w_.b.terms.dq), give_rows(1, w_.dk, w_.b.terms.dk);
  }
  // Of q (0) or k (1): the output, through its norm; or terms of q^ or k^.
  __device__ __forceinline__ void give_rows(int which, const Floats<4>& to, float* term) const {
    const int first = kRows * share_;
    const float* norm = floats(kShared.norm) + (which ? 0 : kChainTokens) + first;
    if (!to && !term) return;
    if (to) {
      float x[kRows];
#pragma unroll
      for (int i = 0; i < kRows; ++i) x[i] = sum(2 * which, first + i);
      if (a_.l2_norm) {
#pragma unroll
        for (int i = 0; i < kRows; ++i)
          x[i] = fmaf(-norm[i] * norm[i] * dot(which, first + i), one(which, first + i), x[i]);
      }
      Base::give(
          x, to.view.template as<uint16_t>() + to.offset(batch_, token_ + first, head_, channel()),
          to.view.stride[1]);
    } else {
      const int64_t row = (int64_t{batch_} * a_.s + token_ + first) * a_.heads + head_;
#pragma unroll 1
      for (int i = 0; first + i < left_ && i < kRows; ++i)
        term[(row + i * a_.heads) * D + channel()] = sum(2 * which, first + i) / norm[i];
    }
  }
  __device__ void betas() const {
    const int t = static_cast<int>(threadIdx.x);
    if (!w_.betas || part_ || t >= left_) return;
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
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, Shape::blocks)
    delta_key_gradient_sm90_kernel(const __grid_constant__ DeltaBackwardWork90 work) {
  extern __shared__ __align__(1024) unsigned char shared[];
  DeltaKeyGradient90<Shape>(work, shared).run(blockIdx.x);
}

}  // namespace fovea::cuda
