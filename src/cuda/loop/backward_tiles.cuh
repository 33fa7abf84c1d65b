// SPDX-License-Identifier: Apache-2.0
// What the Hopper gradient keeps in its workspace, by (query head, tile of rows):
//   side   values of each row, as many as the slopes want: of attention lse log2(e), then delta;
//          +inf and 0 for a row that is not there or is empty
//   dq     f32 sums of one tile, as chunks of 64 rows x 64 columns in the order of the fragments:
//          chunk, then 8-column group j, then thread of the warpgroup, then the lane's four sums
//   turn   key blocks that have added to the tile so far
#pragma once
#include "core/attend.h"
#include "cuda/loop/mask.cuh"

namespace fovea::cuda {

constexpr int kChunkRows = 64;
constexpr int kChunkFloats = kChunkRows * 64;
constexpr int kPartTiles = 16;  // row tiles whose dq one block stores

// Rows of every sequence cut into tiles of `rows`.  Packed sequences may begin anywhere: sequence r
// starts at tile row_begin / rows + r, which leaves room for the tile that its neighbours share.
struct RowTiles {
  int32_t rows, panels;
  int32_t each;   // tiles of a sequence; 0: packed
  int32_t total;  // of a head; of all heads it is at most kIndexMax

  RowTiles(const Attend& a, int rows, int panels) : rows(rows), panels(panels) {
    const Sequences& q = a.sequences;
    each = static_cast<int>(q.query_start ? 0 : (q.query_max + rows - 1) / rows);
    total = static_cast<int>(q.query_start ? a.s / rows + q.count : each * q.count);
  }
  FOVEA_HD int64_t first(const Sequence& q, int64_t r) const {
    return each ? r * each : q.row_begin / rows + r;
  }
  FOVEA_HD int64_t floats() const { return int64_t{rows} * panels * 64; }
};

// How the flat grid is cut: sections of `section` key heads of all sequences, in each the key
// blocks of its heads in their order (BackwardBlock), then the parts of dq of the section before,
// heads fastest.
struct BackwardGrid90 {
  int64_t blocks, parts, section;

  int64_t total(int64_t heads) const {
    return ((heads + section - 1) / section + (parts > 0)) * section * (blocks + parts);
  }
};

struct BackwardWork {
  RowTiles tiles;
  int32_t sides;  // values of a row
  float* side;
  float* dq;      // nullptr: not wanted
  int32_t* turn;  // with dq
  bool ordered;   // blocks add to dq in turn; else in any order, to zeros

  FOVEA_HD float* lse(int64_t at) const { return side + at * sides * tiles.rows; }
  FOVEA_HD float* delta(int64_t at) const { return lse(at) + tiles.rows; }
};

}  // namespace fovea::cuda
