// SPDX-License-Identifier: Apache-2.0
// The gradients of x_delta_backward's low rank on Hopper, from H, U, dY, V and W that the chains
// left: a block for each chunk of 64 tokens, head and 64 channels.  Letters are those of
// backward_key_tile_sm90.cuh; up'_t is up_t without the decay of t, and 2^D'_ts that without t's.
//
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
//   | phase | who                                     | what                                 |
//   | 1     | a warp: 16 tokens, 16 channels          | H dO, H dY, W U, W V; E, F, M or N   |
//   | 2     | a thread: a channel of 16 tokens        | q up, k down, totals; a up', b down  |
//   | 3     | a warp, as in 1                         | products between blocks              |
//   | 4     | a thread, as in 2; half of them with q, | within its block: of dO, or of dY    |
//   |       | half with a                             |                                      |
//   | 5     | a thread: a channel of 8 tokens         | sums of both; norms, gates, stores   |
//
// Barriers of the block lie between them.
//
//   | barrier     | who arrives   | who waits   | what it guards                     |
//   | panels full | thread 0, TMA | all         | dO, dY, U, V, H, W of a value tile |
//   | rows full   | thread 0, TMA | all         | Q, A, B, K of the chunk            |
#pragma once
#include "cuda/block/reduce.cuh"
#include "ops/delta/backward_gated_tile_sm90.cuh"

namespace fovea::cuda {

template <int D_>
struct DeltaLowGradientShape90 {
  static constexpr int Dtype = FOVEA_BF16, D = D_, Parts = D / 64, Stages = 2, threads = 512;
  using TileH = Swizzled<kChainColumns, D>;
  using Panel = Swizzled<64, 64>;
  // Of 64 value columns: dO, dY, U, V, then H and W of the block's channels.
  static constexpr int at_dy = Panel::bytes, at_u = 2 * Panel::bytes, at_v = 3 * Panel::bytes;
  static constexpr int at_h = 4 * Panel::bytes, at_w = 5 * Panel::bytes;
  static constexpr int stage_bytes = 6 * Panel::bytes;
  // Then in their place: E, F, M, N, and the scaled rows; then sums in f32.
  static constexpr int at_q = 4 * Panel::bytes, at_a = 5 * Panel::bytes;
  static constexpr int at_b = 6 * Panel::bytes, at_k = 7 * Panel::bytes;
  static constexpr int sum_bytes = kChainTokens * 64 * 4, slope_sums = 4;
  static constexpr int panel_bytes = 7 * sum_bytes;
  static_assert(8 * Panel::bytes <= panel_bytes && Stages * stage_bytes <= panel_bytes);
};

template <class Shape>
struct DeltaLowGradientShared90 : sm90::SharedLayout {
  int rows = tiles(4 * Shape::Panel::bytes);  // Q, A, B, K
  int panels = tiles(Shape::panel_bytes);
  int decays = of<float>(kChainTokens * 64);   // [token][channel]
  int pairs = of<float2>(2 * 4 * 16 * 16);     // within a block: [E, F or M, N][block][s][t]
  int norm = of<float>(2 * kChainTokens);      // |k|^-1, |q|^-1; 0 past the last token
  int dots = of<float>(2 * 2 * kChainTokens);  // q . dq, k . dk, of 32 channels
  int total = of<float>(4 * 64);               // [block][channel]
  int states = of<float>(8 * 64);              // <H, W>, of an eighth of value columns
  int own = of<float>(8 * 64);                 // [eighth of the tokens][channel]
  int carry = of<float>(8 * 64);
  int full = barriers(Shape::Stages + 1);
};

template <class Shape>
class DeltaLowGradient90 : DeltaGatedGradient90<Shape, DeltaLowGradientShared90<Shape>, 8, 16> {
  using Base = DeltaGatedGradient90<Shape, DeltaLowGradientShared90<Shape>, 8, 16>;
  using Base::base_, Base::at_, Base::lane_, Base::warp_, Base::channel_, Base::share_;
  using Base::Dtype, Base::D, Base::kSums, Base::kRows, Base::kShared, Base::w_, Base::a_;
  using Base::one, Base::put, Base::channel, Base::first_row, Base::group;
  using Base::part_, Base::floats, Base::sums, Base::sum, Base::decay, Base::at, Base::wide;
  using Base::slot_, Base::head_, Base::batch_, Base::token_, Base::left_, Base::from_;
  using typename Base::Panel, typename Base::Sums, typename Base::Scores;
  using TileH = typename Shape::TileH;
  static constexpr int kLast = Base::kTokens;  // of a thread in phase 5
  // What a thread has of its tokens at last.
  struct Gradients {
    float dq[kLast], da[kLast], db[kLast], dk[kLast], own[kLast], later[kLast], carry[kLast];
  };

 public:
  static constexpr int shared_bytes = kShared.bytes;

  __device__ DeltaLowGradient90(const DeltaBackwardWork90& work, unsigned char* base)
      : Base(work, base) {}

  __device__ void run(uint32_t block) {
    if (!Base::find(block)) return;
    begin();
    Base::load_norms(delta_low_bytes(D), delta_low_query_bytes(D));
    Base::find_decays();
    __syncthreads();
    {
      Sums dq, da, of_b, of_k;
      Scores score;
      float states;
      multiply(dq, da, of_b, of_k, score, states);
      floats(kShared.states)[share_ * 64 + channel_] = states;
      write_score(score, group());
      scale_rows();
      __syncthreads();
      Sums db, dk;
      join_blocks(dq, da, of_b, of_k, db, dk);
      __syncthreads();
      keep_all(dq, da, of_b, of_k, db, dk);
    }
    __syncthreads();
    if (share_ < 4)
      within<false>();
    else
      within<true>();
    float raw[kLast] = {};
    if (w_.dgate_key) Base::load_gates(raw);
    __syncthreads();
    Gradients of;
    join_sums(of);
    __syncthreads();
    rows(of);
    gates(of, raw);
  }

 private:
  __device__ uint32_t full(int stage) const { return at_ + kShared.full + 8 * stage; }
  __device__ uint32_t panels(int stage) const {
    return at_ + kShared.panels + stage * Shape::stage_bytes;
  }
  // Sums in f32: 0 dq, 1 da, 2 db, 3 dk, 4 what W gave to b . db + k . dk; 5, 6: a's part of 2, 3.
  // In phases 2 and 4: the thread's block of tokens.
  __device__ int block() const { return share_ % 4; }

  // ---- phase 1

  // By one thread, while the others load gates.
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
  }
  // A value tile, to its stage.
  __device__ void load(int tile) const {
    const uint32_t to = panels(tile % Shape::Stages), barrier = full(tile % Shape::Stages);
    const int64_t at = (slot_ * a_.heads + head_) * w_.forward.tiles + tile;
    const int64_t channels = part_ * int64_t{Panel::bytes};
    const int value_head = head_ / (static_cast<int>(a_.heads) / static_cast<int>(a_.x));
    sm90::barrier_expect(barrier, Shape::stage_bytes);
    sm90::tma_load_box(to, w_.dout, barrier, tile * kChainColumns, token_, head_, batch_);
    sm90::tma_load(to + Shape::at_dy, w_.answers + at * Panel::bytes, Panel::bytes, barrier);
    sm90::tma_load(to + Shape::at_u, w_.updates + at * Panel::bytes, Panel::bytes, barrier);
    sm90::tma_load_box(to + Shape::at_v, w_.forward.v, barrier, tile * kChainColumns, token_,
                       value_head, batch_);
    sm90::tma_load(to + Shape::at_h, w_.states + at * TileH::bytes + channels, Panel::bytes,
                   barrier);
    sm90::tma_load(to + Shape::at_w, w_.slopes + at * TileH::bytes + channels, Panel::bytes,
                   barrier);
  }

  // dq = dO H, da = dY H, of_b = U W, of_k = V W, of the warp's tokens and channels.  score: of the
  // warp's quarter dO U', dO V', dY U' or dY V'.  <H, W> of the thread's channel.
  __device__ __forceinline__ void multiply(Sums& dq, Sums& da, Sums& of_b, Sums& of_k,
                                           Scores& score, float& states) const {
    Base::clear(dq), Base::clear(da), Base::clear(of_b), Base::clear(of_k), Base::clear(score);
    states = 0;
#pragma unroll 1
    for (int tile = 0; tile < w_.forward.tiles; ++tile) {
      const int stage = tile % Shape::Stages;
      const uint32_t at = panels(stage);
      sm90::barrier_wait(full(stage), tile / Shape::Stages & 1);
      multiply_states(dq, da, of_b, of_k, at);
      multiply_scores(score, at);
      const unsigned char* h = base_ + (at + Shape::at_h - at_);
#pragma unroll 4
      for (int i = 0; i < kLast; ++i) {
        const unsigned char* from = h + this->at(kLast * share_ + i, channel_);
        states = fmaf(wide(from), wide(from + Panel::bytes), states);
      }
      __syncthreads();
      if (threadIdx.x == 0 && tile + Shape::Stages < w_.forward.tiles) load(tile + Shape::Stages);
    }
  }
  __device__ __forceinline__ void multiply_states(Sums& dq, Sums& da, Sums& of_b, Sums& of_k,
                                                  uint32_t at) const {
    const uint32_t rows = Panel::at(first_row() + outer_row(lane_), outer_chunk(lane_));
    const uint32_t tokens = Panel::at(inner_row(lane_), first_row() / 8 + inner_chunk(lane_));
    const uint32_t columns =
        Panel::pair(at + Panel::at(outer_row(lane_), outer_chunk(lane_)), group());
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint32_t step = k * kRows * kPanelRowBytes;
      uint32_t dout[4], dy[4], u[4], v[4], h[4], w[4];
      load_matrices(dout, Panel::pair(at + rows, k));
      load_matrices(dy, Panel::pair(at + Shape::at_dy + rows, k));
      load_matrices_transposed(u, at + Shape::at_u + tokens + step);
      load_matrices(v, Panel::pair(at + Shape::at_v + rows, k));
      load_matrices_transposed(h, columns + Shape::at_h + step);
      load_matrices_transposed(w, columns + Shape::at_w + step);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        mma<Dtype>(dq[i], dout, h[2 * i], h[2 * i + 1]);
        mma<Dtype>(da[i], dy, h[2 * i], h[2 * i + 1]);
        mma<Dtype>(of_b[i], u, w[2 * i], w[2 * i + 1]);
        mma<Dtype>(of_k[i], v, w[2 * i], w[2 * i + 1]);
      }
    }
  }
  __device__ __forceinline__ void multiply_scores(Scores& score, uint32_t at) const {
    const uint32_t rows = at + group() / 2 * Shape::at_dy +
                          Panel::at(first_row() + outer_row(lane_), outer_chunk(lane_));
    const uint32_t u = at + Shape::at_u + Panel::at(outer_row(lane_), outer_chunk(lane_));
    const uint32_t v = at + Shape::at_v + Panel::at(inner_row(lane_), inner_chunk(lane_));
    const bool values = group() % 2;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      uint32_t row[4];
      load_matrices(row, Panel::pair(rows, k));
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (kRows * j > first_row()) continue;
        const int step = kRows * kPanelRowBytes;
        uint32_t s[4];
        if (values)
          load_matrices(s, Panel::pair(v, k) + j * step);
        else
          load_matrices_transposed(s, Panel::pair(u + k * step, j));
        mma<Dtype>(score[2 * j], row, s[0], s[1]);
        mma<Dtype>(score[2 * j + 1], row, s[2], s[3]);
      }
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
    float* pairs = floats(kShared.pairs) + (4 * later + warp_ % 4) * 512 + which % 2;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      float2 column = make_float2(1, 1);
      if (which % 2) column = *reinterpret_cast<const float2*>(norm + 8 * j + pair);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int t = first + c / 2 * 8, s = 8 * j + pair + c % 2;
        const float by = row[c / 2] * (c % 2 ? column.y : column.x);
        // Rows past the last token are of others: 0 times NaN is NaN.
        x[j][c] = s + later <= t && by != 0 ? by * x[j][c] : 0;
      }
    }
    Base::give_score(x, pairs, which * Panel::bytes);
  }
  // The thread's rows past the last token are 0, not those of another sequence.
  __device__ void clear_rows(int first, int second) const {
#pragma unroll 1
    for (int t = max(left_, kRows * block()); t < kRows * block() + kRows; ++t) {
      unsigned char* to = base_ + kShared.rows + at(t, channel_);
      *reinterpret_cast<uint16_t*>(to + first * Panel::bytes) = 0;
      *reinterpret_cast<uint16_t*>(to + second * Panel::bytes) = 0;
    }
  }
  // The thread's channel of q up and k down, or of a up' and b down.
  __device__ __forceinline__ void scale_rows() const {
    const bool later = share_ >= 4;
    const int row = later ? 1 : 0, column = later ? 2 : 3;
    sm90::barrier_wait(full(Shape::Stages), 0);
    clear_rows(row, column);
    float by = 1;
#pragma unroll 4
    for (int i = 0; i < kRows; ++i) {
      const int t = kRows * block() + i;
      const float after = by * decay(t);
      put(later ? Shape::at_a : Shape::at_q, t, one(row, t) * (later ? by : after));
      by = after;
    }
    if (!later) floats(kShared.total)[block() * 64 + channel_] = by;
    by = 1;
#pragma unroll 4
    for (int i = kRows - 1; i >= 0; --i) {
      const int t = kRows * block() + i;
      put(later ? Shape::at_b : Shape::at_k, t, one(column, t) * by);
      by *= decay(t);
    }
  }

  // ---- phase 3

  // dq and da to before the warp's tokens, the others to after them.
  __device__ __forceinline__ void join_blocks(Sums& dq, Sums& da, Sums& of_b, Sums& of_k, Sums& db,
                                              Sums& dk) const {
    const float* norm = floats(kShared.norm) + first_row() + lane_ / 4;
    const int first = first_row() + lane_ / 4;
    Base::times(dq, first >= from_ ? a_.scale * norm[64] : 0.f,
                first + 8 >= from_ ? a_.scale * norm[72] : 0.f);
    Base::times(da, first < left_ ? 1.f : 0.f, first + 8 < left_ ? 1.f : 0.f);
    Base::times(of_b, first < left_ ? a_.scale : 0.f, first + 8 < left_ ? a_.scale : 0.f);
    Base::times(of_k, a_.scale * norm[0], a_.scale * norm[8]);
    Base::clear(db), Base::clear(dk);
    const int own = warp_ % 4;
    const uint32_t f = at_ + kShared.panels;
    const uint32_t rows = Panel::at(first_row() + outer_row(lane_), outer_chunk(lane_));
    const uint32_t columns = Panel::at(inner_row(lane_), 2 * own + inner_chunk(lane_));
    const uint32_t channels = Panel::pair(Panel::at(outer_row(lane_), outer_chunk(lane_)), group());
#pragma unroll 1
    for (int n = 0; n < own; ++n) {
      Base::pass(dq, da, n);
      const uint32_t from = f + channels + n * kRows * kPanelRowBytes;
      uint32_t x[4][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) load_matrices(x[i], f + i * Panel::bytes + (rows ^ n * 32));
      uint32_t b[4], k[4];
      load_matrices_transposed(b, from + Shape::at_b);
      load_matrices_transposed(k, from + Shape::at_k);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        mma<Dtype>(dq[i], x[0], b[2 * i], b[2 * i + 1]);
        mma<Dtype>(dq[i], x[1], k[2 * i], k[2 * i + 1]);
        mma<Dtype>(da[i], x[2], b[2 * i], b[2 * i + 1]);
        mma<Dtype>(da[i], x[3], k[2 * i], k[2 * i + 1]);
      }
    }
#pragma unroll 1
    for (int n = 3; n > own; --n) {
      Base::pass(db, dk, n), Base::pass(of_b, of_k, n);
      const uint32_t step = n * kRows * kPanelRowBytes;
      uint32_t x[4][4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        load_matrices_transposed(x[i], f + i * Panel::bytes + columns + step);
      uint32_t q[4], a[4];
      load_matrices_transposed(q, f + Shape::at_q + channels + step);
      load_matrices_transposed(a, f + Shape::at_a + channels + step);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        mma<Dtype>(db[i], x[0], q[2 * i], q[2 * i + 1]);
        mma<Dtype>(db[i], x[2], a[2 * i], a[2 * i + 1]);
        mma<Dtype>(dk[i], x[1], q[2 * i], q[2 * i + 1]);
        mma<Dtype>(dk[i], x[3], a[2 * i], a[2 * i + 1]);
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
        const int t = first_row() + lane_ / 4 + 8 * h, c = group() * 16 + 8 * j + lane_ % 4 * 2;
        const unsigned char* from = base_ + kShared.rows + at(t, c);
        const auto b = *reinterpret_cast<const uint32_t*>(from + 2 * Panel::bytes);
        const auto k = *reinterpret_cast<const uint32_t*>(from + 3 * Panel::bytes);
        const auto give = [&](int which, float x, float y) {
          *reinterpret_cast<float2*>(sums(which, t) + (c ^ t % 4 * 8)) = make_float2(x, y);
        };
        const int i = 2 * h;
        give(0, dq[j][i], dq[j][i + 1]), give(1, da[j][i], da[j][i + 1]);
        give(2, db[j][i] + of_b[j][i], db[j][i + 1] + of_b[j][i + 1]);
        give(3, dk[j][i] + of_k[j][i], dk[j][i + 1] + of_k[j][i + 1]);
        give(4, float_of(b << 16) * of_b[j][i] + float_of(k << 16) * of_k[j][i],
             float_of(b & 0xffff0000u) * of_b[j][i + 1] +
                 float_of(k & 0xffff0000u) * of_k[j][i + 1]);
      }
  }

  // ---- phase 4

  // dq, and of db and dk what comes with q and from W; Later: da, and what comes with a.
  template <bool Later>
  __device__ __forceinline__ void within() const {
    float x[kRows], g[kRows], y[kRows], b[kRows], k[kRows];  // dq or da; q or a
    const int first = kRows * block();
    float by = 1;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int t = first + i;
      y[i] = one(Later, t), b[i] = one(2, t), k[i] = one(3, t), g[i] = decay(t);
      if (Later) x[i] = by * sum(1, t);
      by *= g[i];
      if (!Later) x[i] = by * sum(0, t);
    }
    const auto* pairs = reinterpret_cast<const float4*>(base_ + kShared.pairs) + share_ * 128;
    by = 1;
#pragma unroll
    for (int s = kRows - 1; s >= 0; --s) {
      float in_b = 0, in_k = 0, d = 1;
#pragma unroll
      for (int two = s / 2; two < kRows / 2; ++two) {
        const float4 f = pairs[s * kRows / 2 + two];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int t = 2 * two + i;
          const float of_b = i ? f.z : f.x, of_k = i ? f.w : f.y;
          if (t < s || (Later && t == s)) continue;
          if (!Later && t > s) d *= g[t];
          const float z = d * y[t];
          x[t] = fmaf(d, fmaf(of_b, b[s], of_k * k[s]), x[t]);
          in_b = fmaf(of_b, z, in_b), in_k = fmaf(of_k, z, in_k);
          if (Later) d *= g[t];
        }
      }
      const int t = first + s;
      if (Later) {
        sum(5, t) = in_b, sum(6, t) = in_k, sum(4, t) *= by;
      } else {
        sum(2, t) = fmaf(by, sum(2, t), in_b), sum(3, t) = fmaf(by, sum(3, t), in_k);
      }
      by *= g[s];
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) sum(Later, first + i) = x[i];
  }

  // ---- phase 5

  __device__ __forceinline__ void join_sums(Gradients& x) const {
    float owns = 0, carries = 0;
#pragma unroll
    for (int i = 0; i < kLast; ++i) {
      const int t = kLast * share_ + i;
      const float q = one(0, t), a = one(1, t), b = one(2, t), k = one(3, t);
      x.dq[i] = sum(0, t), x.da[i] = sum(1, t), x.carry[i] = sum(4, t);
      x.db[i] = sum(2, t) + sum(5, t), x.dk[i] = sum(3, t) + sum(6, t);
      x.own[i] = q * x.dq[i] - (b * x.db[i] + k * x.dk[i] - x.carry[i]);
      x.later[i] = a * x.da[i];
      owns += x.own[i] + x.later[i], carries += x.carry[i];
      if (D == 64 && a_.l2_norm) {
        const float of_q = lanes_sum<32>(q * x.dq[i]), of_k = lanes_sum<32>(k * x.dk[i]);
        float* dots = floats(kShared.dots) + warp_ % 2 * kChainTokens + t;
        if (lane_ == 0) dots[0] = of_q, dots[2 * kChainTokens] = of_k;
      }
    }
    floats(kShared.own)[share_ * 64 + channel_] = owns;
    floats(kShared.carry)[share_ * 64 + channel_] = carries;
  }
  __device__ float dot(int which, int t) const {
    const float* from = floats(kShared.dots) + which * 2 * kChainTokens + t;
    return from[0] + from[kChainTokens];
  }
  __device__ void gates(const Gradients& of, const float (&raw)[kLast]) const {
    if (!w_.dgate_key && !w_.b.terms.dg) return;
    float states = 0, all = 1, before = 0, after = 0;
#pragma unroll
    for (int n = 0; n < 4; ++n) all *= floats(kShared.total)[n * 64 + channel_];
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      states += floats(kShared.states)[n * 64 + channel_];
      if (n < share_) before += floats(kShared.carry)[n * 64 + channel_];
      if (n > share_) after += floats(kShared.own)[n * 64 + channel_];
    }
    before += decayed(all, a_.scale * states);
    float x[kLast];
#pragma unroll
    for (int i = 0; i < kLast; ++i) x[i] = before, before += of.carry[i];
#pragma unroll
    for (int i = kLast - 1; i >= 0; --i) {
      after += of.own[i], x[i] += after, after += of.later[i];
    }
    Base::give_gates(x, raw);
  }
  __device__ void rows(Gradients& x) const {
    rows_of(0, x.dq, w_.dq, w_.b.terms.dq), rows_of(1, x.da, w_.dlow_a, w_.b.terms.dp);
    rows_of(2, x.db, w_.dlow_b, w_.b.terms.db), rows_of(3, x.dk, w_.dk, w_.b.terms.dk);
  }
  // To the output, q's and k's through their norms; or as terms of q^ or k^.
  __device__ __forceinline__ void rows_of(int which, const float (&of)[kLast], const Floats<4>& to,
                                          float* term) const {
    const bool norms = which % 3 == 0;
    const int first = kLast * share_;
    const float* norm = floats(kShared.norm) + (which ? 0 : kChainTokens) + first;
    float x[kLast];
    if (to) {
#pragma unroll
      for (int i = 0; i < kLast; ++i) x[i] = of[i];
      if (D == 64 && norms && a_.l2_norm) {
#pragma unroll
        for (int i = 0; i < kLast; ++i)
          x[i] = fmaf(-norm[i] * norm[i] * dot(which / 3, first + i), one(which, first + i), x[i]);
      }
      Base::give(
          x, to.view.template as<uint16_t>() + to.offset(batch_, token_ + first, head_, channel()),
          to.view.stride[1]);
    } else if (term) {
#pragma unroll
      for (int i = 0; i < kLast; ++i)
        x[i] = !norms ? of[i] : first + i < left_ ? of[i] / norm[i] : 0;
      const int64_t row = (int64_t{batch_} * a_.s + token_ + first) * a_.heads + head_;
      Base::give(x, term + row * D + channel(), a_.heads * D);
    }
  }
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    delta_low_gradient_sm90_kernel(const __grid_constant__ DeltaBackwardWork90 work) {
  extern __shared__ __align__(1024) unsigned char shared[];
  DeltaLowGradient90<Shape>(work, shared).run(blockIdx.x);
}

}  // namespace fovea::cuda
