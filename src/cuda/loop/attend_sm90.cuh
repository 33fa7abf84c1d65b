// SPDX-License-Identifier: Apache-2.0
// The sweep over keys on Hopper: o = softmax(scores(q k') + ...) v, for BM rows at a time.
//   A block stays on its multiprocessor and takes works (sequence, head, row tile, split) as they
//   come.  Of warpgroup 0 one warp copies, running ahead into the next work; each of the Groups
//   others owns 64 of the BM = 64 Groups rows, a warp 16, so its softmax never leaves the warp.
//   Keys are walked in BN-key tiles from last to first.  Of a step: S = Q K' of this tile and
//   O += P V of the last are both in flight; S alone is waited for, masked and exponentiated while
//   O runs.  The first step of a work is the last of the one before where there is room for two Q.
//   Shared memory: Slots x Q (BM x D), Stages x K (BN x D), Stages x V (BN x E), two works,
//   barriers. Barriers: full (bytes) and empty (one arrival a consuming warp) for each Q slot and
//   each stage of K and V; free for each work, full with its Q. V rows past the last key are zeroed
//   where the tensor goes on: no weight would undo a NaN there. A work without keys walks one tile
//   of zeros that its rows do not see.
// Policies: Score and Mask (tile_policy.cuh), Sink (sink.cuh), as in attend_sm80.cuh.
// FlashAttention-3 (2407.08608).
#pragma once
#include <new>

#include "cuda/block/schedule.cuh"
#include "cuda/block/softmax.cuh"
#include "cuda/loop/row_tile.cuh"
#include "cuda/loop/sink.cuh"
#include "cuda/loop/tile_policy.cuh"
#include "cuda/tensor_map.h"
#include "cuda/tile/mma_sm80.cuh"
#include "cuda/tile/mma_sm90.cuh"
#include "cuda/tile/order.cuh"

namespace fovea::cuda {

template <int Dtype_, int D_, int E_, int Groups_, int BN_, int Stages_>
struct AttendShape90 {
  static constexpr int Dtype = Dtype_, D = D_, E = E_, Groups = Groups_, BN = BN_, Stages = Stages_;
  static constexpr int BM = 64 * Groups;
  static constexpr int threads = 128 * (Groups + 1);
  // Registers a thread: the copying warpgroup gives what the others take.
  static constexpr int budgets[4][2] = {{96, 240}, {40, 232}, {32, 160}, {32, 112}};
  static constexpr int copying = budgets[Groups - 1][0], computing = budgets[Groups - 1][1];
  using TileQ = Swizzled<BM, D>;
  using TileK = Swizzled<BN, D>;
  using TileV = Swizzled<BN, E>;
  static constexpr int stage_bytes = TileK::bytes > TileV::bytes ? TileK::bytes : TileV::bytes;
  static constexpr int slack_bytes = 1024;  // works and barriers
  static constexpr int Slots =
      Stages * stage_bytes + 2 * TileQ::bytes + slack_bytes <= 227 * 1024 ? 2 : 1;
  static constexpr int tile_bytes = Slots * TileQ::bytes + Stages * stage_bytes;
  static constexpr int shared_bytes = tile_bytes + slack_bytes;
};

// What the copying warp tells the others of a work.
template <class Mask>
struct WorkSlot {
  RowTile tile;
  Mask mask;
  int count, last;       // key tiles to walk, the first of them
  int jump_at, jump_to;  // where the walk skips keys that no row sees
  int number, split;     // of the head and row tile; of its splits
  bool clean;            // V has rows past the last key in the first tile

  __device__ WorkSlot(const Attend& a, const AttendGrid& grid, const WorkPlace& place, int rows,
                      int width)
      : tile(a, grid, place.head / static_cast<int>(grid.heads),
             place.head % static_cast<int>(grid.heads), place.row_tile * rows, rows),
        mask(a, tile, width),
        number(place.head * static_cast<int>(grid.row_tiles) + place.row_tile),
        split(place.split) {
    if (tile.size <= 0) return;
    const KeyTiles tiles = Mask::tiles(a, tile, width);
    const TilePart part(static_cast<int>(tiles.count()), grid.splits, split);
    count = part.end - part.begin;
    last = count > 0 ? static_cast<int>(tiles[part.end - 1]) : (tile.keys + width - 1) / width;
    jump_at = Mask::sinks ? static_cast<int>(tiles.first) : -1;
    jump_to = static_cast<int>(tiles.sinks) - 1;
    clean = count > 0 && last * width + width > tile.keys;
  }
  __device__ int before(int n) const { return n == jump_at ? jump_to : n - 1; }
};

// Where things lie in the block's shared memory, as addresses.
template <class Shape, class Mask>
struct Shared90 {
  using QRing = sm90::Ring<Shape::Slots>;
  using Ring = sm90::Ring<Shape::Stages>;
  using WorkRing = sm90::Ring<2>;
  using Slot = WorkSlot<Mask>;
  static constexpr int kAbsentWords = (Shape::BN + 31) / 32;
  static constexpr int kWorks = Shape::tile_bytes,
                       kAbsent = kWorks + 2 * static_cast<int>(sizeof(Slot)),
                       kWord = kAbsent + Shape::Stages * kAbsentWords * 4,
                       kBarriers = (kWord + 4 + 7) / 8 * 8;
  static_assert(sizeof(Slot) % 8 == 0);
  static_assert(kBarriers + 8 * (2 + 2 * Shape::Slots + 2 * Shape::Stages) <= Shape::shared_bytes);
  unsigned char* base;
  uint32_t at;

  __device__ explicit Shared90(unsigned char* base) : base(base), at(shared_address(base)) {}
  __device__ uint32_t q(QRing i) const { return at + i.stage * Shape::TileQ::bytes; }
  __device__ uint32_t keys(Ring i) const {
    return at + Shape::Slots * Shape::TileQ::bytes + i.stage * Shape::stage_bytes;
  }
  __device__ Slot& work(WorkRing i) const {
    return reinterpret_cast<Slot*>(base + kWorks)[i.stage];
  }
  // Bit j % 32 of word j / 32: key j of the stage's tile has no page.
  __device__ uint32_t* absent(Ring i) const {
    return reinterpret_cast<uint32_t*>(base + kAbsent) + i.stage * kAbsentWords;
  }
  // For the sink.
  __device__ int* word() const { return reinterpret_cast<int*>(base + kWord); }
  __device__ uint32_t free(WorkRing i) const { return at + kBarriers + i.stage * 8; }
  __device__ uint32_t q_full(QRing i) const { return at + kBarriers + 16 + i.stage * 16; }
  __device__ uint32_t q_empty(QRing i) const { return q_full(i) + 8; }
  __device__ uint32_t full(Ring i) const {
    return at + kBarriers + 16 + Shape::Slots * 16 + i.stage * 16;
  }
  __device__ uint32_t empty(Ring i) const { return full(i) + 8; }

  __device__ void init() const {
    constexpr int kWarps = 4 * Shape::Groups;
    for (WorkRing i; i.phase == 0; i.next()) sm90::barrier_init(free(i), kWarps);
    for (QRing i; i.phase == 0; i.next())
      sm90::barrier_init(q_full(i), 1), sm90::barrier_init(q_empty(i), kWarps);
    for (Ring i; i.phase == 0; i.next())
      sm90::barrier_init(full(i), 1), sm90::barrier_init(empty(i), kWarps);
    sm90::barrier_init_done();
  }
};

// The copying warp.  Paged: keys may come in pages, of which a tile holds a whole number or one
// holds a whole number of tiles; a lane copies a page, or a tile's part of one.
template <class Shape, bool Paged, class Mask>
struct Copy90 {
  using Shared = Shared90<Shape, Mask>;
  using Ring = typename Shared::Ring;
  static constexpr int BN = Shape::BN;
  const Attend& a;
  const AttendGrid& grid;
  const AttendMaps& maps;
  const Shared& shared;
  const int lane = threadIdx.x % 32;

  __device__ __forceinline__ void run(const WorkOrder& order, const Schedule& schedule) const {
    typename Shared::WorkRing slot;
    typename Shared::QRing q;
    Ring at;
    Works works(schedule);
    for (; !works.done(); works.next()) {
      sm90::barrier_wait(shared.free(slot), slot.phase ^ 1);
      if (lane == 0)
        new (&shared.work(slot))
            WorkSlot<Mask>(a, grid, WorkPlace(order, *works), row_step(grid.group), BN);
      __syncwarp();
      const WorkSlot<Mask>& work = shared.work(slot);
      if (work.tile.size <= 0) continue;
      sm90::barrier_wait(shared.q_empty(q), q.phase ^ 1);
      query(work.tile, q);
      walk(work, at);
      slot.next(), q.next();
    }
    works.leave();
    sm90::barrier_wait(shared.free(slot), slot.phase ^ 1);
    sm90::barrier_wait(shared.q_empty(q), q.phase ^ 1);
    if (lane != 0) return;
    shared.work(slot).tile.size = 0;
    sm90::barrier_arrive(shared.q_full(q));
  }

 private:
  // Rows of a row tile: whole groups.
  __device__ static int row_step(int group) { return Shape::BM / group * group; }

  __device__ __forceinline__ void query(const RowTile& tile, typename Shared::QRing q) const {
    const Sequence& seq = tile.rows.seq;
    const int row = static_cast<int>(seq.row_begin) + tile.first_query(),
              batch = static_cast<int>(seq.batch);
    if (lane != 0) return;
    if (tile.group() == 1) {
      sm90::copy_tile<typename Shape::TileQ>(shared.q(q), maps.q, shared.q_full(q), row,
                                             static_cast<int>(tile.rows.g), batch);
      return;
    }
    // A box of whole groups, heads before rows.
    constexpr int panels = Shape::TileQ::panels;
    sm90::barrier_expect(shared.q_full(q), panels * row_step(tile.group()) * kPanelRowBytes);
    for (int panel = 0; panel < panels; ++panel)
      sm90::copy_box(shared.q(q) + panel * Shape::TileQ::panel_bytes, maps.q, shared.q_full(q),
                     panel * 64, static_cast<int>(tile.rows.head_begin()), row, batch);
  }

  // Where a tile of keys lies: the storage index of its first, and the pool pages of the lane's
  // pieces, lane + 32 i.
  struct Keys {
    int row;
    int page[Paged ? BN / 32 : 1];
  };
  __device__ __forceinline__ Keys keys_of(const WorkSlot<Mask>& work, int n) const {
    const Sequence& seq = work.tile.rows.seq;
    Keys keys{work.count ? static_cast<int>(seq.key_begin) + n * BN : static_cast<int>(a.t), {}};
    if (!Paged || !a.sequences.page) return keys;
    const int page = static_cast<int>(a.sequences.page), rows = min(page, BN);
    const View<2>& table = a.sequences.page_table;
    const int32_t* ids = table.as<int32_t>() + max(seq.key_batch, int64_t{0}) * table.stride[0];
#pragma unroll
    for (int i = 0; i < BN / 32; ++i) {
      const int key = n * BN + (lane + 32 * i) * rows;
      keys.page[i] = work.count && (lane + 32 * i) * rows < BN && key < work.tile.keys
                         ? ids[key / page * table.stride[1]]
                         : -1;
    }
    return keys;
  }

  // V follows K by a tile, as the products do.
  __device__ __forceinline__ void walk(const WorkSlot<Mask>& work, Ring& at) const {
    const int head = static_cast<int>(work.tile.key_head(a)),
              batch = max(static_cast<int>(work.tile.rows.seq.key_batch), 0);
    int n = work.last;
    Keys next = keys_of(work, n), behind{};
    for (int left = max(work.count, 1), owed = 0; left; --left, owed = 1) {
      const Keys here = next;
      n = work.before(n);
      if (left > 1) next = keys_of(work, n);  // the page table is read a tile ahead
      copy<typename Shape::TileK, true>(maps.k, here, head, batch, at);
      if (owed) copy<typename Shape::TileV, false>(maps.v, behind, head, batch, at);
      behind = here;
    }
    copy<typename Shape::TileV, false>(maps.v, behind, head, batch, at);
  }

  template <class Tile, bool TellAbsent>
  __device__ __forceinline__ void copy(const CUtensorMap& map, const Keys& keys, int head,
                                       int batch, Ring& at) const {
    sm90::barrier_wait(shared.empty(at), at.phase ^ 1);
    const uint32_t to = shared.keys(at), full = shared.full(at);
    if (Paged && a.sequences.page) {
      if (TellAbsent) tell_absent(keys, at);
      copy_pages<Tile>(map, keys, head, to, full);
    } else if (lane == 0) {
      sm90::copy_tile<Tile>(to, map, full, keys.row, head, batch);
    }
    at.next();
  }

  template <class Tile>
  __device__ __forceinline__ void copy_pages(const CUtensorMap& map, const Keys& keys, int head,
                                             uint32_t to, uint32_t full) const {
    const int page = static_cast<int>(a.sequences.page), rows = min(page, BN);
    const int token = page > BN ? keys.row % page : 0, nowhere = static_cast<int>(a.sequences.pool);
    if (lane == 0) sm90::barrier_expect(full, Tile::bytes);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < BN / 32; ++i) {
      const int piece = lane + 32 * i, id = keys.page[i];
      if (piece * rows >= BN) continue;
#pragma unroll
      for (int panel = 0; panel < Tile::panels; ++panel)
        sm90::copy_box(to + panel * Tile::panel_bytes + piece * rows * kPanelRowBytes, map, full,
                       panel * 64, token, head, id < 0 || id >= nowhere ? nowhere : id);
    }
  }
  __device__ __forceinline__ void tell_absent(const Keys& keys, Ring at) const {
    const int rows = min(static_cast<int>(a.sequences.page), BN);
#pragma unroll
    for (int word = 0; word < Shared::kAbsentWords; ++word) {
      const int piece = (word * 32 + lane) / rows;
      int id = -1;
#pragma unroll
      for (int i = 0; i < BN / 32; ++i) {
        const int other = __shfl_sync(~0u, keys.page[i], piece % 32);
        if (piece / 32 == i) id = other;
      }
      const uint32_t absent = __ballot_sync(~0u, id < 0 || id >= a.sequences.pool);
      if (lane == 0) shared.absent(at)[word] = absent;
    }
  }
};

// Zeroes the V rows of a stage from `tail` on.  Each warpgroup for itself, so that it need not wait
// for the others.
template <class Shape, class Mask>
__device__ __forceinline__ void clean_values(int tail, const Shared90<Shape, Mask>& shared,
                                             sm90::Ring<Shape::Stages> v, int group) {
  using TileV = typename Shape::TileV;
  sm90::barrier_wait(shared.full(v), v.phase);
  unsigned char* rows = shared.base + (shared.keys(v) - shared.at);
  for (int i = tail * kPanelChunks + threadIdx.x % 128; i < Shape::BN * kPanelChunks; i += 128)
#pragma unroll
    for (int panel = 0; panel < TileV::panels; ++panel)
      *reinterpret_cast<uint4*>(rows + panel * TileV::panel_bytes + i * 16) =
          make_uint4(0, 0, 0, 0);
  sm90::fence_shared();
  sm90::meet(1 + group, 128);
}

// A computing warpgroup.
template <class Shape, bool Paged, class Score, class Mask, class Sink>
__device__ __forceinline__ void compute_works(const Attend& a, const Sink& sink, int group,
                                              const Shared90<Shape, Mask>& shared) {
  constexpr int Dtype = Shape::Dtype, D = Shape::D, E = Shape::E, BN = Shape::BN;
  using Shared = Shared90<Shape, Mask>;
  using Ring = typename Shared::Ring;
  using TileV = typename Shape::TileV;
  const int lane = threadIdx.x % 32, warp_row = group * 64 + threadIdx.x / 32 % 4 * 16;
  typename Shared::WorkRing slot;
  typename Shared::QRing q_at;
  Ring at;
  float x[1][BN / 8][4], o[1][E / 8][4], alpha[1][2];
  uint32_t p[1][BN / 16][4], absent[Paged ? BN / 32 : 1] = {};
  const auto release = [&](uint32_t barrier) {
    if (lane == 0) sm90::barrier_arrive(barrier);
  };

  for (;;) {
    sm90::barrier_wait(shared.q_full(q_at), q_at.phase);
    const typename Shared::Slot& work = shared.work(slot);
    if (__all_sync(~0u, work.tile.size == 0)) return;
    const uint32_t q_rows = sm90::uniform(shared.q(q_at) + group * 64 * kPanelRowBytes);
    const int row = work.tile.begin + warp_row;
    int n = sm90::uniform(work.last), left = sm90::uniform(work.count);
    const int begin = sm90::uniform(work.mask.begin), end = sm90::uniform(work.mask.end);
    const Score score(a, work.tile);
    OnlineSoftmax<1> state;
    bool more = false;

    const auto scores = [&](Ring k) {
      sm90::barrier_wait(shared.full(k), k.phase);
      sm90::fence();
      sm90::product_rows<Dtype, D, typename Shape::TileQ, typename Shape::TileK>(
          x[0], sm90::descriptor(q_rows), sm90::descriptor(shared.keys(k)));
      sm90::commit();
    };
    const auto scores_done = [&](Ring k) {
      sm90::pin(x[0]);
      if (Paged && a.sequences.page) {
#pragma unroll
        for (int word = 0; word < BN / 32; ++word) absent[word] = shared.absent(k)[word];
      }
      release(shared.empty(k));
      if (--left <= 0) release(shared.q_empty(q_at));
    };
    const auto values = [&](Ring v) {
      sm90::barrier_wait(shared.full(v), v.phase);
      sm90::product_columns<Dtype>(o[0], p[0], sm90::descriptor(shared.keys(v), TileV::panel_bytes),
                                   more);
      sm90::commit();
      more = true;
    };
    const auto values_done = [&](Ring v) {
      sm90::pin(o[0]);
      release(shared.empty(v));
    };
    const auto weigh = [&](bool whole) {
      score.apply(x, n * BN, row);
      if (!whole) work.mask.apply(x, n * BN, row);
      if constexpr (Paged) hide_absent(x, absent);
      state.weigh(x, alpha, score.factor);
      n = work.before(n);
    };
    const auto step = [&](bool whole) {
      const Ring k = at;
      at.next();
      const Ring v = at;
      at.next();
      scores(k);
      values(v);
      sm90::wait<1>();
      scores_done(k);
      weigh(whole);
      sm90::wait<0>();
      values_done(v);
      pack_operand<Dtype>(p, x);
      state.shrink(o, alpha);
    };

    // Tiles that none of this warpgroup's rows sees, but others of the block do.
    const auto pass = [&] {
      sm90::barrier_wait(shared.full(at), at.phase);
      release(shared.empty(at));
      at.next();
    };
    const int seen = sm90::uniform(work.mask.last_tile(
        min(work.tile.begin + group * 64 + 63, work.tile.begin + work.tile.size - 1), BN));
    bool passed = false;
#pragma unroll 1
    for (; left > 1 && n > seen; --left, n = work.before(n), passed = true) {
      pass();
      if (passed) pass();  // V comes after the next K
    }
    scores(at);
    sm90::wait<0>();
    scores_done(at);
    at.next();
    weigh(false);
    pack_operand<Dtype>(p, x);
    if (passed) {
      pass();
    } else if (__any_sync(~0u, work.clean)) {
      Ring v = at;
      if (left > 0) v.next();
      clean_values<Shape>(work.tile.keys - work.last * BN, shared, v, group);
    }
#pragma unroll 1
    while (left > 0 && (n >= end || n < begin)) step(false);
#pragma unroll 1
    while (left > 0 && n >= begin) step(true);
#pragma unroll 1
    while (left > 0) step(false);
    sm90::fence();
    values(at);
    sm90::wait<0>();
    values_done(at);
    at.next();

    each_row<1>(row, [&](int i, int half, int m) {
      const float sum = state.total(i, half), top = state.m[i][half];
      sink.template store<Dtype>(a, work.tile, m, m < work.tile.begin + work.tile.size, work.split,
                                 top == kNegativeInfinity ? top : top * score.factor, sum, o[i],
                                 half);
    });
    sink.done(a, work.tile, work.number, shared.word(), [&] { sm90::meet(1 + group, 128); });
    __syncwarp();
    release(shared.free(slot));
    slot.next(), q_at.next();
  }
}

template <class Shape, bool Paged, TileScore Score, TileMask Mask, class Sink>
__global__ void __launch_bounds__(Shape::threads, 1)
    attend_sm90(const __grid_constant__ Attend a, const __grid_constant__ AttendGrid grid,
                const __grid_constant__ AttendMaps maps, const __grid_constant__ WorkOrder order,
                const __grid_constant__ Schedule schedule, const __grid_constant__ Sink sink) {
  extern __shared__ __align__(1024) unsigned char memory[];
  start_next();  // the merge of splits, if any
  const Shared90<Shape, Mask> shared(memory);
  if (threadIdx.x == 0) shared.init();
  __syncthreads();
  const int warp = sm90::uniform(threadIdx.x / 32);
  if (threadIdx.x == 32)
    sm90::prefetch_map(maps.q), sm90::prefetch_map(maps.k), sm90::prefetch_map(maps.v);
  if (warp < 4) {
    sm90::give_registers<Shape::copying>();
    if (warp == 0) Copy90<Shape, Paged, Mask>{a, grid, maps, shared}.run(order, schedule);
  } else {
    sm90::take_registers<Shape::computing>();
    compute_works<Shape, Paged, Score>(a, sink, warp / 4 - 1, shared);
  }
}

}  // namespace fovea::cuda
