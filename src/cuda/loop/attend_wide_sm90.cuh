// SPDX-License-Identifier: Apache-2.0
// The sweep over wide keys on Hopper: o = softmax(scores(q k') + ...) v for 64 packed rows, k up to
// 576 wide and v up to 512.  64 rows of o are half of the registers, so two warpgroups share them.
//   A block is persistent.  A work item is as in attend_sm90.cuh.
//   Producer: warpgroup 0 (feed_wide_sm90.cuh).
//   Consumers: warpgroups 0 and 1 each own 256 columns of o.  They take key tiles in turn: the
//   owner of a tile computes S and P of all 64 rows, and hands P to the other one.
//   Mainloop of a warpgroup, for each tile i that it owns, from last to first:
//     S of tile i; O += P V of tile i - 1, whose P is in shared memory
//     P of tile i is computed under O, and handed on
//     O += P V of tile i, P in registers
//   With values_first O += P V of tile i - 1 ends before S begins.
//
//   The other warpgroup is half a step apart: its products run under this one's softmax.
//   V rows past the sequence's last key are zeroed where the tensor goes on: 0 times NaN is NaN.
//   Shared memory and mbarriers: WideShared90.
//
//   | named barrier | who arrives    | who waits      | what it guards                          |
//   | 1 + n         | warpgroup n    | the other one  | P, maximum and scale of n's tile        |
//   | 3             | both           | both           | sums of weights of a work item          |
//   | 4 + n         | warpgroup n    | itself         | zeroed rows of V, its last P            |
//
//   One buffer of P is enough: n writes it after its own product with the other's P has ended.
//
// Policies: KeySource, Score, Mask and Epilogue as in attend_sm90.cuh.
// FlashMLA; FlashAttention-3 (2407.08608).
#pragma once
#include "cuda/block/softmax.cuh"
#include "cuda/loop/feed_wide_sm90.cuh"
#include "cuda/tile/mma_sm80.cuh"

namespace fovea::cuda {

template <class Shape, KeySource Source, class Score, class Mask, class Epilogue>
class WideConsumer90 {
  static constexpr int Dtype = Shape::Dtype, BN = Shape::BN, kColumns = Shape::E / 2;
  using Shared = WideShared90<Shape, Source, Mask>;
  using Slot = typename Shared::Slot;
  using Place = typename Shared::Place;
  using Panel = typename Shape::Panel;
  // ptxas gives no product more registers than a thread has at entry.
  static constexpr int kParts = Shape::threads > 384 ? 2 : 1;
  static constexpr int kPartStep = kColumns / 64 / kParts * (Panel::bytes / 16);
  static constexpr int kHandOn = 1, kSums = 3, kOwn = 4;  // named barriers

 public:
  // A separate object: an object stays in memory until the loops over its arrays are unrolled.
  struct Fragments {
    float x[1][BN / 8][4], o[1][kColumns / 8][4], alpha[1][2];
    uint32_t p[1][BN / 16][4], absent[Shape::absent_words];
  };

  __device__ __forceinline__ WideConsumer90(const Attend& a, const Epilogue& epilogue, int group,
                                            const Shared& shared, Fragments& f)
      : a(a),
        epilogue(epilogue),
        shared(shared),
        group(group),
        lane(threadIdx.x % 32),
        warp_row(threadIdx.x / 32 % 4 * 16),
        x(f.x),
        o(f.o),
        alpha(f.alpha),
        p(f.p),
        absent(f.absent) {
#pragma unroll
    for (uint32_t& word : absent) word = 0;
    alpha[0][0] = alpha[0][1] = 1;
  }

  __device__ __forceinline__ void run() {
    for (;;) {
      shared.tile_pipe().wait(slot);
      const Slot& work = shared.work(slot);
      if (__all_sync(~0u, work.tile.size == 0)) return;
      shared.q_pipe().wait(q_at);
      if constexpr (Shape::copy_arrivals > 0) sm90::fence_shared();
      Item item(a, work);
      if ((at.number + group) % 2) item.pass(), before = at, at.next();
#pragma unroll 1
      for (; item.i < item.steps; item.pass(), item.pass()) {
        weigh_tile(item);
        if (item.i + 1 == item.steps) break;
        add_own(item);
      }
      shared.q_pipe().release(q_at);
      q_at.next();
      add_last(item);
      finish(item);
      __syncwarp();
      shared.tile_pipe().release(slot);
      slot.next();
    }
  }

 private:
  // A work item under way.
  struct Item {
    const Slot& work;
    int n, i;         // the step of the walk, and how many came before it
    const int steps;  // at least 1
    const int begin, end;
    const Score score;
    OnlineSoftmax<1> state;

    __device__ __forceinline__ Item(const Attend& a, const Slot& work)
        : work(work),
          n(sm90::uniform(work.last)),
          i(0),
          steps(max(sm90::uniform(work.count), 1)),
          begin(sm90::uniform(work.mask.begin)),
          end(sm90::uniform(work.mask.end)),
          score(a, work.tile) {}
    __device__ __forceinline__ void pass() { ++i, n = work.before(n); }
  };

  // S of tile `at` over parts of K, each a group of products in flight.
  __device__ __forceinline__ void issue_scores(int first, int end) {
#pragma unroll
    for (int part = first; part < end; ++part) {
      shared.wait_keys(at.number, part);
      const uint64_t q = sm90::descriptor(shared.q() + part * Shape::Unit::bytes),
                     k = sm90::descriptor(shared.keys(at.number, part));
      sm90::fence();
#pragma unroll
      for (int step = 0; step < (part < Shape::key_units ? 16 : 4); ++step) {
        const int to = step / 4 * (Panel::bytes / 16) + step % 4 * 2;
        sm90::Wgmma<Dtype, BN>::template ss<0>(x[0], q + to, k + to, part + step != 0);
      }
      sm90::commit();
    }
  }

  // What the other warpgroup found out about its tile, if there is one, and the sums so far.  In no
  // branch: products may be in flight.
  __device__ __forceinline__ void take(Item& item, bool others) {
    if (others) sm90::named_barrier_sync(kHandOn + 1 - group, 256);
    const float2* rows = shared.rows() + warp_row + lane / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 row = rows[half * 8];
      item.state.m[0][half] = others ? row.x : item.state.m[0][half];
      const float scale = others ? row.y : 1.f;
      item.state.l[0][half] *= scale;
      alpha[0][half] = others ? scale : alpha[0][half];
    }
    OnlineSoftmax<1>::rescale_o(o, alpha);
  }
  // Columns of o that one product adds to.
  __device__ __forceinline__ auto part_of_o(int part) -> float (&)[kColumns / 8 / kParts][4] {
    using Part = float[kColumns / 8 / kParts][4];
    return reinterpret_cast<Part&>(o[0][part * (kColumns / 8 / kParts)]);
  }
  // O += P V, P in shared memory.
  __device__ __forceinline__ void issue_others(uint32_t v, bool accumulate) {
    sm90::fence();
    const uint64_t weights = sm90::descriptor(sm90::uniform(shared.weights())),
                   values = sm90::descriptor(v, Panel::bytes);
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      sm90::product_panel<Dtype>(part_of_o(part), weights, values + part * kPartStep, accumulate);
    sm90::commit();
  }
  // Zeroes V past the last key, where the work item's first tile has such rows.
  __device__ __forceinline__ void zero_tail(const Item& item, const Place& tile) const {
    if (Slot::kSingle || Shape::codes || !__any_sync(~0u, item.work.zero_tail)) return;
    const int from = max(item.work.tile.keys - item.work.key_tile(item.work.last) * BN, 0);
    for (uint32_t to = from * kPanelRowBytes + threadIdx.x % 128 * 16; to < Panel::bytes;
         to += 128 * 16)
#pragma unroll
      for (int panel = 0; panel < 4; ++panel)
        sm90::store_zeros(shared.values(tile, group) + panel * Panel::bytes + to);
    sm90::fence_shared();
    sm90::named_barrier_sync(kOwn + group, 128);
  }

  // The scores of tile `at` are there: all of K that is not V may be overwritten.
  __device__ __forceinline__ void retire_scores() {
    sm90::pin(x[0]);
    if (Slot::kSingle || a.sequences.page) {
#pragma unroll
      for (int i = 0; i < Shape::absent_words; ++i) absent[i] = shared.absent(at.number)[i];
      __syncwarp();
    }
#pragma unroll
    for (int part = Shape::v_in_k ? Shape::key_units : 0; part < Shape::parts; ++part)
      shared.release_keys(at.number, part);
  }
  __device__ __forceinline__ void weigh(Item& item) {
    const int key = item.work.key_tile(item.n) * BN, row = item.work.tile.begin + warp_row;
    item.score.apply(x, key, row);
    if ((item.n < item.begin) | (item.n >= item.end)) item.work.mask.apply(x, key, row);
    uint32_t any = 0, words[Shape::absent_words];
#pragma unroll
    for (int i = 0; i < Shape::absent_words; ++i) any |= words[i] = absent[i];
    if (any) hide_absent(x, words);  // of a copy the bits become predicates at once (R2P)
    item.state.weigh(x, alpha, item.score.factor);
    pack_operand<Dtype>(p, x);
  }
  // P of this warpgroup's tile, for the other one.
  __device__ __forceinline__ void hand_on(const Item& item) {
    const uint32_t to = shared.weights() + Panel::at(warp_row + outer_row(lane), outer_chunk(lane));
#pragma unroll
    for (int k = 0; k < BN / 16; ++k) sm90::store_matrices(Panel::pair(to, k), p[0][k]);
    if (lane % 4 == 0)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        shared.rows()[warp_row + lane / 4 + half * 8] = {item.state.m[0][half], alpha[0][half]};
    sm90::fence_shared();
    sm90::named_barrier_arrive(kHandOn + group, 256);
  }

  // P of tile i, which is this warpgroup's, and O += P V of the one before.  Before the first there
  // is none: its product is with keys, and is overwritten.
  __device__ __forceinline__ void weigh_tile(Item& item) {
    if constexpr (Shape::values_first) return weigh_behind(item);
    const bool first = item.i == 0;
    issue_scores(0, Shape::parts);
    sm90::wait<Shape::parts>();  // for nothing: it tells the compiler that O is at rest
    sm90::pin(o[0]);
    take(item, !first);
    if (!first) shared.wait_values(before, group);
    if (item.i == 1) zero_tail(item, before);
    issue_others(first ? shared.keys(at.number, 0) : shared.values(before, group), item.i > 1);
    sm90::wait<1>();
    retire_scores();
    weigh(item);
    sm90::wait<0>();
    sm90::pin(o[0]);
    if (!first) shared.release_values(before, group);
    hand_on(item);
  }
  // The same, products one after the other: tile i - 1 is given back before S of tile i, whose keys
  // come late, is begun.
  __device__ __forceinline__ void weigh_behind(Item& item) {
    if (item.i > 0) {
      take(item, true);
      shared.wait_values(before, group);
      if (item.i == 1) zero_tail(item, before);
      issue_others(shared.values(before, group), item.i > 1);
      sm90::wait<0>();
      sm90::pin(o[0]);
      shared.release_values(before, group);
    }
    issue_scores(0, Shape::parts);
    sm90::wait<0>();
    retire_scores();
    weigh(item);
    hand_on(item);
  }
  // O += P V of the same tile.
  __device__ __forceinline__ void add_own(Item& item) {
    shared.wait_values(at, group);
    if (item.i == 0) zero_tail(item, at);
    if (__any_sync(~0u, alpha[0][0] != 1.f || alpha[0][1] != 1.f))
      OnlineSoftmax<1>::rescale_o(o, alpha);
    sm90::fence();
    const uint64_t values = sm90::descriptor(shared.values(at, group), Panel::bytes);
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      sm90::product_columns<Dtype>(part_of_o(part), p[0], values + part * kPartStep, item.i > 0);
    sm90::commit();
    sm90::wait<0>();
    sm90::pin(o[0]);
    shared.release_values(at, group);
    before = at, before.next();
    at = before, at.next();
  }
  // The same of the last tile: whoever computed its P, it is in shared memory.
  __device__ __forceinline__ void add_last(Item& item) {
    const bool own = item.i + 1 == item.steps;
    if (!own) at = before;
    take(item, !own);
    if (own) sm90::named_barrier_sync(kOwn + group, 128);
    shared.wait_values(at, group);
    if (item.steps == 1) zero_tail(item, at);
    issue_others(shared.values(at, group), item.steps > 1);
    sm90::wait<0>();
    sm90::pin(o[0]);
    shared.release_values(at, group);
    at.next();
  }

  __device__ __forceinline__ void finish(Item& item) {
    const RowTile& tile = item.work.tile;
    float own[2], sum[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      own[half] = item.state.total(0, half);
      if (lane % 4 == 0) shared.sums(slot, group)[warp_row + lane / 4 + half * 8] = own[half];
    }
    sm90::named_barrier_sync(kSums, 256);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp_row + lane / 4 + half * 8;
      sum[half] = shared.sums(slot, 0)[row] + shared.sums(slot, 1)[row];
    }
    each_row<1>(tile.begin + warp_row, [&](int i, int half, int m) {
      epilogue.template store<Dtype>(a, tile, m, m < tile.begin + tile.size, item.work.split,
                                     item.state.top(i, half, item.score.factor), sum[half], o[i],
                                     half, group * kColumns);
    });
  }

  const Attend& a;
  const Epilogue& epilogue;
  const Shared& shared;
  const int group, lane, warp_row;
  typename Shared::TileState slot;
  typename Shared::QState q_at;
  Place at, before;  // of this warpgroup's tile, and of the one before it
  float (&x)[1][BN / 8][4], (&o)[1][kColumns / 8][4], (&alpha)[1][2];
  uint32_t (&p)[1][BN / 16][4], (&absent)[Shape::absent_words];
};

template <class Shape, KeySource Source, TileScore Score, TileMask Mask, class Epilogue>
__global__ void __launch_bounds__(Shape::threads, 1)
    attend_wide_sm90(const __grid_constant__ Attend a, const __grid_constant__ AttendGrid grid,
                     const __grid_constant__ WideMaps maps, const __grid_constant__ TileOrder order,
                     const __grid_constant__ DynamicSchedule schedule,
                     const __grid_constant__ Epilogue epilogue) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const WideShared90<Shape, Source, Mask> shared(memory);
  const int warp = sm90::uniform(threadIdx.x / 32);
  if (threadIdx.x == 32) sm90::prefetch_map(maps.k), sm90::prefetch_map(maps.v);
  if (threadIdx.x == 0) shared.init();
  __syncthreads();
  if (warp < 4) {
    sm90::setmaxnreg_dec<Shape::producer_regs>();
    WideProducer90<Shape, Source, Mask>{{a, grid, maps, shared}}.run(warp, order, schedule);
  } else {
    sm90::setmaxnreg_inc<Shape::consumer_regs>();
    using Consumer = WideConsumer90<Shape, Source, Score, Mask, Epilogue>;
    typename Consumer::Fragments fragments;
    Consumer(a, epilogue, warp / 4 - 1, shared, fragments).run();
  }
}

}  // namespace fovea::cuda
