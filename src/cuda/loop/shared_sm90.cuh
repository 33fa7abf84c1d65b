// SPDX-License-Identifier: Apache-2.0
// What the warps of a forward sweep of Hopper hand each other in shared memory: works, their tiles,
// and the barriers that say which are there.
#pragma once
#include "cuda/block/schedule.cuh"
#include "cuda/loop/mask.cuh"
#include "cuda/loop/row_tile.cuh"
#include "cuda/tile/mma_sm90.cuh"

namespace fovea::cuda {

// What the copying warp tells the others of a work.
template <class Mask>
struct WorkSlot {
  RowTile tile;
  Mask mask;
  int count, last;       // key tiles to walk, the first of them
  int jump_at, jump_to;  // where the walk skips keys that no row sees
  int number, split;     // of the head and row tile; of its splits
  int rows;              // of the box of Q, whole groups
  bool clean;            // V has rows past the last key in the first tile

  // `place` is of head `head` of the sequence `seq`, which is number r.
  __device__ WorkSlot(const typename Mask::Call& a, const AttendGrid& grid, const Sequence& seq,
                      int r, int head, const WorkPlace& place, int rows, int width)
      : tile(seq, grid, r, head, place.row_tile * rows, rows),
        mask(a, tile, width),
        number(place.head * static_cast<int>(grid.row_tiles) + place.row_tile),
        split(place.split),
        rows(rows) {
    if (tile.size <= 0) return;
    const KeyTiles tiles = Mask::tiles(a, tile, width);
    const TilePart part(static_cast<int>(tiles.count()), grid.splits, split);
    count = part.end - part.begin;
    last = count > 0 ? static_cast<int>(tiles[part.end - 1]) : (tile.keys + width - 1) / width;
    jump_at = Mask::sinks ? static_cast<int>(tiles.first) : -1;
    jump_to = static_cast<int>(tiles.sinks) - 1;
    clean = count > 0 && key_tile(last) * width + width > tile.keys;
  }
  __device__ int before(int n) const { return n == jump_at ? jump_to : n - 1; }
  // Which tile of keys step n of the walk is.
  __device__ int key_tile(int n) const {
    if constexpr (requires { mask.key_tile(n); })
      return mask.key_tile(n);
    else
      return n;
  }
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
                       kPages = kWorks + 2 * static_cast<int>(sizeof(Slot)),
                       kAbsent = kPages + 2 * 32 * 4,
                       kWord = kAbsent + Shape::Stages * kAbsentWords * 4,
                       kBarriers = (kWord + 4 + 7) / 8 * 8;
  static_assert(kBarriers + 8 * (7 + 2 * Shape::Slots + 2 * Shape::Stages) <= Shape::shared_bytes);
  unsigned char* base;
  uint32_t at;

  __device__ explicit Shared90(unsigned char* base) : base(base), at(shared_address(base)) {}
  __device__ uint32_t q(QRing i) const { return at + i.stage * Shape::q_bytes; }
  __device__ uint32_t keys(Ring i) const {
    return at + Shape::Slots * Shape::q_bytes + i.stage * Shape::stage_bytes;
  }
  __device__ Slot& work(WorkRing i) const {
    return reinterpret_cast<Slot*>(base + kWorks)[i.stage];
  }
  // Pool pages of the first tile of a work, for each lane of a copying warp its own.
  __device__ int* first_pages(WorkRing i) const {
    return reinterpret_cast<int*>(base + kPages) + i.stage * 32;
  }
  // Bit j % 32 of word j / 32: key j of the stage's tile has no page.
  __device__ uint32_t* absent(Ring i) const {
    return reinterpret_cast<uint32_t*>(base + kAbsent) + i.stage * kAbsentWords;
  }
  // For the sink.
  __device__ int* word() const { return reinterpret_cast<int*>(base + kWord); }
  __device__ uint32_t planned(WorkRing i) const { return at + kBarriers + i.stage * 16; }
  __device__ uint32_t free(WorkRing i) const { return planned(i) + 8; }
  __device__ uint32_t q_full(QRing i) const { return at + kBarriers + 32 + i.stage * 16; }
  __device__ uint32_t q_empty(QRing i) const { return q_full(i) + 8; }
  __device__ uint32_t full(Ring i) const {
    return at + kBarriers + 32 + Shape::Slots * 16 + i.stage * 16;
  }
  __device__ uint32_t empty(Ring i) const { return full(i) + 8; }

  // Little is left to copy of a work.
  __device__ uint32_t near() const { return full(Ring()) + Shape::Stages * 16; }
  // What is planned stays, or is given up.
  __device__ uint32_t certain(WorkRing i) const { return near() + 8 + i.stage * 8; }

  // `copiers` warps read what a work is, beside the computing ones.
  __device__ void init(int copiers = 1) const {
    constexpr int kWarps = 4 * Shape::Groups;
    for (WorkRing i; i.phase == 0; i.next())
      sm90::barrier_init(planned(i), 1), sm90::barrier_init(free(i), kWarps + copiers - 1),
          sm90::barrier_init(certain(i), 1);
    for (QRing i; i.phase == 0; i.next())
      sm90::barrier_init(q_full(i), 1), sm90::barrier_init(q_empty(i), kWarps);
    for (Ring i; i.phase == 0; i.next())
      sm90::barrier_init(full(i), 1), sm90::barrier_init(empty(i), kWarps);
    sm90::barrier_init(near(), 1);
    sm90::barrier_init_done();
  }
};

}  // namespace fovea::cuda
