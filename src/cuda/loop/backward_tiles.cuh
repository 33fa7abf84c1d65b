// SPDX-License-Identifier: Apache-2.0
// What the Hopper gradient keeps in its workspace, by (query head, tile of rows):
//   side   values of each row, as many as the slopes want: of attention lse log2(e), then delta;
//          +inf and 0 for a row that is not there or is empty
//   dq     f32 sums of one tile, as chunks of 64 rows x 64 columns in the order of the fragments:
//          chunk, then 8-column group j, then thread of the warpgroup, then the lane's four sums
//   turn   key blocks that have added to the tile so far
#pragma once
#include <algorithm>

#include "core/attend.h"
#include "cuda/launch.h"
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

constexpr int kLastBlocks = 256;  // key blocks of the last section: two for each multiprocessor

// How the flat grid is cut: sections of key heads of all sequences, in each the key blocks of its
// heads in their order (BackwardBlock), then the parts of dq of the section before the one before:
// what they wait for is there.  Then the heads of the last section, and the parts that are left.
struct BackwardGrid90 {
  int32_t owners;         // key heads of all sequences
  int32_t blocks, parts;  // of an owner: key blocks, parts of dq
  int32_t section, last;  // owners in a section, and in the last
  int32_t sections;       // but the last

  // `rows` and `keys` of a tile, `panels` of 64 columns of dq.
  BackwardGrid90(const Attend& a, int64_t rows, int64_t keys, int64_t panels, bool dq,
                 int64_t l2_bytes) {
    const int64_t group = a.h / a.g, queries = a.sequences.query_max;
    owners = static_cast<int32_t>(a.g * a.sequences.count);
    blocks = static_cast<int32_t>(ceil_div(a.sequences.key_max, keys));
    parts = static_cast<int32_t>(dq ? group * ceil_div(ceil_div(queries, rows), kPartTiles) : 0);
    last = 0;
    if (a.mask.window.right && a.g > 1)
      last = static_cast<int32_t>(clamp_i64(kLastBlocks / std::max(blocks, 1), 1, a.g / 2));
    // As many as a third of the cache holds the rows and sums of (heads' ends overlap), evenly.
    const int64_t bytes = group * queries * (2 * a.d + 2 * a.e + 4 * 64 * panels);
    const int64_t held = std::max<int64_t>(l2_bytes / 3 / (bytes + 1), 1);
    const int64_t first = owners - last, even = std::max<int64_t>(ceil_div(first, held), 1);
    section = static_cast<int32_t>(std::max<int64_t>(ceil_div(first, even), 1));
    sections = static_cast<int32_t>(ceil_div(first, section));
  }
  FOVEA_HD int32_t early() const {  // owners whose parts come among the sections
    return sections > 2 ? (sections - 2) * section : 0;
  }
  int64_t total() const {
    return int64_t{sections} * section * (blocks + parts) + int64_t{last} * blocks +
           int64_t{owners - early()} * parts;
  }
};

// Key blocks that have added to a tile, in a sector of its own: those who wait for one tile do not
// hold up what others say of the next.
struct alignas(32) Turn {
  int32_t passed;
};

struct BackwardWork {
  RowTiles tiles;
  int32_t sides;  // values of a row
  float* side;
  float* dq;     // nullptr: not wanted
  Turn* turn;    // with dq
  bool ordered;  // blocks add to dq in turn; else in any order, to zeros
  float* dk;  // (caches, t, key heads of the call, d) where k has fewer, to be added up; or nullptr

  FOVEA_HD float* lse(int64_t at) const { return side + at * sides * tiles.rows; }
  FOVEA_HD float* delta(int64_t at) const { return lse(at) + tiles.rows; }
};

}  // namespace fovea::cuda
