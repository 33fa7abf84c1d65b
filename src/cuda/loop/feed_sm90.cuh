// SPDX-License-Identifier: Apache-2.0
// What feeds the forward sweeps of Hopper: a scheduler warp and producer warps.
//
//   | policy    | where it is         | what it says                                             |
//   | KeySource | source_sm90.cuh     | which tiles of keys there are, and where they lie        |
//   | Operands  | here                | what the tiles of Q, K and V are, and how TMA brings them |
//   | EarlyPlan | early_plan_sm90.cuh | what is done while the kernel before still runs          |
#pragma once
#include <concepts>
#include <new>

#include "cuda/block/schedule.cuh"
#include "cuda/loop/early_plan_sm90.cuh"
#include "cuda/loop/shared_sm90.cuh"
#include "cuda/loop/source_sm90.cuh"
#include "cuda/tensor_map.h"
#include "cuda/tile/copy.cuh"
#include "cuda/tile/order.cuh"

namespace fovea::cuda {

// Two distributions over the same keys.
struct DualMaps {
  CUtensorMap q, k, q2, v;  // v: the second's keys
  int32_t group;            // query heads that share a key head of the second
};
// 8-bit codes; v: stored transposed, in v_perm16.
struct CodeMaps {
  CUtensorMap q, k, v;
};

// Where the rows of a row tile begin.
struct QueryBox {
  int row, batch;
};

// Operands: what the tiles of a work item are, and how a thread has TMA bring them.  A kernel's
// maps choose.
//
//   | maps       | elements  | Q                               | K    | V                   |
//   | AttendMaps | f16, bf16 | rows, of whole groups: pack_gqa | rows | rows                |
//   | DualMaps   | f16, bf16 | both: the second's behind       | rows | the second's K      |
//   | CodeMaps   | e4m3      | rows                            | rows | columns: transposed |
//
//   paired                  V is copied right behind its K; else behind the next tile's K
//   query(maps, work, ..)   Q of a work item, which begins at `box`
//   copy<V>(maps, work, ..) a tile of K or of V, whose keys begin at row `row` of k
template <class Shape, class Maps>
struct Operands;

template <class Shape>
struct RowOperands {
  template <bool V, class Maps, class Work>
  __device__ static void copy(const Maps& maps, const Work&, int row, int head, int batch,
                              uint32_t to, uint32_t full) {
    using Tile = std::conditional_t<V, typename Shape::TileV, typename Shape::TileK>;
    sm90::tma_load_tile<Tile>(to, V ? maps.v : maps.k, full, row, head, batch);
  }
};

template <class Shape>
struct Operands<Shape, AttendMaps> : RowOperands<Shape> {
  static constexpr bool paired = false;

  template <class Work>
  __device__ static void query(const AttendMaps& maps, const Work& work, const QueryBox& box,
                               uint32_t to, uint32_t full) {
    using Tile = typename Shape::TileQ;
    const RowTile& tile = work.tile;
    if (tile.group() == 1) {
      sm90::tma_load_tile<Tile>(to, maps.q, full, box.row, static_cast<int>(tile.rows.g),
                                box.batch);
      return;
    }
    // A box of whole groups, heads before rows.
    sm90::barrier_expect(full, Tile::panels * work.rows * kPanelRowBytes);
    for (int panel = 0; panel < Tile::panels; ++panel)
      sm90::tma_load_box(to + panel * Tile::panel_bytes, maps.q, full, panel * 64,
                         static_cast<int>(tile.rows.head_begin()), box.row, box.batch);
  }
};

template <class Shape>
struct Operands<Shape, DualMaps> : RowOperands<Shape> {
  static constexpr bool paired = true;

  template <class Work>
  __device__ static void query(const DualMaps& maps, const Work& work, const QueryBox& box,
                               uint32_t to, uint32_t full) {
    const int head = static_cast<int>(work.tile.rows.g);
    sm90::barrier_expect(full, Shape::q_bytes);
    sm90::tma_load_panels<typename Shape::TileQ>(to, maps.q, full, box.row, head, box.batch);
    sm90::tma_load_panels<typename Shape::TileQ2>(to + Shape::TileQ::bytes, maps.q2, full, box.row,
                                                  head, box.batch);
  }
};

template <class Shape>
struct Operands<Shape, CodeMaps> {
  static constexpr bool paired = false;

  template <class Work>
  __device__ static void query(const CodeMaps& maps, const Work& work, const QueryBox& box,
                               uint32_t to, uint32_t full) {
    sm90::tma_load_bytes<typename Shape::TileQ>(to, maps.q, full, 0, box.row,
                                                static_cast<int>(work.tile.rows.g), box.batch);
  }
  template <bool V, class Work>
  __device__ static void copy(const CodeMaps& maps, const Work& work, int row, int head, int batch,
                              uint32_t to, uint32_t full) {
    if constexpr (V)
      // TMA wants a multiple of 16 codes; without keys nobody reads what it loads.
      sm90::tma_load_bytes<typename Shape::TileV>(
          to, maps.v, full, work.count ? work.column + row : 0, 0, head, batch);
    else
      sm90::tma_load_bytes<typename Shape::TileK>(to, maps.k, full, 0, row, head, batch);
  }
  // 64 keys of a tile from `key` on; nothing but zeros where there is no such key.
  template <bool V, class Work>
  __device__ static void copy_part(const CodeMaps& maps, const Work& work, int part, int key,
                                   int head, int batch, uint32_t to, uint32_t full) {
    const bool there = key < work.tile.keys;
    const int row = static_cast<int>(work.tile.rows.seq.key_begin) + key;
    const int at = V ? work.column + row : row;
    load_part<V>(maps, part, there ? at : kNowhere, head, batch, to, full);
  }
  // The same of `keys` keys of a page, 16 or 32, whose values are runs.
  template <bool V>
  __device__ static void copy_page_run(const CodeMaps& maps, int box, int keys, const KeyBox& at,
                                       int head, uint32_t to, uint32_t full) {
    const int row = at.page < 0 ? kNowhere : at.row, page = max(at.page, 0);
    if constexpr (V) {
      using Tile = typename Shape::TileV;
      sm90::tma_load_runs(to + box * keys / Tile::Panel * Tile::panel_bytes, maps.v, full,
                          row / Tile::Panel, head, page);
    } else {
      using Tile = typename Shape::TileK;
#pragma unroll
      for (int panel = 0; panel < Tile::panels; ++panel)
        sm90::tma_load_box(to + panel * Tile::panel_bytes + box * (keys * Tile::Panel), maps.k,
                           full, panel * Tile::Panel, row, head, page);
    }
  }
  // The same of 64 keys of a page.
  template <bool V>
  __device__ static void copy_page_part(const CodeMaps& maps, int part, const KeyBox& at, int head,
                                        uint32_t to, uint32_t full) {
    load_part<V>(maps, part, at.page < 0 ? kNowhere : at.row, head, max(at.page, 0), to, full);
  }

 private:
  static constexpr int kNowhere = 1 << 30;  // past every key

  // `row`: of k, column of v.
  template <bool V>
  __device__ static void load_part(const CodeMaps& maps, int part, int row, int head, int batch,
                                   uint32_t to, uint32_t full) {
    if constexpr (V) {
      using Tile = typename Shape::TileV;
      static_assert(Tile::Panel == kTileKeys);
      sm90::tma_load_box(to + part * Tile::panel_bytes, maps.v, full, row, 0, head, batch);
    } else {
      using Tile = typename Shape::TileK;
#pragma unroll
      for (int panel = 0; panel < Tile::panels; ++panel)
        sm90::tma_load_box(to + panel * Tile::panel_bytes + part * (kTileKeys * Tile::Panel),
                           maps.k, full, panel * Tile::Panel, row, head, batch);
    }
  }
};

// Warpgroup 0: a scheduler warp finds out what each work item of the block is, and producer warps
// copy its tiles, all running ahead.  A warp issues one copy after another: where a tile is many
// pages, Shape::producer_warps warps take the tiles of the ring in turn.
template <class Shape, KeySource Source, class Mask, class Maps,
          class Shared_ = Shared90<Shape, Source, Mask>>
struct Producer90 {
  using Shared = Shared_;
  using Slot = typename Shared::Slot;
  using KeyState = typename Shared::KeyState;
  using Boxes = typename Source::template Boxes<Shape>;
  using Load = Operands<Shape, Maps>;
  static_assert(KeyBoxes<Boxes, Slot>);
  static constexpr int BN = Shape::BN;
  const typename Source::Call& call;
  const AttendGrid& grid;
  const Maps& maps;
  const Shared& shared;
  const Attend& a = attend_in(call);
  const Boxes boxes = Boxes(a, maps);
  int lane = threadIdx.x % 32;
  static constexpr int kProducerWarps = [] {
    if constexpr (Boxes::paged)
      return Shape::producer_warps;
    else
      return 1;
  }();
  // Work items that are few and long are requested late, when so many key tiles are left to copy of
  // the one before; 0: when needed.  Else multiprocessors that read faster than others would wait
  // for these in the end.
  static constexpr int kPrefetch = Shape::prefetch;
  static constexpr bool kEarly = copies_early<Shape>();
  // The mask asks for more device data: windows of heads, lengths of contexts.
  static constexpr bool kSpans = Mask::sinks;
  // What the steps of a walk read is confirmed like the geometry.
  static constexpr bool kConfirms = requires(
      const typename Source::Steps& steps, const typename Source::Call& call, const RowTile& tile) {
    steps.unchanged(call, tile);
  };

  __device__ static int producer_warps_of(const Attend& a) {
    return a.sequences.page && a.sequences.page < BN ? kProducerWarps : 1;
  }

  // Warps 0 to 3 of the block: 1 is the scheduler, 0 and then 2 and 3 are producers.
  __device__ __forceinline__ void run(int warp, const TileOrder& order,
                                      const DynamicSchedule& schedule) {
    if (warp == 1)
      schedule_tiles(order, schedule);
    else if (warp == 0 || (kProducerWarps > 1 && warp <= producer_warps_of(a)))
      produce_tiles();
  }

 protected:
  // The last producer copies Q: the first has the first keys.
  __device__ bool leads() const {
    return kProducerWarps == 1 ||
           threadIdx.x / 32 == (producer_warps_of(a) > 1 ? producer_warps_of(a) : 0);
  }
  // Sequences differ in rows.  Each has as many row tiles as the longest may have, most of them
  // then without rows.
  __device__ bool ragged() const { return a.sequences.query_start || a.sequences.query_len; }
  __device__ static bool same(const Sequence& x, const Sequence& y) {
    if ((kSpans || kConfirms) && x.context != y.context) return false;
    return x.row_begin == y.row_begin && x.rows == y.rows && x.key_batch == y.key_batch &&
           x.key_begin == y.key_begin && x.key_first == y.key_first && x.keys == y.keys;
  }
  // What the next work item is, while this one is under way: its divisions take longer than a tile.
  __device__ __forceinline__ void schedule_tiles(const TileOrder& order,
                                                 const DynamicSchedule& schedule) const {
    typename Shared::TileState slot;
    // The counters are at rest once the kernel before has ended: with a prefetch they are asked for
    // nothing before this one copies.
    const bool late = (Source::Steps::reads_device && !kConfirms) ||
                      (kSpans && a.mask.head_window) ||
                      (kPrefetch == 0 && (geometry_on_device(a) || schedule.counters));
    EarlyPlan<Shared, kEarly> early(
        shared, late, depends_on_device<Source>(a, boxes) || (kSpans && a.sequences.context_len));
    uint32_t prefetch_phase = 0;
    const int run = ragged() ? order.run(static_cast<int>(grid.heads)) : 0;
    const auto has_rows = [&](int work) {
      const TileCoord place(order, work);
      int rows = row_step(grid.group);
      if constexpr (requires { call.lists.step; }) rows = call.lists.step;
      return place.row_tile * rows <
             a.sequences[place.head / static_cast<int>(grid.heads)].rows * grid.group;
    };
    const auto next = [&](TileScheduler& items) {
      items.next(kPrefetch == 0);
      if (run) items.pass(run, has_rows);
    };
    for (TileScheduler items(schedule, kPrefetch == 0); !items.done();) {
      shared.tile_pipe().acquire(slot);
      __syncwarp();  // an item without rows was seen by all lanes
      const TileCoord place(order, *items);
      const int heads = static_cast<int>(grid.heads), r = place.head / heads;
      int rows = row_step(grid.group);
      if constexpr (requires { call.lists.step; }) rows = call.lists.step;
      Slot& work = shared.work(slot);
      if (lane == 0)
        new (&work) Slot(call, grid, a.sequences[r], r, place.head - r * heads, place, rows, BN);
      __syncwarp();
      const bool empty = work.tile.size <= 0;
      const Guess guess = publish(early, slot, work, [&] {
        bool right = same(a.sequences[r], work.tile.rows.seq);
        if constexpr (kConfirms) right = right && (empty || work.unchanged(call, work.tile));
        return right;
      });
      if (guess == Guess::again) continue;
      if (!empty) {
        slot.next();
        if (kPrefetch > 0)
          sm90::barrier_wait(shared.prefetch_next(), prefetch_phase), prefetch_phase ^= 1;
      }
      if (guess == Guess::kept) next(items);
    }
    shared.tile_pipe().acquire(slot);
    __syncwarp();
    if (lane != 0) return;
    shared.work(slot).tile.size = 0;
    shared.tile_pipe().arrive(slot), sm90::barrier_arrive(shared.tile_confirmed(slot));
  }

  // With the pages of the first key tile, which are looked at again like the geometry.
  template <class Same>
  __device__ __forceinline__ Guess publish(EarlyPlan<Shared, kEarly>& early,
                                           typename Shared::TileState slot, const Slot& work,
                                           Same same) const {
    if constexpr (Boxes::paged) {
      int& page = shared.first_pages(slot)[lane];
      const int32_t* entry =
          boxes.pages() && work.tile.size > 0 ? boxes.entry_of(work, work.last, lane) : nullptr;
      if (boxes.pages()) page = boxes.page_at(entry);
      __syncwarp();
      return early.publish(slot, [&] {
        const int now = boxes.page_at(entry);
        return same() && (!boxes.pages() || now == page);
      });
    } else {
      return early.publish(slot, same);
    }
  }

  __device__ __forceinline__ void produce_tiles() {
    typename Shared::TileState slot;
    typename Shared::QState q;
    Tiles at;
    static_assert(!kEarly || Shape::Stages >= 4);  // two tiles of K and V wait for nothing
    for (Rehearsal<kEarly> rehearsal(lane);;) {
      const bool live = rehearsal.live();
      if (live) shared.tile_pipe().wait(slot);
      const Slot& work = live ? shared.work(slot) : *reinterpret_cast<const Slot*>(shared.base);
      if (live && work.tile.size == 0) break;
      load_tile(work, slot, q, at, live);
      if (rehearsal.end()) {
        at = Tiles();
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

  // Calls f(work, slot) for each work item.
  template <class F>
  __device__ __forceinline__ void each_item(F f) const {
    typename Shared::TileState slot;
    for (bool begun = false;; begun = true) {
      shared.tile_pipe().wait(slot);
      const Slot& work = shared.work(slot);
      if (__all_sync(~0u, work.tile.size == 0)) return;
      if (!begun) begin();
      f(work, slot);
      __syncwarp();
      shared.tile_pipe().release(slot);
      slot.next();
    }
  }

  // Before anything is asked for: the kernel before has ended.  The kernel after relies on what
  // came before this one, too: it may start only now.
  __device__ static void begin() {
    pdl_wait();
    pdl_trigger();
  }

  // Rows of a row tile: whole groups, where a box is to hold them.  Lists have their own.
  __device__ static int row_step(int group) {
    if constexpr (requires { Shape::cuts_groups; }) return Shape::BM;
    return Shape::BM / group * group;
  }

  __device__ __forceinline__ void query(const Slot& work, typename Shared::QState q) const {
    const RowTile& tile = work.tile;
    const Sequence& seq = tile.rows.seq;
    const QueryBox box{static_cast<int>(seq.row_begin) + tile.first_query(),
                       static_cast<int>(seq.batch)};
    shared.q_pipe().acquire(q);
    if (lane == 0) Load::query(maps, work, box, shared.q(q), shared.q_pipe().full(q));
  }

  // How many of the last tiles are still being gathered.
  struct Gathers {
    int under_way = 0;
  };
  struct NoGathers {};
  static constexpr bool kGathers = requires { Boxes::gathers; };

  // The next tile to copy, and how many others' are before it.
  struct Tiles : KeyState, std::conditional_t<kGathers, Gathers, NoGathers> {
    int others = kProducerWarps > 1 && threadIdx.x >= 32 ? static_cast<int>(threadIdx.x / 32) - 1
                                                         : 0;
  };

  // Where items without rows are passed over first, the next one is requested when this one begins.
  __device__ __forceinline__ void prefetch_next(int left, int all) const {
    if (kPrefetch > 0 && left == (ragged() ? all : min(all, kPrefetch)) && leads() && lane == 0)
      sm90::barrier_arrive(shared.prefetch_next());
  }
  __device__ __forceinline__ void load_tile(const Slot& work, typename Shared::TileState slot,
                                            typename Shared::QState q, Tiles& at, bool live) const {
    const int head = static_cast<int>(work.tile.key_head(a)),
              batch = max(static_cast<int>(work.tile.rows.seq.key_batch), 0);
    int n = work.last;
    typename Boxes::Stretch stretch{};
    if constexpr (Load::paired) {
      begin();
      query(work, q);
      const int second = static_cast<int>(work.tile.rows.g) / maps.group;
      const int all = max(work.count, 1);
      for (int left = all; left; --left, n = work.before(n)) {
        prefetch_next(left, all);
        const KeyBox here = boxes.box(work, n, lane, stretch);
        copy<false>(work, here, head, batch, at, false);
        copy<true>(work, here, second, batch, at, false);
      }
      return;
    }
    if (boxes.pages() && live) stretch = boxes.first(work, shared.first_pages(slot) + lane);
    KeyBox here{}, behind{};
    int all = 1;  // at least
    for (int done = 0; done <= all; ++done) {
      if (done < all) {
        here = boxes.box(work, n, lane, stretch);
        n = work.before(n);
        copy<false>(work, here, head, batch, at, done == 0 && live);
      }
      if (done == 0) {
        if (leads()) query(work, q);
        if (kEarly && live) sm90::barrier_wait(shared.tile_confirmed(slot), slot.phase);
        all = live ? max(work.count, 1) : 2;
      } else {
        copy<true>(work, behind, head, batch, at, false);
      }
      prefetch_next(all - 1 - done, all - 1);
      behind = here;
    }
    if constexpr (kGathers) hand_on<0>(at);
  }

  // A tile of K or V.  `begins`: nothing was asked for before.
  template <bool V>
  __device__ __forceinline__ void copy(const Slot& work, const KeyBox& keys, int head, int batch,
                                       Tiles& at, bool begins) const {
    if (kProducerWarps > 1) {
      if (at.others > 0) {
        if (begins) begin();
        return --at.others, at.next();
      }
      at.others = producer_warps_of(a) - 1;
    }
    const uint32_t to = shared.keys(at), full = shared.key_pipe().full(at);
    if constexpr (kGathers) return copy_listed<V>(work, keys, head, to, full, at, begins);
    if constexpr (Boxes::paged) {
      if (boxes.pages()) {
        copy_pages<V>(keys, head, to, full, at, begins);
        return at.next();
      }
    }
    if (begins) begin();
    shared.key_pipe().acquire(at);
    if constexpr (requires { Boxes::of_runs; }) {
      using Tile = std::conditional_t<V, typename Shape::TileV, typename Shape::TileK>;
      const uint32_t absent = V ? 0 : boxes.absent(keys, lane);
      if (!V && lane == 0) *shared.absent(at) = absent;
      if (lane == 0) sm90::barrier_expect(full, Tile::bytes);
      __syncwarp();
      if (lane < boxes.count)
        Load::template copy_page_run<V>(maps, lane, boxes.keys, keys, head, to, full);
    } else if constexpr (requires { Boxes::parts; }) {
      using Tile = std::conditional_t<V, typename Shape::TileV, typename Shape::TileK>;
      constexpr bool of_pages = requires {
        Boxes::of_pages;
      };
      if (!V && lane < Boxes::parts) {
        shared.absent(at)[lane] = static_cast<uint32_t>(of_pages ? keys.page : keys.row);
        if (of_pages) shared.absent(at)[Boxes::parts + lane] = static_cast<uint32_t>(keys.row);
      }
      __syncwarp();
      if (lane == 0) sm90::barrier_expect(full, Tile::bytes);
      __syncwarp();
      if (lane < Boxes::parts) {
        if constexpr (of_pages)
          Load::template copy_page_part<V>(maps, lane, keys, head, to, full);
        else
          Load::template copy_part<V>(maps, work, lane, keys.row, head, batch, to, full);
      }
    } else {
      if (lane == 0) Load::template copy<V>(maps, work, keys.row, head, batch, to, full);
    }
    at.next();
  }

  // A tile of boxes, one a lane, or of gathered keys.  Of these two may be under way: a consumer
  // that keeps a stage never waits for one of the last two before it.
  template <bool V>
  __device__ __forceinline__ void copy_listed(const Slot& work, const KeyBox& keys, int head,
                                              uint32_t to, uint32_t full, Tiles& at,
                                              bool begins) const {
    using Tile = std::conditional_t<V, typename Shape::TileV, typename Shape::TileK>;
    if (begins) begin();
    if (keys.page < 0) {  // the same for all lanes
      hand_on<1>(at);
      shared.key_pipe().acquire(at);
      boxes.template gather<V>(work, keys.row, head, to, lane);
      copy_commit();
      ++at.under_way;
    } else {
      hand_on<0>(at);
      shared.key_pipe().acquire(at);
      if (lane == 0) sm90::barrier_expect(full, Tile::bytes);
      __syncwarp();
      const uint32_t box = to + lane * (maps.pages.rows * kPanelRowBytes);
      if (lane < maps.pages.boxes)
#pragma unroll
        for (int n = 0; n < Tile::panels; ++n)
          sm90::tma_load_box(box + n * Tile::panel_bytes, V ? maps.v : maps.k, full, n * 64,
                             keys.row, head, keys.page);
    }
    at.next();
  }
  // Tells consumers of gathered tiles, but for the last `Left` of them.  cp.async writes by the
  // generic proxy and wgmma reads by the async one, so each lane has a fence between them.
  template <int Left>
  __device__ __forceinline__ void hand_on(Tiles& at) const {
    if (at.under_way <= Left) return;
    copy_wait<Left>();
    sm90::fence_shared();
    __syncwarp();
    for (; at.under_way > Left; --at.under_way) {
      KeyState tile = at;
      tile.stage -= at.under_way;
      if (tile.stage < 0) tile.stage += Shape::Stages;
      if (lane == 0) shared.key_pipe().arrive(tile);
    }
  }

  // Bytes are asked for as soon as the stage is free: all else is worked out before.
  template <bool V>
  __device__ __forceinline__ void copy_pages(const KeyBox& keys, int head, uint32_t to,
                                             uint32_t full, KeyState at, bool begins) const {
    using Tile = std::conditional_t<V, typename Shape::TileV, typename Shape::TileK>;
    const CUtensorMap& map = V ? maps.v : maps.k;
    const PageCuts& cuts = maps.pages;
    const bool gone = static_cast<uint32_t>(keys.page) >= static_cast<uint32_t>(boxes.nowhere());
    const int page = sm90::unhoisted(gone ? boxes.nowhere() : keys.page);
    uint32_t absent[Shared::kAbsentWords] = {};
    if (!V && __any_sync(~0u, gone && lane < cuts.boxes))
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
      for (int word = 0; !V && word < Shared::kAbsentWords; ++word)
        shared.absent(at)[word] = absent[word];
      sm90::barrier_expect(full, Tile::bytes);
    }
    __syncwarp();
    if (lane >= cuts.boxes) return;
    if constexpr (Tile::interleaved) {
      sm90::tma_load_octets(box, map, full, panel, octet, page);
    } else {
#pragma unroll
      for (int n = 0; n < Tile::panels; ++n)
        sm90::tma_load_box(box + n * Tile::panel_bytes, map, full, n * 64, keys.row, head, page);
    }
  }
};

}  // namespace fovea::cuda
