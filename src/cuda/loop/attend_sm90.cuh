// SPDX-License-Identifier: Apache-2.0
// The sweep over keys on Hopper: o = softmax(scores(q k') + ...) v, for BM rows at a time.
//   A block is persistent.  A work item is a sequence, head, row tile and split.
//   Producer: warpgroup 0.  Its scheduler warp and its load warps run one work item ahead
//   (feed_sm90.cuh).
//   Consumers: Groups warpgroups.  Each owns 64 of the BM = 64 Groups rows, each warp 16, so the
//   softmax of a row never leaves its warp.
//   Mainloop: key tiles of BN keys, from last to first.  S = Q K' of this tile and O += P V of the
//   one before are in flight together.  The softmax of S runs under O (intra-warpgroup overlap).
//   Epilogue: rows of o leave by TMA through the shared memory of Q, where they fit.  Their
//   divisors are computed under the last P V.
//   Where tiles may be skipped (skips_sm90.cuh) the mainloop goes from first to last.  P V of a
//   skipped half of a tile is not issued.
//   V rows past the sequence's last key are zeroed where the tensor goes on: 0 times NaN is NaN.
//   A work item without keys loads one tile, which its rows do not see.
//   Shared memory and mbarriers: Shared90.
//
//   | named barrier | who arrives            | who waits   | what it guards                   |
//   | 1 + n         | warpgroup n            | itself      | zeroed rows of V, rows of o,     |
//   |               |                        |             | the words of a vote              |
//   | kPingPong + n | the warpgroup before n | warpgroup n | ping-pong: it may issue products |
//
// Policies: KeySource (source_sm90.cuh), Score and Mask (tile_policy.cuh), Epilogue (epilogue.cuh).
// FlashAttention-3 (2407.08608).
#pragma once
#include "cuda/block/softmax.cuh"
#include "cuda/loop/feed_sm90.cuh"
#include "cuda/loop/skips_sm90.cuh"
#include "cuda/loop/tile_policy.cuh"
#include "cuda/loop/tma_epilogue_sm90.cuh"
#include "cuda/tile/mma_sm80.cuh"
#include "cuda/tile/order.cuh"

namespace fovea::cuda {

template <int Dtype_, int D_, int E_, int Groups_, int BN_, int Stages_>
struct AttendShape90 {
  static constexpr int Dtype = Dtype_, D = D_, E = E_, Groups = Groups_, BN = BN_, Stages = Stages_;
  static constexpr int BM = 64 * Groups;
  static constexpr int threads = 128 * (Groups + 1);
  static constexpr int blocks = 1;          // that share a multiprocessor
  static constexpr int producer_warps = 1;  // where pages are smaller than a tile: 1 or 2
  // Key tiles left to copy when the next work item is requested (Producer90).
  static constexpr int prefetch = 2;
  // setmaxnreg by Groups: registers of a producer thread, of a consumer thread.
  static constexpr int budgets[4][2] = {{96, 240}, {40, 232}, {32, 160}, {32, 112}};
  static constexpr int producer_regs = budgets[Groups - 1][0],
                       consumer_regs = budgets[Groups - 1][1];
  // Ping-pong keeps warpgroups half a step apart: narrow heads' exponents take as long as products.
  static constexpr bool ping_pong = D <= 64 && Groups > 1;
  // Q in registers, where some are left: the first product reads a third less shared memory.
  static constexpr bool q_in_registers = D == 128 && E == 128 && Groups == 2;
  // A warpgroup without rows skips its products; for wide heads the code costs more than it saves.
  // Tiles may then be confirmed late (early_plan_sm90.cuh).
  static constexpr bool skip_empty_groups = Groups > 1 && D <= 128;
  using TileQ = Swizzled<BM, D>;
  using TileK = Swizzled<BN, D>;
  using TileV = Swizzled<BN, E>;
  using TileO = Swizzled<BM, E>;
  static_assert(TileO::bytes <= TileQ::bytes);
  static constexpr int q_bytes = TileQ::bytes;
  static constexpr int stage_bytes = TileK::bytes > TileV::bytes ? TileK::bytes : TileV::bytes;
  static constexpr int slack_bytes = 1024;  // work items and barriers
  static constexpr int Slots =
      Stages * stage_bytes + 2 * q_bytes + slack_bytes <= 227 * 1024 ? 2 : 1;
  static constexpr int tile_bytes = Slots * q_bytes + Stages * stage_bytes;
  static constexpr int shared_bytes = tile_bytes + slack_bytes;
};

// Zeroes the V rows [tail, end) of a stage.  All warpgroups do, so that none waits for another.
template <class Shape, class Shared>
__device__ __forceinline__ void zero_values(int tail, const Shared& shared,
                                            sm90::PipelineState<Shape::Stages> v, int group,
                                            int end = Shape::BN) {
  using TileV = typename Shape::TileV;
  shared.key_pipe().wait(v);
  unsigned char* values = shared.base + (shared.keys(v) - shared.at);
  for (int i = tail * kPanelChunks + threadIdx.x % 128; i < end * kPanelChunks; i += 128)
#pragma unroll
    for (int panel = 0; panel < TileV::panels; ++panel)
      *reinterpret_cast<uint4*>(
          values + TileV::at(i / kPanelChunks, i % kPanelChunks + panel * kPanelChunks)) =
          make_uint4(0, 0, 0, 0);
  sm90::fence_shared();
  sm90::named_barrier_sync(1 + group, 128);
}

// A consumer warpgroup: 64 of the block's rows.
template <class Shape, KeySource Source, class Score, class Mask, class Epilogue>
class TileConsumer90 {
  static constexpr int Dtype = Shape::Dtype, D = Shape::D, E = Shape::E, BN = Shape::BN;
  using Shared = Shared90<Shape, Source, Mask>;
  using Slot = typename Shared::Slot;
  using KeyState = typename Shared::KeyState;
  using TileQ = typename Shape::TileQ;
  using TileK = typename Shape::TileK;
  using TileV = typename Shape::TileV;
  static constexpr bool kPaged = Source::template Boxes<Shape>::paged;
  static constexpr bool kQInRegisters = Shape::q_in_registers && std::same_as<Score, PlainScore>;
  static constexpr bool kTmaStore = std::derived_from<Epilogue, TmaEpilogue>;
  static constexpr int kPingPong = 1 + Shape::Groups;  // the first of ping-pong's named barriers
  // The last tile of a sequence may come more than once.
  static constexpr bool kRepeats = requires { Source::Steps::repeats; };
  // The keys of a tile are blocks that lie apart.
  static constexpr bool kBlocks = requires { Source::Steps::blocks; };
  // Halves of tiles may be skipped, in ascending order.
  static constexpr bool kSkips = requires { Source::Steps::ascends; };
  static_assert(!kSkips || (BN == 128 && Shape::Stages >= 4));  // two tiles of 64 keys; GroupVote
  // Some tiles are keys gathered one by one.  The steps hide what rows do not see.
  static constexpr bool kGathers = requires { Source::Steps::gathers; };
  // The score adds numbers of keys, which are read under the product.
  static constexpr bool kKeyed = std::same_as<Score, KeyScore>;

 public:
  // A separate object: an object stays in memory until the loops over its arrays are unrolled.
  struct Fragments {
    float x[1][BN / 8][4], o[1][E / 8][4], alpha[1][2];
    uint32_t q[kQInRegisters ? D / 16 : 1][4];
    uint32_t p[1][BN / 16][4], absent[kPaged ? BN / 32 : 1];
    float2 bias[kKeyed ? BN / 8 : 1];
  };

  __device__ __forceinline__ TileConsumer90(const Attend& a, const Epilogue& epilogue, int group,
                                            const Shared& shared, Fragments& f)
      : a(a),
        epilogue(epilogue),
        shared(shared),
        group(group),
        lane(threadIdx.x % 32),
        warp_row(group * 64 + threadIdx.x / 32 % 4 * 16),
        x(f.x),
        o(f.o),
        alpha(f.alpha),
        q(f.q),
        p(f.p),
        absent(f.absent),
        bias(f.bias) {
#pragma unroll
    for (uint32_t& word : absent) word = 0;
  }

  __device__ __forceinline__ void run() {
    if (Shape::ping_pong && group == Shape::Groups - 1) sm90::named_barrier_arrive(kPingPong, 256);
    for (;;) {
      shared.q_pipe().wait(q_at);
      if (Shape::skip_empty_groups) sm90::barrier_wait(shared.tile_confirmed(slot), slot.phase);
      const Slot& work = shared.work(slot);
      if (__all_sync(~0u, work.tile.size == 0)) return release_q();
      if (Shape::skip_empty_groups && sm90::uniform(group * 64 >= work.tile.size)) {
        skip_item(work);
      } else {
        const uint32_t q_rows = sm90::uniform(shared.q(q_at) + group * 64 * kPanelRowBytes);
        if constexpr (kQInRegisters) load_q();
        Item item(a, work, q_rows, work.tile.begin + warp_row);
        if constexpr (kSkips)
          ascend(item);
        else
          mainloop(item);
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
    [[no_unique_address]] std::conditional_t<kSkips, GroupSkips, NoSkips> skips;
    bool more = false;  // o has values

    __device__ __forceinline__ Item(const Attend& a, const Slot& work, uint32_t q_rows, int row)
        : work(work),
          q_rows(q_rows),
          row(row),
          n(sm90::uniform(work.last)),
          left(sm90::uniform(work.count)),
          begin(sm90::uniform(work.mask.begin)),
          end(sm90::uniform(work.mask.end)),
          score(a, work.tile),
          skips(work,
                work.tile.begin + work.tile.size - row - static_cast<int>(threadIdx.x) % 32 / 4) {}
  };

  // Releases the slot of Q that o went through, under the next work item's first products.
  __device__ __forceinline__ void release_q() {
    if (!kTmaStore || q_release == kReleased) return;
    if (q_release == kStoring && threadIdx.x % 128 == 0) sm90::tma_store_wait_read<0>();
    __syncwarp();
    shared.q_pipe().release(unreleased_q);
    q_release = kReleased;
  }
  __device__ __forceinline__ void warp_scheduler_barrier_sync() const {
    if constexpr (Shape::ping_pong) sm90::named_barrier_sync(kPingPong + group, 256);
  }
  __device__ __forceinline__ void warp_scheduler_barrier_arrive() const {
    if constexpr (Shape::ping_pong)
      sm90::named_barrier_arrive(kPingPong + (group + 1) % Shape::Groups, 256);
  }
  // Skips a stage: no row of this warpgroup sees its tile.
  __device__ __forceinline__ void skip_stage() {
    shared.key_pipe().wait(at);
    shared.key_pipe().release(at);
    at.next();
  }
  // Skips a work item in which no row of this warpgroup exists.
  __device__ __forceinline__ void skip_item(const Slot& work) {
    release_q();
#pragma unroll 1
    for (int left = max(work.count, 1); left > 0; --left) {
      if (left > 1) warp_scheduler_barrier_sync(), warp_scheduler_barrier_arrive();
      skip_stage(), skip_stage();
    }
    if (kTmaStore)
      unreleased_q = q_at, q_release = kReleasable;
    else
      shared.q_pipe().release(q_at);
  }
  __device__ __forceinline__ void load_q() {
    const uint32_t from = shared.q(q_at) + TileQ::at(warp_row + outer_row(lane), outer_chunk(lane));
#pragma unroll
    for (int k = 0; k < D / 16; ++k) load_matrices(q[k], TileQ::pair(from, k));
  }

  // Of tile item.n, whose stage is k.
  __device__ __forceinline__ void issue_scores(const Item& item, KeyState k) {
    shared.key_pipe().wait(k);
    sm90::fence();
    const uint64_t keys = sm90::descriptor(shared.keys(k), 16, TileK::octet_bytes);
    if constexpr (kQInRegisters)
      sm90::product_rows<Dtype, TileK>(x[0], q, keys);
    else
      sm90::product_rows<Dtype, D, TileQ, TileK>(x[0], sm90::descriptor(item.q_rows), keys);
    sm90::commit();
    if constexpr (kKeyed) item.score.load(bias, item.work.key_tile(item.n) * BN);
  }
  __device__ __forceinline__ void retire_scores(Item& item, KeyState k) {
    sm90::pin(x[0]);
    if (kPaged && a.sequences.page) {
#pragma unroll
      for (int word = 0; word < BN / 32; ++word) absent[word] = shared.absent(k)[word];
      __syncwarp();
    }
    shared.key_pipe().release(k);
    if (--item.left <= 0 && !kTmaStore) shared.q_pipe().release(q_at);
  }
  // Halves: of the tile, those that were kept; bit 0, 1.
  template <int Halves = 3>
  __device__ __forceinline__ void issue_values(Item& item, KeyState v) {
    shared.key_pipe().wait(v);
    const uint64_t values =
        sm90::descriptor(shared.keys(v), TileV::panel_bytes, TileV::octet_bytes);
    if constexpr (kSkips) {
      constexpr int kFirst = Halves & 1 ? 0 : BN / 32, kEnd = Halves & 2 ? BN / 16 : BN / 32;
      sm90::add_columns<Dtype, kFirst, kEnd - kFirst>(o[0], p[0], values, TileV::octet_bytes);
    } else {
      sm90::product_columns<Dtype>(o[0], p[0], values, item.more, TileV::octet_bytes);
    }
    sm90::commit();
    item.more = true;
  }
  __device__ __forceinline__ void retire_values(KeyState v) {
    sm90::pin(o[0]);
    shared.key_pipe().release(v);
  }
  // k: the stage that the tile came in.
  __device__ __forceinline__ void weigh(Item& item, bool whole, KeyState k) {
    const int key = item.work.key_tile(item.n) * BN;
    if constexpr (kKeyed)
      item.score.add(x, bias);
    else
      item.score.apply(x, key, item.row);
    if constexpr (kGathers) {
      item.work.hide(x, item.n, item.row, item.work.mask, whole);
    } else if constexpr (kBlocks) {
      const auto key_at = [&](int column) { return item.work.key_at(item.n, column); };
      if (!whole) item.work.mask.apply_at(x, item.row, key_at);
    } else {
      if (!whole) item.work.mask.apply(x, key, item.row);
    }
    if constexpr (requires { Source::Steps::unions; })
      item.work.hide(x, item.n, item.row - item.work.tile.begin);
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
    if constexpr (kSkips)
      item.skips.weigh(item.state, x, alpha, item.score.factor,
                       GroupVote{shared.votes(k, group), 1 + group});
    else
      item.state.weigh(x, alpha, item.score.factor);
    item.n = item.work.before(item.n);
  }
  // Weights become the operand of P V, and sums so far are rescaled.
  __device__ __forceinline__ void pack_weights(Item& item) {
    pack_operand<Dtype>(p, x);
    if constexpr (kSkips)
      if (!item.skips.raised) return;
    item.state.rescale_o(o, alpha);
  }
  // Zeroes V past the last key, where step n, whose K came before `at`, has such rows.
  __device__ __forceinline__ void zero_tail(const Item& item, int n) {
    KeyState v = at;
    if (item.left > 0) v.next();
    const int keys = item.work.tile.keys;
    if constexpr (kBlocks) {
      const int width = item.work.block_keys();
#pragma unroll 1
      for (int column = 0; column < BN; column += width) {
        const int key = item.work.key_at(n, column);
        if (__any_sync(~0u, key < keys && key + width > keys))
          zero_values<Shape>(column + keys - key, shared, v, group, column + width);
      }
    } else {
      const int tail = keys - item.work.key_tile(n) * BN;
      if (__any_sync(~0u, tail < BN)) zero_values<Shape>(max(tail, 0), shared, v, group);
    }
  }
  // S of this tile, in flight with O of the one before.
  __device__ __forceinline__ void step(Item& item, bool whole) {
    const KeyState k = at;
    at.next();
    const KeyState v = at;
    at.next();
    warp_scheduler_barrier_sync();
    const auto issue = [&]<int Halves> {
      issue_scores(item, k);
      issue_values<Halves>(item, v);
      warp_scheduler_barrier_arrive();
      sm90::wait<1>();
    };
    if constexpr (kSkips)
      by_halves(item, issue);
    else
      issue.template operator()<3>();
    retire_scores(item, k);
    const int n = item.n;
    weigh(item, whole, k);
    sm90::wait<0>();
    retire_values(v);
    pack_weights(item);
    if constexpr (kRepeats || kSkips)
      if (!whole) zero_tail(item, n);
  }

  // All steps but the last P V, from the first tile to the last.
  __device__ __forceinline__ void ascend(Item& item) {
#pragma unroll
    for (int j = 0; j < E / 8; ++j)  // the first P V may be skipped
#pragma unroll
      for (int c = 0; c < 4; ++c) o[0][j][c] = 0;
    issue_scores(item, at);
    release_q();
    sm90::wait<0>();
    const KeyState k = at;
    const int first = item.n;
    retire_scores(item, k);
    at.next();
    weigh(item, first >= item.begin && first < item.end, k);
    pack_operand<Dtype>(p, x);
    zero_tail(item, first);
#pragma unroll 1
    while (item.left > 0) step(item, (item.n >= item.begin) & (item.n < item.end));
  }
  // Calls f for the halves whose P V is to be made.  Each has its own code down to the wait: of
  // products that a condition leaves out the compiler makes groups of their own, and waits for
  // more of them than wait() says.
  template <class F>
  __device__ __forceinline__ static void by_halves(const Item& item, F f) {
    const bool first = item.skips.keeps[0], second = item.skips.keeps[1];
    if (first & second)
      f.template operator()<3>();
    else if (first)
      f.template operator()<1>();
    else if (second)
      f.template operator()<2>();
    else
      f.template operator()<0>();
  }
  // The same from the last to the first.
  __device__ __forceinline__ void mainloop(Item& item) {
    const Slot& work = item.work;
    const int seen = sm90::uniform(work.mask.last_tile(
        min(work.tile.begin + group * 64 + 63, work.tile.begin + work.tile.size - 1), BN));
    bool skipped = false;
#pragma unroll 1
    for (; item.left > 1 && work.key_tile(item.n) > seen;
         --item.left, item.n = work.before(item.n), skipped = true) {
      warp_scheduler_barrier_sync(), warp_scheduler_barrier_arrive();
      skip_stage();
      if (skipped) skip_stage();  // V comes after the next K
    }
    issue_scores(item, at);
    release_q();
    sm90::wait<0>();
    retire_scores(item, at);
    at.next();
    const int first = item.n;
    weigh(item, item.n >= item.begin && item.n < item.end, at);
    pack_operand<Dtype>(p, x);
    if (skipped) {
      skip_stage();
    } else if (!kRepeats && __any_sync(~0u, work.zero_tail)) {
      KeyState v = at;
      if (item.left > 0) v.next();
      zero_values<Shape>(work.tile.keys - work.key_tile(work.last) * BN, shared, v, group);
    }
    if constexpr (kRepeats) zero_tail(item, first);
      // One branch ends a loop: of two exits the compiler makes 12 to 38 instructions more a step.
#pragma unroll 1
    while ((item.left > 0) & ((item.n >= item.end) | (item.n < item.begin))) step(item, false);
#pragma unroll 1
    while ((item.left > 0) & (item.n >= item.begin)) step(item, true);
#pragma unroll 1
    while (item.left > 0) step(item, false);
  }

  // The last P V, and the epilogue.
  __device__ __forceinline__ void finish(Item& item) {
    const Slot& work = item.work;
    const int row = item.row;
    sm90::fence();
    if constexpr (kSkips)
      by_halves(item, [&]<int Halves> { issue_values<Halves>(item, at), sm90::wait<0>(); });
    else
      issue_values(item, at);
    bool stored = false;
    float factor[2];
    if constexpr (kTmaStore) {  // under the last values
      stored = sm90::uniform(epilogue.takes(a, work.tile, group * 64));
      if (stored)
        each_row<1>(row, [&](int, int half, int m) {
          factor[half] = epilogue.finish(a, work.tile, m, m < work.tile.begin + work.tile.size,
                                         item.state.top(0, half, item.score.factor),
                                         item.state.total(0, half));
        });
    }
    sm90::wait<0>();
    retire_values(at);
    at.next();
    if constexpr (kTmaStore) {
      if (stored)
        epilogue.template store_rows<typename Shape::TileO, Dtype>(work.tile, group * 64, 1 + group,
                                                                   shared.q(q_at), factor, o);
      unreleased_q = q_at, q_release = stored ? kStoring : kReleasable;
    }
    if (!stored)
      each_row<1>(row, [&](int i, int half, int m) {
        epilogue.template store<Dtype>(a, work.tile, m, m < work.tile.begin + work.tile.size,
                                       work.split, item.state.top(i, half, item.score.factor),
                                       item.state.total(i, half), o[i], half);
      });
    const auto sync = [&] { sm90::named_barrier_sync(1 + group, 128); };
    if constexpr (requires { epilogue.done(a, work.tile, 0, shared.word(), sync); })
      epilogue.done(a, work.tile, work.number, shared.word(), sync);
    if constexpr (kSkips)
      if (threadIdx.x % 128 == 0) work.add_skipped(item.skips.skipped);
  }

  const Attend& a;
  const Epilogue& epilogue;
  const Shared& shared;
  const int group, lane, warp_row;
  typename Shared::TileState slot;
  typename Shared::QState q_at, unreleased_q;
  KeyState at;
  // What unreleased_q waits for: nothing, or the TMA store of the rows that went through it.
  enum : int { kReleased, kReleasable, kStoring } q_release = kReleased;
  float (&x)[1][BN / 8][4], (&o)[1][E / 8][4], (&alpha)[1][2];
  uint32_t (&q)[kQInRegisters ? D / 16 : 1][4];
  uint32_t (&p)[1][BN / 16][4], (&absent)[kPaged ? BN / 32 : 1];
  float2 (&bias)[kKeyed ? BN / 8 : 1];
};

template <class Shape, KeySource Source, TileScore Score, TileMask Mask, class Epilogue>
__global__ void __launch_bounds__(Shape::threads, Shape::blocks)
    attend_sm90(const __grid_constant__ typename Source::Call call,
                const __grid_constant__ AttendGrid grid, const __grid_constant__ AttendMaps maps,
                const __grid_constant__ TileOrder order,
                const __grid_constant__ DynamicSchedule schedule,
                const __grid_constant__ Epilogue epilogue) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const Attend& a = attend_in(call);
  const Shared90<Shape, Source, Mask> shared(memory);
  const int warp = sm90::uniform(threadIdx.x / 32);
  if (threadIdx.x == 32)
    sm90::prefetch_map(maps.q), sm90::prefetch_map(maps.k), sm90::prefetch_map(maps.v);
  using Producer = Producer90<Shape, Source, Mask, AttendMaps>;
  if (threadIdx.x == 0) shared.init(Producer::producer_warps_of(a));
  __syncthreads();
  if (warp < 4) {
    sm90::setmaxnreg_dec<Shape::producer_regs>();
    Producer{call, grid, maps, shared}.run(warp, order, schedule);
  } else {
    sm90::setmaxnreg_inc<Shape::consumer_regs>();
    using Consumer = TileConsumer90<Shape, Source, Score, Mask, Epilogue>;
    typename Consumer::Fragments fragments;
    Consumer(a, epilogue, warp / 4 - 1, shared, fragments).run();
  }
}

}  // namespace fovea::cuda
