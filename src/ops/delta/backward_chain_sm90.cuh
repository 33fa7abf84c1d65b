// SPDX-License-Identifier: Apache-2.0
// The chains of x_delta_backward on Hopper, in one launch: states from the first chunk on, and
// their gradients W from the last chunk on, which need no state.  With intra_sm90.cuh's T and A:
//   dU = suffix . (K W) + A' dO,  dV = (T beta)' dU
//   W = all W + (|q|^-1 2^P . Q)' dO - (answer . K)' dV
// Under a key gate the decays are in the tiles of keys_sm90.cuh, K- for suffix, K~ for answer, Q~
// for |q|^-1 2^P . Q, and the vectors have norms alone.
// Here W, dU, dV and A are without `scale`, which dV takes when it is stored: where decays and
// norms are 1 dO is not rounded again.
// A chain is a sequence, a state head and 64 value columns.  Blocks of states are those of
// forward_sm90.cuh, but warp 1 stores H and U.  Blocks of gradients:
//   Warpgroup 0: warp 0 is the producer, warp 1 stores W, dV and, for dbeta, dV . v.
//   Warpgroup 1: W, transposed in registers in f32 as the state is: 64 value columns as rows.
//   dU' has two parts as an operand, a rounded one and what is left.  While the last product of a
//   chunk runs, it publishes dV and sums dV . v, of dV in f32.
//   Warpgroup 2: A' dO, one chunk ahead; it scales dO where it lies, and brings V.
// Outputs of a head follow one another: their A' dO and Q' dO are sums.
// Rows past a sequence's last token, and those of dO before its first output, are zeroed by the
// producer: 0 times NaN is NaN.
//
//   | barrier    | who arrives           | who waits       | what it guards               |
//   | keys full  | producer, TMA         | gradient        | K, T of a chunk              |
//   | keys empty | warps of the gradient | producer        | the same, to be written      |
//   | q full     | producer, TMA         | warpgroup 2     | Q, dO, A of a chunk and head |
//   | q empty    | warps of the gradient | producer        | the same, to be written      |
//   | scaled     | warps of warpgroup 2  | gradient        | Q and dO, scaled             |
//   | x full     | warps of warpgroup 2  | gradient        | A' dO of a chunk             |
//   | x empty    | warps of the gradient | warpgroup 2     | the same, to be written      |
//   | v full     | warps of warpgroup 2  | gradient        | V of a chunk                 |
//   | v empty    | warps of the gradient | warpgroup 2     | the same, to be written      |
//   | w full     | warps of the gradient | warp 1          | W of a chunk                 |
//   | w empty    | warp 1                | gradient        | the same, to be written      |
//   | dv full    | warps of the gradient | warp 1          | dV, dV . v of a chunk        |
//   | dv empty   | warp 1                | gradient        | the same, to be written      |
//   | tail       | producer, TMA         | producer        | tiles with rows to be zeroed |
//   | 1          | warpgroup 2           | warpgroup 2     | dO, to be scaled             |
#pragma once
#include "ops/delta/backward_reverse_sm90.cuh"

namespace fovea::cuda {

// ---- states

template <DeltaConfig90 C>
struct DeltaStatesShape90 : DeltaShape90<C> {
  static constexpr bool whole = true;
  static constexpr int Span = C.form == DeltaForm::head ? delta_span(C.d) : 1;
};

template <class Shape>
class DeltaStates90 : public DeltaBlock90<Shape> {
  using Base = DeltaBlock90<Shape>;
  using Base::chain_, Base::states_, Base::updates_, Base::a_, Base::kShared;

 public:
  __device__ DeltaStates90(const DeltaBackwardWork90& work, unsigned char* raw)
      : Base(work.forward, raw), work_(work) {}

  __device__ void init() const {
    if (threadIdx.x == 0) {
      this->keys_.init(1, 4), states_.init(4, 1), updates_.init(4, 1);
      sm90::barrier_init(this->at_ + kShared.tail, 1);
      sm90::barrier_init_done();
    }
    __syncthreads();
  }

  // For warp 1.
  __device__ void store_parts() const {
    typename Base::SlotState slot;
    if (threadIdx.x % 32) return;
    constexpr int kSpan = Shape::Span;
    const int64_t spans = work_.forward.slot<kSpan>(chain_.run.sequence, chain_.run.begin);
    const auto place = [&](int64_t slot) {
      return (slot * a_.heads + chain_.head) * work_.forward.tiles + chain_.column / kChainColumns;
    };
    for (int c = 0; c < chain_.end; ++c, slot.next()) {
      const int64_t at = place(chain_.slot + c);
      states_.wait(slot);
      if (c % kSpan == 0)
        sm90::tma_store(work_.states + place(spans + c / kSpan) * Base::TileH::bytes,
                        this->h_tile(slot), Base::TileH::bytes);
      updates_.wait(slot);
      sm90::tma_store(work_.updates + at * Base::TileU::bytes, this->u_tile(slot),
                      Base::TileU::bytes);
      sm90::tma_store_commit();
      sm90::tma_store_wait_read<0>();
      sm90::barrier_arrive(states_.empty(slot)), sm90::barrier_arrive(updates_.empty(slot));
    }
    sm90::tma_store_wait<0>();
  }

 private:
  const DeltaBackwardWork90& work_;
};

// ---- their gradients

template <int Dtype_, int D_, int Stages_, int Queries_, bool Keyed_ = false>
struct DeltaReverseShape90 {
  static constexpr int Dtype = Dtype_, D = D_, Stages = Stages_, QStages = Queries_;
  static constexpr bool Keyed = Keyed_;
  static constexpr int Span = Keyed ? 1 : delta_span(D);
  using TileQ = Swizzled<kChainTokens, D>;
  using TileV = Swizzled<kChainTokens, kChainColumns>;
  using TileT = Swizzled<kChainTokens, kChainTokens>;
  using TileH = Swizzled<kChainColumns, D>;
  using Keys = sm90::Pipeline<Stages>;
  using Queries = sm90::Pipeline<QStages>;
  using One = sm90::Pipeline<1>;
  // Where the parts of a stage lie: without key gates K answers and updates.
  static constexpr int key_stride = Keyed ? delta_keys_bytes(D) : kDeltaInverseStride;
  static constexpr int at_inverse = Keyed ? 0 : TileQ::bytes;
  static constexpr int at_answer = Keyed ? kDeltaKeysAt : 0;
  static constexpr int at_update = Keyed ? at_answer + TileQ::bytes : 0;
  static constexpr int key_bytes = at_inverse + key_stride;
  static constexpr int key_loaded = Keyed ? key_bytes : at_inverse + kDeltaInverseBytes;
  static constexpr int query_stride = Keyed ? delta_query_bytes(D) : kDeltaScoreStride;
  static constexpr int at_dout = Keyed ? query_stride : TileQ::bytes;
  static constexpr int at_score = Keyed ? 0 : at_dout + TileV::bytes;
  static constexpr int at_query = Keyed ? kDeltaScoreStride : 0;
  static constexpr int query_bytes = Keyed ? at_dout + TileV::bytes : at_score + query_stride;
  static constexpr int query_loaded = Keyed ? query_bytes : at_score + kDeltaScoreBytes;
};

template <class Shape>
struct DeltaReverseShared90 : sm90::SharedLayout {
  int keys = tiles(Shape::key_bytes, Shape::Stages);
  int q = tiles(Shape::query_bytes, Shape::QStages);
  int w = tiles(Shape::TileH::bytes);
  int dv = tiles(Shape::TileV::bytes);
  int x = tiles(kChainTokens * kChainColumns * 4);
  int v = tiles(Shape::TileV::bytes);
  int dots = of<float>(4 * kChainTokens);  // dV . v, of each warp's value columns
  int key_pipe = this->pipeline(Shape::Stages);
  int q_pipe = this->pipeline(Shape::QStages);
  int scaled_pipe = this->pipeline(Shape::QStages);
  int x_pipe = this->pipeline(1);
  int v_pipe = this->pipeline(1);
  int w_pipe = this->pipeline(1);
  int dv_pipe = this->pipeline(1);
  int tail = barriers();
};

template <class Shape>
class DeltaReverse90 : public DeltaReverseChain90<Shape, DeltaReverseShared90<Shape>> {
  using Base = DeltaReverseChain90<Shape, DeltaReverseShared90<Shape>>;
  using Base::column_, Base::head_, Base::slot_, Base::chunks_, Base::first, Base::q_tile;
  using Base::Dtype, Base::D, Base::kSums, Base::kShared, Base::w_, Base::a_, Base::base_,
      Base::at_;
  using Base::key_tile;
  using Base::keys_, Base::queries_, Base::x_, Base::slopes_, Base::values_, Base::run_;
  using typename Base::KeyState, typename Base::QueryState, typename Base::OneState;
  using typename Base::TileH, typename Base::TileQ, typename Base::TileV;

 public:
  __device__ DeltaReverse90(const DeltaBackwardWork90& work, unsigned char* raw, uint32_t block)
      : Base(work, raw, block),
        scaled_{at_ + kShared.scaled_pipe},
        v_{at_ + kShared.v_pipe},
        outputs_(w_.forward.outputs) {}

  __device__ void init() const {
    if (threadIdx.x == 0) {
      keys_.init(1, 4), queries_.init(1, 4), scaled_.init(4, 4), x_.init(4, 4);
      v_.init(4, 4), slopes_.init(4, 1), values_.init(4, 1);
      sm90::barrier_init(at_ + kShared.tail, 1);
      sm90::barrier_init_done();
    }
    __syncthreads();
  }

  // Warp 0.
  __device__ void produce() const {
    const int batch = static_cast<int>(run_.batch);
    const int key_head = static_cast<int>(head_) / w_.forward.key_share;
    KeyState key;
    QueryState query;
    uint32_t tail = 0;
    for (int c = chunks_ - 1; c >= 0; --c, key.next()) {
      const int row = static_cast<int>(run_.begin + first(c));
      const int last = static_cast<int>(min(int64_t{kChainTokens}, run_.count - first(c)));
      const int from = static_cast<int>(clamp_i64(run_.from - first(c), 0, last));
      keys_.acquire(key);
      load(
          keys_.full(key), last < kChainTokens, tail,
          [&](uint32_t barrier) {
            const int64_t inverse = (slot_ + c) * a_.heads + head_;
            sm90::barrier_expect(barrier, Shape::key_loaded);
            if constexpr (!Shape::Keyed)
              sm90::tma_load_panels<TileQ>(key_tile(key), w_.forward.k, barrier, row, key_head,
                                           batch);
            sm90::tma_load(key_tile(key) + Shape::at_inverse,
                           w_.forward.inverses + inverse * Shape::key_stride,
                           Shape::key_loaded - Shape::at_inverse, barrier);
          },
          [&] {
            if constexpr (!Shape::Keyed)
              Base::template zero_rows<TileQ>(key_tile(key), last, kChainTokens);
          });
      for (int j = 0; j < outputs_; ++j, query.next()) {
        const int head = static_cast<int>(head_) * outputs_ + j;
        const uint32_t q = q_tile(query);
        queries_.acquire(query);
        load(
            queries_.full(query), from > 0 || last < kChainTokens, tail,
            [&](uint32_t barrier) {
              const int64_t score = (slot_ + c) * a_.heads_out + head;
              sm90::barrier_expect(barrier, Shape::query_loaded);
              if constexpr (!Shape::Keyed)
                sm90::tma_load_panels<TileQ>(q, w_.forward.q, barrier, row,
                                             head / w_.forward.query_share, batch);
              sm90::tma_load_box(q + Shape::at_dout, w_.dout, barrier, static_cast<int>(column_),
                                 row, head, batch);
              sm90::tma_load(q + Shape::at_score, w_.forward.scores + score * Shape::query_stride,
                             Shape::Keyed ? Shape::query_stride : kDeltaScoreBytes, barrier);
            },
            [&] {
              if constexpr (!Shape::Keyed) Base::template zero_rows<TileQ>(q, last, kChainTokens);
              Base::template zero_rows<TileV>(q + Shape::at_dout, 0, from);
              Base::template zero_rows<TileV>(q + Shape::at_dout, last, kChainTokens);
            });
      }
    }
  }

  // Warp 1.
  __device__ void store_parts() const {
    constexpr int kSpan = Shape::Span;
    const int64_t spans = w_.forward.slot<kSpan>(run_.sequence, run_.begin);
    OneState slot;
    for (int c = chunks_ - 1; c >= 0; --c, slot.next()) {
      Base::store_slope(slot, spans + c / kSpan, c % kSpan == kSpan - 1 || c == chunks_ - 1);
      values_.wait(slot);
      if (w_.betas) store_dots(c);
      Base::store_values(slot, c);
    }
    if (threadIdx.x % 32 == 0) sm90::tma_store_wait<0>();
  }

  // Warpgroup 1.
  __device__ void move_gradient() const {
    ChainState<D> state;
    Base::begin_gradient(state);
    KeyState key;
    QueryState query;
    OneState one;
    for (int c = chunks_ - 1; c >= 0; --c, one.next()) {
      const uint32_t k = key_tile(key);
      const DeltaVectors& by = *reinterpret_cast<const DeltaVectors*>(
          base_ + (k + Shape::at_inverse + kDeltaTile - at_));
      float sum[D / 8][4], dv[kSums][4];
      {
        uint32_t high[kChainTokens / 16][4], low[kChainTokens / 16][4];
        find_du(state, k, by, key, query, one, sum, high, low);
        const uint64_t inverse = sm90::descriptor(k + Shape::at_inverse);
        sm90::fence();
        sm90::product_columns<Dtype>(dv, high, inverse, false);
        sm90::product_columns<Dtype>(dv, low, inverse, true);
        sm90::commit();
      }
      sm90::wait<0>();
      sm90::pin(dv), sm90::pin(sum);
      queries_.release(query), query.next();
      float own[kSums][4];
      uint32_t packed[kChainTokens / 16][4];
      answer(dv, by, own, packed);
      sm90::fence();
      sm90::product_columns<Dtype>(
          sum, packed, sm90::descriptor(k + Shape::at_answer, TileQ::panel_bytes), true);
      sm90::commit();
      give_values(own, c, one);
      const float all = by.all;
      sm90::wait<0>();
      sm90::pin(sum);
      if constexpr (Shape::Keyed) {
        state.advance(reinterpret_cast<const float*>(&by) + kDeltaChannels / 4, by.zero[1], sum);
        __syncwarp();
      }
      keys_.release(key), key.next();
      if constexpr (!Shape::Keyed) state.advance(all, sum);
    }
    Base::end_gradient(state);
  }

  // Warpgroup 2.
  __device__ void add_outputs() const {
    QueryState query;
    OneState one;
    uint4 v[4];
    const int thread = threadIdx.x % 128;
    const uint16_t* values = a_.v.view.template as<uint16_t>() +
                             a_.v.offset(run_.batch, run_.begin + thread / 8, a_.value_head(head_),
                                         column_ + thread % 8 * kChunk);
    if (w_.betas) load_values(chunks_ - 1, values, v);
    for (int c = chunks_ - 1; c >= 0; --c, one.next()) {
      float x[kSums][4];
      for (int j = 0; j < outputs_; ++j, query.next()) {
        const uint32_t q = q_tile(query);
        queries_.wait(query);
        sm90::fence();
        sm90::product_transposed<Dtype, kChainTokens>(x, sm90::descriptor(q + Shape::at_dout),
                                                      sm90::descriptor(q + Shape::at_score), j > 0);
        sm90::commit();
        sm90::wait<0>();
        sm90::pin(x);
        if constexpr (!Shape::Keyed) {
          sm90::named_barrier_sync(1, 128);
          scale_rows(q);
          sm90::fence_shared();
          __syncwarp();
        }
        sm90::barrier_arrive_warp(scaled_.full(query));
      }
      x_.acquire(one);
      float4* to = reinterpret_cast<float4*>(base_ + kShared.x) + threadIdx.x % 128;
#pragma unroll
      for (int j = 0; j < kSums; ++j) to[128 * j] = make_float4(x[j][0], x[j][1], x[j][2], x[j][3]);
      __syncwarp();
      sm90::barrier_arrive_warp(x_.full(one));
      if (!w_.betas) continue;
      v_.acquire(one);
      publish_values(v);
      __syncwarp();
      sm90::barrier_arrive_warp(v_.full(one));
      load_values(c - 1, values, v);
    }
  }

 private:
  // A stage of the producer; with rows to be zeroed `clean` does so once it is there.
  template <class Load, class Clean>
  __device__ void load(uint32_t full, bool partial, uint32_t& tail, Load load, Clean clean) const {
    const int lane = threadIdx.x % 32;
    const uint32_t barrier = partial ? at_ + kShared.tail : full;
    if (lane == 0) load(barrier);
    __syncwarp();
    if (!partial) return;
    sm90::barrier_wait(barrier, tail);
    tail ^= 1;
    clean();
    sm90::fence_shared();
    __syncwarp();
    if (lane == 0) sm90::barrier_arrive(full);
  }
  __device__ static bool has_zero(const DeltaVectors& by) {
    return by.zero[0] || by.zero[1];
  }
  // The lane's columns 8 j, 8 j + 1 of 64 factors.
  __device__ static float2 factors(const float* from, int j) {
    return *reinterpret_cast<const float2*>(from + 8 * j + threadIdx.x % 4 * 2);
  }
  // y becomes 0 where a column's factor is.
  __device__ static void clear(float (&y)[kSums][4], const float* from) {
#pragma unroll
    for (int j = 0; j < kSums; ++j) {
      const float2 by = factors(from, j);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if ((i % 2 ? by.y : by.x) == 0) y[j][i] = 0;
    }
  }

  // Publishes W; dU' = suffix . (W' K') + dO' A as an operand.  `sum` = dO' Q is under way.
  __device__ __forceinline__ void find_du(const ChainState<D>& state, uint32_t k,
                                          const DeltaVectors& by, const KeyState& key,
                                          QueryState& query, const OneState& one,
                                          float (&sum)[D / 8][4],
                                          uint32_t (&high)[kChainTokens / 16][4],
                                          uint32_t (&low)[kChainTokens / 16][4]) const {
    float y[kSums][4], none[2];
    uint32_t w[D / 16][4];
    pack_rows<Dtype>(w, state.x, none);
    keys_.wait(key);
    sm90::fence();
    sm90::product_rows<Dtype, TileQ>(y, w, sm90::descriptor(k + Shape::at_update));
    sm90::commit();
    slopes_.acquire(one);
    publish<Dtype, TileH>(at_ + kShared.w, nullptr, w, none);
    sm90::barrier_arrive_warp(slopes_.full(one));
    for (int j = 0;;) {
      const uint32_t q = q_tile(query);
      scaled_.wait(query);
      sm90::fence();
      sm90::product_transposed<Dtype, kChainTokens>(
          sum, sm90::descriptor(q + Shape::at_dout),
          sm90::descriptor(q + Shape::at_query, TileQ::panel_bytes), j > 0);
      sm90::commit();
      if (++j == outputs_) break;
      sm90::wait<0>();
      sm90::pin(sum);
      queries_.release(query), query.next();
    }
    x_.wait(one);
    sm90::wait<1>();
    sm90::pin(y);
    const float4* x = reinterpret_cast<const float4*>(base_ + kShared.x) + threadIdx.x % 128;
    if (has_zero(by)) clear(y, by.suffix);
#pragma unroll
    for (int j = 0; j < kSums; ++j) {
      const float2 suffix = factors(by.suffix, j);
      const float4 own = x[128 * j];
      y[j][0] = fmaf(suffix.x, y[j][0], own.x), y[j][1] = fmaf(suffix.y, y[j][1], own.y);
      y[j][2] = fmaf(suffix.x, y[j][2], own.z), y[j][3] = fmaf(suffix.y, y[j][3], own.w);
    }
    __syncwarp();
    x_.release(one);
    pack_parts<Dtype>(high, low, y);
  }

  // -answer . dV' as an operand; own = scale dV'.
  __device__ __forceinline__ void answer(float (&dv)[kSums][4], const DeltaVectors& by,
                                         float (&own)[kSums][4],
                                         uint32_t (&packed)[kChainTokens / 16][4]) const {
    float none[2];
#pragma unroll
    for (int j = 0; j < kSums; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) own[j][i] = a_.scale * dv[j][i];
    if (has_zero(by)) clear(dv, by.answer);
#pragma unroll
    for (int j = 0; j < kSums; ++j) {
      const float2 answer = factors(by.answer, j);
#pragma unroll
      for (int i = 0; i < 4; ++i) dv[j][i] *= i % 2 ? -answer.y : -answer.x;
    }
    pack_rows<Dtype>(packed, dv, none);
  }

  // Publishes dV and dV . v.
  __device__ __forceinline__ void give_values(const float (&own)[kSums][4], int c,
                                              const OneState& one) const {
    values_.acquire(one);
    Base::publish_rows(kShared.dv, own);
    sm90::fence_shared();
    if (w_.b.terms.dv) Base::keep_values(own, c);
    if (w_.betas) dot_values(own, one);
    __syncwarp();
    sm90::barrier_arrive_warp(values_.full(one));
  }
  // Of V of a chunk: pieces of 8 value columns, tokens thread / 8 and every 16th after it.
  //   from: that piece of the sequence's first chunk.
  __device__ __forceinline__ void load_values(int c, const uint16_t* from, uint4 (&v)[4]) const {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int64_t at = first(c) + 16 * n;
      v[n] = {};
      if (c >= 0 && at + threadIdx.x % 128 / 8 < run_.count)
        v[n] = *reinterpret_cast<const uint4*>(from + at * a_.v.view.stride[1]);
    }
  }
  __device__ void publish_values(const uint4 (&v)[4]) const {
    const int thread = threadIdx.x % 128;
#pragma unroll
    for (int n = 0; n < 4; ++n)
      *reinterpret_cast<uint4*>(base_ + kShared.v + TileV::at(thread / 8 + 16 * n, thread % 8)) =
          v[n];
  }
  // dV . v over the warp's value columns.
  __device__ __forceinline__ void dot_values(const float (&own)[kSums][4],
                                             const OneState& one) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
    float sum[kSums][2];
    v_.wait(one);
#pragma unroll
    for (int n = 0; n < kChainTokens / 16; ++n) {
      uint32_t v[4];
      load_matrices_transposed(
          v, at_ + kShared.v + TileV::at(16 * n + inner_row(lane), warp * 2 + inner_chunk(lane)));
#pragma unroll
      for (int j = 2 * n; j < 2 * n + 2; ++j) {
        const uint32_t two = v[j % 2 * 2], more = v[j % 2 * 2 + 1];
        sum[j][0] = fmaf(own[j][2], float_of(more << 16), own[j][0] * float_of(two << 16));
        sum[j][1] =
            fmaf(own[j][3], float_of(more & 0xffff0000u), own[j][1] * float_of(two & 0xffff0000u));
      }
    }
    __syncwarp();
    v_.release(one);
    // Eight lanes have the same tokens: each keeps half of the sums that it has.
#pragma unroll
    for (int half = kSums / 2, step = 16; half > 0; half /= 2, step /= 2)
#pragma unroll
      for (int j = 0; j < half; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const bool upper = lane & step;
          const float kept = upper ? sum[j + half][i] : sum[j][i];
          const float given = upper ? sum[j][i] : sum[j + half][i];
          sum[j][i] = kept + __shfl_xor_sync(~0u, given, step);
        }
    auto* to = reinterpret_cast<float2*>(base_ + kShared.dots) + warp * (kChainTokens / 2);
    to[lane] = make_float2(sum[0][0], sum[0][1]);
  }
  // The same over the block's, by warp 1.
  __device__ void store_dots(int c) const {
    const auto* from = reinterpret_cast<const float*>(base_ + kShared.dots);
    const int64_t tile = column_ / kChainColumns;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int t = static_cast<int>(threadIdx.x % 32) + 32 * h;
      if (first(c) + t >= run_.count) continue;
      const float sum = (from[t] + from[kChainTokens + t]) +
                        (from[2 * kChainTokens + t] + from[3 * kChainTokens + t]);
      const int64_t to = (tile * a_.b + run_.batch) * a_.s + run_.begin + first(c) + t;
      w_.betas[to * a_.heads + head_] = sum;
    }
  }

  // Rows of dO times those of what the state gave: |q|^-1 2^P_t.
  __device__ void scale_rows(uint32_t q) const {
    const auto* by =
        reinterpret_cast<const float*>(base_ + (q + Shape::at_score + kDeltaTile - at_));
    const int thread = threadIdx.x % 128;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int row = thread / 8 + 16 * n;
      const float factor = by[row];
      auto* at =
          reinterpret_cast<uint4*>(base_ + (q + Shape::at_dout - at_) + TileV::at(row, thread % 8));
      uint4 four = *at;
      uint32_t* words = reinterpret_cast<uint32_t*>(&four);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        words[i] = pack<Dtype>(decayed(factor, float_of(words[i] << 16)),
                               decayed(factor, float_of(words[i] & 0xffff0000u)));
      *at = four;
    }
  }

  typename Shape::Queries scaled_;
  typename Shape::One v_;
  int outputs_;
};

template <class States, class Reverse>
__global__ void __launch_bounds__(384, 1)
    delta_backward_chain_sm90_kernel(const __grid_constant__ DeltaBackwardWork90 work) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const int warp = sm90::uniform(threadIdx.x / 32);
  const auto chains = static_cast<uint32_t>(work.forward.blocks);
  if (blockIdx.x < chains) {
    const DeltaStates90<States> block(work, shared);
    block.init();
    if (warp < 4) {
      sm90::setmaxnreg_dec<64>();
      if (warp == 0) block.template produce<false>();
      if (warp == 1) block.store_parts();
    } else if (warp < 8) {
      sm90::setmaxnreg_inc<240>();
      block.move_state();
    }
    return;
  }
  const DeltaReverse90<Reverse> block(work, shared, blockIdx.x - chains);
  block.init();
  if (warp < 4) {
    sm90::setmaxnreg_dec<88>();
    if (warp == 0) block.produce();
    if (warp == 1) block.store_parts();
  } else if (warp < 8) {
    sm90::setmaxnreg_inc<240>();
    block.move_gradient();
  } else {
    sm90::setmaxnreg_dec<152>();
    block.add_outputs();
  }
}

}  // namespace fovea::cuda
