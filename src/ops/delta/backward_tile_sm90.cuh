// SPDX-License-Identifier: Apache-2.0
// The gradients of x_delta_backward on Hopper, from H, U, dV and W that the chains left: the chunks
// of a span and output head, the last one first.  Rows carry the factors |q|^-1, |k|^-1 of q^, k^:
//   F_ts = scale |q_t|^-1 |k_s|^-1 2^D_ts dO_t . U_s, s <= t
//   G_ts = -|k_t|^-1 |k_s|^-1 2^D_ts dV_t . U_s, s < t
//   dq = factor . (dO H') + F K,  dk = suffix . (U W') + F' Q + G' K,  dk2 = G K - answer . (dV H')
// where H is the state before the span, W the gradient of that after it, and rows s, t are all of
// the span: between its chunks D_ts is a sum of one's suffix and the other's prefix.
//   dlog_t = all <H, W> + sum over s < t of k_s . (suffix_s U_s W')
//            + sum over s >= t of q_s . dq_s - k_s . (F' Q + G' K)_s + k_s . dk2_s
//   dbeta_t = (dV_t . v_t + k_t . dk2_t) / beta_t
// dk + dk2 is the gradient of k.  x / |x| takes x |x|^-2 (x . dx) off each.
// Products with a second output of a head leave out what belongs to the state alone.
//   Warpgroup 0: warp 0 is the producer.
//   Warpgroup 1 makes the decays of a unit, one chunk.
//   The others: 64 key columns each, rows are tokens.  With two of them, the first makes F, the
//   second G; with one it makes both.
//
//   | barrier      | who arrives          | who waits    | what it guards                       |
//   | unit full    | warps of warpgroup 1 | the others   | decays of a unit                     |
//   | unit empty   | warps of the others  | warpgroup 1  | the same, to be written              |
//   | rows full    | producer, TMA        | the others   | Q, K of a span                       |
//   | rows empty   | warps of the others  | producer     | the same, to be written              |
//   | panel full   | producer, TMA        | the others   | 64 x 64 of dO, H, U, W or dV         |
//   | panel empty  | warps of the others  | producer     | the same, to be written              |
//   | tail         | producer, TMA        | producer     | Q, K with rows to be zeroed          |
//   | 1            | warpgroup 1          | warpgroup 1  | sums of gates, then norms            |
//   | 2            | the others           | the others   | F, G; then sums over key columns     |
#pragma once
#include "ops/delta/backward.cuh"
#include "ops/delta/intra_sm90.cuh"

namespace fovea::cuda {

template <int Dtype_, int D_, int Panels_>
struct DeltaGradientShape90 {
  static constexpr int Dtype = Dtype_, D = D_, Groups = D / 64, Panels = Panels_;
  static constexpr int Span = delta_span(D);
  using TileQ = Swizzled<kChainTokens, D>;
  using Panel = Swizzled<64, 64>;
  using Units = sm90::Pipeline<2>;
  using Rows = sm90::Pipeline<1>;
  using Ring = sm90::Pipeline<Panels>;
  static constexpr int own_panels = 3 + 2 * Groups;  // of 64 value columns: dO, H, U, W, dV
  static constexpr int threads = 128 * (2 + Groups);
  static constexpr int load_regs = 32, table_regs = 80, gradient_regs = Groups == 2 ? 200 : 240;
  static_assert(Span == 1 || Groups == 2);
};

// Where a chunk stands in its span: alone, or with the other chunk.
enum class DeltaPlace : int32_t { alone, early, late };

// What warpgroup 1 tells of a unit.
struct DeltaUnit {
  DeltaDecay decay;
  float factor[kChainTokens];  // scale |q_t|^-1 2^P_t; 0 where there is no output
  float query[kChainTokens];   // scale |q_t|^-1, the same
  float gate_slope[kChainTokens], beta_slope[kChainTokens];
  float along[kChainTokens];  // dV . v
  // For the late chunk's products with the early one: factor and -answer, the other's suffix.
  float late_row[2][kChainTokens], early_column[kChainTokens];
  float other_all;       // the decay of the other chunk, or 1
  int64_t batch, token;  // of its first token
  int32_t output, left;  // tokens; 0: there are no more units
  DeltaPlace place;
};

// Sums over key columns, by warpgroup.
template <int Groups>
struct DeltaDots {
  float query[2][kChainTokens], key[2][kChainTokens];  // q . dq, k . dk
  float key2[2][kChainTokens];                         // k . dk2
  float carry[2][kChainTokens];                        // k . (suffix . (U W')), which dk has too
  float states[8];                                     // <H, W>, by warp

  __device__ static float both(const float (&x)[2][kChainTokens], int t) {
    return Groups == 2 ? x[0][t] + x[1][t] : x[0][t];
  }
};

// What the gates of a span's late chunk wait for the early one with.
struct DeltaLate {
  float own[kChainTokens], carry[kChainTokens], slope[kChainTokens];
  int32_t left;
};

template <class Shape>
struct DeltaGradientShared90 : sm90::SharedLayout {
  int panels = tiles(Shape::Panel::bytes, Shape::Panels);
  int rows = tiles(2 * Shape::TileQ::bytes, Shape::Span);  // Q, K of the early, of the late chunk
  int f = tiles(4 * Shape::Panel::bytes);                  // F, G, what they leave of F, G
  int unit = add(2 * sizeof(DeltaUnit), 16);
  int dots = add(2 * sizeof(DeltaDots<Shape::Groups>), 16);
  int late = add(sizeof(DeltaLate), 16);
  int unit_pipe = this->pipeline(2);
  int row_pipe = this->pipeline(1);
  int panel_pipe = this->pipeline(Shape::Panels);
  int tail = barriers();
};

// ---- warpgroups 0 and 1

// The units of a block, one after the other.
template <class Shape>
class DeltaUnits90 : protected DeltaDecays {
 protected:
  static constexpr int Span = Shape::Span;
  static constexpr DeltaGradientShared90<Shape> kShared = DeltaGradientShared90<Shape>();

  __device__ DeltaUnits90(const DeltaBackwardWork90& work, unsigned char* base)
      : DeltaDecays(work.b.forward), w_(work), base_(base), at_(shared_address(base)) {}

  // Calls visit(chunk of the span) with the members set.
  template <class Visit>
  __device__ __forceinline__ void each(Visit visit) {
    const auto heads = static_cast<uint32_t>(a_.heads_out);
    for (uint32_t work = blockIdx.x; work < static_cast<uint32_t>(w_.spans) * heads;
         work += gridDim.x) {
      span_ = static_cast<int32_t>(work / heads), output_ = static_cast<int32_t>(work % heads);
      head_ = output_ / w_.forward.outputs;
      const int64_t sequence = w_.forward.sequence_of<Span>(span_);
      run_ = a_.run[sequence];
      first_ = (span_ - w_.forward.slot<Span>(sequence, run_.begin)) * int64_t{Span * kChainTokens};
      if (first_ >= run_.count) continue;
      slot_ = static_cast<int32_t>(w_.forward.slot(sequence, run_.begin) + first_ / kChainTokens);
      batch_ = static_cast<int32_t>(run_.batch), token_ = static_cast<int32_t>(run_.begin + first_);
      rest_ = static_cast<int32_t>(min(int64_t{Span * kChainTokens}, run_.count - first_));
      last_ = rest_ > kChainTokens;
      first_ += last_ * kChainTokens;
      for (int c = last_; c >= 0; --c, first_ -= kChainTokens) {
        left_ = min(kChainTokens, rest_ - c * kChainTokens);
        visit(c);
      }
    }
  }

  const DeltaBackwardWork90& w_;
  unsigned char* base_;
  uint32_t at_;
  int32_t output_, span_, slot_, batch_;
  int32_t token_, rest_;  // of the span: its first token, how many
  int last_;              // the last chunk of the span
};

// Warp 0.
template <class Shape>
class DeltaLoads90 : DeltaUnits90<Shape> {
  using Base = DeltaUnits90<Shape>;
  using Base::a_, Base::w_, Base::at_, Base::head_, Base::batch_, Base::token_, Base::rest_;
  using Base::slot_, Base::output_, Base::span_, Base::last_, Base::kShared;
  using TileQ = typename Shape::TileQ;
  using Panel = typename Shape::Panel;

 public:
  __device__ DeltaLoads90(const DeltaBackwardWork90& work, unsigned char* base)
      : Base(work, base) {}

  // Rows wait until the span before has ended, panels for their places alone.
  __device__ void run() {
    Base::each([&](int c) {
#pragma unroll 1
      for (int tile = 0; tile < w_.forward.tiles; ++tile) load_panels(c, tile);
      if (c == last_) load_rows();
    });
  }

 private:
  // Q and K of the span.
  __device__ void load_rows() {
    const int lane = threadIdx.x % 32;
    const typename Shape::Rows rows{at_ + kShared.row_pipe};
    const int end = rest_ - last_ * kChainTokens;  // tokens of the last chunk
    const bool partial = end < kChainTokens;
    const uint32_t full = partial ? at_ + kShared.tail : rows.full(row_);
    rows.acquire(row_);
    if (lane == 0) {
      sm90::barrier_expect(full, (1 + last_) * 2 * TileQ::bytes);
      for (int c = 0; c <= last_; ++c) {
        const uint32_t q = at_ + kShared.rows + c * 2 * TileQ::bytes;
        const int row = token_ + c * kChainTokens;
        sm90::tma_load_panels<TileQ>(q, w_.forward.q, full, row, output_ / w_.forward.query_share,
                                     batch_);
        sm90::tma_load_panels<TileQ>(q + TileQ::bytes, w_.forward.k, full, row,
                                     head_ / w_.forward.key_share, batch_);
      }
    }
    __syncwarp();
    if (partial) {
      constexpr int kChunks = TileQ::panels * kPanelChunks;
      const uint32_t q = at_ + kShared.rows + last_ * 2 * TileQ::bytes;
      sm90::barrier_wait(full, tail_);
      tail_ ^= 1;
      for (int i = end * kChunks + lane; i < kChainTokens * kChunks; i += 32) {
        sm90::store_zeros(q + TileQ::at(i / kChunks, i % kChunks));
        sm90::store_zeros(q + TileQ::bytes + TileQ::at(i / kChunks, i % kChunks));
      }
      sm90::fence_shared();
      __syncwarp();
      if (lane == 0) sm90::barrier_arrive(rows.full(row_));
    }
    row_.next();
  }

  // A value tile of a chunk, in the order in which the others take it.
  __device__ void load_panels(int c, int tile) {
    const int row = token_ + c * kChainTokens;
    const auto box = [&](const CUtensorMap& map, int token, int head) {
      panel([&](uint32_t to, uint32_t barrier) {
        sm90::tma_load_box(to, map, barrier, tile * kChainColumns, token, head, batch_);
      });
    };
    const auto bytes = [&](const unsigned char* from) {
      panel(
          [&](uint32_t to, uint32_t barrier) { sm90::tma_load(to, from, Panel::bytes, barrier); });
    };
    const int64_t in_span = (int64_t{span_} * a_.heads + head_) * w_.forward.tiles + tile;
    const auto update = [&](int chunk) {
      return w_.updates +
             ((int64_t{slot_ + chunk} * a_.heads + head_) * w_.forward.tiles + tile) * Panel::bytes;
    };
    box(w_.dout, row, output_);
    for (int i = 0; i < Shape::Groups; ++i)
      bytes(w_.states + (in_span * Shape::Groups + i) * Panel::bytes);
    bytes(update(c));
    for (int i = 0; i < Shape::Groups; ++i)
      bytes(w_.slopes + (in_span * Shape::Groups + i) * Panel::bytes);
    box(w_.dv_map, row, head_);
    if (c == 1) bytes(update(0));
  }
  template <class Load>
  __device__ void panel(Load load) {
    const typename Shape::Ring ring{at_ + kShared.panel_pipe};
    ring.acquire(ring_);
    if (threadIdx.x == 0) {
      sm90::barrier_expect(ring.full(ring_), Panel::bytes);
      load(at_ + kShared.panels + ring_.stage * Panel::bytes, ring.full(ring_));
    }
    __syncwarp();
    ring_.next();
  }

  uint32_t tail_ = 0;
  typename Shape::Rows::State row_;
  typename Shape::Ring::State ring_;
};

// Warpgroup 1.
template <class Shape>
class DeltaTables90 : DeltaUnits90<Shape> {
  using Base = DeltaUnits90<Shape>;
  using Base::a_, Base::w_, Base::at_, Base::run_, Base::first_, Base::head_, Base::kShared;
  using Base::slot_, Base::output_, Base::last_, Base::left_, Base::decay_, Base::base_;

 public:
  __device__ DeltaTables90(const DeltaBackwardWork90& work, unsigned char* base)
      : Base(work, base) {}

  __device__ void run() {
    typename Shape::Units::State unit;
    const typename Shape::Units units{at_ + kShared.unit_pipe};
    int count = 0;
    // The others have ended with what the place of a unit had: then its gates and beta.
    const auto take = [&]() -> DeltaUnit& {
      auto& to = reinterpret_cast<DeltaUnit*>(base_ + kShared.unit)[unit.stage];
      units.acquire(unit);
      if (count < 2) return ++count, to;
      if (threadIdx.x % 128 < 32)
        finish(to, reinterpret_cast<DeltaDots<Shape::Groups>*>(base_ + kShared.dots)[unit.stage]);
      sm90::named_barrier_sync(1, 128);
      return to;
    };
    const auto give = [&] {
      __syncwarp();
      sm90::barrier_arrive_warp(units.full(unit)), unit.next();
    };
    Base::each([&](int c) { make(c, take()), give(); });
    // No more units, twice, so that both places are taken back.
    for (int n = 0; n < 2; ++n) {
      DeltaUnit& to = take();
      if (threadIdx.x % 128 == 0) to.left = 0;
      give();
    }
  }

 private:
  // Gates and beta of a unit, by one warp: tokens 2 lane, 2 lane + 1 are a lane's.
  __device__ void finish(const DeltaUnit& unit, DeltaDots<Shape::Groups>& dots) const {
    constexpr int Groups = Shape::Groups, Span = Shape::Span;
    const bool primary = unit.output % w_.forward.outputs == 0;
    const int t = 2 * static_cast<int>(threadIdx.x % 32);
    float carry[2], own[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float key2 = dots.both(dots.key2, t + i);
      const float along = primary ? (unit.along[t + i] + key2) / unit.decay.beta[t + i] : 0.f;
      if (a_.gate_head) {
        carry[i] = dots.both(dots.carry, t + i);
        own[i] = dots.both(dots.query, t + i) - dots.both(dots.key, t + i) + carry[i] + key2;
      }
      dots.key2[0][t + i] = along;
    }
    __syncwarp();
    if (w_.betas)
      give(unit, unit.token, unit.left, dots.key2[0], w_.dbeta, unit.beta_slope, w_.b.terms.dbeta);
    if (!a_.gate_head) return;
    DeltaLate& late = *reinterpret_cast<DeltaLate*>(base_ + kShared.late);
    if (unit.place == DeltaPlace::late) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        late.own[t + i] = own[i], late.carry[t + i] = carry[i];
        late.slope[t + i] = unit.gate_slope[t + i];
      }
      late.left = unit.left;
      return;
    }
    float all = 0;
    for (int i = 0; i < 4 * Groups; ++i) all += dots.states[i];
    all = primary ? decayed(decayed(unit.decay.vectors.all, unit.other_all), a_.scale * all) : 0.f;
    if (Span == 2 && unit.place == DeltaPlace::early) {
      float whole = carry[0] + carry[1];
#pragma unroll
      for (int step = 16; step > 0; step /= 2) whole += __shfl_xor_sync(~0u, whole, step);
      const float others[2] = {late.own[t], late.own[t + 1]};
      const float sums[2] = {late.carry[t], late.carry[t + 1]};
      const float later = gates(all + whole, sums, others, dots.query[0]);
      give(unit, unit.token + kChainTokens, late.left, dots.query[0], w_.dgate, late.slope,
           w_.b.terms.row_dg);
      all += later;
    }
    gates(all, carry, own, dots.key[0]);
    give(unit, unit.token, unit.left, dots.key[0], w_.dgate, unit.gate_slope, w_.b.terms.row_dg);
  }
  // Of 64 tokens' log gates: all + what comes before + what is left; returns the sum of `own`.
  __device__ __forceinline__ float gates(float all, const float (&carry)[2], const float (&own)[2],
                                         float* to) const {
    const int lane = threadIdx.x % 32, t = 2 * lane;
    float before = carry[0] + carry[1], after = own[0] + own[1];
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const float above = __shfl_up_sync(~0u, before, step);
      const float below = __shfl_down_sync(~0u, after, step);
      if (lane >= step) before += above;
      if (lane + step < 32) after += below;
    }
    const float whole = __shfl_sync(~0u, after, 0);
    before = __shfl_up_sync(~0u, before, 1), after = __shfl_down_sync(~0u, after, 1);
    if (lane == 0) before = 0;
    if (lane == 31) after = 0;
    to[t] = all + before + (after + own[1] + own[0]);
    to[t + 1] = all + (before + carry[0]) + (after + own[1]);
    __syncwarp();
    return whole;
  }
  // Rows of log gates or of betas: of the raw ones, and as terms.
  __device__ __forceinline__ void give(const DeltaUnit& unit, int64_t token, int left,
                                       const float* values, const Floats<3>& to,
                                       const float* slopes, float* term) const {
    const int32_t head = unit.output / w_.forward.outputs;
    const int32_t plane = unit.output % w_.forward.outputs;
#pragma unroll 1
    for (int t = threadIdx.x % 32; t < left; t += 32) {
      const float x = values[t], slope = slopes[t];
      if (to) to.store(x == 0 || slope == 0 ? 0 : x * slope, unit.batch, token + t, head);
      if (term) term[((plane * a_.b + unit.batch) * a_.s + token + t) * a_.heads + head] = x;
    }
  }

  // What intra_sm90.cuh left of a chunk of the span.
  __device__ const DeltaVectors& vectors(int c) const {
    return *reinterpret_cast<const DeltaVectors*>(
        w_.forward.inverses + (int64_t{slot_ + c} * a_.heads + head_) * kDeltaInverseStride +
        kDeltaTile);
  }
  __device__ const float* factors(int c) const {
    return reinterpret_cast<const float*>(
        w_.forward.scores + (int64_t{slot_ + c} * a_.heads_out + output_) * kDeltaScoreStride +
        kDeltaTile);
  }

  __device__ void make(int c, DeltaUnit& to) {
    const int i = static_cast<int>(threadIdx.x % 128), t = i % 64;
    const int64_t token = run_.begin + first_ + t;
    // Norms lie behind the vectors, and behind the factors.
    const float norm =
        i < 64 ? reinterpret_cast<const float*>(&vectors(c) + 1)[t] : factors(c)[kChainTokens + t];
    if (i < 64 && c == 1) to.early_column[t] = vectors(0).suffix[t];
    if (i == 64) to.other_all = last_ ? vectors(1 - c).all : 1.f;
    if (i >= 64 && t < left_) {
      float along = 0;
      const float* from =
          w_.betas + (run_.batch * a_.s + token) * static_cast<int32_t>(a_.heads) + head_;
#pragma unroll 1
      for (int tile = 0; w_.betas && tile < w_.forward.tiles; ++tile)
        along += *from, from += a_.b * a_.s * a_.heads;
      to.along[t] = along;
      if (a_.gate_head) to.gate_slope[t] = a_.head_gate(run_.batch, token, head_).slope;
      to.beta_slope[t] = a_.beta_at(run_.batch, token, head_).slope;
    }
    decay_ = &to.decay;
    Base::scan(kDeltaLeastBeta);
    to.decay.norm[i] = t < left_ ? norm : 0.f;
    sm90::named_barrier_sync(1, 128);
    Base::tables();
    if (i < 64) {
      float sum = to.decay.prefix[i];
      for (int b = 0; b < i / 16; ++b) sum += to.decay.total[b];
      const bool there = i < left_ && first_ + i >= run_.from;
      const float query = there ? a_.scale * to.decay.norm[64 + i] : 0.f;
      const float factor = query * exp2_fast(sum);
      to.query[i] = query, to.factor[i] = factor;
      if (c == 1) to.late_row[0][i] = factor, to.late_row[1][i] = -to.decay.vectors.answer[i];
    }
    if (i > 0) return;
    to.batch = run_.batch, to.token = run_.begin + first_;
    to.output = output_, to.left = left_;
    to.place = !last_ ? DeltaPlace::alone : c ? DeltaPlace::late : DeltaPlace::early;
  }
};

// ---- the others

template <class Shape>
class DeltaGradient90 : DeltaDecays {
  static constexpr int Dtype = Shape::Dtype, D = Shape::D, Groups = Shape::Groups;
  static constexpr int Span = Shape::Span;
  static constexpr int kScores = 2 / Groups;  // of F and G, that a warpgroup makes
  using TileQ = typename Shape::TileQ;
  using Panel = typename Shape::Panel;
  using UnitState = typename Shape::Units::State;
  using RowState = typename Shape::Rows::State;
  using RingState = typename Shape::Ring::State;
  using Sums = float[kSums][4];
  static constexpr DeltaGradientShared90<Shape> kShared = DeltaGradientShared90<Shape>();

 public:
  static constexpr int shared_bytes = kShared.bytes + 1024;  // the base is aligned

  __device__ DeltaGradient90(const DeltaBackwardWork90& work, unsigned char* base)
      : DeltaDecays(work.b.forward),
        w_(work),
        base_(base),
        at_(shared_address(base)),
        group_(sm90::uniform(threadIdx.x / 128) - 2) {}

  static __device__ void init(uint32_t at) {
    const typename Shape::Units units{at + kShared.unit_pipe};
    const typename Shape::Rows rows{at + kShared.row_pipe};
    const typename Shape::Ring ring{at + kShared.panel_pipe};
    if (threadIdx.x == 0) {
      units.init(4, 4 * Groups), rows.init(1, 4 * Groups), ring.init(1, 4 * Groups);
      sm90::barrier_init(at + kShared.tail, 1);
      sm90::barrier_init_done();
    }
    __syncthreads();
  }

  __device__ void run() {
    UnitState unit;
    RowState row;
    RingState at;
    const typename Shape::Units units{at_ + kShared.unit_pipe};
    const typename Shape::Rows rows{at_ + kShared.row_pipe};
    for (;; unit.next()) {
      units.wait(unit);
      unit_ = reinterpret_cast<const DeltaUnit*>(base_ + kShared.unit) + unit.stage;
      dots_ = reinterpret_cast<DeltaDots<Groups>*>(base_ + kShared.dots) + unit.stage;
      if (unit_->left == 0) return;
      decay_ = const_cast<DeltaDecay*>(&unit_->decay);
      head_ = unit_->output / w_.forward.outputs;
      primary_ = unit_->output % w_.forward.outputs == 0;
      const DeltaPlace place = unit_->place;
      const uint32_t early = at_ + kShared.rows;
      const uint32_t q = early + (place == DeltaPlace::late) * 2 * TileQ::bytes;
      float dq[kSums][4], dk[kSums][4], dk2[kSums][4], s[kScores][kSums][4], x[kSums][4];
      const bool follows = Span == 2 && place == DeltaPlace::early;
      if (Span == 2 && place == DeltaPlace::late)
        over_values<true>(dq, dk, dk2, s, x, at);
      else
        over_values<false>(dq, dk, dk2, s, x, at);
      scale(dq, dk, dk2);
      if (follows) {
        // F, G between the chunks lie where the late one had them.
        rows.wait(row);
        carry(dk, q + TileQ::bytes);
        from_late(dk, early + 2 * TileQ::bytes, early + 3 * TileQ::bytes);
        sm90::named_barrier_sync(2, 128 * Groups);
      }
      give_scores(s);
      if (!follows) {
        rows.wait(row);
        carry(dk, q + TileQ::bytes);
      }
      sm90::named_barrier_sync(2, 128 * Groups);
      inside(dq, dk, dk2, q, q + TileQ::bytes);
      if (Span == 2 && place == DeltaPlace::late) {
        sm90::named_barrier_sync(2, 128 * Groups);
        give_cross(x);
        sm90::named_barrier_sync(2, 128 * Groups);
        from_early(dq, dk2, early + TileQ::bytes);
      }
      add_dots(dq, dk, dk2, q);
      sm90::named_barrier_sync(2, 128 * Groups);
      finish(dq, dk, dk2, q);
      __syncwarp();
      if (place != DeltaPlace::late) rows.release(row), row.next();
      units.release(unit);
    }
  }

 private:
  __device__ static int row() { return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4; }
  __device__ bool gated() const { return static_cast<bool>(a_.gate_head); }
  __device__ uint32_t panel() const { return static_cast<uint32_t>(group_) * Panel::bytes; }
  static_assert(static_cast<int>(TileQ::panel_bytes) == static_cast<int>(Panel::bytes));

  // dO H', U W', dV H', and dO U' or dV U': of the chunk, and of a late one with the early U.
  template <bool Late>
  __device__ __forceinline__ void over_values(Sums& dq, Sums& dk, Sums& dk2, Sums (&s)[kScores],
                                              Sums& x, RingState& from) {
    const typename Shape::Ring ring{at_ + kShared.panel_pipe};
    float states = 0;
    for (int tile = 0; tile < w_.forward.tiles; ++tile) {
      RingState at = from;
      uint32_t h_at = 0, w_at = 0;
      const auto next = [&] {
        ring.wait(at);
        const uint32_t address = at_ + kShared.panels + at.stage * Panel::bytes;
        at.next();
        return address;
      };
      const uint64_t dout = sm90::descriptor(next());
#pragma unroll
      for (int i = 0; i < Groups; ++i) {
        const uint32_t one = next();
        if (i == group_) h_at = one;
      }
      const uint64_t u = sm90::descriptor(next());
#pragma unroll
      for (int i = 0; i < Groups; ++i) {
        const uint32_t one = next();
        if (i == group_) w_at = one;
      }
      const uint64_t dv = sm90::descriptor(next());
      const uint64_t h = sm90::descriptor(h_at), w = sm90::descriptor(w_at);
      const uint64_t early = Late ? sm90::descriptor(next()) : u;
      const bool more = tile > 0;
      sm90::fence();
      sm90::product_panel<Dtype>(dq, dout, h, more);
      sm90::product_transposed<Dtype, kChainColumns>(dk, u, w, more);
      sm90::product_panel<Dtype>(dk2, dv, h, more);
      if constexpr (Groups == 1) {
        sm90::product_panel<Dtype>(s[0], dout, u, more);
        sm90::product_panel<Dtype>(s[1], dv, u, more);
      } else {
        sm90::product_panel<Dtype>(s[0], group_ ? dv : dout, u, more);
      }
      if constexpr (Late) sm90::product_panel<Dtype>(x, group_ ? dv : dout, early, more);
      sm90::commit();
      if (!Late && gated()) states += dot_states(h_at, w_at);
      sm90::wait<0>();
      sm90::pin(dq), sm90::pin(dk), sm90::pin(dk2), sm90::pin(s[0]);
      if constexpr (Groups == 1) sm90::pin(s[1]);
      if constexpr (Late) sm90::pin(x);
      for (int i = 0; i < Shape::own_panels + Late; ++i) ring.release(from), from.next();
    }
    if (!Late && gated()) {
#pragma unroll
      for (int step = 16; step > 0; step /= 2) states += __shfl_xor_sync(~0u, states, step);
      if (threadIdx.x % 32 == 0) dots_->states[threadIdx.x / 32 - 8] = states;
    }
  }
  // <H, W> of the thread's part of a panel.
  __device__ __forceinline__ float dot_states(uint32_t h_at, uint32_t w_at) const {
    const unsigned char* hs = base_ + (h_at - at_) + threadIdx.x % 128 * 16;
    const unsigned char* ws = base_ + (w_at - at_) + threadIdx.x % 128 * 16;
    float sum = 0;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const uint4 h = *reinterpret_cast<const uint4*>(hs + 2048 * n);
      const uint4 w = *reinterpret_cast<const uint4*>(ws + 2048 * n);
      const uint32_t x[4] = {h.x, h.y, h.z, h.w}, y[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sum = fmaf(float_of(x[i] << 16), float_of(y[i] << 16), sum);
        sum = fmaf(float_of(x[i] & 0xffff0000u), float_of(y[i] & 0xffff0000u), sum);
      }
    }
    return sum;
  }

  // F (0) or G (1) to shared memory; two parts: what is left of x too.
  template <bool Parts>
  __device__ __forceinline__ void give(const Sums& x, int which) const {
    const int lane = threadIdx.x % 32;
    const uint32_t to = at_ + kShared.f + which * Panel::bytes +
                        Panel::at(threadIdx.x % 128 / 32 * 16 + outer_row(lane), outer_chunk(lane));
#pragma unroll
    for (int k = 0; k < kChainTokens / 16; ++k) {
      uint32_t high[4], low[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float first = x[2 * k + i / 2][i % 2 * 2], second = x[2 * k + i / 2][i % 2 * 2 + 1];
        high[i] = pack<Dtype>(first, second);
        low[i] =
            pack<Dtype>(first - float_of(high[i] << 16), second - float_of(high[i] & 0xffff0000u));
      }
      sm90::store_matrices(Panel::pair(to, k), high);
      if (Parts) sm90::store_matrices(Panel::pair(to + 2 * Panel::bytes, k), low);
    }
    sm90::fence_shared();
  }
  __device__ __forceinline__ void give_scores(Sums (&s)[kScores]) const {
    const int first = row(), pair = threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < kScores; ++n) {
      const bool of_values = Groups == 1 ? n == 1 : group_ == 1;
      const float* by = of_values ? unit_->decay.norm : unit_->query;
      const float factor = !of_values ? 1.f : primary_ ? -1.f : 0.f;
      weigh(s[n], {factor * by[first], factor * by[first + 8]});
#pragma unroll
      for (int j = 0; j < kSums; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c)
          if (of_values && 8 * j + pair + c % 2 == first + c / 2 * 8) s[n][j][c] = 0;
      give<true>(s[n], of_values);
    }
  }
  // Rows of the late chunk, columns of the early one.
  __device__ __forceinline__ void give_cross(Sums& x) const {
    const float* by = unit_->late_row[group_];
    const bool none = group_ == 1 && !primary_;
    const float row[2] = {none ? 0 : by[this->row()], none ? 0 : by[this->row() + 8]};
#pragma unroll
    for (int j = 0; j < kSums; ++j) {
      const float2 column =
          *reinterpret_cast<const float2*>(unit_->early_column + 8 * j + threadIdx.x % 4 * 2);
#pragma unroll
      for (int c = 0; c < 4; ++c)
        x[j][c] = decayed(row[c / 2] * (c % 2 ? column.y : column.x), x[j][c]);
    }
    give<false>(x, group_);
  }

  __device__ __forceinline__ void scale(Sums& dq, Sums& dk, Sums& dk2) const {
    const DeltaVectors& by = unit_->decay.vectors;
    const float other = unit_->other_all;
    const float before = unit_->place == DeltaPlace::late ? other : 1.f;
    const float after = unit_->place == DeltaPlace::early ? other : 1.f;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int t = row() + 8 * h;
      const float factor = before * unit_->factor[t];
      const float suffix = primary_ ? after * a_.scale * by.suffix[t] : 0.f;
      const float answer = primary_ ? -before * by.answer[t] : 0.f;
#pragma unroll
      for (int j = 0; j < kSums; ++j)
#pragma unroll
        for (int c = 2 * h; c < 2 * h + 2; ++c) {
          dq[j][c] = decayed(factor, dq[j][c]), dk[j][c] = decayed(suffix, dk[j][c]);
          dk2[j][c] = decayed(answer, dk2[j][c]);
        }
    }
  }

  // x . the lane's columns of a row of a tile of the unit.
  __device__ __forceinline__ float dot(const Sums& x, uint32_t tile, int h) const {
    const unsigned char* from = base_ + (tile + panel() - at_) + threadIdx.x % 4 * 4;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kSums; ++j) {
      const auto two = *reinterpret_cast<const uint32_t*>(from + TileQ::at(row() + 8 * h, j));
      sum = fmaf(x[j][2 * h], float_of(two << 16), sum);
      sum = fmaf(x[j][2 * h + 1], float_of(two & 0xffff0000u), sum);
    }
    return quad_sum(sum);
  }
  __device__ __forceinline__ void carry(const Sums& dk, uint32_t k) const {
    if (!gated()) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float sum = dot(dk, k, h);
      if (threadIdx.x % 4 == 0) dots_->carry[group_][row() + 8 * h] = sum;
    }
  }

  // What tokens of the chunk give one another.
  __device__ __forceinline__ void inside(Sums& dq, Sums& dk, Sums& dk2, uint32_t q,
                                         uint32_t k) const {
    const uint64_t f = sm90::descriptor(at_ + kShared.f);
    const uint64_t g = sm90::descriptor(at_ + kShared.f + Panel::bytes);
    const uint64_t rows = sm90::descriptor(q + panel()), keys = sm90::descriptor(k + panel());
    sm90::fence();
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const uint64_t on = part * (2 * Panel::bytes / 16);
      sm90::product_panel<Dtype>(dq, f + on, keys, true);
      sm90::product_transposed<Dtype, kChainTokens>(dk, f + on, rows, true);
      sm90::product_transposed<Dtype, kChainTokens>(dk, g + on, keys, true);
      sm90::product_panel<Dtype>(dk2, g + on, keys, true);
    }
    sm90::commit();
    sm90::wait<0>();
    sm90::pin(dq), sm90::pin(dk), sm90::pin(dk2);
  }
  // What a late chunk takes of the early one's keys `k`.
  __device__ __forceinline__ void from_early(Sums& dq, Sums& dk2, uint32_t k) const {
    const uint64_t f = sm90::descriptor(at_ + kShared.f);
    const uint64_t g = sm90::descriptor(at_ + kShared.f + Panel::bytes);
    const uint64_t keys = sm90::descriptor(k + panel());
    sm90::fence();
    sm90::product_panel<Dtype>(dq, f, keys, true);
    sm90::product_panel<Dtype>(dk2, g, keys, true);
    sm90::commit();
    sm90::wait<0>();
    sm90::pin(dq), sm90::pin(dk2);
  }
  // What an early chunk takes of the late one's rows.
  __device__ __forceinline__ void from_late(Sums& dk, uint32_t q, uint32_t k) const {
    const uint64_t f = sm90::descriptor(at_ + kShared.f);
    const uint64_t g = sm90::descriptor(at_ + kShared.f + Panel::bytes);
    sm90::fence();
    sm90::product_transposed<Dtype, kChainTokens>(dk, f, sm90::descriptor(q + panel()), true);
    sm90::product_transposed<Dtype, kChainTokens>(dk, g, sm90::descriptor(k + panel()), true);
    sm90::commit();
    sm90::wait<0>();
    sm90::pin(dk);
  }

  __device__ __forceinline__ void add_dots(const Sums& dq, const Sums& dk, const Sums& dk2,
                                           uint32_t q) const {
    if (!gated() && !a_.l2_norm && !w_.betas) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float along_q = dot(dq, q, h), along_k = dot(dk, q + TileQ::bytes, h);
      const float along_k2 = dot(dk2, q + TileQ::bytes, h);
      if (threadIdx.x % 4) continue;
      dots_->query[group_][row() + 8 * h] = along_q;
      dots_->key[group_][row() + 8 * h] = along_k;
      dots_->key2[group_][row() + 8 * h] = along_k2;
    }
  }
  // Through the norms, and to memory.
  __device__ __forceinline__ void finish(Sums& dq, Sums& dk, const Sums& dk2, uint32_t q) const {
#pragma unroll
    for (int j = 0; j < kSums; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) dk[j][c] += dk2[j][c];
    const auto along_q = [&](int t) { return dots_->both(dots_->query, t); };
    const auto along_k = [&](int t) {
      return dots_->both(dots_->key, t) + dots_->both(dots_->key2, t);
    };
    if (w_.dq)
      direct(dq, w_.dq, 64, along_q, q, unit_->output);
    else if (w_.b.terms.dq)
      terms(dq, w_.b.terms.dq, unit_->decay.norm + 64, a_.heads_out, unit_->output);
    if (w_.dk)
      direct(dk, w_.dk, 0, along_k, q + TileQ::bytes, head_);
    else if (w_.b.terms.dk)
      terms(dk, w_.b.terms.dk + plane(a_.d), unit_->decay.norm, a_.heads, head_);
  }
  // Where the terms of this output of a head begin.
  __device__ int64_t plane(int64_t width) const {
    return unit_->output % w_.forward.outputs * a_.b * a_.s * a_.heads * width;
  }
  template <class Along>
  __device__ __forceinline__ void direct(Sums& x, const Floats<4>& to, int norms, Along along,
                                         uint32_t tile, int64_t head) const {
    const int lane = threadIdx.x % 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int t = row() + 8 * h;
      if (a_.l2_norm) {
        const float norm = unit_->decay.norm[norms + t], by = -norm * norm * along(t);
        const unsigned char* from = base_ + (tile + panel() - at_) + lane * 4;
#pragma unroll
        for (int j = 0; j < kSums; ++j) {
          const auto two = *reinterpret_cast<const uint32_t*>(from + TileQ::at(t, j));
          x[j][2 * h] = fmaf(by, float_of(two << 16), x[j][2 * h]);
          x[j][2 * h + 1] = fmaf(by, float_of(two & 0xffff0000u), x[j][2 * h + 1]);
        }
      }
      const int64_t at = to.offset(unit_->batch, unit_->token + t, head, 64 * group_);
#pragma unroll
      for (int m = 0; m < kSums; m += 4) {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) words[i] = pack<Dtype>(x[m + i][2 * h], x[m + i][2 * h + 1]);
        quad_transpose(words);
        if (t < unit_->left)
          __stcs(reinterpret_cast<uint4*>(to.view.template as<uint16_t>() + at + 8 * (m + lane)),
                 make_uint4(words[0], words[1], words[2], words[3]));
      }
    }
  }
  // Of q^ or k^.
  __device__ __forceinline__ void terms(const Sums& x, float* to, const float* norm, int64_t heads,
                                        int64_t head) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int t = row() + 8 * h;
      if (t >= unit_->left) continue;
      const float by = 1 / norm[t];
      const int64_t at = ((unit_->batch * a_.s + unit_->token + t) * heads + head) * D;
#pragma unroll
      for (int j = 0; j < kSums; ++j)
        *reinterpret_cast<float2*>(to + at + 64 * group_ + 8 * j + threadIdx.x % 4 * 2) =
            make_float2(by * x[j][2 * h], by * x[j][2 * h + 1]);
    }
  }

  const DeltaBackwardWork90& w_;
  unsigned char* base_;
  uint32_t at_;
  const int group_;
  const DeltaUnit* unit_;
  DeltaDots<Groups>* dots_;
  bool primary_;
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    delta_gradient_sm90_kernel(const __grid_constant__ DeltaBackwardWork90 work) {
  extern __shared__ __align__(1024) unsigned char shared[];
  unsigned char* base = shared + (-shared_address(shared) & 1023);
  DeltaGradient90<Shape>::init(shared_address(base));
  const int warp = sm90::uniform(threadIdx.x / 32);
  if (warp < 4) {
    sm90::setmaxnreg_dec<Shape::load_regs>();
    if (warp == 0) DeltaLoads90<Shape>(work, base).run();
  } else if (warp < 8) {
    sm90::setmaxnreg_dec<Shape::table_regs>();
    DeltaTables90<Shape>(work, base).run();
  } else {
    sm90::setmaxnreg_inc<Shape::gradient_regs>();
    DeltaGradient90<Shape>(work, base).run();
  }
}

}  // namespace fovea::cuda
