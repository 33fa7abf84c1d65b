// SPDX-License-Identifier: Apache-2.0
// What feeds the forward sweeps of Hopper: a warp that finds out what each work of a block is and
// warps that copy its tiles, all running ahead.
#pragma once
#include <concepts>
#include <new>

#include "cuda/block/schedule.cuh"
#include "cuda/loop/shared_sm90.cuh"
#include "cuda/tensor_map.h"
#include "cuda/tile/order.cuh"

namespace fovea::cuda {

// Two distributions over the same keys: q and k of the first, then of the second, in one ring.  A
// slot of Q holds the second's rows behind the first's.
struct PairMaps {
  CUtensorMap q, k, q2, v;  // v: the second's keys
  int32_t group;            // query heads that share a key head of the second
};

template <class Shape, bool Paged>
constexpr int copiers_in() {
  if constexpr (Paged)
    return Shape::copiers;
  else
    return 1;
}

template <class Shape>
constexpr int near_in() {
  if constexpr (requires { Shape::near; })
    return Shape::near;
  else
    return 0;
}

// The warps that feed the others: one plans, one copies.  Paged: keys may come in pages, of which a
// tile holds a whole number or one holds a whole number of tiles; a lane copies a page, or a tile's
// part of one.  A warp issues one copy after another: where a tile is many pages, Shape::copiers
// warps take the tiles of the ring in turn.
template <class Shape, bool Paged, class Mask, class Maps>
struct Copy90 {
  using Shared = Shared90<Shape, Mask>;
  using Ring = typename Shared::Ring;
  static constexpr int BN = Shape::BN;
  static constexpr bool kPair = std::same_as<Maps, PairMaps>;
  const Attend& a;
  const AttendGrid& grid;
  const Maps& maps;
  const Shared& shared;
  const int lane = threadIdx.x % 32;
  static constexpr int kCopiers = copiers_in<Shape, Paged>();
  // Works that are few and long are asked for when so many key tiles are left of the one before, or
  // multiprocessors that read faster than others would wait for these in the end.
  static constexpr int kNear = near_in<Shape>();

  __device__ static int copiers_of(const Attend& a) {
    return kCopiers == 2 && a.sequences.page && a.sequences.page < BN ? 2 : 1;
  }

  // Warps 0 to 3 of the block: 1 plans, 0 and 2 copy.
  __device__ __forceinline__ void run(int warp, const WorkOrder& order,
                                      const Schedule& schedule) const {
    if (warp == 1)
      plan_works(order, schedule);
    else if (warp == 0 || (kCopiers == 2 && warp == 2 && copiers_of(a) == 2))
      copy_works();
  }

 private:
  // Of two copiers the first, which has Q and every even tile.
  __device__ static bool leads() { return kCopiers == 1 || threadIdx.x < 32; }
  // What the next work is, while this one is under way: its divisions take longer than a tile.
  __device__ __forceinline__ void plan_works(const WorkOrder& order,
                                             const Schedule& schedule) const {
    typename Shared::WorkRing slot;
    // From parameters alone, a plan is made while the kernel before ends.  Works asked for late are
    // counted once this one copies.
    const Sequences& given = a.sequences;
    if ((schedule.counters && kNear == 0) || a.list || given.query_start || given.key_start ||
        given.query_len || given.key_len || given.key_first || given.cache_row)
      wait_for_previous();
    uint32_t near_phase = 0;
    for (Works works(schedule, kNear > 0); !works.done(); works.next()) {
      sm90::barrier_wait(shared.free(slot), slot.phase ^ 1);
      if (lane == 0)
        new (&shared.work(slot))
            WorkSlot<Mask>(a, grid, WorkPlace(order, *works), row_step(grid.group), BN);
      __syncwarp();
      if (shared.work(slot).tile.size <= 0) continue;
      if (lane == 0) sm90::barrier_arrive(shared.planned(slot));
      slot.next();
      if (kNear > 0) sm90::barrier_wait(shared.near(), near_phase), near_phase ^= 1;
    }
    sm90::barrier_wait(shared.free(slot), slot.phase ^ 1);
    if (lane != 0) return;
    shared.work(slot).tile.size = 0;
    sm90::barrier_arrive(shared.planned(slot));
  }

  __device__ __forceinline__ void copy_works() const {
    typename Shared::WorkRing slot;
    typename Shared::QRing q;
    Ring at;
    // The kernel after relies on what came before this one, too: it may start only now.
    wait_for_previous();
    start_next();
    for (;; slot.next(), q.next()) {
      sm90::barrier_wait(shared.planned(slot), slot.phase);
      const WorkSlot<Mask>& work = shared.work(slot);
      if (leads()) sm90::barrier_wait(shared.q_empty(q), q.phase ^ 1);
      if (work.tile.size == 0) break;
      if (leads()) query(work.tile, q);
      walk(work, at);
      if (leads()) continue;
      __syncwarp();
      if (lane == 0) sm90::barrier_arrive(shared.free(slot));
    }
    if (leads() && lane == 0) sm90::barrier_arrive(shared.q_full(q));
  }

  // Rows of a row tile: whole groups.
  __device__ static int row_step(int group) { return Shape::BM / group * group; }

  __device__ __forceinline__ void query(const RowTile& tile, typename Shared::QRing q) const {
    const Sequence& seq = tile.rows.seq;
    const int row = static_cast<int>(seq.row_begin) + tile.first_query(),
              batch = static_cast<int>(seq.batch);
    if (lane != 0) return;
    if constexpr (kPair) {
      const int head = static_cast<int>(tile.rows.g);
      sm90::barrier_expect(shared.q_full(q), Shape::q_bytes);
      sm90::copy_panels<typename Shape::TileQ>(shared.q(q), maps.q, shared.q_full(q), row, head,
                                               batch);
      sm90::copy_panels<typename Shape::TileQ2>(shared.q(q) + Shape::TileQ::bytes, maps.q2,
                                                shared.q_full(q), row, head, batch);
      return;
    }
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
  __device__ __forceinline__ Keys keys_of(const WorkSlot<Mask>& work, int step) const {
    const int n = work.key_tile(step);
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

  __device__ __forceinline__ void ask_near(int left, int all) const {
    if (kNear > 0 && left == min(all, kNear) && leads() && lane == 0)
      sm90::barrier_arrive(shared.near());
  }
  // V follows K by a tile, as the products do; a pair's keys go together.
  __device__ __forceinline__ void walk(const WorkSlot<Mask>& work, Ring& at) const {
    const int head = static_cast<int>(work.tile.key_head(a)),
              batch = max(static_cast<int>(work.tile.rows.seq.key_batch), 0);
    if constexpr (kPair) {
      const int second = static_cast<int>(work.tile.rows.g) / maps.group;
      const int all = max(work.count, 1);
      for (int n = work.last, left = all; left; --left, n = work.before(n)) {
        ask_near(left, all);
        const Keys here = keys_of(work, n);
        copy<typename Shape::TileK, false>(maps.k, here, head, batch, at);
        copy<typename Shape::TileV, false>(maps.v, here, second, batch, at);
      }
      return;
    }
    int n = work.last;
    Keys next = keys_of(work, n), behind{};
    const int all = max(work.count, 1);
    for (int left = all, owed = 0; left; --left, owed = 1) {
      ask_near(left, all);
      const Keys here = next;
      n = work.before(n);
      if (left > 1) next = keys_of(work, n);  // the page table is read a tile ahead
      copy<typename Shape::TileK, true>(maps.k, here, head, batch, at);
      if (owed) copy<typename Shape::TileV, false>(maps.v, behind, head, batch, at);
      behind = here;
    }
    copy<typename Shape::TileV, false>(maps.v, behind, head, batch, at);
  }

  // Odd tiles of the ring, which may have an odd number of stages.
  __device__ static bool odd(Ring at) {
    return (at.stage + (Shape::Stages % 2 ? static_cast<int>(at.phase) : 0)) % 2;
  }
  template <class Tile, bool TellAbsent>
  __device__ __forceinline__ void copy(const CUtensorMap& map, const Keys& keys, int head,
                                       int batch, Ring& at) const {
    if (kCopiers == 2 && copiers_of(a) == 2 && odd(at) == leads()) return at.next();
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

}  // namespace fovea::cuda
