// SPDX-License-Identifier: Apache-2.0
// What feeds the sweep over wide keys with the keys of lists: a scheduler warp (feed_sm90.cuh),
// loaders, which copy rows by cp.async, and a relay.
//   A tile is 16 quads of four rows.  Loaders take quads in turn, through all tiles of the block.
//   A lane has a chunk of eight of one row of each of the loader's quads.
//   Copies arrive at a part's barrier by themselves.  They write by the generic proxy and wgmma
//   reads by the async one.  So the relay waits for that barrier, has a fence, and tells consumers.
//   Places that name no key are rows of zeros, and absent: 0 times NaN is NaN.
//   joined: a row of K is one of v and one of k, and a row of Q one of q_value and one of q.
#pragma once
#include "cuda/loop/feed_sm90.cuh"
#include "cuda/loop/stored_key.cuh"
#include "cuda/loop/wide_list_sm90.cuh"

namespace fovea::cuda {

template <class Shape, class Mask>
class WideListProducer90
    : public Producer90<Shape, WideLists, Mask, NoMaps, WideShared90<Shape, WideLists, Mask>> {
 public:
  using Shared = WideShared90<Shape, WideLists, Mask>;
  using Slot = typename Shared::Slot;

  // `loader`: its number; -1: the scheduler; behind the last: the relay.
  __device__ __forceinline__ void run(int loader, const TileOrder& order,
                                      const DynamicSchedule& schedule) {
    if (loader < 0) {
      this->schedule_tiles(order, schedule);
      return;
    }
    if (loader == kLoaders) {
      Relay with{*this, this->lane};
      this->each_item([&](const Slot& work, typename Shared::TileState) { with.run(work); });
      return;
    }
    Loader with{*this, loader, this->lane, loader};
    this->each_item([&](const Slot& work, typename Shared::TileState) {
      with.copy_query(work);
      with.copy_tiles(work);
    });
    copy_commit(), copy_wait<0>();  // no thread ends before its copies
  }

 private:
  using Place = typename Shared::Place;
  using Panel = typename Shape::Panel;
  static constexpr int BN = Shape::BN, kLoaders = Shape::loaders;
  static constexpr int kRows = 4, kQuads = BN / kRows;  // of a tile
  static constexpr int kMost = (kQuads + kLoaders - 1) / kLoaders;

  // Fences what has been copied, and tells the consumers.
  struct Relay {
    const WideListProducer90& all;
    const int lane;
    Place at{};

    __device__ __forceinline__ void run(const Slot& work) {
      const Shared& shared = all.shared;
#pragma unroll 1
      for (int left = max(work.count, 1); left; --left, at.next()) {
#pragma unroll
        for (int part = 0; part < Shape::parts; ++part)
          pass(shared.keys_copied(at.number, part), at.number / 2 % 2,
               shared.key_full(at.number, part));
        if constexpr (!Shape::v_in_k)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const auto state = at.half(half);
            pass(shared.values_copied(state), state.phase, shared.value_pipe().full(state));
          }
      }
    }

   private:
    __device__ __forceinline__ void pass(uint32_t copied, uint32_t phase, uint32_t full) const {
      sm90::barrier_wait(copied, phase);
      if (lane == 0) sm90::fence_shared(), sm90::barrier_arrive(full);
    }
  };

  struct Loader {
    const WideListProducer90& all;
    const int number, lane;
    int first;  // its first quad of the next tile
    Place at{};
    typename Shared::QState q{};

    // Rows past the last are zeros.
    __device__ __forceinline__ void copy_query(const Slot& work) {
      const Attend& a = all.a;
      const uint32_t to = all.shared.q();
      constexpr int kUnits = Shape::key_units * 4;
      all.shared.q_pipe().acquire(q);
      if constexpr (Shape::joined) {
        copy_query_of<kUnits>(work.tile, a.q_value, a.e, to);
        copy_query_of<Shape::tails>(work.tile, a.q, a.d, to + kUnits * Panel::bytes);
      } else {
        copy_query_of<Shape::D / 64>(work.tile, a.q, a.d, to);
      }
      copy_arrive(all.shared.q_pipe().full(q));
      q.next();
    }
    template <int Panels>
    __device__ __forceinline__ void copy_query_of(const RowTile& tile, const View<4>& x,
                                                  int64_t width, uint32_t to) const {
      const uint16_t* from = x.as<uint16_t>() + tile.offset(tile.begin, x.stride);
#pragma unroll 1
      for (int quad = number; quad < Shape::BM / kRows; quad += kLoaders) {
        const int row = quad * kRows + lane / kPanelChunks;
        copy_row<Panels>(to + Shape::TileQ::at(row, lane % kPanelChunks), from + row * x.stride[2],
                         row < tile.size, static_cast<int>(width));
      }
    }

    __device__ __forceinline__ void copy_tiles(const Slot& work) {
      const int steps = max(work.count, 1);
      int n = work.last, entry = entry_of(work, n, first);
      StoredKey key = key_of(work, entry);
      if (steps > 1) entry = entry_of(work, work.before(n), next_first(first));
#pragma unroll 1
      for (int left = steps; left; --left, at.next(), first = next_first(first)) {
        if (number == 0) all.prefetch_next(left, steps);
        copy_keys(work, key);
        if constexpr (!Shape::v_in_k) copy_values(work, key);
        n = work.before(n);
        // Entries are read two tiles ahead, pages one.
        if (left > 1) key = key_of(work, entry);
        if (left > 2) entry = entry_of(work, work.before(n), next_first(next_first(first)));
      }
    }

   private:
    __device__ static int next_first(int first) {
      constexpr int kBack = kQuads % kLoaders;
      return first < kBack ? first + kLoaders - kBack : first - kBack;
    }
    // ---- a lane for each row of the loader's quads of a tile, the first of them `first`

    __device__ __forceinline__ int entry_of(const Slot& work, int n, int first) const {
      const int quad = first + lane / kRows * kLoaders;
      const int place = n * BN + quad * kRows + lane % kRows;
      const bool is = lane < kMost * kRows && quad < kQuads && work.count && place < work.places;
      return is ? work.index[place * work.stride] : -1;
    }
    __device__ __forceinline__ StoredKey key_of(const Slot& work, int entry) const {
      if (!work.sees(entry)) return {-1, 0};
      return stored_key(all.a.sequences, work.tile.rows.seq, entry);
    }

    // ---- a lane for a chunk of a row of each quad

    struct Rows {
      const uint16_t* row[kMost];
      uint32_t there;  // bit i: the row of quad i
      int quads;
    };
    // Of x, and where it is not x the same rows of `tail`.
    struct JoinedRows : Rows {
      const uint16_t* tail[Shape::joined ? kMost : 1];
    };
    __device__ __forceinline__ JoinedRows rows_of(const Slot& work, const View<4>& x,
                                                  const View<4>& tail, StoredKey key) const {
      JoinedRows rows;
      rows.there = 0, rows.quads = 0;
      const auto row = [&](const View<4>& x, int block, int token) {
        const uint16_t* origin = x.as<uint16_t>() + work.key_head * x.stride[2];
        return block < 0 ? origin : origin + block * x.stride[0] + token * x.stride[1];
      };
#pragma unroll
      for (int i = 0; i < kMost; ++i) {
        const int from = i * kRows + lane / kPanelChunks, block = __shfl_sync(~0u, key.block, from),
                  token = __shfl_sync(~0u, key.token, from);
        rows.row[i] = row(x, block, token);
        if constexpr (Shape::joined) rows.tail[i] = row(tail, block, token);
        rows.there |= (block >= 0) << i;
        rows.quads += first + i * kLoaders < kQuads;
      }
      return rows;
    }
    // Columns [column, column + 64 Panels) of `width` of the loader's rows, to a part at `to`.
    template <int Panels>
    __device__ __forceinline__ void copy_part(const Rows& rows, int column, int width,
                                              uint32_t to) const {
#pragma unroll
      for (int i = 0; i < kMost; ++i) {
        if (i >= rows.quads) break;
        const int row = (first + i * kLoaders) * kRows + lane / kPanelChunks;
        copy_row<Panels>(to + Panel::at(row, lane % kPanelChunks), rows.row[i] + column,
                         rows.there >> i & 1, width - column);
      }
    }
    // The lane's chunk of each panel of a row, zeros from column `width` on.
    template <int Panels>
    __device__ __forceinline__ void copy_row(uint32_t to, const uint16_t* row, bool there,
                                             int width) const {
      const int chunk = lane % kPanelChunks * kChunk;
#pragma unroll
      for (int panel = 0; panel < Panels; ++panel) {
        const bool valid = there && panel * 64 + chunk < width;
        copy_async(to + panel * Panel::bytes, valid ? row + panel * 64 + chunk : row, valid);
      }
    }
    __device__ __forceinline__ void copied_to(uint32_t full) const {
      copy_arrive(full);
      if (lane == 0) sm90::barrier_arrive(full);  // with what the warp stored before
    }

    __device__ __forceinline__ void copy_keys(const Slot& work, StoredKey key) {
      const Shared& shared = all.shared;
      const Attend& a = all.a;
      const int width = static_cast<int>(Shape::joined ? a.e : a.d);
      JoinedRows rows = rows_of(work, Shape::joined ? a.v : a.k, a.k, key);
      const uint32_t absent = ~__ballot_sync(~0u, key.block >= 0);
#pragma unroll
      for (int part = 0; part < Shape::parts; ++part) {
        sm90::barrier_wait(shared.key_empty(at.number, part), shared.empty_phase(at.number, part));
        if (part == 0) {
          if (lane < rows.quads)
            reinterpret_cast<uint8_t*>(shared.absent(at.number))[first + lane * kLoaders] =
                absent >> lane * kRows & ((1 << kRows) - 1);
          __syncwarp();
        }
        const uint32_t to = shared.keys(at.number, part);
        if (part < Shape::key_units) {
          copy_part<4>(rows, part * 256, width, to);
        } else if constexpr (Shape::joined) {
#pragma unroll
          for (int i = 0; i < kMost; ++i) rows.row[i] = rows.tail[i];
          copy_part<1>(rows, 0, static_cast<int>(a.d), to);
        } else {
          copy_part<1>(rows, part * 256, width, to);
        }
        copied_to(shared.keys_copied(at.number, part));
      }
    }
    __device__ __forceinline__ void copy_values(const Slot& work, StoredKey key) {
      const Shared& shared = all.shared;
      const Rows rows = rows_of(work, all.a.v, all.a.v, key);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        shared.value_pipe().acquire(at.half(half));
        copy_part<4>(rows, half * 256, static_cast<int>(all.a.e), shared.values(at, half));
        copied_to(shared.values_copied(at.half(half)));
      }
    }
  };
};

}  // namespace fovea::cuda
