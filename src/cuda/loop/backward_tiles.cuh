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

constexpr int kDownBlocks = 256;  // key blocks of a sequence that walk down: two a multiprocessor
constexpr int kSection = 16;      // key heads: some eight key blocks of each run side by side

// The flat grid, in the order in which blocks start.  Owners are the key heads of all sequences.
// Those that walk up come first, then those that walk down (BackwardBlock), each in sections:
//   sections     of `section` owners that walk up: key block 0 of each owner, then key block 1,
//   ...;
//                from the third section on, the parts of dq of the section before the one before
//   down.count   sections of `down.size` owners that walk down, alike but without parts
//   the rest     the parts of dq that are left
// A section takes turns among its owners: so few blocks of one owner run side by side that they
// wait for one another but little, and the longest blocks of all owners start together.
struct BackwardGrid90 {
  struct Sections {
    int32_t size, count;
    Sections(int64_t owners, int64_t most) {
      count = static_cast<int32_t>(ceil_div(owners, most));
      size = static_cast<int32_t>(ceil_div(owners, std::max(count, 1)));
    }
  };
  int32_t heads, down_heads;  // key heads of a sequence, and how many of them walk down
  int32_t owners, ups;        // of all sequences, and of those that walk up
  int32_t blocks, parts;      // of an owner: key blocks, parts of dq
  Sections up, down;

  // `rows` and `keys` of a tile, `panels` of 64 columns of dq.
  BackwardGrid90(const Attend& a, int64_t rows, int64_t keys, int64_t panels, bool dq,
                 int64_t l2_bytes)
      : up(0, 1), down(0, 1) {
    const int64_t group = a.h / a.g, queries = a.sequences.query_max;
    heads = static_cast<int32_t>(a.g);
    owners = static_cast<int32_t>(a.g * a.sequences.count);
    blocks = static_cast<int32_t>(ceil_div(a.sequences.key_max, keys));
    parts = static_cast<int32_t>(dq ? group * ceil_div(ceil_div(queries, rows), kPartTiles) : 0);
    down_heads = 0;
    if (a.mask.window.right && a.g > 1)
      down_heads = static_cast<int32_t>(clamp_i64(kDownBlocks / std::max(blocks, 1), 1, a.g / 2));
    ups = static_cast<int32_t>((a.g - down_heads) * a.sequences.count);
    // Short rows: as many owners as a third of the cache holds the rows and sums of.
    const int64_t bytes = group * queries * (2 * a.d + 2 * a.e + 4 * 64 * panels);
    const int64_t most = std::max<int64_t>(l2_bytes / 3 / (bytes + 1), kSection);
    up = Sections(ups, most), down = Sections(owners - ups, most);
  }
  FOVEA_HD int32_t early() const {  // owners whose parts come among the sections
    return up.count > 2 ? (up.count - 2) * up.size : 0;
  }
  int64_t total() const {
    return int64_t{up.count} * up.size * (blocks + parts) +
           int64_t{down.count} * down.size * blocks + int64_t{owners - early()} * parts;
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
