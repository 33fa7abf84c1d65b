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
struct DualMaps {
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

template <class Shape>
constexpr bool skips_in() {
  if constexpr (requires { Shape::skip_empty_groups; })
    return Shape::skip_empty_groups;
  else
    return false;
}

// The warps that feed the others: one plans, one copies.  Paged: keys may come in pages, of which a
// tile holds a whole number, at most 32, or one holds a whole number of tiles; a lane copies a
// page, or a tile's part of one.  A warp issues one copy after another: where a tile is many pages,
// Shape::copiers warps take the tiles of the ring in turn.
template <class Shape, bool Paged, class Mask, class Maps>
struct Producer90 {
  using Shared = Shared90<Shape, Mask>;
  using Ring = typename Shared::Ring;
  static constexpr int BN = Shape::BN;
  static constexpr bool kPair = std::same_as<Maps, DualMaps>;
  static constexpr bool kListed = std::same_as<typename Mask::Call, ListedAttend>;
  const typename Mask::Call& call;
  const AttendGrid& grid;
  const Maps& maps;
  const Shared& shared;
  const Attend& a = attend_in(call);
  int lane = threadIdx.x % 32;
  static constexpr int kCopiers = copiers_in<Shape, Paged>();
  // Works that are few and long are asked for when so many key tiles are left of the one before, or
  // multiprocessors that read faster than others would wait for these in the end.
  static constexpr int kNear = near_in<Shape>();

  // Whether a work's first keys and Q are asked for by a plan that may yet be given up: consumers
  // wait for certain(), and leave out a work without rows.
  static constexpr bool kTrusts = kNear > 0 && skips_in<Shape>();
  static constexpr bool kOnlyPages = Shape::TileK::interleaved;

  __device__ static int copiers_of(const Attend& a) {
    return a.sequences.page && a.sequences.page < BN ? kCopiers : 1;
  }

  // Warps 0 to 3 of the block: 1 plans, 0 and then 2 and 3 copy.
  __device__ __forceinline__ void run(int warp, const WorkOrder& order, const Schedule& schedule) {
    if (warp == 1)
      schedule_tiles(order, schedule);
    else if (warp == 0 || (kCopiers > 1 && warp <= copiers_of(a)))
      produce_tiles();
  }

 private:
  __device__ bool pages() const { return Paged && (kOnlyPages || a.sequences.page); }
  // The last copier, which has Q: the first has the first keys.
  __device__ bool leads() const {
    return kCopiers == 1 || threadIdx.x / 32 == (copiers_of(a) > 1 ? copiers_of(a) : 0);
  }
  // Of what a work is, what the kernel before may have told.
  __device__ bool told() const {
    const Sequences& given = a.sequences;
    return kListed || given.query_start || given.key_start || given.query_len || given.key_len ||
           given.key_first || given.cache_row;
  }
  // Sequences have as many row tiles as the longest may have, most of them then without rows.
  __device__ bool ragged() const { return a.sequences.query_start || a.sequences.query_len; }
  __device__ static bool same(const Sequence& x, const Sequence& y) {
    return x.row_begin == y.row_begin && x.rows == y.rows && x.key_batch == y.key_batch &&
           x.key_begin == y.key_begin && x.key_first == y.key_first && x.keys == y.keys;
  }
  // What the next work is, while this one is under way: its divisions take longer than a tile.
  // The first is planned while the kernel before ends, from lengths and a page table that it may
  // yet change, and its first keys are asked for at that kernel's end.  Lengths and pages are
  // looked at again meanwhile.  Where they are others, the work ends with its first tile, without
  // rows, and is planned anew.
  __device__ __forceinline__ void schedule_tiles(const WorkOrder& order,
                                                 const Schedule& schedule) const {
    typename Shared::WorkRing slot;
    // Works asked for late are counted once this one copies.
    const bool waits = kListed || (kNear == 0 && (told() || schedule.counters));
    if (waits) pdl_wait();
    bool sure = waits || !(told() || pages());
    uint32_t near_phase = 0;
    const int run = ragged() ? order.run(static_cast<int>(grid.heads)) : 0;
    const auto has_rows = [&](int work) {
      const WorkPlace place(order, work);
      return place.row_tile * row_step(grid.group) <
             a.sequences[place.head / static_cast<int>(grid.heads)].rows * grid.group;
    };
    const auto next = [&](TileScheduler& works) {
      works.next(kNear == 0);
      if (run) works.pass(run, has_rows);
    };
    for (TileScheduler works(schedule, kNear == 0); !works.done();) {
      shared.tile_pipe().acquire(slot);
      __syncwarp();  // a work without rows was seen by all lanes
      const WorkPlace place(order, *works);
      const int rows = row_step(grid.group), heads = static_cast<int>(grid.heads),
                r = place.head / heads;
      WorkSlot<Mask>& work = shared.work(slot);
      if (lane == 0)
        new (&work)
            WorkSlot<Mask>(call, grid, a.sequences[r], r, place.head - r * heads, place, rows, BN);
      __syncwarp();
      const bool empty = work.tile.size <= 0, trusted = kTrusts && !empty;
      int& page = shared.first_pages(slot)[lane];
      const int32_t* entry =
          pages() && !empty ? entry_of(work, first_of(work, work.last)) : nullptr;
      if (pages()) page = page_at(entry);
      __syncwarp();
      if (trusted && lane == 0) shared.tile_pipe().arrive(slot);
      bool right = true;
      if (!sure) {
        pdl_wait();
        const int now = page_at(entry);
        right =
            __all_sync(~0u, same(a.sequences[r], work.tile.rows.seq) && (!pages() || now == page));
        sure = true;
        if (!right && !trusted) continue;
        if (!right && lane == 0) work.tile.size = -1, work.count = min(work.count, 1);
        __syncwarp();
      }
      if (!empty) {
        if (lane == 0)
          sm90::barrier_arrive(kTrusts ? shared.tile_confirmed(slot)
                                       : shared.tile_pipe().full(slot));
        slot.next();
        if (kNear > 0) sm90::barrier_wait(shared.prefetch_next(), near_phase), near_phase ^= 1;
      }
      if (right) next(works);
    }
    shared.tile_pipe().acquire(slot);
    __syncwarp();
    if (lane != 0) return;
    shared.work(slot).tile.size = 0;
    shared.tile_pipe().arrive(slot), sm90::barrier_arrive(shared.tile_confirmed(slot));
  }

  // While the first work is planned, the way of its copies is gone once by lanes past the last,
  // which ask for nothing whatever the work is: a code's first run takes two to four times as long.
  __device__ __forceinline__ void produce_tiles() {
    typename Shared::WorkRing slot;
    typename Shared::QRing q;
    Tiles at;
    static_assert(!kTrusts || Shape::Stages >= 4);  // two tiles of K and V wait for nothing
    if (kTrusts) lane += 32;
    for (bool live = !kTrusts;;) {
      if (live) shared.tile_pipe().wait(slot);
      const WorkSlot<Mask>& work =
          live ? shared.work(slot) : *reinterpret_cast<const WorkSlot<Mask>*>(shared.base);
      if (live && work.tile.size == 0) break;
      walk(work, slot, q, at, live);
      if (!live) {
        live = true, lane -= 32, at = Tiles();
        continue;
      }
      if (!leads()) {
        __syncwarp();
        shared.tile_pipe().release(slot);
      }
      slot.next(), q.next();
    }
    if (!leads()) return;
    shared.q_pipe().acquire(q);
    if (lane == 0) shared.q_pipe().arrive(q);
  }

  // Before anything is asked for: the kernel before has ended.  The kernel after relies on what
  // came before this one, too: it may start only now.
  __device__ static void begin() {
    pdl_wait();
    pdl_trigger();
  }

  // Rows of a row tile: whole groups.
  __device__ static int row_step(int group) { return Shape::BM / group * group; }

  __device__ __forceinline__ void query(const WorkSlot<Mask>& work,
                                        typename Shared::QRing q) const {
    const RowTile& tile = work.tile;
    const Sequence& seq = tile.rows.seq;
    const int row = static_cast<int>(seq.row_begin) + tile.first_query(),
              batch = static_cast<int>(seq.batch);
    shared.q_pipe().acquire(q);
    if (lane != 0) return;
    if constexpr (kPair) {
      const int head = static_cast<int>(tile.rows.g);
      shared.q_pipe().expect(q, Shape::q_bytes);
      sm90::copy_panels<typename Shape::TileQ>(shared.q(q), maps.q, shared.q_pipe().full(q), row,
                                               head, batch);
      sm90::copy_panels<typename Shape::TileQ2>(shared.q(q) + Shape::TileQ::bytes, maps.q2,
                                                shared.q_pipe().full(q), row, head, batch);
      return;
    }
    if (tile.group() == 1) {
      sm90::copy_tile<typename Shape::TileQ>(shared.q(q), maps.q, shared.q_pipe().full(q), row,
                                             static_cast<int>(tile.rows.g), batch);
      return;
    }
    // A box of whole groups, heads before rows.
    constexpr int panels = Shape::TileQ::panels;
    shared.q_pipe().expect(q, panels * work.rows * kPanelRowBytes);
    for (int panel = 0; panel < panels; ++panel)
      sm90::copy_box(shared.q(q) + panel * Shape::TileQ::panel_bytes, maps.q,
                     shared.q_pipe().full(q), panel * 64, static_cast<int>(tile.rows.head_begin()),
                     row, batch);
  }

  // The next tile to copy, and how many others' are before it.
  struct Tiles : Ring {
    int others = kCopiers > 1 && threadIdx.x >= 32 ? static_cast<int>(threadIdx.x / 32) - 1 : 0;
  };

  // Where a tile of keys lies: the storage index of its first, in its page where that is larger,
  // and the pool page of the lane's box, past the pool for none.
  struct Keys {
    int row, page;
  };
  // Pool pages of a stretch of the page table, from `first` on one a lane.
  struct Stretch {
    int first, page;
  };
  static constexpr int kStretch = 32;

  // The place in the page table of a tile's first page.
  __device__ int place_of(int tile) const {
    if constexpr (Paged) {
      const uint32_t tiles = maps.pages.tiles;
      return tiles > 1 ? static_cast<uint32_t>(tile) / tiles : tile * maps.pages.boxes;
    }
    return 0;
  }
  // The first place of the stretch that ends with the pages of a step of the walk.
  __device__ int first_of(const WorkSlot<Mask>& work, int step) const {
    if constexpr (Paged) return place_of(work.key_tile(step)) + maps.pages.boxes - kStretch;
    return 0;
  }
  // The lane's entry of the page table in a stretch; nullptr: none, or of no key.
  __device__ __forceinline__ const int32_t* entry_of(const WorkSlot<Mask>& work, int first) const {
    const int place = first + lane;
    if (lane >= kStretch || !work.count || place < 0 ||
        place * static_cast<int>(a.sequences.page) >= work.tile.keys)
      return nullptr;
    const View<2>& table = a.sequences.page_table;
    return table.as<int32_t>() + max(work.tile.rows.seq.key_batch, int64_t{0}) * table.stride[0] +
           place * table.stride[1];
  }
  __device__ __forceinline__ int page_at(const int32_t* entry) const {
    return entry ? *entry : nowhere();
  }
  // The walk goes down the table.
  __device__ __forceinline__ Keys keys_of(const WorkSlot<Mask>& work, int step,
                                          Stretch& stretch) const {
    const int n = work.key_tile(step);
    Keys keys{work.count ? static_cast<int>(work.tile.rows.seq.key_begin) + n * BN
                         : static_cast<int>(a.t),
              0};
    if constexpr (Paged) {
      if (!pages()) return keys;
      const int place = place_of(n), tiles = maps.pages.tiles;
      if (place < stretch.first) {
        stretch.first = place + maps.pages.boxes - kStretch;
        stretch.page = page_at(entry_of(work, stretch.first));
      }
      keys.row = tiles > 1 ? (n - place * tiles) * BN : 0;
      keys.page = __shfl_sync(~0u, stretch.page, place - stretch.first + lane);
    }
    return keys;
  }
  __device__ int nowhere() const { return static_cast<int>(a.sequences.pool); }

  // Works without rows are to be passed before the next one: it is asked for when this one begins.
  __device__ __forceinline__ void ask_near(int left, int all) const {
    if (kNear > 0 && left == (ragged() ? all : min(all, kNear)) && leads() && lane == 0)
      sm90::barrier_arrive(shared.prefetch_next());
  }
  // V follows K by a tile, as the products do; a pair's keys go together.
  __device__ __forceinline__ void walk(const WorkSlot<Mask>& work, typename Shared::WorkRing slot,
                                       typename Shared::QRing q, Tiles& at, bool live) const {
    const int head = static_cast<int>(work.tile.key_head(a)),
              batch = max(static_cast<int>(work.tile.rows.seq.key_batch), 0);
    int n = work.last;
    Stretch stretch{};
    if constexpr (kPair) {
      begin();
      query(work, q);
      const int second = static_cast<int>(work.tile.rows.g) / maps.group;
      const int all = max(work.count, 1);
      for (int left = all; left; --left, n = work.before(n)) {
        ask_near(left, all);
        const Keys here = keys_of(work, n, stretch);
        copy<typename Shape::TileK, true>(maps.k, here, head, batch, at, false);
        copy<typename Shape::TileV, false>(maps.v, here, second, batch, at, false);
      }
      return;
    }
    if (pages() && live) stretch = {first_of(work, n), shared.first_pages(slot)[lane]};
    Keys here{}, behind{};
    int all = 1;  // at least
    for (int done = 0; done <= all; ++done) {
      if (done < all) {
        here = keys_of(work, n, stretch);
        n = work.before(n);
        copy<typename Shape::TileK, true>(maps.k, here, head, batch, at, done == 0 && live);
      }
      if (done == 0) {
        if (leads()) query(work, q);
        if (kTrusts && live) sm90::barrier_wait(shared.tile_confirmed(slot), slot.phase);
        all = live ? max(work.count, 1) : 2;
      } else {
        copy<typename Shape::TileV, false>(maps.v, behind, head, batch, at, false);
      }
      ask_near(all - 1 - done, all - 1);
      behind = here;
    }
  }

  // `begins`: nothing was asked for before.
  template <class Tile, bool TellAbsent>
  __device__ __forceinline__ void copy(const CUtensorMap& map, const Keys& keys, int head,
                                       int batch, Tiles& at, bool begins) const {
    if (kCopiers > 1) {
      if (at.others > 0) {
        if (begins) begin();
        return --at.others, at.next();
      }
      at.others = copiers_of(a) - 1;
    }
    const uint32_t to = shared.keys(at), full = shared.key_pipe().full(at);
    if constexpr (Paged) {
      if (pages()) {
        copy_pages<Tile, TellAbsent>(map, keys, head, to, full, at, begins);
        return at.next();
      }
    }
    if (begins) begin();
    shared.key_pipe().acquire(at);
    if (lane == 0) sm90::copy_tile<Tile>(to, map, full, keys.row, head, batch);
    at.next();
  }

  // Bytes are asked for as soon as the stage is free: all else is worked out before.
  template <class Tile, bool TellAbsent>
  __device__ __forceinline__ void copy_pages(const CUtensorMap& map, const Keys& keys, int head,
                                             uint32_t to, uint32_t full, Ring at,
                                             bool begins) const {
    const PageCuts& cuts = maps.pages;
    const bool gone = static_cast<uint32_t>(keys.page) >= static_cast<uint32_t>(nowhere());
    const int page = sm90::unhoisted(gone ? nowhere() : keys.page);
    uint32_t absent[Shared::kAbsentWords] = {};
    if (TellAbsent && __any_sync(~0u, gone && lane < cuts.boxes))
#pragma unroll
      for (int word = 0; word < Shared::kAbsentWords; ++word)
        absent[word] = __ballot_sync(~0u, __shfl_sync(~0u, gone, (word * 32 + lane) / cuts.rows));
    const uint32_t box = sm90::unhoisted(to + lane * (cuts.rows * (Tile::octet_bytes / 8)));
    const int panel = sm90::unhoisted(head * cuts.head_panels),
              octet = sm90::unhoisted(head * cuts.head_octets + (keys.row >> 3));
    full = sm90::unhoisted(full);
    if (begins) begin();
    shared.key_pipe().acquire(at);
    if (lane == 0) {
#pragma unroll
      for (int word = 0; TellAbsent && word < Shared::kAbsentWords; ++word)
        shared.absent(at)[word] = absent[word];
      sm90::barrier_expect(full, Tile::bytes);
    }
    __syncwarp();
    if (lane >= cuts.boxes) return;
    if constexpr (Tile::interleaved) {
      sm90::copy_octets(box, map, full, panel, octet, page);
    } else {
#pragma unroll
      for (int n = 0; n < Tile::panels; ++n)
        sm90::copy_box(box + n * Tile::panel_bytes, map, full, n * 64, keys.row, head, page);
    }
  }
};

}  // namespace fovea::cuda
