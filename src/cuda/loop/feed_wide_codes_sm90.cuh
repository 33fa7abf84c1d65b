// SPDX-License-Identifier: Apache-2.0
// What feeds the sweep over wide keys with 8-bit codes: a scheduler warp (feed_sm90.cuh) and
// loaders, which copy rows by cp.async.
//
//   | warp | copies                                                    |
//   | 0    | Q                                                         |
//   | 1    | nothing: it is the scheduler                              |
//   | 2, 3 | half of the rows of each key tile: codes, scales, the tail |
//
//   Codes are copied to where they will be converted (convert_wide_sm90.cuh): those of a panel to
//   one half of its rows, their scale to the other.
//   A lane finds one row.  Of four rows at once it copies 16 of 128 columns.
//   Copies arrive at a part's barrier by themselves, so that no loader waits for what it copies.
//   Rows are found two tiles ahead.  A row past the last key, or without a page, is zeros, and
//   absent.
#pragma once
#include "cuda/loop/code_rows.cuh"
#include "cuda/loop/feed_sm90.cuh"
#include "cuda/loop/wide_codes_sm90.cuh"

namespace fovea::cuda {

template <class Shape, class Source, class Mask>
class WideCodesProducer90
    : public Producer90<Shape, Source, Mask, CodeColumns, WideShared90<Shape, Source, Mask>> {
 public:
  using Shared = WideShared90<Shape, Source, Mask>;
  using Slot = typename Shared::Slot;

  __device__ __forceinline__ void run(int warp, const TileOrder& order,
                                      const DynamicSchedule& schedule) {
    if (warp == 1) {
      this->schedule_tiles(order, schedule);
    } else if (warp == 0) {
      copy_queries();
    } else {
      Loader with{*this, warp - 2, this->lane};
      this->each_item([&](const Slot& work, typename Shared::TileState) { with.run(work); });
      copy_commit(), copy_wait<0>();  // no thread ends before its copies
    }
  }

 private:
  using Panel = typename Shape::Panel;
  static constexpr int BN = Shape::BN, kRows = BN / 2;  // of a loader's
  static constexpr int kTail = Shape::key_units;

  // Rows that a tile does not have stay as they are: what is computed of them is stored nowhere.
  __device__ __forceinline__ void copy_queries() const {
    const Attend& a = this->a;
    const uint32_t to = this->shared.q();
    for (int at = this->lane * 16; at < Shape::q_bytes; at += 512) sm90::store_zeros(to + at);
    __syncwarp();  // a lane's zeros come before another's copies
    typename Shared::QState q;
    this->each_item([&](const Slot& work, typename Shared::TileState) {
      this->shared.q_pipe().acquire(q);
      constexpr int kUnits = Shape::key_units * 4;
      if (a.q_value) {
        copy_query<kUnits>(work.tile, a.q_value, a.e, to);
        copy_query<1>(work.tile, a.q, a.d, to + kUnits * Panel::bytes);
      } else {
        copy_query<Shape::D / 64>(work.tile, a.q, a.d, to);
      }
      copy_commit(), copy_wait<0>();
      sm90::fence_shared();
      __syncwarp();
      if (this->lane == 0) this->shared.q_pipe().arrive(q);
      q.next();
    });
  }
  template <int Panels>
  __device__ __forceinline__ void copy_query(const RowTile& tile, const View<4>& x, int64_t width,
                                             uint32_t to) const {
#pragma unroll 1
    for (int first = 0; first < tile.size; first += 4) {
      const int lane = sm90::unhoisted(this->lane), chunk = lane % kPanelChunks,
                row = first + lane / kPanelChunks;
      const bool there = row < tile.size;
      const uint16_t* from =
          x.as<uint16_t>() + (there ? tile.offset(tile.begin + row, x.stride) : 0);
#pragma unroll
      for (int panel = 0; panel < Panels; ++panel) {
        const int column = panel * 64 + chunk * kChunk;
        const bool valid = there && column < width;
        copy_async(to + panel * Panel::bytes + Panel::at(row, chunk), from + (valid ? column : 0),
                   valid);
      }
    }
  }

  struct Loader {
    static constexpr int kAhead = 2, kQuads = kRows / 4;
    const WideCodesProducer90& all;
    const int half, lane;
    uint32_t number = 0;  // of the tile

    __device__ __forceinline__ void run(const Slot& work) {
      const int steps = max(work.count, 1);
      int n = work.last;
      StoredKey keys[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i, n = work.before(n))
        keys[i] = Rows{all.a}.key_of(work, i < steps ? entry_of(work, n) : -1);
      int entry = steps > kAhead ? entry_of(work, n) : -1;
#pragma unroll 1
      for (int left = steps; left; --left, ++number) {
        if (half == 0) all.prefetch_next(left, steps);
        copy(work, keys[0]);
#pragma unroll
        for (int i = 1; i < kAhead; ++i) keys[i - 1] = keys[i];
        keys[kAhead - 1] = Rows{all.a}.key_of(work, entry);
        n = work.before(n);
        entry = left > kAhead + 1 ? entry_of(work, n) : -1;
      }
    }

   private:
    using Rows = CodeRows<Slot, BN>;

    // ---- a lane for each row

    __device__ __forceinline__ int entry_of(const Slot& work, int n) const {
      return Rows{all.a}.entry_of(work, n, half * kRows + lane);
    }
    // Scales of 256 columns of a unit, of each 128, or of the tail.
    template <int Scales>
    __device__ __forceinline__ void copy_scales(const float* from, int column, bool there,
                                                uint32_t part) const {
      const int row = half * kRows + lane;
#pragma unroll
      for (int i = 0; i < Scales; ++i)
        copy_scale(part + 2 * i * Panel::bytes + CodePanel::scale_at(row),
                   from + ((column + i * 128) >> all.maps.shift) * all.a.v_scale.stride[3], there);
    }

    // ---- a lane for 16 bytes of each of kQuads rows

    // Bit 4 i: row 4 i + lane / 8 is there.
    __device__ __forceinline__ static uint32_t own_of(uint32_t there) {
      return there >> own_lane() / 8;
    }
    // Of the rows that lanes have, the one for i, from the lane's chunk on.
    __device__ __forceinline__ static const uint8_t* row_at(const void* row, int i, int chunk) {
      const auto address = reinterpret_cast<unsigned long long>(row);
      return reinterpret_cast<const uint8_t*>(__shfl_sync(~0u, address, i * 4 + own_lane() / 8) +
                                              chunk * 16);
    }
    __device__ __forceinline__ static uint32_t own_lane() {
      return sm90::unhoisted(threadIdx.x % 32);
    }
    __device__ __forceinline__ void copy(const Slot& work, StoredKey key) const {
      const Shared& shared = all.shared;
      const uint32_t there = __ballot_sync(~0u, key.block >= 0);
      const Rows rows{all.a};
      const uint8_t* row = rows.template row_of<uint8_t>(work, key, all.a.v);
      const float* scale =
          all.a.v_scale ? rows.template row_of<float>(work, key, all.a.v_scale) : nullptr;
#pragma unroll
      for (int unit = 0; unit < Shape::key_units; ++unit) {
        sm90::barrier_wait(shared.key_empty(number, unit), shared.empty_phase(number, unit));
        if (unit == 0 && lane == 0) shared.absent(number)[half] = ~there;
        copy_unit(row + unit * 256, there, shared.keys(number, unit));
        if (scale) copy_scales<2>(scale, unit * 256, key.block >= 0, shared.keys(number, unit));
        copied_to(shared.keys_copied(number, unit));
      }
      sm90::barrier_wait(shared.key_empty(number, kTail), shared.empty_phase(number, kTail));
      const uint32_t part = shared.keys(number, kTail);
      copy_tail(rows.tail_of(work, key), there, part);
      if (!all.a.q_value && scale) copy_scales<1>(scale, 0, key.block >= 0, part);
      copied_to(shared.keys_copied(number, kTail));
    }
    // A row that is not there: some row that is read nowhere.
    __device__ __forceinline__ void copy_unit(const uint8_t* row, uint32_t there,
                                              uint32_t part) const {
      const uint32_t lane = own_lane(), own = own_of(there);
      const uint32_t to =
          part + lane % 8 / 4 * Panel::bytes + CodePanel::at(half * kRows + lane / 8, lane % 4);
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        const uint8_t* from = row_at(row, i, lane % 8);
#pragma unroll
        for (int pair = 0; pair < 2; ++pair)
          copy_async(to + pair * 2 * Panel::bytes + i * 4 * kPanelRowBytes, from + pair * 128,
                     own >> 4 * i & 1);
      }
    }
    __device__ __forceinline__ void copy_tail(const void* tail, uint32_t there,
                                              uint32_t part) const {
      const Attend& a = all.a;
      const uint32_t lane = own_lane(), own = own_of(there), chunk = lane % 8;
      const bool joined = static_cast<bool>(a.q_value),
                 column = joined ? chunk * kChunk < a.d
                                 : chunk < 4 && Rows::kTailColumn + chunk * 16 < a.d;
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        const int row = half * kRows + i * 4 + lane / 8;
        const bool is = column && (own >> 4 * i & 1);
        const uint8_t* from = row_at(tail, i, is ? chunk : 0);
        if (joined || chunk < 4)
          copy_async(part + (joined ? Panel::at(row, chunk) : CodePanel::at(row, chunk)), from, is);
      }
    }
    __device__ __forceinline__ void copied_to(uint32_t barrier) const {
      copy_arrive(barrier);
      __syncwarp();
      if (lane == 0) sm90::barrier_arrive(barrier);  // with what the warp stored before
    }
  };
};

}  // namespace fovea::cuda
