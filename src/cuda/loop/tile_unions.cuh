// SPDX-License-Identifier: Apache-2.0
// Lists of single rows, for the forward sweep of Hopper: a row tile has the rows of one head, and
// walks the tiles of keys that any of them names, ascending and once.
//   A block owns a row tile.  It counts how often each row names each block of keys; that many
//   times the row sees the keys of a tile.
#pragma once
#include "cuda/loop/tile_lists.cuh"

namespace fovea::cuda {

struct TileUnions {
  const int32_t* tile;   // (b, x, row tiles, tiles)
  const TileSpan* span;  // (b, x, row tiles)
  const uint8_t* times;  // (b, x, row tiles, rows, blocks)
  int64_t x, row_tiles, tiles;
  int32_t blocks;              // of 16
  int32_t group;               // query heads of a list head
  int32_t rows, width, shift;  // of a row tile; keys of a tile; a block is 1 << shift tiles
};

// A call whose row tiles see unions alone.
struct UnitedAttend {
  Attend attend;
  TileUnions lists;
};
FOVEA_HD const Attend& attend_in(const UnitedAttend& call) {
  return call.attend;
}

// The unions of a call, in its workspace.
struct TileUnionSlots {
  TileUnions shape{};
  Slot<int32_t> tile;
  Slot<TileSpan> span;
  Slot<uint8_t> times;

  TileUnionSlots() = default;
  TileUnionSlots(Layout& layout, const SparseAttend& call, int rows, int width);
  TileUnions make(Context& ctx, const char* op, const SparseAttend& call, void* base) const;
};

}  // namespace fovea::cuda
