// SPDX-License-Identifier: Apache-2.0
// Lists of blocks and of single keys as the sweep of columns_sm90.cuh walks them.
//   A row tile has the rows of one list row, or of two neighbours: it walks the union of theirs.
//   Pieces: an entry is pieces of `width` keys, each told by its first key, wherever that lies.
//   They ascend.  A piece is there as often as the list row has it that names it most, each time
//   with the list rows that still have it.
//   Columns: single keys, told the same way, those left out that an entry of their list row names.
//   The first keys, which are always seen, are columns once.
//   The last keys, which rows see always, come behind as a band: a row sees those of its own.
#pragma once
#include "cuda/loop/tile_lists.cuh"

namespace fovea::cuda {

// List rows of a row tile at most.  A column of the band has a bit of its own behind theirs.
constexpr int kColumnLists = 2, kColumnBand = 1 << kColumnLists;
// Keys that are always seen: they are gathered.
constexpr int64_t kAlwaysMost = 4096;
// Times that a list row may name a key.
constexpr int64_t kTimesMost = 65535;

// Pieces of a union, those of them that every row sees whole but for the union, and columns.
struct ColumnSpan {
  int32_t pieces, whole_begin, whole_end, columns;
};

// `tile` has first keys of pieces; `span` is not used.  Places as tile_lists.cuh has them.
struct ColumnLists : TileLists {
  const int32_t* column;    // (b, x, n, most_columns)
  const ColumnSpan* spans;  // (b, x, n)
  int64_t most_columns;
  int32_t first_keys, last_keys;
};

// A call whose rows see these lists alone.
struct ColumnAttend {
  Attend attend;
  ColumnLists lists;
};
FOVEA_HD const Attend& attend_in(const ColumnAttend& call) {
  return call.attend;
}

// The lists of a call, in its workspace: pieces of `width` keys, row tiles of `rows` list rows of
// `heads` heads.
struct ColumnListSlots {
  ColumnLists shape{};
  Slot<int32_t> tile, column;
  Slot<ColumnSpan> span;
  int64_t blocks = 0;  // row tiles of the longest sequence

  ColumnListSlots() = default;
  ColumnListSlots(Layout& layout, const SparseAttend& call, int64_t width, int64_t heads,
                  int64_t rows);
  ColumnLists make(Context& ctx, const char* op, const SparseAttend& call, void* base) const;
};

}  // namespace fovea::cuda
