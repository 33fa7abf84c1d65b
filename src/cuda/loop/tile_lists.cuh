// SPDX-License-Identifier: Apache-2.0
// Lists of blocks (core/sparse.h) as the forward sweeps of Hopper walk them: for each list row the
// tiles of keys that it names, ascending and each as often as it is named, and for each row tile
// the span of them that its window leaves.
//   A block owns a list row.  It counts how often each tile is named, kCounted tiles at a time, and
//   writes a tile that often.  Keys that are always seen are tiles named once.
//   Unions: of up to four list rows of one row each, which stand in one row tile.  A tile is there
//   as often as the row has it that names it most, each time with the rows that still have it.
#pragma once
#include "core/sparse.h"
#include "core/workspace.h"
#include "cuda/launch.h"

namespace fovea::cuda {

// A place is a tile and, in a union, a bit for each row of those that see it.
constexpr int kPlaceTileBits = 26, kUnionRows = 4, kUnionKeep = 255;
FOVEA_HD int tile_in(int32_t place) {
  return place & ((1 << kPlaceTileBits) - 1);
}
FOVEA_HD int rows_in(int32_t place) {
  return place >> kPlaceTileBits;
}

// Places [begin, end) of a list row, and those that every row of the row tile sees whole.
struct TileSpan {
  int32_t begin, end, whole_begin, whole_end;
};

struct TileLists {
  const int32_t* tile;   // (b, x, n, most)
  const TileSpan* span;  // (b, x, n, row tiles of a list row)
  int64_t x, n, most;
  int32_t group;                  // query heads of a list head
  int32_t block_rows, row_tiles;  // of a list row
  int32_t step;                   // packed rows of a row tile
  int32_t width;                  // keys of a tile
  int32_t rows;                   // list rows of a union; 1: none
  bool packed;                    // sequences

  // List row of the first block of a sequence, counted over batch and heads; of block `block`, -1:
  // none, where starts do not ascend.
  FOVEA_HD int64_t first(const Sequence& q, int64_t r, int64_t head) const {
    return (q.batch * x + head) * n + begin(q, r);
  }
  FOVEA_HD bool has(const Sequence& q, int64_t r, int64_t block) const {
    return begin(q, r) + block < n;
  }

 private:
  FOVEA_HD int64_t begin(const Sequence& q, int64_t r) const {
    if (!packed) return 0;
    return block_rows == 1 ? q.row_begin : static_cast<int>(q.row_begin) / block_rows + r;
  }
};

// A call whose rows see the tiles of lists alone.
struct TiledAttend {
  Attend attend;
  TileLists lists;
};
FOVEA_HD const Attend& attend_in(const TiledAttend& call) {
  return call.attend;
}

// The lists of a call, in its workspace.  Tiles of `width` keys, of which a block has a whole
// number; row tiles of `step` packed rows of `heads` heads, of which a list row has a whole number.
struct TileListSlots {
  TileLists shape;
  Slot<int32_t> tile;
  Slot<TileSpan> span;
  int64_t heads, blocks;  // heads packed into the rows; list rows of the longest sequence

  TileListSlots() = default;
  // `rows` list rows make a union, whose places have the room of all.
  TileListSlots(Layout& layout, const SparseAttend& call, int64_t width, int64_t heads,
                int64_t step, int64_t rows);
  TileLists make(Context& ctx, const char* op, const SparseAttend& call, void* base) const;
};

}  // namespace fovea::cuda
