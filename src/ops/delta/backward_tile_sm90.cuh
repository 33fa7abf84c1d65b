// SPDX-License-Identifier: Apache-2.0
// The gradients of x_delta_backward on Hopper, from H, U, dV and W that the chains left: a chunk
// and output head after the other.  Rows carry the factors |q|^-1, |k|^-1 of q^ and k^:
//   F_ts = scale |q_t|^-1 |k_s|^-1 2^D_ts dO_t . U_s, s <= t
//   G_ts = -|k_t|^-1 |k_s|^-1 2^D_ts dV_t . U_s, s < t
//   dq = factor . (dO H') + F K,  dk = suffix . (U W') + F' Q + G' K,  dk2 = G K - answer . (dV H')
//   dlog_t = all <H, W> + sum over s < t of k_s . (suffix_s U_s W')
//            + sum over s >= t of q_s . dq_s - k_s . (F' Q + G' K)_s + k_s . dk2_s
//   dbeta_t = dV_t . U_t / beta_t^2
// dk + dk2 is the gradient of k.  x / |x| takes x |x|^-2 (x . dx) off each.
// Products with a second output of a head leave out what belongs to the state alone.
//   Warpgroup 0: warp 0 is the producer; its four warps make the decays of a unit.
//   The others: 64 key columns each, rows are tokens.  With two of them, the first makes F, the
//   second G; with one it makes both.
//
//   | barrier      | who arrives          | who waits    | what it guards                       |
//   | tables full  | warps of warpgroup 0 | the others   | decays of a unit                     |
//   | rows full    | producer, TMA        | the others   | Q, K of a unit                       |
//   | unit empty   | warps of the others  | warpgroup 0  | decays, Q, K, to be written          |
//   | values full  | producer, TMA        | the others   | H, W, U, dV, dO of 64 value columns  |
//   | values empty | warps of the others  | producer     | the same, to be written              |
//   | tail         | producer, TMA        | producer     | Q, K with rows to be zeroed          |
//   | 1            | warpgroup 0          | warpgroup 0  | sums of gates, then norms            |
//   | 2            | the others           | the others   | F, G; then sums over key columns     |
#pragma once
#include "ops/delta/backward.cuh"
#include "ops/delta/intra_sm90.cuh"

namespace fovea::cuda {

template <int Dtype_, int D_, int Values_>
struct DeltaGradientShape90 {
  static constexpr int Dtype = Dtype_, D = D_, Groups = D / 64, Stages = Values_;
  using TileQ = Swizzled<kChainTokens, D>;
  using TileV = Swizzled<kChainTokens, kChainColumns>;
  using TileH = Swizzled<kChainColumns, D>;
  using TileF = Swizzled<kChainTokens, kChainTokens>;
  using Units = sm90::Pipeline<2>;
  using Values = sm90::Pipeline<Stages>;
  static constexpr int at_w = TileH::bytes, at_u = 2 * TileH::bytes, at_dv = at_u + TileV::bytes,
                       at_dout = at_dv + TileV::bytes, value_bytes = at_dout + TileV::bytes;
  static constexpr int threads = 128 * (1 + Groups);
  static constexpr int table_regs = 88, gradient_regs = Groups == 2 ? 208 : 240;
};

// What warpgroup 0 tells of a unit.
struct DeltaUnit {
  DeltaDecay decay;
  float factor[kChainTokens];  // scale |q_t|^-1 2^P_t; 0 where there is no output
  float query[kChainTokens];   // scale |q_t|^-1, the same
  float gate_slope[kChainTokens], beta_slope[kChainTokens];
  int64_t batch, token;  // of its first token
  int32_t output, left;  // tokens; 0: there are no more units
};

// Sums over key columns, by warpgroup.
struct DeltaDots {
  float query[2][kChainTokens], key[2][kChainTokens];  // q . dq, k . (dk + dk2)
  float gate[2][kChainTokens];                         // q . dq - k . dk + k . dk2
  float carry[2][kChainTokens];                        // k . (suffix . (U W')), which dk has too
  float states[8];                                     // <H, W>, by warp
  float beta[kChainTokens];                            // dV . U
};

template <class Shape>
struct DeltaGradientShared90 : sm90::SharedLayout {
  int values = tiles(Shape::value_bytes, Shape::Stages);
  int rows = tiles(2 * Shape::TileQ::bytes, 2);
  int f = tiles(2 * Shape::TileF::bytes);
  int unit = add(2 * sizeof(DeltaUnit), 16);
  int dots = add(2 * sizeof(DeltaDots), 16);
  int unit_pipe = this->template pipeline<2>();
  int row_pipe = this->template pipeline<2>();
  int value_pipe = this->template pipeline<Shape::Stages>();
  int tail = barriers();
};

// ---- warpgroup 0

template <class Shape>
class DeltaUnits90 : DeltaDecays {
  static constexpr int Dtype = Shape::Dtype, D = Shape::D;
  using TileQ = typename Shape::TileQ;
  using TileV = typename Shape::TileV;
  using TileH = typename Shape::TileH;
  using TileU = typename Shape::TileF;
  using UnitState = typename Shape::Units::State;
  using ValueState = typename Shape::Values::State;
  static constexpr DeltaGradientShared90<Shape> kShared = DeltaGradientShared90<Shape>();

 public:
  __device__ DeltaUnits90(const DeltaBackwardWork90& work, unsigned char* base)
      : DeltaDecays(work.b.forward), w_(work), base_(base), at_(shared_address(base)) {}

  __device__ void run() {
    UnitState unit;
    ValueState value;
    uint32_t tail = 0;
    const typename Shape::Units units{at_ + kShared.unit_pipe}, rows{at_ + kShared.row_pipe};
    for (int64_t work = blockIdx.x; work < w_.units; work += gridDim.x) {
      const int64_t slot = work / a_.heads_out, output = work - slot * a_.heads_out;
      if (!find(slot)) continue;
      head_ = static_cast<int>(output / w_.forward.outputs);
      DeltaUnit& to = this->unit(unit);
      units.acquire(unit);
      if (threadIdx.x < 32) load(slot, output, unit, value, rows, tail);
      tables(slot, output, to);
      if (threadIdx.x < 32) load_values(slot, output, Shape::Stages, w_.forward.tiles, value);
      __syncwarp();
      sm90::barrier_arrive_warp(units.full(unit)), unit.next();
    }
    units.acquire(unit);
    if (threadIdx.x == 0) this->unit(unit).left = 0;
    __syncwarp();
    sm90::barrier_arrive_warp(units.full(unit));
  }

 private:
  __device__ DeltaUnit& unit(const UnitState& at) const {
    return reinterpret_cast<DeltaUnit*>(base_ + kShared.unit)[at.stage];
  }
  // The tokens of a slot; false: there are none.
  __device__ bool find(int64_t slot) {
    const int64_t sequence = w_.forward.sequence_of(slot);
    run_ = a_.run[sequence];
    first_ = (slot - w_.forward.slot(sequence, run_.begin)) * kChainTokens;
    left_ = static_cast<int>(clamp_i64(run_.count - first_, 0, kChainTokens));
    return left_ > 0;
  }

  // Warp 0.
  __device__ void load(int64_t slot, int64_t output, const UnitState& unit, ValueState& value,
                       const typename Shape::Units& rows, uint32_t& tail) const {
    const int lane = threadIdx.x % 32, batch = static_cast<int>(run_.batch);
    const int row = static_cast<int>(run_.begin + first_);
    const uint32_t q = at_ + kShared.rows + unit.stage * 2 * TileQ::bytes, k = q + TileQ::bytes;
    const uint32_t full = left_ < kChainTokens ? at_ + kShared.tail : rows.full(unit);
    if (lane == 0) {
      sm90::barrier_expect(full, 2 * TileQ::bytes);
      sm90::tma_load_panels<TileQ>(q, w_.forward.q, full, row,
                                   static_cast<int>(a_.query_head(output)), batch);
      sm90::tma_load_panels<TileQ>(k, w_.forward.k, full, row, static_cast<int>(a_.key_head(head_)),
                                   batch);
    }
    __syncwarp();
    if (left_ < kChainTokens) {
      constexpr int kChunks = TileQ::panels * kPanelChunks;
      sm90::barrier_wait(full, tail);
      tail ^= 1;
      for (int i = left_ * kChunks + lane; i < kChainTokens * kChunks; i += 32) {
        sm90::store_zeros(q + TileQ::at(i / kChunks, i % kChunks));
        sm90::store_zeros(k + TileQ::at(i / kChunks, i % kChunks));
      }
      sm90::fence_shared();
      __syncwarp();
      if (lane == 0) sm90::barrier_arrive(rows.full(unit));
    }
    load_values(slot, output, 0, min(Shape::Stages, w_.forward.tiles), value);
  }
  // Tiles from `tile` on.  Those past the stages wait for the others, which wait for decays.
  __device__ void load_values(int64_t slot, int64_t output, int tile, int end,
                              ValueState& value) const {
    const int lane = threadIdx.x % 32, batch = static_cast<int>(run_.batch);
    const int row = static_cast<int>(run_.begin + first_);
    const typename Shape::Values values{at_ + kShared.value_pipe};
    for (; tile < end; ++tile, value.next()) {
      values.acquire(value);
      if (lane) continue;
      const uint32_t to = at_ + kShared.values + value.stage * Shape::value_bytes;
      const uint32_t barrier = values.full(value);
      const int64_t at = (slot * a_.heads + head_) * w_.forward.tiles + tile;
      sm90::barrier_expect(barrier, Shape::value_bytes);
      sm90::tma_load(to, w_.states + at * TileH::bytes, TileH::bytes, barrier);
      sm90::tma_load(to + Shape::at_w, w_.slopes + at * TileH::bytes, TileH::bytes, barrier);
      sm90::tma_load(to + Shape::at_u, w_.updates + at * TileU::bytes, TileU::bytes, barrier);
      sm90::tma_load_box(to + Shape::at_dv, w_.dv_map, barrier, tile * kChainColumns, row, head_,
                         batch);
      sm90::tma_load_box(to + Shape::at_dout, w_.dout, barrier, tile * kChainColumns, row,
                         static_cast<int>(output), batch);
    }
  }

  __device__ void tables(int64_t slot, int64_t output, DeltaUnit& to) {
    const int i = static_cast<int>(threadIdx.x);
    decay_ = &to.decay;
    scan(kDeltaLeastBeta);
    const auto* norm = reinterpret_cast<const float*>(
        i < 64 ? w_.forward.inverses + (slot * a_.heads + head_) * kDeltaInverseStride +
                     kDeltaInverseBytes
               : w_.forward.scores + (slot * a_.heads_out + output) * kDeltaScoreStride +
                     kDeltaScoreBytes);
    to.decay.norm[i] = i % 64 < left_ ? norm[i % 64] : 0.f;
    sm90::named_barrier_sync(1, 128);
    DeltaDecays::tables();
    if (i < 64) {
      float sum = to.decay.prefix[i];
      for (int b = 0; b < i / 16; ++b) sum += to.decay.total[b];
      const bool there = i < left_ && first_ + i >= run_.from;
      const float query = there ? a_.scale * to.decay.norm[64 + i] : 0.f;
      to.query[i] = query, to.factor[i] = query * exp2_fast(sum);
    }
    if (i < left_) {
      const int64_t token = run_.begin + first_ + i;
      if (a_.gate_head) to.gate_slope[i] = a_.head_gate(run_.batch, token, head_).slope;
      to.beta_slope[i] = a_.beta_at(run_.batch, token, head_).slope;
    }
    if (i == 0) {
      to.batch = run_.batch, to.token = run_.begin + first_;
      to.output = static_cast<int32_t>(output), to.left = left_;
    }
  }

  const DeltaBackwardWork90& w_;
  unsigned char* base_;
  uint32_t at_;
};

// ---- the others

template <class Shape>
class DeltaGradient90 : DeltaDecays {
  static constexpr int Dtype = Shape::Dtype, D = Shape::D, Groups = Shape::Groups;
  static constexpr int kScores = 2 / Groups;  // of F and G, that a warpgroup makes
  using TileQ = typename Shape::TileQ;
  using TileV = typename Shape::TileV;
  using TileH = typename Shape::TileH;
  using TileF = typename Shape::TileF;
  using UnitState = typename Shape::Units::State;
  using ValueState = typename Shape::Values::State;
  using Sums = float[kSums][4];
  static constexpr DeltaGradientShared90<Shape> kShared = DeltaGradientShared90<Shape>();

 public:
  static constexpr int shared_bytes = kShared.bytes + 1024;  // the base is aligned

  __device__ DeltaGradient90(const DeltaBackwardWork90& work, unsigned char* base)
      : DeltaDecays(work.b.forward),
        w_(work),
        base_(base),
        at_(shared_address(base)),
        group_(sm90::uniform(threadIdx.x / 128) - 1) {}

  static __device__ void init(uint32_t at) {
    const typename Shape::Units units{at + kShared.unit_pipe}, rows{at + kShared.row_pipe};
    const typename Shape::Values values{at + kShared.value_pipe};
    if (threadIdx.x == 0) {
      units.init(4, 4 * Groups), rows.init(1, 1), values.init(1, 4 * Groups);
      sm90::barrier_init(at + kShared.tail, 1);
      sm90::barrier_init_done();
    }
    __syncthreads();
  }

  __device__ void run() {
    UnitState unit;
    ValueState value;
    const typename Shape::Units units{at_ + kShared.unit_pipe}, rows{at_ + kShared.row_pipe};
    for (;; unit.next()) {
      units.wait(unit);
      unit_ = reinterpret_cast<const DeltaUnit*>(base_ + kShared.unit) + unit.stage;
      dots_ = reinterpret_cast<DeltaDots*>(base_ + kShared.dots) + unit.stage;
      if (unit_->left == 0) return;
      decay_ = const_cast<DeltaDecay*>(&unit_->decay);
      head_ = unit_->output / w_.forward.outputs;
      primary_ = unit_->output % w_.forward.outputs == 0;
      const uint32_t q = at_ + kShared.rows + unit.stage * 2 * TileQ::bytes;
      float dq[kSums][4], dk[kSums][4], dk2[kSums][4], s[kScores][kSums][4];
      over_values(dq, dk, dk2, s, value);
      give_scores(s);
      scale(dq, dk, dk2);
      rows.wait(unit);
      carry(dk, q + TileQ::bytes);
      sm90::named_barrier_sync(2, 128 * Groups);
      inside(dq, dk, dk2, q);
      add_dots(dq, dk, dk2, q);
      sm90::named_barrier_sync(2, 128 * Groups);
      finish(dq, dk, dk2, q);
      if (threadIdx.x < 160) gates();
      __syncwarp();
      units.release(unit);
    }
  }

 private:
  __device__ static int row() { return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4; }
  __device__ bool gated() const { return static_cast<bool>(a_.gate_head); }
  __device__ uint32_t panel() const { return static_cast<uint32_t>(group_) * TileQ::panel_bytes; }
  static_assert(TileQ::panel_bytes == TileH::panel_bytes);

  // dO H', U W', dV H', and dO U' or dV U'.
  __device__ __forceinline__ void over_values(Sums& dq, Sums& dk, Sums& dk2, Sums (&s)[kScores],
                                              ValueState& value) {
    const typename Shape::Values values{at_ + kShared.value_pipe};
    float states = 0;
    for (int tile = 0; tile < w_.forward.tiles; ++tile, value.next()) {
      const uint32_t at = at_ + kShared.values + value.stage * Shape::value_bytes;
      const uint64_t h = sm90::descriptor(at + panel()),
                     w = sm90::descriptor(at + Shape::at_w + panel());
      const uint64_t u = sm90::descriptor(at + Shape::at_u),
                     dv = sm90::descriptor(at + Shape::at_dv);
      const uint64_t dout = sm90::descriptor(at + Shape::at_dout);
      const bool more = tile > 0;
      values.wait(value);
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
      sm90::commit();
      if (gated()) states += dot_states(at);
      sm90::wait<0>();
      sm90::pin(dq), sm90::pin(dk), sm90::pin(dk2), sm90::pin(s[0]);
      if constexpr (Groups == 1) sm90::pin(s[1]);
      values.release(value);
    }
    if (!gated()) return;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) states += __shfl_xor_sync(~0u, states, step);
    if (threadIdx.x % 32 == 0) dots_->states[threadIdx.x / 32 - 4] = states;
  }
  // <H, W> of the thread's part of the panel.
  __device__ __forceinline__ float dot_states(uint32_t at) const {
    const unsigned char* from = base_ + (at + panel() - at_) + threadIdx.x % 128 * 16;
    float sum = 0;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const uint4 h = *reinterpret_cast<const uint4*>(from + 2048 * n);
      const uint4 w = *reinterpret_cast<const uint4*>(from + Shape::at_w + 2048 * n);
      const uint32_t x[4] = {h.x, h.y, h.z, h.w}, y[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sum = fmaf(float_of(x[i] << 16), float_of(y[i] << 16), sum);
        sum = fmaf(float_of(x[i] & 0xffff0000u), float_of(y[i] & 0xffff0000u), sum);
      }
    }
    return sum;
  }

  // F, G to shared memory.
  __device__ __forceinline__ void give_scores(Sums (&s)[kScores]) {
    const int lane = threadIdx.x % 32, first = row(), pair = lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < kScores; ++n) {
      const bool of_values = Groups == 1 ? n == 1 : group_ == 1;
      const float* by = of_values ? unit_->decay.norm : unit_->query;
      const float factor = !of_values ? 1.f : primary_ ? -1.f : 0.f;
#pragma unroll
      for (int j = 0; j < kSums; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c)
          if (of_values && 8 * j + pair + c % 2 == first + c / 2 * 8)
            dots_->beta[first + c / 2 * 8] = s[n][j][c], s[n][j][c] = 0;
      weigh(s[n], {factor * by[first], factor * by[first + 8]});
      uint32_t packed[1][kChainTokens / 16][4];
      pack_operand<Dtype>(packed, reinterpret_cast<float(&)[1][kSums][4]>(s[n]));
      const uint32_t to =
          at_ + kShared.f + of_values * TileF::bytes +
          TileF::at(threadIdx.x % 128 / 32 * 16 + outer_row(lane), outer_chunk(lane));
#pragma unroll
      for (int k = 0; k < kChainTokens / 16; ++k)
        sm90::store_matrices(TileF::pair(to, k), packed[0][k]);
    }
    sm90::fence_shared();
  }

  __device__ __forceinline__ void scale(Sums& dq, Sums& dk, Sums& dk2) const {
    const DeltaVectors& by = unit_->decay.vectors;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int t = row() + 8 * h;
      const float factor = unit_->factor[t], suffix = primary_ ? a_.scale * by.suffix[t] : 0.f;
      const float answer = primary_ ? -by.answer[t] : 0.f;
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
  __device__ __forceinline__ void carry(const Sums& dk, uint32_t k) {
    if (!gated()) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float sum = dot(dk, k, h);
      if (threadIdx.x % 4 == 0) dots_->carry[group_][row() + 8 * h] = sum;
    }
  }

  // What tokens of the chunk give one another.
  __device__ __forceinline__ void inside(Sums& dq, Sums& dk, Sums& dk2, uint32_t q) const {
    const uint64_t f = sm90::descriptor(at_ + kShared.f);
    const uint64_t g = sm90::descriptor(at_ + kShared.f + TileF::bytes);
    const uint64_t rows = sm90::descriptor(q + panel());
    const uint64_t keys = sm90::descriptor(q + TileQ::bytes + panel());
    sm90::fence();
    sm90::product_panel<Dtype>(dq, f, keys, true);
    sm90::product_transposed<Dtype, kChainTokens>(dk, f, rows, true);
    sm90::product_transposed<Dtype, kChainTokens>(dk, g, keys, true);
    sm90::product_panel<Dtype>(dk2, g, keys, true);
    sm90::commit();
    sm90::wait<0>();
    sm90::pin(dq), sm90::pin(dk), sm90::pin(dk2);
  }

  __device__ __forceinline__ void add_dots(const Sums& dq, const Sums& dk, const Sums& dk2,
                                           uint32_t q) {
    if (!gated() && !a_.l2_norm) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float along_q = dot(dq, q, h), along_k = dot(dk, q + TileQ::bytes, h);
      const float along_k2 = dot(dk2, q + TileQ::bytes, h);
      if (threadIdx.x % 4) continue;
      dots_->query[group_][row() + 8 * h] = along_q;
      dots_->key[group_][row() + 8 * h] = along_k + along_k2;
      dots_->gate[group_][row() + 8 * h] = along_q - along_k + along_k2;
    }
  }
  __device__ __forceinline__ float both(const float (&x)[2][kChainTokens], int t) const {
    return Groups == 2 ? x[0][t] + x[1][t] : x[0][t];
  }

  // Through the norms, and to memory.
  __device__ __forceinline__ void finish(Sums& dq, Sums& dk, const Sums& dk2, uint32_t q) const {
#pragma unroll
    for (int j = 0; j < kSums; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) dk[j][c] += dk2[j][c];
    if (w_.dq)
      direct(dq, w_.dq, 64, dots_->query, q, unit_->output);
    else if (w_.b.terms.dq)
      terms(dq, w_.b.terms.dq, unit_->decay.norm + 64, a_.heads_out, unit_->output);
    if (w_.dk)
      direct(dk, w_.dk, 0, dots_->key, q + TileQ::bytes, head_);
    else if (w_.b.terms.dk)
      terms(dk, w_.b.terms.dk + plane(a_.d), unit_->decay.norm, a_.heads, head_);
  }
  // Where the terms of this output of a head begin.
  __device__ int64_t plane(int64_t width) const {
    return unit_->output % w_.forward.outputs * a_.b * a_.s * a_.heads * width;
  }
  __device__ __forceinline__ void direct(Sums& x, const Floats<4>& to, int norms,
                                         const float (&along)[2][kChainTokens], uint32_t tile,
                                         int64_t head) const {
    const int lane = threadIdx.x % 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int t = row() + 8 * h;
      if (a_.l2_norm) {
        const float norm = unit_->decay.norm[norms + t], by = -norm * norm * both(along, t);
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

  // Of gates and beta: tokens 2 lane, 2 lane + 1 of the warp's.
  __device__ void gates() const {
    const int lane = threadIdx.x % 32, t = 2 * lane;
    const DeltaDecay& decay = unit_->decay;
    if (gated()) {
      const float carry[2] = {both(dots_->carry, t), both(dots_->carry, t + 1)};
      const float own[2] = {both(dots_->gate, t) + carry[0], both(dots_->gate, t + 1) + carry[1]};
      float before = carry[0] + carry[1], after = own[0] + own[1];
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const float above = __shfl_up_sync(~0u, before, step);
        const float below = __shfl_down_sync(~0u, after, step);
        if (lane >= step) before += above;
        if (lane + step < 32) after += below;
      }
      before -= carry[0] + carry[1];
      float states = 0;
      for (int i = 0; i < 4 * Groups; ++i) states += dots_->states[i];
      const float all = primary_ ? decayed(decay.vectors.all, a_.scale * states) : 0.f;
      give(t, all + before + after, w_.dgate, unit_->gate_slope, w_.b.terms.row_dg);
      give(t + 1, all + (before + carry[0]) + (after - own[0]), w_.dgate, unit_->gate_slope,
           w_.b.terms.row_dg);
    }
    if (!a_.beta) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float beta = decay.beta[t + i];
      give(t + i, primary_ ? dots_->beta[t + i] / beta / beta : 0.f, w_.dbeta, unit_->beta_slope,
           w_.b.terms.dbeta);
    }
  }
  // Of a log gate or of beta, of the raw one or as a term.
  __device__ void give(int t, float x, const Floats<3>& to, const float* slopes,
                       float* term) const {
    if (t >= unit_->left) return;
    const int64_t batch = unit_->batch, at = unit_->token + t;
    const float slope = slopes[t];
    if (to) to.store(x == 0 || slope == 0 ? 0 : x * slope, batch, at, head_);
    if (term) term[plane(1) + (batch * a_.s + at) * a_.heads + head_] = x;
  }

  const DeltaBackwardWork90& w_;
  unsigned char* base_;
  uint32_t at_;
  const int group_;
  const DeltaUnit* unit_;
  DeltaDots* dots_;
  bool primary_;
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    delta_gradient_sm90_kernel(const __grid_constant__ DeltaBackwardWork90 work) {
  extern __shared__ __align__(1024) unsigned char shared[];
  unsigned char* base = shared + (-shared_address(shared) & 1023);
  DeltaGradient90<Shape>::init(shared_address(base));
  if (sm90::uniform(threadIdx.x / 128) == 0) {
    sm90::setmaxnreg_dec<Shape::table_regs>();
    DeltaUnits90<Shape>(work, base).run();
  } else {
    sm90::setmaxnreg_inc<Shape::gradient_regs>();
    DeltaGradient90<Shape>(work, base).run();
  }
}

}  // namespace fovea::cuda
