// SPDX-License-Identifier: Apache-2.0
// The chains of x_delta_backward's low rank on Hopper, in one launch: states from the first chunk
// on, and their gradients W from the last one on.  With the tiles of low_sm90.cuh:
//   dU = B-' W + B' dO,  dY = T' dU,  dV = |k|^-1 . (K-' W) + A' dO + G' dY
//   W = all W + (|q|^-1 Q~)' dO + A~' dY
// W, dU, dY and dV are without `scale`, which the last two take when they are stored.  A block of
// gradients is that of backward_chain_sm90.cuh, except that warpgroup 2 makes B' dO and A' dO.
//
//   | barrier    | who arrives           | who waits       | what it guards                 |
//   | keys full  | producer, TMA         | gradient        | T, G, A~ of a chunk            |
//   | keys empty | warps of the gradient | producer        | the same, to be written        |
//   | ends full  | producer, TMA         | gradient        | B-, K- of a chunk              |
//   | ends empty | warps of the gradient | producer        | the same, to be written        |
//   | q full     | producer, TMA         | both            | B, A, Q~, dO of a chunk        |
//   | q empty    | warps of both         | producer        | the same, to be written        |
//   | x full     | warps of warpgroup 2  | gradient        | B' dO and A' dO of a chunk     |
//   | x empty    | warps of the gradient | warpgroup 2     | the same, to be written        |
//   | w full     | warps of the gradient | warp 1          | W of a chunk                   |
//   | w empty    | warp 1                | gradient        | the same, to be written        |
//   | dv full    | warps of the gradient | warp 1          | dV and dY of a chunk           |
//   | dv empty   | warp 1                | gradient        | the same, to be written        |
//   | tail       | producer, TMA         | producer        | dO with rows to be zeroed      |
#pragma once
#include "ops/delta/backward_chain_sm90.cuh"

namespace fovea::cuda {

template <int D_, int Stages_, int Queries_>
struct DeltaLowReverseShape90 {
  static constexpr int Dtype = FOVEA_BF16, D = D_, Stages = Stages_, QStages = Queries_;
  using TileQ = Swizzled<kChainTokens, D>;
  using TileV = Swizzled<kChainTokens, kChainColumns>;
  using TileH = Swizzled<kChainColumns, D>;
  using Keys = sm90::Pipeline<Stages>;
  using Queries = sm90::Pipeline<QStages>;
  using One = sm90::Pipeline<1>;
  // Where the parts of a stage lie.
  static constexpr int key_bytes = delta_low_bytes(D), at_mixed = kDeltaKeysAt;
  static constexpr int at_answer = kDeltaLowKeysAt, at_update = at_answer + TileQ::bytes;
  static constexpr int at_values = at_update + TileQ::bytes;
  static_assert(at_values + TileQ::bytes == key_bytes);
  static constexpr int at_value_score = kDeltaScoreStride, at_query = kDeltaLowQueryAt;
  static constexpr int at_dout = delta_low_query_bytes(D), query_bytes = at_dout + TileV::bytes;
};

template <class Shape>
struct DeltaLowReverseShared90 : sm90::SharedLayout {
  int keys = tiles(Shape::key_bytes, Shape::Stages);
  int q = tiles(Shape::query_bytes, Shape::QStages);
  int w = tiles(Shape::TileH::bytes);
  int dv = tiles(Shape::TileV::bytes);
  int dy = tiles(Shape::TileV::bytes);
  int x = tiles(2 * kChainTokens * kChainColumns * 4);
  int key_pipe = this->pipeline(Shape::Stages);
  int end_pipe = this->pipeline(Shape::Stages);
  int q_pipe = this->pipeline(Shape::QStages);
  int x_pipe = this->pipeline(1);
  int w_pipe = this->pipeline(1);
  int dv_pipe = this->pipeline(1);
  int tail = barriers();
};

template <class Shape>
class DeltaLowReverse90 : public DeltaReverseChain90<Shape, DeltaLowReverseShared90<Shape>> {
  using Base = DeltaReverseChain90<Shape, DeltaLowReverseShared90<Shape>>;
  using Base::column_, Base::head_, Base::slot_, Base::chunks_, Base::first, Base::q_tile;
  using Base::Dtype, Base::D, Base::kSums, Base::kShared, Base::w_, Base::a_, Base::base_,
      Base::at_;
  using Base::key_tile;
  using Base::keys_, Base::queries_, Base::x_, Base::slopes_, Base::values_, Base::run_;
  using typename Base::KeyState, typename Base::QueryState, typename Base::OneState;
  using typename Base::TileH, typename Base::TileQ, typename Base::TileV;

 public:
  __device__ DeltaLowReverse90(const DeltaBackwardWork90& work, unsigned char* raw, uint32_t block)
      : Base(work, raw, block), ends_{at_ + kShared.end_pipe} {}

  __device__ void init() const {
    if (threadIdx.x == 0) {
      keys_.init(1, 4), ends_.init(1, 4), queries_.init(1, 8), x_.init(4, 4), slopes_.init(4, 1),
          values_.init(4, 1);
      sm90::barrier_init(at_ + kShared.tail, 1);
      sm90::barrier_init_done();
    }
    __syncthreads();
  }

  // Warp 0.
  __device__ void produce() const {
    const int lane = threadIdx.x % 32;
    KeyState key;
    QueryState query;
    uint32_t tail = 0;
    for (int c = chunks_ - 1; c >= 0; --c, key.next(), query.next()) {
      const int row = static_cast<int>(run_.begin + first(c));
      const int last = static_cast<int>(min(int64_t{kChainTokens}, run_.count - first(c)));
      const int from = static_cast<int>(clamp_i64(run_.from - first(c), 0, last));
      const int64_t at = (slot_ + c) * a_.heads + head_;
      queries_.acquire(query);
      const uint32_t q = q_tile(query);
      const bool partial = from > 0 || last < kChainTokens;
      const uint32_t full = partial ? at_ + kShared.tail : queries_.full(query);
      if (lane == 0) {
        sm90::barrier_expect(full, Shape::query_bytes);
        sm90::tma_load(q, w_.forward.scores + at * Shape::at_dout, Shape::at_dout, full);
        sm90::tma_load_box(q + Shape::at_dout, w_.dout, full, static_cast<int>(column_), row,
                           static_cast<int>(head_), static_cast<int>(run_.batch));
      }
      __syncwarp();
      if (partial) {
        sm90::barrier_wait(full, tail);
        tail ^= 1;
        Base::template zero_rows<TileV>(q + Shape::at_dout, 0, from),
            Base::template zero_rows<TileV>(q + Shape::at_dout, last, kChainTokens);
        sm90::fence_shared();
        __syncwarp();
        if (lane == 0) sm90::barrier_arrive(queries_.full(query));
      }
      load_keys(ends_, key, at, Shape::at_update, Shape::key_bytes);
      load_keys(keys_, key, at, 0, Shape::at_update);
    }
  }

  // Warp 1.
  __device__ void store_parts() const {
    OneState slot;
    for (int c = chunks_ - 1; c >= 0; --c, slot.next()) {
      const int64_t at =
          ((slot_ + c) * a_.heads + head_) * w_.forward.tiles + column_ / kChainColumns;
      Base::store_slope(slot, slot_ + c, true);
      values_.wait(slot);
      if (threadIdx.x % 32 == 0) {
        sm90::tma_store(w_.answers + at * TileV::bytes, at_ + kShared.dy, TileV::bytes);
        sm90::tma_store_commit();
      }
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
    for (int c = chunks_ - 1; c >= 0; --c, one.next(), key.next(), query.next()) {
      const uint32_t k = key_tile(key), q = q_tile(query);
      const DeltaVectors& by =
          *reinterpret_cast<const DeltaVectors*>(base_ + (k + kDeltaTile - at_));
      float sum[D / 8][4], z[kSums][4];
      uint32_t packed[kChainTokens / 16][4];
      {
        float dy[kSums][4];
        find_dy(state, k, by, key, one, dy, z);
        queries_.wait(query);
        sm90::fence();
        sm90::product_transposed<Dtype, kChainTokens>(
            sum, sm90::descriptor(q + Shape::at_dout),
            sm90::descriptor(q + Shape::at_query, TileQ::panel_bytes));
        sm90::commit();
        sm90::wait<1>();
        sm90::pin(dy);
        float none[2];
        pack_rows<Dtype>(packed, dy, none);
        Base::multiply(dy, a_.scale);
        values_.acquire(one);
        Base::publish_rows(kShared.dy, dy);
      }
      sm90::fence();
      sm90::product_columns<Dtype>(z, packed, sm90::descriptor(k + Shape::at_mixed), true);
      sm90::product_columns<Dtype>(
          sum, packed, sm90::descriptor(k + Shape::at_answer, TileQ::panel_bytes), true);
      sm90::commit();
      sm90::wait<0>();
      sm90::pin(z), sm90::pin(sum);
      queries_.release(query);
      state.advance(reinterpret_cast<const float*>(&by) + kDeltaChannels / 4, by.zero[1], sum);
      __syncwarp();
      keys_.release(key);
      Base::multiply(z, a_.scale);
      if (w_.b.terms.dv) Base::keep_values(z, c);
      Base::publish_rows(kShared.dv, z);
      sm90::fence_shared();
      __syncwarp();
      sm90::barrier_arrive_warp(values_.full(one));
    }
    Base::end_gradient(state);
  }

  // Warpgroup 2.
  __device__ void add_outputs() const {
    QueryState query;
    OneState one;
    for (int c = chunks_ - 1; c >= 0; --c, one.next(), query.next()) {
      float x[kSums][4], y[kSums][4];
      const uint32_t q = q_tile(query);
      queries_.wait(query);
      sm90::fence();
      sm90::product_transposed<Dtype, kChainTokens>(x, sm90::descriptor(q + Shape::at_dout),
                                                    sm90::descriptor(q));
      sm90::product_transposed<Dtype, kChainTokens>(y, sm90::descriptor(q + Shape::at_dout),
                                                    sm90::descriptor(q + Shape::at_value_score));
      sm90::commit();
      x_.acquire(one);
      sm90::wait<0>();
      sm90::pin(x), sm90::pin(y);
      queries_.release(query);
      float4* to = reinterpret_cast<float4*>(base_ + kShared.x) + threadIdx.x % 128;
#pragma unroll
      for (int j = 0; j < kSums; ++j) {
        to[128 * j] = make_float4(x[j][0], x[j][1], x[j][2], x[j][3]);
        to[128 * (j + kSums)] = make_float4(y[j][0], y[j][1], y[j][2], y[j][3]);
      }
      __syncwarp();
      sm90::barrier_arrive_warp(x_.full(one));
    }
  }

 private:
  // Bytes [begin, end) of the tiles of a chunk and head, by the producer.
  __device__ void load_keys(const typename Shape::Keys& pipe, const KeyState& key, int64_t chunk,
                            int begin, int end) const {
    pipe.acquire(key);
    if (threadIdx.x % 32) return;
    pipe.expect(key, end - begin);
    sm90::tma_load(key_tile(key) + begin, w_.forward.inverses + chunk * Shape::key_bytes + begin,
                   end - begin, pipe.full(key));
  }
  // Publishes W; dY' in flight, of dU' in two parts; z = |k|^-1 . (W' K-') + dO' A.
  __device__ __forceinline__ void find_dy(const ChainState<D>& state, uint32_t k,
                                          const DeltaVectors& by, const KeyState& key,
                                          const OneState& one, float (&dy)[kSums][4],
                                          float (&z)[kSums][4]) const {
    float y[kSums][4], none[2];
    uint32_t high[kChainTokens / 16][4], low[kChainTokens / 16][4];
    {
      uint32_t w[D / 16][4];
      pack_rows<Dtype>(w, state.x, none);
      ends_.wait(key);
      sm90::fence();
      sm90::product_rows<Dtype, TileQ>(y, w, sm90::descriptor(k + Shape::at_update));
      sm90::product_rows<Dtype, TileQ>(z, w, sm90::descriptor(k + Shape::at_values));
      sm90::commit();
      slopes_.acquire(one);
      publish<Dtype, TileH>(at_ + kShared.w, nullptr, w, none);
      sm90::barrier_arrive_warp(slopes_.full(one));
      x_.wait(one);
      keys_.wait(key);
      sm90::wait<0>();
      sm90::pin(y), sm90::pin(z);
      ends_.release(key);
    }
    const float4* x = reinterpret_cast<const float4*>(base_ + kShared.x) + threadIdx.x % 128;
#pragma unroll
    for (int j = 0; j < kSums; ++j) {
      const float2 suffix =
          *reinterpret_cast<const float2*>(by.suffix + 8 * j + threadIdx.x % 4 * 2);
      const float4 of_u = x[128 * j], of_v = x[128 * (j + kSums)];
      y[j][0] += of_u.x, y[j][1] += of_u.y, y[j][2] += of_u.z, y[j][3] += of_u.w;
      z[j][0] = fmaf(suffix.x, z[j][0], of_v.x), z[j][1] = fmaf(suffix.y, z[j][1], of_v.y);
      z[j][2] = fmaf(suffix.x, z[j][2], of_v.z), z[j][3] = fmaf(suffix.y, z[j][3], of_v.w);
    }
    __syncwarp();
    x_.release(one);
    pack_parts<Dtype>(high, low, y);
    const uint64_t inverse = sm90::descriptor(k);
    sm90::fence();
    sm90::product_columns<Dtype>(dy, high, inverse, false);
    sm90::product_columns<Dtype>(dy, low, inverse, true);
    sm90::commit();
  }

  typename Shape::Keys ends_;  // B-, K-, the first that a chunk has no use for
};

template <class States, class Reverse>
__global__ void __launch_bounds__(384, 1)
    delta_backward_low_chain_sm90_kernel(const __grid_constant__ DeltaBackwardWork90 work) {
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
  const DeltaLowReverse90<Reverse> block(work, shared, blockIdx.x - chains);
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
