// SPDX-License-Identifier: Apache-2.0
// What the warps of a forward sweep of Hopper hand each other in shared memory: work items, their
// tiles, and the barriers that say which are there.
#pragma once
#include "cuda/block/schedule.cuh"
#include "cuda/loop/mask.cuh"
#include "cuda/loop/row_tile.cuh"
#include "cuda/tile/pipeline_sm90.cuh"

namespace fovea::cuda {

// What the scheduler warp tells the others of a work item.
template <class Source, class Mask>
struct TileSlot : Source::Steps {
  using Steps = typename Source::Steps;
  RowTile tile;
  Mask mask;
  int count, last;       // steps of the walk, the first of them
  int jump_at, jump_to;  // where the walk skips keys that no row sees
  int number, split;     // of the head and row tile; of its splits
  int rows;              // of the box of Q, whole groups
  bool zero_tail;        // V has rows past the last key in the first tile
  static constexpr bool kAscends = requires { Steps::ascends; };
  static constexpr bool kSingle = requires { Steps::single; };  // a step is single keys

  // `place` is of head `head` of the sequence `seq`, which is number r.
  __device__ TileSlot(const typename Source::Call& call, const AttendGrid& grid,
                      const Sequence& seq, int r, int head, const TileCoord& place, int rows,
                      int width)
      : tile(seq, grid, r, head, place.row_tile * rows, rows),
        mask(attend_in(call), tile, width),
        number(place.head * static_cast<int>(grid.row_tiles) + place.row_tile),
        split(place.split),
        rows(rows) {
    if (tile.size <= 0) return;
    Steps::start(call, tile, width, mask);
    const KeyTiles tiles = Steps::template tiles<Mask>(call, tile, width);
    const TilePart part(static_cast<int>(tiles.count()), grid.splits, split);
    count = part.end - part.begin;
    last = count > 0 ? static_cast<int>(tiles[kAscends ? part.begin : part.end - 1])
                     : (tile.keys + width - 1) / width;
    jump_at = Mask::sinks ? static_cast<int>(tiles.first) : -1;
    jump_to = static_cast<int>(tiles.sinks) - 1;
    zero_tail = !kSingle && count > 0 && this->key_tile(last) * width + width > tile.keys;
  }
  // The step after step n of the walk.
  __device__ int before(int n) const {
    if constexpr (kAscends) return n + 1;
    return n == jump_at ? jump_to : n - 1;
  }
};

template <class Shape, class Source, class Mask>
struct SharedLayout90 : sm90::SharedLayout {
  static constexpr int absent_words = (Shape::BN + 31) / 32;
  static constexpr int groups_that_vote = TileSlot<Source, Mask>::kAscends ? Shape::Groups : 0;
  int q = tiles(Shape::q_bytes, Shape::Slots), keys = tiles(Shape::stage_bytes, Shape::Stages),
      slots = of<TileSlot<Source, Mask>>(2), pages = of<int>(2 * 32),
      absent = of<uint32_t>(Shape::Stages * absent_words), word = of<int>(),
      tile_pipe = pipeline(2), q_pipe = pipeline(Shape::Slots), key_pipe = pipeline(Shape::Stages),
      prefetch = barriers(), confirmed = barriers(2),
      votes = of<uint4>(Shape::Stages * groups_that_vote);
};

// The block's shared memory:
//
//   | barrier        | who arrives         | who waits            | what it guards              |
//   | tile ready     | scheduler           | producers            | a slot: a work item         |
//   | tile confirmed | scheduler           | producers, consumers | the same: stays, or empty   |
//   | tile empty     | a lane of each warp | scheduler            | the same, to overwrite      |
//   | prefetch next  | leading producer    | scheduler            | nothing: few tiles are left |
//   | q full         | TMA                 | consumers            | Q, and the slot of its item |
//   | q empty        | a lane of each warp | leading producer     | the same, to overwrite      |
//   | key full       | TMA                 | consumers            | a tile of K or V            |
//   | key empty      | a lane of each warp | producers            | the same, to overwrite      |
template <class Shape, class Source, class Mask>
struct Shared90 {
  using Layout = SharedLayout90<Shape, Source, Mask>;
  static constexpr Layout layout = Layout();
  static_assert(layout.bytes <= Shape::shared_bytes);
  using TilePipe = sm90::Pipeline<2>;
  using QPipe = sm90::Pipeline<Shape::Slots>;
  using KeyPipe = sm90::Pipeline<Shape::Stages>;
  using TileState = typename TilePipe::State;
  using QState = typename QPipe::State;
  using KeyState = typename KeyPipe::State;
  using Slot = TileSlot<Source, Mask>;
  static constexpr int kAbsentWords = layout.absent_words;
  unsigned char* base;
  uint32_t at;

  __device__ explicit Shared90(unsigned char* base) : base(base), at(shared_address(base)) {}
  __device__ uint32_t q(QState i) const { return at + layout.q + i.stage * Shape::q_bytes; }
  __device__ uint32_t keys(KeyState i) const {
    return at + layout.keys + i.stage * Shape::stage_bytes;
  }
  __device__ Slot& work(TileState i) const {
    return reinterpret_cast<Slot*>(base + layout.slots)[i.stage];
  }
  // Pool pages of the first key tile of a slot's tile, for each lane of a producer warp its own.
  __device__ int* first_pages(TileState i) const {
    return reinterpret_cast<int*>(base + layout.pages) + i.stage * 32;
  }
  // Bit j % 32 of word j / 32: key j of the stage's tile has no page.  Of PartBoxes: the key that
  // each box begins with.  Of PagePartBoxes: the page of each box, then the row of each.
  // Of PageRunBoxes: one word of bits.
  __device__ uint32_t* absent(KeyState i) const {
    return reinterpret_cast<uint32_t*>(base + layout.absent) + i.stage * kAbsentWords;
  }
  // Words of a group's vote about the tile of a stage (skips_sm90.cuh).
  __device__ uint32_t* votes(KeyState i, int group) const {
    return reinterpret_cast<uint32_t*>(base + layout.votes) + (i.stage * Shape::Groups + group) * 4;
  }
  // For the epilogue.
  __device__ int* word() const { return reinterpret_cast<int*>(base + layout.word); }

  __device__ TilePipe tile_pipe() const { return {at + layout.tile_pipe}; }
  __device__ QPipe q_pipe() const { return {at + layout.q_pipe}; }
  __device__ KeyPipe key_pipe() const { return {at + layout.key_pipe}; }
  __device__ uint32_t tile_confirmed(TileState i) const {
    return at + layout.confirmed + i.stage * 8;
  }
  __device__ uint32_t prefetch_next() const { return at + layout.prefetch; }

  // Producer warps read a slot, beside the consumers.
  __device__ void init(int producer_warps = 1) const {
    constexpr int kWarps = 4 * Shape::Groups;
    tile_pipe().init(1, kWarps + producer_warps - 1);
    for (TileState i; i.phase == 0; i.next()) sm90::barrier_init(tile_confirmed(i), 1);
    q_pipe().init(1, kWarps), key_pipe().init(1, kWarps);
    sm90::barrier_init(prefetch_next(), 1);
    sm90::barrier_init_done();
  }
};

}  // namespace fovea::cuda
