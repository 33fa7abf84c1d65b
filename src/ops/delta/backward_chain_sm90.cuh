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
//   Warpgroup 0: warp 0 is the producer, warp 1 stores W and dV.
//   Warpgroup 1: W, transposed in registers in f32 as the state is: 64 value columns as rows.
//   dU' has two parts as an operand, a rounded one and what is left.
//   Warpgroup 2: A' dO, one chunk ahead; then it scales dO where it lies.  For dbeta it sums
//   dV . v of the last chunk, of dV in f32.
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
//   | x empty    | warps of the gradient | warpgroup 2     | dV in its place              |
//   | w full     | warps of the gradient | warp 1          | W of a chunk                 |
//   | w empty    | warp 1                | gradient        | the same, to be written      |
//   | dv full    | warps of the gradient | warp 1          | dV of a chunk                |
//   | dv empty   | warp 1                | gradient        | the same, to be written      |
//   | tail       | producer, TMA         | producer        | tiles with rows to be zeroed |
//   | 1          | warpgroup 2           | warpgroup 2     | dO, to be scaled; dV, read   |
#pragma once
#include "ops/delta/backward.cuh"
#include "ops/delta/forward_sm90.cuh"

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
  int key_pipe = this->pipeline(Shape::Stages);
  int q_pipe = this->pipeline(Shape::QStages);
  int scaled_pipe = this->pipeline(Shape::QStages);
  int x_pipe = this->pipeline(1);
  int w_pipe = this->pipeline(1);
  int dv_pipe = this->pipeline(1);
  int tail = barriers();
};

// A packed operand of f32 sums in two parts of 16 bits, the second what the first leaves.
template <int Dtype, int N>
__device__ __forceinline__ void pack_parts(uint32_t (&high)[N / 2][4], uint32_t (&low)[N / 2][4],
                                           const float (&x)[N][4]) {
  static_assert(Dtype == FOVEA_BF16);
#pragma unroll
  for (int k = 0; k < N / 2; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float first = x[2 * k + i / 2][i % 2 * 2], second = x[2 * k + i / 2][i % 2 * 2 + 1];
      const uint32_t two = pack<Dtype>(first, second);
      high[k][i] = two;
      low[k][i] = pack<Dtype>(first - float_of(two << 16), second - float_of(two & 0xffff0000u));
    }
}

template <class Shape>
class DeltaReverse90 {
  static constexpr int Dtype = Shape::Dtype, D = Shape::D, kSums = kChainColumns / 8;
  using TileQ = typename Shape::TileQ;
  using TileV = typename Shape::TileV;
  using TileT = typename Shape::TileT;
  using TileH = typename Shape::TileH;
  using KeyState = typename Shape::Keys::State;
  using QueryState = typename Shape::Queries::State;
  using OneState = typename Shape::One::State;
  static constexpr DeltaReverseShared90<Shape> kShared = DeltaReverseShared90<Shape>();

 public:
  static constexpr int shared_bytes = kShared.bytes + 1024;  // the base is aligned

  __device__ DeltaReverse90(const DeltaBackwardWork90& work, unsigned char* raw, uint32_t block)
      : w_(work),
        a_(work.b.forward),
        base_(raw + (-shared_address(raw) & 1023)),
        at_(shared_address(base_)),
        keys_{at_ + kShared.key_pipe},
        queries_{at_ + kShared.q_pipe},
        scaled_{at_ + kShared.scaled_pipe},
        x_{at_ + kShared.x_pipe},
        slopes_{at_ + kShared.w_pipe},
        values_{at_ + kShared.dv_pipe} {
    const auto tiles = static_cast<uint32_t>(w_.forward.tiles);
    const auto heads = static_cast<uint32_t>(a_.heads);
    column_ = int64_t{block % tiles} * kChainColumns, block /= tiles;
    head_ = block % heads;
    run_ = a_.run[block / heads];
    slot_ = w_.forward.slot(run_.sequence, run_.begin);
    outputs_ = w_.forward.outputs;
    chunks_ = static_cast<int>((run_.count + kChainTokens - 1) / kChainTokens);
  }

  __device__ void init() const {
    if (threadIdx.x == 0) {
      keys_.init(1, 4), queries_.init(1, 4), scaled_.init(4, 4), x_.init(4, 4);
      slopes_.init(4, 1), values_.init(4, 1);
      sm90::barrier_init(at_ + kShared.tail, 1);
      sm90::barrier_init_done();
    }
    __syncthreads();
  }

  // Warp 0.
  __device__ void produce() const {
    const int batch = static_cast<int>(run_.batch);
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
              sm90::tma_load_panels<TileQ>(key_tile(key), w_.forward.k, barrier, row,
                                           static_cast<int>(a_.key_head(head_)), batch);
            sm90::tma_load(key_tile(key) + Shape::at_inverse,
                           w_.forward.inverses + inverse * Shape::key_stride,
                           Shape::key_loaded - Shape::at_inverse, barrier);
          },
          [&] {
            if constexpr (!Shape::Keyed) zero_rows<TileQ>(key_tile(key), last, kChainTokens);
          });
      for (int j = 0; j < outputs_; ++j, query.next()) {
        const int64_t head = head_ * outputs_ + j;
        const uint32_t q = q_tile(query);
        queries_.acquire(query);
        load(
            queries_.full(query), from > 0 || last < kChainTokens, tail,
            [&](uint32_t barrier) {
              const int64_t score = (slot_ + c) * a_.heads_out + head;
              sm90::barrier_expect(barrier, Shape::query_loaded);
              if constexpr (!Shape::Keyed)
                sm90::tma_load_panels<TileQ>(q, w_.forward.q, barrier, row,
                                             static_cast<int>(a_.query_head(head)), batch);
              sm90::tma_load_box(q + Shape::at_dout, w_.dout, barrier, static_cast<int>(column_),
                                 row, static_cast<int>(head), batch);
              sm90::tma_load(q + Shape::at_score, w_.forward.scores + score * Shape::query_stride,
                             Shape::Keyed ? Shape::query_stride : kDeltaScoreBytes, barrier);
            },
            [&] {
              if constexpr (!Shape::Keyed) zero_rows<TileQ>(q, last, kChainTokens);
              zero_rows<TileV>(q + Shape::at_dout, 0, from);
              zero_rows<TileV>(q + Shape::at_dout, last, kChainTokens);
            });
      }
    }
  }

  // Warp 1.
  __device__ void store_parts() const {
    const int lane = threadIdx.x % 32;
    constexpr int kSpan = Shape::Span;
    const int64_t spans = w_.forward.slot<kSpan>(run_.sequence, run_.begin);
    OneState slot;
    for (int c = chunks_ - 1; c >= 0; --c, slot.next()) {
      const int64_t left = run_.count - first(c);
      slopes_.wait(slot);
      if (lane == 0 && (c % kSpan == kSpan - 1 || c == chunks_ - 1)) {
        const int64_t at =
            ((spans + c / kSpan) * a_.heads + head_) * w_.forward.tiles + column_ / kChainColumns;
        sm90::tma_store(w_.slopes + at * TileH::bytes, at_ + kShared.w, TileH::bytes);
        sm90::tma_store_commit();
      }
      values_.wait(slot);
      if (left >= kChainTokens) {
        if (lane == 0) {
          sm90::tma_store_box(w_.dv_map, at_ + kShared.dv, static_cast<int>(column_),
                              static_cast<int>(run_.begin + first(c)), static_cast<int>(head_),
                              static_cast<int>(run_.batch));
          sm90::tma_store_commit();
        }
      } else {
        for (int i = lane; i < left * kPanelChunks; i += 32) {
          const int row = i / kPanelChunks, chunk = i % kPanelChunks;
          const int64_t to = w_.dv.offset(run_.batch, run_.begin + first(c) + row, head_,
                                          column_ + chunk * kChunk);
          *reinterpret_cast<uint4*>(w_.dv.view.template as<uint16_t>() + to) =
              *reinterpret_cast<const uint4*>(base_ + kShared.dv + TileV::at(row, chunk));
        }
        __syncwarp();
      }
      if (lane == 0) {
        sm90::tma_store_wait_read<0>();
        sm90::barrier_arrive(slopes_.empty(slot)), sm90::barrier_arrive(values_.empty(slot));
      }
    }
    if (lane == 0) sm90::tma_store_wait<0>();
  }

  // Warpgroup 1.
  __device__ void move_gradient() const {
    ChainState<D> state;
    state.load({w_.b.dstate_out, FOVEA_F32}, w_.b.dstate_out ? run_.sequence : -1, head_, column_);
    multiply(state.x, 1 / a_.scale);
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
        find_du(state, k, by, key, one, high, low);
        const uint64_t inverse = sm90::descriptor(k + Shape::at_inverse);
        sm90::fence();
        sm90::product_columns<Dtype>(dv, high, inverse, false);
        sm90::product_columns<Dtype>(dv, low, inverse, true);
        sm90::commit();
      }
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
      sm90::wait<1>();
      sm90::pin(dv);
      uint32_t packed[kChainTokens / 16][4];
      give_values(dv, by, c, one, packed);
      sm90::fence();
      sm90::product_columns<Dtype>(
          sum, packed, sm90::descriptor(k + Shape::at_answer, TileQ::panel_bytes), true);
      sm90::commit();
      const float all = by.all;
      sm90::wait<0>();
      sm90::pin(sum);
      if constexpr (Shape::Keyed) {
        state.advance(reinterpret_cast<const float*>(&by) + kDeltaChannels / 4, by.zero[1], sum);
        __syncwarp();
      }
      keys_.release(key), key.next();
      queries_.release(query), query.next();
      if constexpr (!Shape::Keyed) state.advance(all, sum);
    }
    multiply(state.x, a_.scale);
    if (w_.b.dstate_in) state.store({w_.b.dstate_in, FOVEA_F32}, run_.sequence, head_, column_);
  }

  // Warpgroup 2.
  __device__ void add_outputs() const {
    QueryState query;
    OneState one;
    uint4 v[4] = {};
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
      if (w_.betas) {
        if (c < chunks_ - 1) dot_values(c + 1, v);
        load_values(c, v);
      }
      float4* to = reinterpret_cast<float4*>(base_ + kShared.x) + threadIdx.x % 128;
#pragma unroll
      for (int j = 0; j < kSums; ++j) to[128 * j] = make_float4(x[j][0], x[j][1], x[j][2], x[j][3]);
      __syncwarp();
      sm90::barrier_arrive_warp(x_.full(one));
    }
    if (!chunks_ || !w_.betas) return;
    x_.acquire(one);
    dot_values(0, v);
  }

 private:
  __device__ static int64_t first(int chunk) {
    return int64_t{chunk} * kChainTokens;
  }
  __device__ uint32_t key_tile(const KeyState& at) const {
    return at_ + kShared.keys + at.stage * Shape::key_bytes;
  }
  __device__ uint32_t q_tile(const QueryState& at) const {
    return at_ + kShared.q + at.stage * Shape::query_bytes;
  }

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
  // Rows [begin, end) of a tile, by a warp.
  template <class Tile>
  __device__ static void zero_rows(uint32_t tile, int begin, int end) {
    constexpr int kChunks = Tile::panels * kPanelChunks;
    for (int i = begin * kChunks + static_cast<int>(threadIdx.x % 32); i < end * kChunks; i += 32)
      sm90::store_zeros(tile + Tile::at(i / kChunks, i % kChunks));
  }
  template <int N>
  __device__ static void multiply(float (&x)[N][4], float by) {
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) x[j][i] *= by;
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

  // Publishes W; dU' = suffix . (W' K') + dO' A as an operand.
  __device__ __forceinline__ void find_du(const ChainState<D>& state, uint32_t k,
                                          const DeltaVectors& by, const KeyState& key,
                                          const OneState& one,
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
    x_.wait(one);
    const float4* x = reinterpret_cast<const float4*>(base_ + kShared.x) + threadIdx.x % 128;
    sm90::wait<0>();
    sm90::pin(y);
    if (has_zero(by)) clear(y, by.suffix);
#pragma unroll
    for (int j = 0; j < kSums; ++j) {
      const float2 suffix = factors(by.suffix, j);
      const float4 own = x[128 * j];
      y[j][0] = fmaf(suffix.x, y[j][0], own.x), y[j][1] = fmaf(suffix.y, y[j][1], own.y);
      y[j][2] = fmaf(suffix.x, y[j][2], own.z), y[j][3] = fmaf(suffix.y, y[j][3], own.w);
    }
    pack_parts<Dtype>(high, low, y);
  }

  // Publishes dV; -answer . dV' as an operand.
  __device__ __forceinline__ void give_values(float (&dv)[kSums][4], const DeltaVectors& by, int c,
                                              const OneState& one,
                                              uint32_t (&packed)[kChainTokens / 16][4]) const {
    const int lane = threadIdx.x % 32;
    const int chunk = threadIdx.x % 128 / 32 * 2 + inner_chunk(lane);
    float none[2];
    float own[kSums][4];
#pragma unroll
    for (int j = 0; j < kSums; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) own[j][i] = a_.scale * dv[j][i];
    if (w_.b.terms.dv) keep_values(own, c);
    if (w_.betas) {
      float4* to = reinterpret_cast<float4*>(base_ + kShared.x) + threadIdx.x % 128;
#pragma unroll
      for (int j = 0; j < kSums; ++j)
        to[128 * j] = make_float4(own[j][0], own[j][1], own[j][2], own[j][3]);
    }
    __syncwarp();
    x_.release(one);
    pack_rows<Dtype>(packed, own, none);
    values_.acquire(one);
#pragma unroll
    for (int n = 0; n < kChainTokens / 16; ++n)
      sm90::store_matrices_transposed(at_ + kShared.dv + TileV::at(16 * n + inner_row(lane), chunk),
                                      packed[n]);
    sm90::fence_shared();
    __syncwarp();
    sm90::barrier_arrive_warp(values_.full(one));
    if (has_zero(by)) clear(dv, by.answer);
#pragma unroll
    for (int j = 0; j < kSums; ++j) {
      const float2 answer = factors(by.answer, j);
#pragma unroll
      for (int i = 0; i < 4; ++i) dv[j][i] *= i % 2 ? -answer.y : -answer.x;
    }
    pack_rows<Dtype>(packed, dv, none);
  }
  // As terms, for heads that share a head of v.
  __device__ void keep_values(const float (&dv)[kSums][4], int c) const {
    const int row = ChainState<D>::row(), pair = threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < kSums; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int64_t t = first(c) + 8 * j + pair + i % 2;
        if (t >= run_.count) continue;
        const int64_t at = (run_.batch * a_.t + run_.begin + t) * a_.heads + head_;
        w_.b.terms.dv[at * a_.e + column_ + row + i / 2 * 8] = dv[j][i];
      }
  }

  // Of V of a chunk: pieces of 8 value columns, tokens thread / 8 and every 16th after it.
  __device__ __forceinline__ void load_values(int c, uint4 (&v)[4]) const {
    const int thread = threadIdx.x % 128;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int64_t t = first(c) + thread / 8 + 16 * n;
      v[n] = {};
      if (t >= run_.count) continue;
      const int64_t at = a_.v.offset(run_.batch, run_.begin + t, a_.value_head(head_),
                                     column_ + thread % 8 * kChunk);
      v[n] = *reinterpret_cast<const uint4*>(a_.v.view.template as<uint16_t>() + at);
    }
  }
  // dV . v of a chunk, of the block's value columns.
  __device__ __forceinline__ void dot_values(int c, const uint4 (&v)[4]) const {
    const int thread = threadIdx.x % 128, piece = thread % 8;
    // Of dV a thread of warpgroup 1 wrote four sums at a time: see there.
    const float* from =
        reinterpret_cast<const float*>(base_ + kShared.x) + piece / 2 * 128 + piece % 2 * 2;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int row = thread / 8 + 16 * n;
      const float* x = from + row / 8 * 512 + row % 8 / 2 * 4 + row % 2;
      const uint32_t words[4] = {v[n].x, v[n].y, v[n].z, v[n].w};
      float sum = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sum = fmaf(x[32 * i], float_of(words[i] << 16), sum);
        sum = fmaf(x[32 * i + 16], float_of(words[i] & 0xffff0000u), sum);
      }
#pragma unroll
      for (int step = 1; step < 8; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
      if (piece || first(c) + row >= run_.count) continue;
      const int64_t tile = column_ / kChainColumns;
      const int64_t to = (tile * a_.b + run_.batch) * a_.s + run_.begin + first(c) + row;
      w_.betas[to * a_.heads + head_] = sum;
    }
    sm90::named_barrier_sync(1, 128);
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

  const DeltaBackwardWork90& w_;
  const Recur& a_;
  unsigned char* base_;
  uint32_t at_;
  typename Shape::Keys keys_;
  typename Shape::Queries queries_, scaled_;
  typename Shape::One x_, slopes_, values_;
  RunTokens run_;
  int64_t column_, head_, slot_;
  int outputs_, chunks_;
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
