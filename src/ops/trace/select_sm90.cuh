// SPDX-License-Identifier: Apache-2.0
// The selection on Hopper's tensor cores: 16-bit q and k, scores in f32 sums of wgmma's order.
//   score(u) = max over the valid pairs of row block and key block u of <q_m, k_t>
//   A block takes an item (item_sm90.cuh).  Its consumer warps hold the branches (branches.cuh),
//   and lists name the representatives to score. A lane masks and reduces its products, a warp by
//   redux, the four warps by an atomic max in shared memory: a max is exact in any order. Shared
//   memory after the keys: branches, barriers. Barriers: those of the item, and
//
//   | barrier | who arrives | who waits | what it guards                             |
//   | block   | all         | all       | a list, to be loaded and scored            |
//   | named 1 | consumers   | consumers | the list's scores, and the branches' ranks |
//
// Stream (2510.19875).
#pragma once
#include "ops/trace/branches.cuh"
#include "ops/trace/item_sm90.cuh"

namespace fovea::cuda {

template <int Dtype, int D, int Most_, int Stages, int Blocks, bool Held>
struct SelectShape90 : ItemShape90<Dtype, D, Stages, Blocks, Held> {
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
  using Tree = BranchTree<Shape::Most, Shape::consumer_threads>;
  using Base::a, Base::item, Base::block_keys;

 public:
  using KeyState = typename Base::KeyState;
  using Shared = SelectShared90<Shape>;

  __device__ Select90(const ItemWork90& work, unsigned char* memory, Shared& shared)
      : Base(work, memory, shared.item), s_(shared.tree) {}

  // Under a causal mask the last row block of a head has most to do.
  __device__ void init() const {
    const int64_t n = a.n, number = blockIdx.x;
    Base::init(number / n * n + n - 1 - number % n);
    s_.list[0] = {0, false};
  }

  __device__ __forceinline__ void copy() const {
    KeyState at;
    this->produce_rows(at);
    for (int parity = 0;; parity ^= 1) {
      __syncthreads();  // the list is ready
      const int count = s_.list[parity].count;
      if (count == kEnd) return;
      this->produce_list(count, at, [&](int i) { return s_.fresh[i]; });
    }
  }

  __device__ __forceinline__ void compute() const {
    const Tree tree(a, item, s_);
    typename Base::Rows rows(*this);
    KeyState at;
    // The first round halves every branch.  One list scores both halves' representatives.
    const int rounds = a.rounds(a.blocks_of(item.seq.keys));
    tree.start(0, rounds == 0);
    this->load_rows(rows, at);
    for (int round = 1;; ++round) {
      const int parity = (round + 1) % 2;
      __syncthreads();  // the list is ready
      if (threadIdx.x == 0) tree.clear(parity ^ 1);
      const int count = s_.list[parity].count;
      if (block_keys == 16)
        score_list<4>(tree, rows, rounds == 0, count, at);
      else if (block_keys == 32)
        score_list<2>(tree, rows, rounds == 0, count, at);
      else
        score_list<1>(tree, rows, rounds == 0, count, at);
      Base::sync();  // its scores are
      if (rounds > 0) {
        tree.rank();
        Base::sync();
      }
      // Ranges of one block have no halves, and branches in order stay in order.
      if (round >= rounds || !s_.list[parity].wide) {
        if (threadIdx.x == 0) s_.list[parity ^ 1].count = kEnd;
        __syncthreads();
        break;
      }
      tree.split(parity ^ 1, false);
    }
    tree.store(this->work.call.slots);
  }

 private:
  static constexpr int kEnd = -1;

  // Pieces: key blocks that share a stage.
  template <int Pieces>
  __device__ __forceinline__ void score_list(const Tree& tree, const typename Base::Rows& rows,
                                             bool final, int count, KeyState& at) const {
    constexpr int kWidth = 64 / Pieces;
    const int stages = this->stages_of(count), shift = this->work.shift;
    int best[Pieces];
#pragma unroll
    for (int i = 0; i < Pieces; ++i) best[i] = ordered(-INFINITY);
    const auto raise = [&](int stage) {
#pragma unroll
      for (int i = 0; i < Pieces; ++i) {
        const int top = __reduce_max_sync(~0u, best[i]), entry = (stage * 64 + i * kWidth) >> shift;
        if (threadIdx.x % 32 == 0 && entry < count) tree.raise(final, entry, top);
        best[i] = ordered(-INFINITY);
      }
    };
    for (int stage = 0; stage < stages; ++stage, at.next()) {
      // A stage's scores are raised while the products of the next are made.
      const auto meanwhile = [&] {
        if (stage > 0) raise(stage - 1);
      };
      int key[Pieces];
#pragma unroll
      for (int i = 0; i < Pieces; ++i) {
        const int first = stage * 64 + i * kWidth, entry = min(first >> shift, count - 1);
        key[i] = (s_.fresh[entry] << shift) + (first & (block_keys - 1));
      }
      this->multiply(at, rows, meanwhile, [&](const float(&x)[8][4], int tile) {
#pragma unroll
        for (int i = 0; i < Pieces; ++i)
          best[i] = max(best[i], ordered(largest<kWidth / 8>(x, i, key[i], rows, tile)));
      });
    }
    if (stages > 0) raise(stages - 1);
  }

  // Of piece i's valid sums; its columns are keys from `key` on.
  template <int N>
  __device__ __forceinline__ float largest(const float (&x)[8][4], int i, int key,
                                           const typename Base::Rows& rows, int tile) const {
    float top[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    const int lane_key = key + static_cast<int>(threadIdx.x) % 4 * 2;
    if (key + 8 * N <= rows.low) {
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c) top[c] = fmaxf(top[c], x[i * N + j][c]);
    } else {
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c)
          if (lane_key + j * 8 + c % 2 < rows.high[tile][c / 2])
            top[c] = fmaxf(top[c], x[i * N + j][c]);
    }
    return fmaxf(fmaxf(top[0], top[1]), fmaxf(top[2], top[3]));
  }

  Branches<Shape::Most>& s_;
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, Shape::Blocks)
    select_sm90(const __grid_constant__ ItemWork90 work) {
  run_item<Shape, Select90<Shape>>(work);
}

template <SelectConfig90 C>
ItemInstance90 select_sm90_instance() {
  using Shape = SelectShape90<C.dtype, C.d, C.branches, C.stages, C.blocks, C.held>;
  return {C.dtype, C.d, C.branches, C.held ? 64 : 128,
          launch_item<select_sm90<Shape>, Shape, Select90<Shape>>};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(...)                                                   \
  namespace fovea::cuda {                                                     \
  template ItemInstance90 select_sm90_instance<SelectConfig90 __VA_ARGS__>(); \
  }
