// SPDX-License-Identifier: Apache-2.0
// What the blocks of gradients in the chains of x_delta_backward on Hopper have in common, with a
// low rank or without: their place, their tiles, and the rows of dV.
#pragma once
#include "ops/delta/backward.cuh"
#include "ops/delta/forward_sm90.cuh"

namespace fovea::cuda {

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

// A block walks a sequence, a state head and 64 value columns from the last chunk to the first.
//   Shared: its shared memory, with places of keys, q, w and dv and of their pipelines.
template <class Shape, class Shared>
class DeltaReverseChain90 {
 protected:
  static constexpr int Dtype = Shape::Dtype, D = Shape::D, kSums = kChainColumns / 8;
  using TileQ = typename Shape::TileQ;
  using TileV = typename Shape::TileV;
  using TileH = typename Shape::TileH;
  using KeyState = typename Shape::Keys::State;
  using QueryState = typename Shape::Queries::State;
  using OneState = typename Shape::One::State;
  static constexpr Shared kShared = Shared();

 public:
  static constexpr int shared_bytes = kShared.bytes + 1024;  // the base is aligned

 protected:
  __device__ DeltaReverseChain90(const DeltaBackwardWork90& work, unsigned char* raw,
                                 uint32_t block)
      : w_(work),
        a_(work.b.forward),
        base_(raw + (-shared_address(raw) & 1023)),
        at_(shared_address(base_)),
        keys_{at_ + kShared.key_pipe},
        queries_{at_ + kShared.q_pipe},
        x_{at_ + kShared.x_pipe},
        slopes_{at_ + kShared.w_pipe},
        values_{at_ + kShared.dv_pipe} {
    const auto tiles = static_cast<uint32_t>(w_.forward.tiles);
    const auto heads = static_cast<uint32_t>(a_.heads);
    column_ = int64_t{block % tiles} * kChainColumns, block /= tiles;
    head_ = block % heads;
    run_ = a_.run[block / heads];
    slot_ = w_.forward.slot(run_.sequence, run_.begin);
    chunks_ = static_cast<int>((run_.count + kChainTokens - 1) / kChainTokens);
  }

  __device__ static int64_t first(int chunk) { return int64_t{chunk} * kChainTokens; }
  __device__ uint32_t key_tile(const KeyState& at) const {
    return at_ + kShared.keys + at.stage * Shape::key_bytes;
  }
  __device__ uint32_t q_tile(const QueryState& at) const {
    return at_ + kShared.q + at.stage * Shape::query_bytes;
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

  // Warpgroup 1: the gradient of the state after the last chunk, of that before the first.
  __device__ void begin_gradient(ChainState<D>& state) const {
    const int64_t of = w_.b.dstate_out ? run_.sequence : -1;
    state.load({w_.b.dstate_out, FOVEA_F32}, of, head_, column_);
    multiply(state.x, 1 / a_.scale);
  }
  __device__ void end_gradient(ChainState<D>& state) const {
    multiply(state.x, a_.scale);
    if (w_.b.dstate_in) state.store({w_.b.dstate_in, FOVEA_F32}, run_.sequence, head_, column_);
  }

  // Warp 1: W of a chunk to its slot, where `kept`; then its place is given back.
  __device__ void store_slope(const OneState& one, int64_t slot, bool kept) const {
    slopes_.wait(one);
    if (threadIdx.x % 32) return;
    if (kept) {
      const int64_t at = (slot * a_.heads + head_) * w_.forward.tiles + column_ / kChainColumns;
      sm90::tma_store(w_.slopes + at * TileH::bytes, at_ + kShared.w, TileH::bytes);
      sm90::tma_store_commit();
      sm90::tma_store_wait_read<0>();
    }
    sm90::barrier_arrive(slopes_.empty(one));
  }
  // Warp 1: dV of a chunk.  Its place is given back once all stores before have read theirs.
  __device__ void store_values(const OneState& one, int c) const {
    const int lane = threadIdx.x % 32;
    const int64_t left = run_.count - first(c);
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
        const int64_t to =
            w_.dv.offset(run_.batch, run_.begin + first(c) + row, head_, column_ + chunk * kChunk);
        *reinterpret_cast<uint4*>(w_.dv.view.template as<uint16_t>() + to) =
            *reinterpret_cast<const uint4*>(base_ + kShared.dv + TileV::at(row, chunk));
      }
    }
    __syncwarp();
    if (lane) return;
    sm90::tma_store_wait_read<0>();
    sm90::barrier_arrive(values_.empty(one));
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
  // x', value columns as rows, to a tile [token][value].
  __device__ __forceinline__ void publish_rows(int to, const float (&x)[kSums][4]) const {
    const int lane = threadIdx.x % 32;
    const int chunk = threadIdx.x % 128 / 32 * 2 + inner_chunk(lane);
    uint32_t packed[kChainTokens / 16][4];
    float none[2];
    pack_rows<Dtype>(packed, x, none);
#pragma unroll
    for (int n = 0; n < kChainTokens / 16; ++n)
      sm90::store_matrices_transposed(at_ + to + TileV::at(16 * n + inner_row(lane), chunk),
                                      packed[n]);
  }

  const DeltaBackwardWork90& w_;
  const Recur& a_;
  unsigned char* base_;
  uint32_t at_;
  typename Shape::Keys keys_;
  typename Shape::Queries queries_;
  typename Shape::One x_, slopes_, values_;
  RunTokens run_;
  int64_t column_, head_, slot_;
  int chunks_;
};

}  // namespace fovea::cuda
