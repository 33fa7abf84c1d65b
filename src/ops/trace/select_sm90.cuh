// SPDX-License-Identifier: Apache-2.0
// The selection on Hopper's tensor cores: 16-bit q and k, scores in f32 sums of wgmma's order.
//   score(u) = max over the valid pairs of row block and key block u of <q_m, k_t>
//   A block takes an item (item_sm90.cuh), whose branches (branches.cuh) its computing warps hold;
//   the lists are those of the representatives to score.  Of a stage's products a lane masks and
//   reduces its share, a warp its own by redux, the four by an atomic max in shared memory: a max
//   is exact in any order.
//   Shared memory after the ring: branches, barriers.
//   Barriers: the block meets where a list is ready and where its scores are.
// Stream (2510.19875).
#pragma once
#include "ops/trace/branches.cuh"
#include "ops/trace/item_sm90.cuh"

namespace fovea::cuda {

template <int Dtype, int D, int Most_, int Stages, int Blocks>
struct SelectShape90 : ItemShape90<Dtype, D, Stages, Blocks> {
  static constexpr int Most = Most_;
};

template <class Shape>
struct SelectShared90 {
  ItemShared90<Shape> item;
  Branches<Shape::Most> tree;
};

template <class Shape>
class Select90 : public ItemKeys90<Shape> {
  using Base = ItemKeys90<Shape>;
  using Tree = BranchTree<Shape::Most, Shape::computing>;
  using Base::a, Base::item, Base::block_keys;

 public:
  using Ring = typename Base::Ring;

  __device__ Select90(const ItemWork90& work, unsigned char* memory, SelectShared90<Shape>& shared)
      : Base(work, memory, shared.item), s_(shared.tree) {}

  __device__ void init(int64_t number) const {
    Base::init(number);
    s_.list[0] = {0, 0, false};
  }

  __device__ __forceinline__ void copy() const {
    Ring at;
    for (int parity = 0;; parity ^= 1) {
      __syncthreads();  // the list is ready
      if (s_.list[parity].halves == kEnd) return;
      this->copy_list(s_.list[parity].count, at, [&](int i) { return s_.fresh[i]; });
      __syncthreads();  // its scores are
    }
  }

  __device__ __forceinline__ void compute() const {
    const Tree tree(a, item, s_);
    const typename Base::Rows rows(*this);
    Ring at;
    tree.start(0);
    this->wait_rows();
    const int rounds = a.rounds(a.blocks_of(item.seq.keys));
    for (int round = 0;; ++round) {
      const int parity = round % 2;
      __syncthreads();  // the list is ready
      if (threadIdx.x == 0) tree.clear(parity ^ 1);
      const int count = s_.list[parity].count;
      if (block_keys == 16)
        score_list<4>(tree, rows, round == 0, count, at);
      else if (block_keys == 32)
        score_list<2>(tree, rows, round == 0, count, at);
      else
        score_list<1>(tree, rows, round == 0, count, at);
      __syncthreads();  // its scores are
      if (round > 0) {
        tree.rank(parity);
        Base::meet();
      }
      // Ranges of one block have no halves, and branches in order stay in order.
      if (round == rounds || (round > 0 && !s_.list[parity].wide)) {
        if (threadIdx.x == 0) s_.list[parity ^ 1].halves = kEnd;
        __syncthreads();
        break;
      }
      tree.split(parity ^ 1);
    }
    tree.store(this->work.call.slots);
  }

 private:
  static constexpr int kEnd = -1;

  // Pieces: key blocks that share a stage.
  template <int Pieces>
  __device__ __forceinline__ void score_list(const Tree& tree, const typename Base::Rows& rows,
                                             bool start, int count, Ring& at) const {
    constexpr int kWidth = 64 / Pieces;
    const int stages = this->stages_of(count), shift = this->work.shift;
    for (int stage = 0; stage < stages; ++stage, at.next()) {
      int best[Pieces];
#pragma unroll
      for (int i = 0; i < Pieces; ++i) best[i] = ordered(-INFINITY);
      this->multiply(at, [&](const float(&x)[8][4], int tile) {
#pragma unroll
        for (int i = 0; i < Pieces; ++i) {
          const int first = stage * 64 + i * kWidth, entry = min(first >> shift, count - 1);
          const int key = (s_.fresh[entry] << shift) + (first & (block_keys - 1));
          best[i] = max(best[i], ordered(largest<kWidth / 8>(x, i, key, rows, tile)));
        }
      });
#pragma unroll
      for (int i = 0; i < Pieces; ++i) {
        const int top = __reduce_max_sync(~0u, best[i]), entry = (stage * 64 + i * kWidth) >> shift;
        if (threadIdx.x % 32 == 0 && entry < count) tree.raise(start, entry, top);
      }
    }
  }

  // Of piece i's valid sums; its columns are keys from `key` on.
  template <int N>
  __device__ __forceinline__ float largest(const float (&x)[8][4], int i, int key,
                                           const typename Base::Rows& rows, int tile) const {
    float top = -INFINITY;
    if (key + 8 * N <= rows.low) {
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c) top = fmaxf(top, x[i * N + j][c]);
      return top;
    }
    const int lane_key = key + static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c)
        if (lane_key + j * 8 + c % 2 < rows.high[tile][c / 2]) top = fmaxf(top, x[i * N + j][c]);
    return top;
  }

  Branches<Shape::Most>& s_;
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, Shape::Blocks)
    select_sm90(const __grid_constant__ ItemWork90 work) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<SelectShared90<Shape>*>(
      memory + (work.row_tiles + Shape::Stages) * Shape::Tile::bytes);
  const Select90<Shape> select(work, memory, shared);
  // Under a causal mask the last row block of a head has most to do.
  const int64_t n = work.call.a.n, number = blockIdx.x;
  if (threadIdx.x == 0) select.init(number / n * n + n - 1 - number % n);
  if (threadIdx.x == Shape::computing)
    sm90::prefetch_map(work.maps.q), sm90::prefetch_map(work.maps.k);
  __syncthreads();
  if (sm90::uniform(threadIdx.x / 32) == Shape::computing / 32) {
    select.copy_rows();
    select.copy();
  } else {
    select.compute();
  }
}

template <int Dtype, int D, int Most, int Stages, int Blocks>
SelectInstance90 select_sm90_instance() {
  using Shape = SelectShape90<Dtype, D, Most, Stages, Blocks>;
  constexpr auto launcher = [](Context& ctx, const ItemWork90& work) {
    const int bytes = (work.row_tiles + Stages) * Shape::Tile::bytes +
                      static_cast<int>(sizeof(SelectShared90<Shape>));
    launch<select_sm90<Shape>>(ctx, kTraceOp, work.call.items, Shape::threads, bytes, work);
  };
  return {Dtype, D, Most, launcher};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(dtype, d, most, stages, blocks) \
  template fovea::cuda::SelectInstance90               \
  fovea::cuda::select_sm90_instance<dtype, d, most, stages, blocks>();
