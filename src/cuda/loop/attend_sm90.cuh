// SPDX-License-Identifier: Apache-2.0
// The sweep over keys on Hopper: o = softmax(scores(q k') + ...) v, for BM rows at a time.
//   A block is persistent and takes work items (sequence, head, row tile, split) as they come.  Of
//   warpgroup 0 a scheduler warp and producers run ahead into the next work item (feed_sm90.cuh).
//   Each of the Groups others owns 64 of the BM = 64 Groups rows, a warp 16, so its softmax never
//   leaves the warp.
//   Keys are walked in BN-key tiles from last to first.  Of a step, S = Q K' of this tile and
//   O += P V of the last are both in flight.  S alone is waited for, masked and exponentiated while
//   O runs.
//   Ping-pong (Shape::ping_pong): a warpgroup issues its products once the one before has.
//   Rows of Q may stay in registers (Shape::q_in_registers).  Rows of o leave through their place.
//   What they are divided by is worked out under the last values.
//   V rows past the last key are zeroed where the tensor goes on: no weight would undo a NaN there.
//   A work item without keys walks one tile of zeros that its rows do not see.
//   Shared memory and barriers: Shared90, and named barriers:
//
//   | named barrier | who arrives            | who waits   | what it guards                 |
//   | 1 + n         | warpgroup n            | itself      | zeroed rows of V, rows of o    |
//   | kTurn + n     | the warpgroup before n | warpgroup n | nothing: it may issue products |
//
// Policies: KeySource (source_sm90.cuh); Score and Mask (tile_policy.cuh) and Sink (sink.cuh), as
// in attend_sm80.cuh.
// FlashAttention-3 (2407.08608).
#pragma once
#include "cuda/block/softmax.cuh"
#include "cuda/loop/feed_sm90.cuh"
#include "cuda/loop/tile_policy.cuh"
#include "cuda/loop/tma_sink_sm90.cuh"
#include "cuda/tile/mma_sm80.cuh"
#include "cuda/tile/order.cuh"

namespace fovea::cuda {

template <int Dtype_, int D_, int E_, int Groups_, int BN_, int Stages_>
struct AttendShape90 {
  static constexpr int Dtype = Dtype_, D = D_, E = E_, Groups = Groups_, BN = BN_, Stages = Stages_;
  static constexpr int BM = 64 * Groups;
  static constexpr int threads = 128 * (Groups + 1);
  static constexpr int blocks = 1;   // that share a multiprocessor
  static constexpr int copiers = 1;  // warps, where pages are smaller than a tile: 1 or 2
  // Key tiles left to copy when the next work item is requested (Producer90).
  static constexpr int prefetch = 2;
  // Registers a thread: the producer warpgroup gives what the others take.
  static constexpr int budgets[4][2] = {{96, 240}, {40, 232}, {32, 160}, {32, 112}};
  static constexpr int copying = budgets[Groups - 1][0], computing = budgets[Groups - 1][1];
  // Whether warpgroups issue their products in turn: half a step apart, where the exponents of
  // narrow heads take as long as the products.
  static constexpr bool ping_pong = D <= 64 && Groups > 1;
  // Whether a warpgroup keeps its rows of Q in registers, where some are left over: its first
  // product reads a third less from shared memory.
  static constexpr bool q_in_registers = D == 128 && E == 128 && Groups == 2;
  // Whether a warpgroup without rows leaves its products out: the code costs wide heads more. Tiles
  // may then be confirmed late (early_plan_sm90.cuh).
  static constexpr bool skip_empty_groups = Groups > 1 && D <= 128;
  using TileQ = Swizzled<BM, D>;
  using TileK = Swizzled<BN, D>;
  using TileV = Swizzled<BN, E>;
  using TileO = Swizzled<BM, E>;
  static_assert(TileO::bytes <= TileQ::bytes);
  static constexpr int q_bytes = TileQ::bytes;
  static constexpr int stage_bytes = TileK::bytes > TileV::bytes ? TileK::bytes : TileV::bytes;
  static constexpr int slack_bytes = 1024;  // works and barriers
  static constexpr int Slots =
      Stages * stage_bytes + 2 * q_bytes + slack_bytes <= 227 * 1024 ? 2 : 1;
  static constexpr int tile_bytes = Slots * q_bytes + Stages * stage_bytes;
  static constexpr int shared_bytes = tile_bytes + slack_bytes;
};

// Zeroes the V rows of a stage from `tail` on.  Each warpgroup for itself, so that it need not wait
// for the others.
template <class Shape, class Shared>
__device__ __forceinline__ void clean_values(int tail, const Shared& shared,
                                             sm90::Ring<Shape::Stages> v, int group) {
  using TileV = typename Shape::TileV;
  shared.key_pipe().wait(v);
  unsigned char* values = shared.base + (shared.keys(v) - shared.at);
  for (int i = tail * kPanelChunks + threadIdx.x % 128; i < Shape::BN * kPanelChunks; i += 128)
#pragma unroll
    for (int panel = 0; panel < TileV::panels; ++panel)
      *reinterpret_cast<uint4*>(
          values + TileV::at(i / kPanelChunks, i % kPanelChunks + panel * kPanelChunks)) =
          make_uint4(0, 0, 0, 0);
  sm90::fence_shared();
  sm90::named_barrier_sync(1 + group, 128);
}

// A consumer warpgroup: 64 of the block's rows.
template <class Shape, KeySource Source, class Score, class Mask, class Sink>
class TileConsumer90 {
  static constexpr int Dtype = Shape::Dtype, D = Shape::D, E = Shape::E, BN = Shape::BN;
  using Shared = Shared90<Shape, Source, Mask>;
  using Slot = typename Shared::Slot;
  using Ring = typename Shared::Ring;
  using TileQ = typename Shape::TileQ;
  using TileK = typename Shape::TileK;
  using TileV = typename Shape::TileV;
  static constexpr bool kPaged = Source::template Boxes<Shape>::paged;
  static constexpr bool kQInRegisters = Shape::q_in_registers && std::same_as<Score, PlainScore>;
  static constexpr bool kThroughQ = std::derived_from<Sink, TmaSink>;  // rows of o leave by TMA
  static constexpr int kTurn = 1 + Shape::Groups;  // the first of ping-pong's named barriers

 public:
  // An object apart: until its loops are unrolled the compiler keeps all that lies beside in
  // memory.
  struct Fragments {
    float x[1][BN / 8][4], o[1][E / 8][4], alpha[1][2];
    uint32_t q[kQInRegisters ? D / 16 : 1][4];
    uint32_t p[1][BN / 16][4], absent[kPaged ? BN / 32 : 1];
  };

  __device__ __forceinline__ TileConsumer90(const Attend& a, const Sink& sink, int group,
                                            const Shared& shared, Fragments& f)
      : a(a),
        sink(sink),
        shared(shared),
        group(group),
        lane(threadIdx.x % 32),
        warp_row(group * 64 + threadIdx.x / 32 % 4 * 16),
        x(f.x),
        o(f.o),
        alpha(f.alpha),
        q(f.q),
        p(f.p),
        absent(f.absent) {
#pragma unroll
    for (uint32_t& word : absent) word = 0;
  }

  __device__ __forceinline__ void run() {
    if (Shape::ping_pong && group == Shape::Groups - 1) sm90::named_barrier_arrive(kTurn, 256);
    for (;;) {
      shared.q_pipe().wait(q_at);
      if (Shape::skip_empty_groups) sm90::barrier_wait(shared.tile_confirmed(slot), slot.phase);
      const Slot& work = shared.work(slot);
      if (__all_sync(~0u, work.tile.size == 0)) return settle();
      if (Shape::skip_empty_groups && sm90::uniform(group * 64 >= work.tile.size)) {
        leave_out(work);
      } else {
        const uint32_t q_rows = sm90::uniform(shared.q(q_at) + group * 64 * kPanelRowBytes);
        if constexpr (kQInRegisters) take_q();
        Item item(a, work, q_rows, work.tile.begin + warp_row);
        walk(item);
        finish(item);
      }
      __syncwarp();
      shared.tile_pipe().release(slot);
      slot.next(), q_at.next();
    }
  }

 private:
  // A work item under way.
  struct Item {
    const Slot& work;
    const uint32_t q_rows;
    const int row;  // the warp's first
    int n, left;    // the step, and how many steps there are from it on
    const int begin, end;
    const Score score;
    OnlineSoftmax<1> state;
    bool more = false;  // o has values

    __device__ __forceinline__ Item(const Attend& a, const Slot& work, uint32_t q_rows, int row)
        : work(work),
          q_rows(q_rows),
          row(row),
          n(sm90::uniform(work.last)),
          left(sm90::uniform(work.count)),
          begin(sm90::uniform(work.mask.begin)),
          end(sm90::uniform(work.mask.end)),
          score(a, work.tile) {}
  };

  // Rows of Q that o went through are given back once TMA has read them, under the first products
  // of the next work item.
  __device__ __forceinline__ void settle() {
    if (!kThroughQ || !owes) return;
    if (owes == 2 && threadIdx.x % 128 == 0) sm90::out_wait_read<0>();
    __syncwarp();
    shared.q_pipe().release(owed);
    owes = 0;
  }
  __device__ __forceinline__ void take_turn() const {
    if constexpr (Shape::ping_pong) sm90::named_barrier_sync(kTurn + group, 256);
  }
  __device__ __forceinline__ void pass_turn() const {
    if constexpr (Shape::ping_pong)
      sm90::named_barrier_arrive(kTurn + (group + 1) % Shape::Groups, 256);
  }
  // A tile that none of this warpgroup's rows sees, but others of the block do.
  __device__ __forceinline__ void pass() {
    shared.key_pipe().wait(at);
    shared.key_pipe().release(at);
    at.next();
  }
  // None of this warpgroup's rows exists.
  __device__ __forceinline__ void leave_out(const Slot& work) {
    settle();
#pragma unroll 1
    for (int left = max(work.count, 1); left > 0; --left) {
      if (left > 1) take_turn(), pass_turn();
      pass(), pass();
    }
    if (kThroughQ)
      owed = q_at, owes = 1;
    else
      shared.q_pipe().release(q_at);
  }
  __device__ __forceinline__ void take_q() {
    const uint32_t from = shared.q(q_at) + TileQ::at(warp_row + outer_row(lane), outer_chunk(lane));
#pragma unroll
    for (int k = 0; k < D / 16; ++k) load_matrices(q[k], TileQ::pair(from, k));
  }

  __device__ __forceinline__ void issue_scores(const Item& item, Ring k) {
    shared.key_pipe().wait(k);
    sm90::fence();
    const uint64_t keys = sm90::descriptor(shared.keys(k), 16, TileK::octet_bytes);
    if constexpr (kQInRegisters)
      sm90::product_rows<Dtype, TileK>(x[0], q, keys);
    else
      sm90::product_rows<Dtype, D, TileQ, TileK>(x[0], sm90::descriptor(item.q_rows), keys);
    sm90::commit();
  }
  __device__ __forceinline__ void retire_scores(Item& item, Ring k) {
    sm90::pin(x[0]);
    if (kPaged && a.sequences.page) {
#pragma unroll
      for (int word = 0; word < BN / 32; ++word) absent[word] = shared.absent(k)[word];
      __syncwarp();
    }
    shared.key_pipe().release(k);
    if (--item.left <= 0 && !kThroughQ) shared.q_pipe().release(q_at);
  }
  __device__ __forceinline__ void issue_values(Item& item, Ring v) {
    shared.key_pipe().wait(v);
    sm90::product_columns<Dtype>(
        o[0], p[0], sm90::descriptor(shared.keys(v), TileV::panel_bytes, TileV::octet_bytes),
        item.more, TileV::octet_bytes);
    sm90::commit();
    item.more = true;
  }
  __device__ __forceinline__ void retire_values(Ring v) {
    sm90::pin(o[0]);
    shared.key_pipe().release(v);
  }
  __device__ __forceinline__ void weigh(Item& item, bool whole) {
    const int key = item.work.key_tile(item.n) * BN;
    item.score.apply(x, key, item.row);
    if (!whole) item.work.mask.apply(x, key, item.row);
    if constexpr (kPaged) {
      uint32_t any = 0;
#pragma unroll
      for (const uint32_t word : absent) any |= word;
      if (any) {  // of a copy the bits become predicates at once (R2P)
        uint32_t words[BN / 32];
#pragma unroll
        for (int word = 0; word < BN / 32; ++word) words[word] = absent[word];
        hide_absent(x, words);
      }
    }
    item.state.weigh(x, alpha, item.score.factor);
    item.n = item.work.before(item.n);
  }
  // S of this tile beside O of the last.
  __device__ __forceinline__ void step(Item& item, bool whole) {
    const Ring k = at;
    at.next();
    const Ring v = at;
    at.next();
    take_turn();
    issue_scores(item, k);
    issue_values(item, v);
    pass_turn();
    sm90::wait<1>();
    retire_scores(item, k);
    weigh(item, whole);
    sm90::wait<0>();
    retire_values(v);
    pack_operand<Dtype>(p, x);
    item.state.shrink(o, alpha);
  }

  // All steps but for the last values.
  __device__ __forceinline__ void walk(Item& item) {
    const Slot& work = item.work;
    const int seen = sm90::uniform(work.mask.last_tile(
        min(work.tile.begin + group * 64 + 63, work.tile.begin + work.tile.size - 1), BN));
    bool passed = false;
#pragma unroll 1
    for (; item.left > 1 && work.key_tile(item.n) > seen;
         --item.left, item.n = work.before(item.n), passed = true) {
      take_turn(), pass_turn();
      pass();
      if (passed) pass();  // V comes after the next K
    }
    issue_scores(item, at);
    settle();
    sm90::wait<0>();
    retire_scores(item, at);
    at.next();
    weigh(item, item.n >= item.begin && item.n < item.end);
    pack_operand<Dtype>(p, x);
    if (passed) {
      pass();
    } else if (__any_sync(~0u, work.clean)) {
      Ring v = at;
      if (item.left > 0) v.next();
      clean_values<Shape>(work.tile.keys - work.key_tile(work.last) * BN, shared, v, group);
    }
    // One branch ends a loop: of two exits the compiler makes 12 to 38 instructions more a step.
#pragma unroll 1
    while ((item.left > 0) & ((item.n >= item.end) | (item.n < item.begin))) step(item, false);
#pragma unroll 1
    while ((item.left > 0) & (item.n >= item.begin)) step(item, true);
#pragma unroll 1
    while (item.left > 0) step(item, false);
  }

  // The last values, and the rows leave.
  __device__ __forceinline__ void finish(Item& item) {
    const Slot& work = item.work;
    const int row = item.row;
    sm90::fence();
    issue_values(item, at);
    bool stored = false;
    float factor[2];
    if constexpr (kThroughQ) {  // under the last values
      stored = sm90::uniform(sink.takes(a, work.tile, group * 64));
      if (stored)
        each_row<1>(row, [&](int, int half, int m) {
          factor[half] =
              sink.finish(a, work.tile, m, m < work.tile.begin + work.tile.size,
                          item.state.top(0, half, item.score.factor), item.state.total(0, half));
        });
    }
    sm90::wait<0>();
    retire_values(at);
    at.next();
    if constexpr (kThroughQ) {
      if (stored)
        sink.template store_rows<typename Shape::TileO, Dtype>(work.tile, group * 64, 1 + group,
                                                               shared.q(q_at), factor, o);
      owed = q_at, owes = stored ? 2 : 1;
    }
    if (!stored)
      each_row<1>(row, [&](int i, int half, int m) {
        sink.template store<Dtype>(a, work.tile, m, m < work.tile.begin + work.tile.size,
                                   work.split, item.state.top(i, half, item.score.factor),
                                   item.state.total(i, half), o[i], half);
      });
    const auto meet = [&] { sm90::named_barrier_sync(1 + group, 128); };
    if constexpr (requires { sink.done(a, work.tile, 0, shared.word(), meet); })
      sink.done(a, work.tile, work.number, shared.word(), meet);
  }

  const Attend& a;
  const Sink& sink;
  const Shared& shared;
  const int group, lane, warp_row;
  typename Shared::WorkRing slot;
  typename Shared::QRing q_at, owed;
  Ring at;
  int owes = 0;  // of Q: 1: to give back, 2: to wait for
  float (&x)[1][BN / 8][4], (&o)[1][E / 8][4], (&alpha)[1][2];
  uint32_t (&q)[kQInRegisters ? D / 16 : 1][4];
  uint32_t (&p)[1][BN / 16][4], (&absent)[kPaged ? BN / 32 : 1];
};

template <class Shape, KeySource Source, TileScore Score, TileMask Mask, class Sink>
__global__ void __launch_bounds__(Shape::threads, Shape::blocks)
    attend_sm90(const __grid_constant__ typename Source::Call call,
                const __grid_constant__ AttendGrid grid, const __grid_constant__ AttendMaps maps,
                const __grid_constant__ WorkOrder order, const __grid_constant__ Schedule schedule,
                const __grid_constant__ Sink sink) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const Attend& a = attend_in(call);
  const Shared90<Shape, Source, Mask> shared(memory);
  const int warp = sm90::uniform(threadIdx.x / 32);
  if (threadIdx.x == 32)
    sm90::prefetch_map(maps.q), sm90::prefetch_map(maps.k), sm90::prefetch_map(maps.v);
  using Producer = Producer90<Shape, Source, Mask, AttendMaps>;
  if (threadIdx.x == 0) shared.init(Producer::copiers_of(a));
  __syncthreads();
  if (warp < 4) {
    sm90::setmaxnreg_dec<Shape::copying>();
    Producer{call, grid, maps, shared}.run(warp, order, schedule);
  } else {
    sm90::setmaxnreg_inc<Shape::computing>();
    using Consumer = TileConsumer90<Shape, Source, Score, Mask, Sink>;
    typename Consumer::Fragments fragments;
    Consumer(a, sink, warp / 4 - 1, shared, fragments).run();
  }
}

}  // namespace fovea::cuda
