// SPDX-License-Identifier: Apache-2.0
// What feeds the sweep over wide keys: its scheduler warp (feed_sm90.cuh), and loaders.
//
//   | warp | copies                                                                 |
//   | 0    | keys by TMA: contiguous, or pages of which a tile holds whole numbers  |
//   | 1    | nothing: it is the scheduler                                           |
//   | 2, 3 | rows of Q, and keys of any other pages (gather), all by cp.async       |
//
// Row loaders find each row where it lies, so a row tile may hold any 64 packed rows.
#pragma once
#include "cuda/loop/feed_sm90.cuh"
#include "cuda/loop/shared_wide_sm90.cuh"

namespace fovea::cuda {

template <class Shape, KeySource Source, class Mask>
struct WideProducer90
    : Producer90<Shape, Source, Mask, WideMaps, WideShared90<Shape, Source, Mask>> {
  using Base = Producer90<Shape, Source, Mask, WideMaps, WideShared90<Shape, Source, Mask>>;
  using Shared = typename Base::Shared;
  using Slot = typename Base::Slot;
  using KeyState = typename Shared::KeyState;
  using TailState = typename Shared::TailState;
  using Panel = typename Shape::Panel;
  using Base::a, Base::boxes, Base::lane, Base::maps, Base::shared;
  static constexpr int BN = Shape::BN;

  __device__ __forceinline__ void run(int warp, const TileOrder& order,
                                      const DynamicSchedule& schedule) {
    if (warp == 1)
      this->schedule_tiles(order, schedule);
    else if (warp == 0)
      load_boxes();
    else
      RowLoader(*this, warp - 2).run();
  }

 private:
  // Calls f(work, slot) for each work item.
  template <class F>
  __device__ __forceinline__ void each_item(F f) const {
    typename Shared::TileState slot;
    for (bool begun = false;; begun = true) {
      shared.tile_pipe().wait(slot);
      const Slot& work = shared.work(slot);
      if (__all_sync(~0u, work.tile.size == 0)) return;
      if (!begun) Base::begin();
      f(work, slot);
      __syncwarp();
      shared.tile_pipe().release(slot);
      slot.next();
    }
  }

  // ---- TMA

  // A tile's boxes: the lane's part of them, and whether its keys have no page.
  struct Tile {
    int row, head, batch;
    int boxes, rows;  // boxes of a panel, and their rows
  };

  __device__ __forceinline__ void load_boxes() const {
    KeyState at;
    TailState tail;
    each_item([&](const Slot& work, typename Shared::TileState slot) {
      if (maps.gather) return;
      const bool pages = boxes.pages();
      const int head = static_cast<int>(work.tile.key_head(a)),
                batch = max(static_cast<int>(work.tile.rows.seq.key_batch), 0);
      typename Base::Boxes::Stretch stretch{};
      if (pages) stretch = boxes.first(work, shared.first_pages(slot) + lane);
      const int all = max(work.count, 1);
      for (int left = all, n = work.last; left; --left, n = work.before(n)) {
        this->prefetch_next(left, all);
        const KeyBox keys = boxes.box(work, n, lane, stretch);
        const bool gone =
            pages && static_cast<uint32_t>(keys.page) >= static_cast<uint32_t>(boxes.nowhere());
        const Tile tile{keys.row, head, !pages ? batch : gone ? boxes.nowhere() : keys.page,
                        pages ? maps.pages.boxes : 1, pages ? maps.pages.rows : BN};
        uint32_t absent[2] = {};
        if (__any_sync(~0u, gone && lane < tile.boxes))
#pragma unroll
          for (int word = 0; word < 2; ++word)
            absent[word] = __ballot_sync(~0u, __shfl_sync(~0u, gone, (word * 32 + lane) / tile.rows));
        const auto note = [&] {
          if (lane < 2) shared.absent(at)[lane] = lane ? absent[1] : absent[0];
          __syncwarp();
        };
        load_tile(tile, at, tail, note);
      }
    });
  }
  // note(): between the first unit's acquisition and its arrival.
  template <class Note>
  __device__ __forceinline__ void load_tile(const Tile& tile, KeyState& at, TailState& tail,
                                            Note note) const {
#pragma unroll
    for (int unit = 0; unit < Shape::tile_units; ++unit) {
      const bool of_v = unit >= Shape::key_units;
      shared.unit_pipe().acquire(at);
      if (unit == 0) note();
      load_unit(tile, of_v ? maps.v : maps.k, (of_v ? unit - Shape::key_units : unit) * 256, 4,
                shared.unit(at), shared.unit_pipe().full(at));
      at = at.plus(1);
      if (Shape::has_tail && unit == Shape::key_units - 1) {
        shared.tail_pipe().acquire(tail);
        load_unit(tile, maps.k, Shape::key_units * 256, 1, shared.tail(tail),
                  shared.tail_pipe().full(tail));
        tail.next();
      }
    }
  }
  __device__ __forceinline__ void load_unit(const Tile& tile, const CUtensorMap& map, int column,
                                            int panels, uint32_t to, uint32_t full) const {
    if (lane == 0) sm90::barrier_expect(full, panels * Panel::bytes);
    __syncwarp();
    if (lane >= tile.boxes) return;
    to += lane * (tile.rows * kPanelRowBytes);
#pragma unroll
    for (int panel = 0; panel < panels; ++panel)
      sm90::tma_load_box(to + panel * Panel::bytes, map, full, column + panel * 64, tile.row,
                         tile.head, tile.batch);
  }

  // ---- cp.async

  // One of two warps that copy rows.  Each has its own units of the ring, and half the rows of Q.
  //   cp.async writes by the generic proxy and wgmma reads by the async one, so each lane has a
  //   fence between them: hand_on().  Before it waits for a stage to become empty, it hands on
  //   what it copied, for which a consumer may wait with that stage in hand.
  struct RowLoader {
    const WideProducer90& all;
    const int number, lane;
    KeyState at;
    TailState tail;
    typename Shared::QState q;
    uint32_t copied[4];  // the barriers of stages not yet handed on, oldest first
    int under_way = 0;

    __device__ RowLoader(const WideProducer90& all, int number)
        : all(all), number(number), lane(all.lane) {}

    __device__ __forceinline__ void run() {
      all.each_item([&](const Slot& work, typename Shared::TileState) {
        copy_query(work);
        if (all.maps.gather) {
          const int steps = max(work.count, 1);
          for (int left = steps, n = work.last; left; --left, n = work.before(n)) {
            if (number == 0) all.prefetch_next(left, steps);
            copy_tile(work, n);
          }
        }
        hand_on();
      });
    }

   private:
    __device__ __forceinline__ void committed(uint32_t full) {
      copy_commit();
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (i == under_way) copied[i] = full;
      ++under_way;
    }
    __device__ __forceinline__ void hand_on() {
      if (!under_way) return;
      copy_wait<0>();
      sm90::fence_shared();
      __syncwarp();
      if (lane == 0)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (i < under_way) sm90::barrier_arrive(copied[i]);
      under_way = 0;
    }
    template <class Pipe>
    __device__ __forceinline__ void acquire(const Pipe& pipe, const typename Pipe::State& at) {
      const bool empty = sm90::barrier_test(pipe.empty(at), at.phase ^ 1);
      if (under_way == 4 || !__all_sync(~0u, empty)) hand_on();
      pipe.acquire(at);
    }

    // Half of the rows, zeros past the last.
    __device__ __forceinline__ void copy_query(const Slot& work) {
      constexpr int kRows = Shape::BM / 2;
      const RowTile& tile = work.tile;
      acquire(all.shared.q_pipe(), q);
      const int chunk = lane % kPanelChunks;
#pragma unroll 1
      for (int i = 0; i < kRows / 4; ++i) {
        const int row = number * kRows + i * 4 + lane / kPanelChunks, m = tile.begin + row;
        const bool there = row < tile.size;
        const uint16_t* from =
            all.a.q.template as<uint16_t>() + (there ? tile.offset(m, all.a.q.stride) : 0);
        copy_row(all.shared.q() + Shape::TileQ::at(row, chunk), from, chunk, Shape::D / 64,
                 there ? static_cast<int>(all.a.d) : 0);
      }
      committed(all.shared.q_pipe().full(q));
      q.next();
    }
    // The lane's chunk of each panel of a row.
    __device__ __forceinline__ static void copy_row(uint32_t to, const uint16_t* row, int chunk,
                                                    int panels, int width) {
#pragma unroll
      for (int panel = 0; panel < panels; ++panel) {
        const int column = panel * 64 + chunk * kChunk;
        const bool valid = column < width;
        copy_async(to + panel * Panel::bytes, row + (valid ? column : 0), valid);
      }
    }

    // Offsets of the rows of a tile in k and v: of key `lane` and of key 32 + `lane`, -1 for none.
    struct Rows {
      int64_t k[2], v[2];
    };
    __device__ __forceinline__ Rows find(const Slot& work, int n, uint32_t (&absent)[2]) const {
      const Attend& a = all.a;
      const RowTile& tile = work.tile;
      const Sequence& seq = tile.rows.seq;
      const int64_t head = tile.key_head(a);
      Rows rows;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int j = work.key_tile(n) * BN + i * 32 + lane;
        rows.k[i] = rows.v[i] = -1;
        bool gone = false;
        if (work.count && j < tile.keys) {
          const uint32_t index = static_cast<uint32_t>(seq.key_begin) + j,
                         page = static_cast<uint32_t>(a.sequences.page), number = index / page;
          const View<2>& table = a.sequences.page_table;
          const int id = table.as<int32_t>()[seq.key_batch * table.stride[0] +
                                             number * table.stride[1]];
          gone = static_cast<uint32_t>(id) >= static_cast<uint32_t>(a.sequences.pool);
          const int64_t token = index - number * page;
          if (!gone) {
            rows.k[i] = id * a.k.stride[0] + token * a.k.stride[1] + head * a.k.stride[2];
            rows.v[i] = id * a.v.stride[0] + token * a.v.stride[1] + head * a.v.stride[2];
          }
        }
        absent[i] = __ballot_sync(~0u, gone);
      }
      return rows;
    }
    // Which of the two warps copies a unit of the ring.
    __device__ static int loader_of(int stage) { return stage >= (Shape::Units + 1) / 2; }

    __device__ __forceinline__ void copy_tile(const Slot& work, int n) {
      const Attend& a = all.a;
      bool found = false;
      Rows rows;
      uint32_t absent[2];
#pragma unroll
      for (int unit = 0; unit < Shape::tile_units; ++unit) {
        const bool of_v = unit >= Shape::key_units, mine = loader_of(at.stage) == number;
        if (mine) {
          if (!found) rows = find(work, n, absent), found = true;
          acquire(all.shared.unit_pipe(), at);
          if (unit == 0) {
            if (lane < 2) all.shared.absent(at)[lane] = lane ? absent[1] : absent[0];
            __syncwarp();
          }
          copy_rows(of_v ? a.v : a.k, of_v ? rows.v : rows.k,
                    (of_v ? unit - Shape::key_units : unit) * 256, of_v ? a.e : a.d, 4,
                    all.shared.unit(at));
          committed(all.shared.unit_pipe().full(at));
        }
        at = at.plus(1);
        if (Shape::has_tail && unit == Shape::key_units - 1) {
          if (mine) {
            acquire(all.shared.tail_pipe(), tail);
            copy_rows(a.k, rows.k, Shape::key_units * 256, a.d, 1, all.shared.tail(tail));
            committed(all.shared.tail_pipe().full(tail));
          }
          tail.next();
        }
      }
    }
    __device__ __forceinline__ void copy_rows(const View<4>& x, const int64_t (&rows)[2],
                                              int column, int64_t width, int panels,
                                              uint32_t to) const {
      const int chunk = lane % kPanelChunks;
#pragma unroll 4
      for (int i = 0; i < BN / 4; ++i) {
        const int row = i * 4 + lane / kPanelChunks;
        const int64_t offset = __shfl_sync(~0u, i < 8 ? rows[0] : rows[1], row % 32);
        copy_row(to + Panel::at(row, chunk), x.as<uint16_t>() + max(offset, int64_t{0}) + column,
                 chunk, panels, offset < 0 ? 0 : static_cast<int>(width) - column);
      }
    }
  };
};

}  // namespace fovea::cuda
