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
#include "cuda/loop/stored_key.cuh"

namespace fovea::cuda {

template <class Shape, KeySource Source, class Mask>
struct WideProducer90
    : Producer90<Shape, Source, Mask, WideMaps, WideShared90<Shape, Source, Mask>> {
  using Base = Producer90<Shape, Source, Mask, WideMaps, WideShared90<Shape, Source, Mask>>;
  using Shared = typename Base::Shared;
  using Slot = typename Base::Slot;
  using Place = typename Shared::Place;
  using Panel = typename Shape::Panel;
  using Base::a, Base::boxes, Base::lane, Base::maps, Base::shared;
  static constexpr int BN = Shape::BN;

  __device__ __forceinline__ void run(int warp, const TileOrder& order,
                                      const DynamicSchedule& schedule) {
    if (warp == 1)
      this->schedule_tiles(order, schedule);
    else if (warp != 0)
      RowLoader(*this, warp - 2).run();
    else
      load_boxes();
  }

  // Which keys of a tile have no page: before its first part has come.
  __device__ __forceinline__ void note(uint32_t number, const uint32_t (&absent)[2]) const {
    if (lane < 2) shared.absent(number)[lane] = lane ? absent[1] : absent[0];
    __syncwarp();
  }
  // K is (v, k).
  __device__ __forceinline__ bool joined() const { return Shape::joins && a.q_value; }

 private:
  // ---- TMA

  // Where a tile's boxes lie, for each lane its own.
  struct Tile {
    int row, head, batch;
    int boxes, rows;  // boxes of a panel, and their rows
  };

  // V of a tile comes behind K of the next one.  That K's scores are computed while V comes, and
  // O += P V while the K after it comes.
  __device__ __forceinline__ void load_boxes() const {
    Place at, before;
    this->each_item([&](const Slot& work, typename Shared::TileState slot) {
      if (maps.gather) return;
      const bool pages = boxes.pages();
      const int head = static_cast<int>(work.tile.key_head(a)),
                batch = max(static_cast<int>(work.tile.rows.seq.key_batch), 0);
      typename Base::Boxes::Stretch stretch{};
      if (pages) stretch = boxes.first(work, shared.first_pages(slot) + lane);
      const int all = max(work.count, 1);
      Tile last;
      for (int left = all, n = work.last; left; --left, n = work.before(n), at.next()) {
        this->prefetch_next(left, all);
        const KeyBox keys = boxes.box(work, n, lane, stretch);
        const int nowhere = boxes.nowhere();
        const bool gone =
            pages && static_cast<uint32_t>(keys.page) >= static_cast<uint32_t>(nowhere);
        Tile tile{keys.row, head, batch, 1, BN};
        if (pages) {
          tile.batch = gone ? nowhere : keys.page;
          tile.boxes = maps.pages.boxes, tile.rows = maps.pages.rows;
        }
        uint32_t absent[2] = {};
        if (__any_sync(~0u, gone && lane < tile.boxes))
#pragma unroll
          for (int word = 0; word < 2; ++word)
            absent[word] =
                __ballot_sync(~0u, __shfl_sync(~0u, gone, (word * 32 + lane) / tile.rows));
        load_keys(tile, at.number, absent);
        if constexpr (!Shape::v_in_k) {
          if (left < all) load_values(last, before);
          last = tile, before = at;
        }
      }
      if constexpr (!Shape::v_in_k) load_values(last, before);
    });
  }
  __device__ __forceinline__ void load_keys(const Tile& tile, uint32_t number,
                                            const uint32_t (&absent)[2]) const {
#pragma unroll
    for (int part = 0; part < Shape::parts; ++part) {
      sm90::barrier_wait(shared.key_empty(number, part), shared.empty_phase(number, part));
      if (part == 0) note(number, absent);
      const bool tail = part == Shape::key_units;
      load_unit(tile, joined() && !tail ? maps.v : maps.k, joined() && tail ? 0 : part * 256,
                tail ? 1 : 4, shared.keys(number, part), shared.key_full(number, part));
    }
  }
  __device__ __forceinline__ void load_values(const Tile& tile, const Place& at) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      shared.value_pipe().acquire(at.half(half));
      load_unit(tile, maps.v, half * 256, 4, shared.values(at, half),
                shared.value_pipe().full(at.half(half)));
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

  // One of two warps that copy rows: half the rows of Q; of keys every second tile where V is in K,
  // else one of them K and the other V.
  //   A lane has a chunk of eight of every fourth row.
  //   cp.async writes by the generic proxy and wgmma reads by the async one, so each lane has a
  //   fence between them: hand_on().  Before it waits for a stage to become empty, it hands on
  //   what it copied, for which a consumer may wait with that stage in hand.
  struct RowLoader {
    static constexpr int kLaneRows = BN / 4, kMost = 4;
    const WideProducer90& all;
    const int number, lane;
    Place at;
    typename Shared::QState q;
    uint32_t copied[kMost];  // the barriers of stages not yet handed on
    int under_way = 0;

    __device__ RowLoader(const WideProducer90& all, int number)
        : all(all), number(number), lane(all.lane) {}

    __device__ __forceinline__ void run() {
      all.each_item([&](const Slot& work, typename Shared::TileState) {
        copy_query(work);
        if (all.maps.gather) {
          if (Shape::v_in_k || number == 0)
            copy_tiles<false>(work);
          else
            copy_tiles<true>(work);
        }
        hand_on();
      });
    }

   private:
    __device__ __forceinline__ void copied_to(uint32_t full) {
      copy_commit();
#pragma unroll
      for (int i = 0; i < kMost; ++i)
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
        for (int i = 0; i < kMost; ++i)
          if (i < under_way) sm90::barrier_arrive(copied[i]);
      under_way = 0;
    }
    __device__ __forceinline__ void acquire(uint32_t empty, uint32_t phase) {
      const bool there = sm90::barrier_test(empty, phase);
      if (under_way == kMost || !__all_sync(~0u, there)) hand_on();
      sm90::barrier_wait(empty, phase);
    }

    __device__ __forceinline__ void copy_query(const Slot& work) {
      const Attend& a = all.a;
      const uint32_t to = all.shared.q();
      constexpr int kUnits = Shape::key_units * 4;
      acquire(all.shared.q_pipe().empty(q), q.phase ^ 1);
      if (all.joined()) {
        copy_query_of<kUnits>(work.tile, a.q_value, a.e, to);
        copy_query_of<Shape::tails>(work.tile, a.q, a.d, to + kUnits * Panel::bytes);
      } else {
        copy_query_of<Shape::D / 64>(work.tile, a.q, a.d, to);
      }
      copied_to(all.shared.q_pipe().full(q));
      q.next();
    }
    // Half of the rows, zeros past the last.
    template <int Panels>
    __device__ __forceinline__ void copy_query_of(const RowTile& tile, const View<4>& x,
                                                  int64_t width, uint32_t to) const {
      constexpr int kRows = Shape::BM / 2;
      const int chunk = lane % kPanelChunks;
#pragma unroll 1
      for (int i = 0; i < kRows / 4; ++i) {
        const int row = number * kRows + i * 4 + lane / kPanelChunks;
        const bool there = row < tile.size;
        const int64_t offset = there ? tile.offset(tile.begin + row, x.stride) : 0;
        copy_row<Panels>(to + Panel::at(row, chunk), x.as<uint16_t>() + offset, chunk,
                         there ? static_cast<int>(width) : 0);
      }
    }
    // The lane's chunk of each panel of a row, zeros from column `width` on.
    template <int Panels>
    __device__ __forceinline__ static void copy_row(uint32_t to, const uint16_t* row, int chunk,
                                                    int width) {
#pragma unroll
      for (int panel = 0; panel < Panels; ++panel) {
        const int column = panel * 64 + chunk * kChunk;
        const bool valid = column < width;
        copy_async(to + panel * Panel::bytes, row + (valid ? column : 0), valid);
      }
    }

    // Rows of a tile: offsets of keys `lane` and 32 + `lane`, -1 for none, and those without a
    // page.
    struct Rows {
      int64_t offset[2];
      uint32_t absent[2];
    };
    __device__ __forceinline__ Rows find(const Slot& work, int n,
                                         const int64_t (&stride)[4]) const {
      const Sequences& given = all.a.sequences;
      const RowTile& tile = work.tile;
      const Sequence& seq = tile.rows.seq;
      const int64_t head = tile.key_head(all.a) * stride[2];
      Rows rows;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int j = work.key_tile(n) * BN + i * 32 + lane;
        rows.offset[i] = -1;
        bool gone = false;
        if (work.count && j < tile.keys) {
          const StoredKey key = paged_key(given, seq, j);
          gone = key.block < 0;
          if (!gone) rows.offset[i] = key.block * stride[0] + key.token * stride[1] + head;
        }
        rows.absent[i] = __ballot_sync(~0u, gone);
      }
      return rows;
    }
    // The lane's rows of x.
    struct LaneRows {
      const uint16_t* row[kLaneRows];
      uint32_t there;  // bit i: row i
      bool whole;      // all rows of the tile are there, and x has all columns
    };
    __device__ __forceinline__ void place(const View<4>& x, const Rows& rows, bool columns,
                                          LaneRows& to) const {
      to.there = 0;
#pragma unroll
      for (int i = 0; i < kLaneRows; ++i) {
        const int64_t offset =
            __shfl_sync(~0u, rows.offset[i / 8], i % 8 * 4 + lane / kPanelChunks);
        to.row[i] = x.as<uint16_t>() + (offset < 0 ? 0 : offset) + lane % kPanelChunks * kChunk;
        to.there |= (offset >= 0) << i;
      }
      to.whole = columns && __all_sync(~0u, to.there == (1u << kLaneRows) - 1);
    }
    // Columns from `column` on, of `width` in all.
    template <int Panels>
    __device__ __forceinline__ void copy_part(const LaneRows& from, int column, int width,
                                              uint32_t to) const {
      const int chunk = lane % kPanelChunks, row = lane / kPanelChunks;
      const uint32_t even = to + Panel::at(row, chunk), odd = to + Panel::at(row + 4, chunk);
#pragma unroll
      for (int i = 0; i < kLaneRows; ++i) {
        const uint32_t at = (i % 2 ? odd : even) + i / 2 * (8 * kPanelRowBytes);
        if (from.whole) {
#pragma unroll
          for (int panel = 0; panel < Panels; ++panel)
            copy_async(at + panel * Panel::bytes, from.row[i] + column + panel * 64, true);
        } else {
          copy_row<Panels>(at, from.row[i] - chunk * kChunk + column, chunk,
                           from.there >> i & 1 ? width - column : 0);
        }
      }
    }

    // Of the tiles of a work item those that are this warp's.
    template <bool V>
    __device__ __forceinline__ void copy_tiles(const Slot& work) {
      const Attend& a = all.a;
      const bool values = V || all.joined();
      const View<4>& x = values ? a.v : a.k;
      const int steps = max(work.count, 1);
      Rows rows;
      bool found = false;
      for (int left = steps, n = work.last; left; --left, n = work.before(n), at.next()) {
        if (number == 0) all.prefetch_next(left, steps);
        if (Shape::v_in_k && static_cast<int>(at.number % 2) != number) continue;
        if (!found) rows = find(work, n, x.stride);
        LaneRows from;
        place(x, rows, values ? a.e == Shape::E : a.d == Shape::D, from);
        if constexpr (V)
          copy_values(from);
        else
          copy_keys(work, n, from, rows);
        // The page table is read while the copies are under way.
        found = left > (Shape::v_in_k ? 2 : 1);
        if (found)
          rows = find(work, Shape::v_in_k ? work.before(work.before(n)) : work.before(n), x.stride);
      }
    }
    __device__ __forceinline__ void copy_keys(const Slot& work, int n, LaneRows& from,
                                              const Rows& rows) {
      const Shared& shared = all.shared;
      int width = static_cast<int>(all.joined() ? all.a.e : all.a.d);
#pragma unroll
      for (int part = 0; part < Shape::parts; ++part) {
        int column = part * 256;
        if (part == Shape::key_units && all.joined()) {
          width = static_cast<int>(all.a.d), column = 0;
          place(all.a.k, find(work, n, all.a.k.stride), width == 64, from);
        }
        acquire(shared.key_empty(at.number, part), shared.empty_phase(at.number, part));
        if (part == 0) all.note(at.number, rows.absent);
        if (part < Shape::key_units)
          copy_part<4>(from, column, width, shared.keys(at.number, part));
        else
          copy_part<1>(from, column, width, shared.keys(at.number, part));
        copied_to(shared.key_full(at.number, part));
      }
    }
    __device__ __forceinline__ void copy_values(const LaneRows& from) {
      const Shared& shared = all.shared;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto state = at.half(half);
        acquire(shared.value_pipe().empty(state), state.phase ^ 1);
        copy_part<4>(from, half * 256, static_cast<int>(all.a.e), shared.values(at, half));
        copied_to(shared.value_pipe().full(state));
      }
    }
  };
};

}  // namespace fovea::cuda
