// SPDX-License-Identifier: Apache-2.0
// What the Hopper gradient keeps in its workspace, by (query head, tile of rows):
//   row_stats  statistics of each row, Dscores::stats of them.  Attention's are lse log2(e) and
//              delta; +inf and 0 for an absent or empty row
//   dq         f32 sums of one tile, in chunks of 64 rows x 64 columns in wgmma fragment order:
//              chunk, 8-column group j, thread of the warpgroup, the lane's four sums
//   dq_order   the dq semaphore of a tile: how many key blocks have added to it
#pragma once
#include <algorithm>

#include "core/attend.h"
#include "cuda/device.h"
#include "cuda/launch.h"
#include "cuda/loop/mask.cuh"

namespace fovea::cuda {

constexpr int kChunkRows = 64;
constexpr int kChunkFloats = kChunkRows * 64;
constexpr int kPartTiles = 16;  // row tiles whose dq one block stores

// Row tiles of every sequence.  A packed sequence may begin inside a tile: sequence r starts at
// tile row_begin / rows + r, so neighbours share none.
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

constexpr int kDownBlocks = 256;  // descending key blocks of a sequence: two a multiprocessor
constexpr int kInterleaved = 16;  // attention's owners of a section: some eight blocks of each run

// Key blocks of narrow heads that hardly fill the device: the longest must start first.
inline bool few_blocks(const Attend& a, int64_t blocks, const DeviceInfo& device) {
  return a.d <= 64 && blocks < 4 * device.multiprocessors;
}

// The flat grid, in the order in which blocks start.  An owner is a key head of a sequence.
// A section interleaves owners: key block 0 of each, then key block 1 of each, and so on.
// Key heads that loop down (BackwardBlock) are late: they come last in `late` of the sequences.
//
//   | order | a section has the key blocks of | and then                                        |
//   | first | all but the late owners         | dq parts of section n - 2: their sums are ready |
//   | last  | the late owners                 |                                                 |
//   | rest  |                                 | the dq parts that are left                      |
//
// A section has as many owners as L2 holds, or `interleaved` ones where that gains more:
//
//   | call                | why                                                                   |
//   | all keys seen       | an owner's blocks run in step, so L2 serves all of them at once       |
//   | causal, narrow, few | with under four blocks a multiprocessor the longest must start first; |
//   |                     | up to 64 columns the call is not bound by L2                          |
struct BackwardGrid90 {
  struct Sections {
    int32_t size, count;
    Sections(int64_t owners, int64_t most) {
      count = static_cast<int32_t>(ceil_div(owners, most));
      size = static_cast<int32_t>(ceil_div(owners, std::max(count, 1)));
    }
  };
  int32_t heads, down_heads;  // key heads of a sequence, and how many of them loop down
  int32_t sequences, late;    // late: in how many of them these come last
  int32_t blocks, parts;      // of an owner: key blocks, parts of dq
  Sections first, last;

  // `rows` and `keys` of a tile, `panels` of 64 columns of dq.
  BackwardGrid90(const Attend& a, int64_t rows, int64_t keys, int64_t panels, bool dq,
                 const DeviceInfo& device, int64_t interleaved)
      : down_heads(0), late(0), first(0, 1), last(0, 1) {
    const int64_t group = a.h / a.g, queries = a.sequences.query_max;
    const bool causal = a.mask.window.right;
    heads = static_cast<int32_t>(a.g);
    sequences = static_cast<int32_t>(a.sequences.count);
    blocks = static_cast<int32_t>(ceil_div(a.sequences.key_max, keys));
    parts = static_cast<int32_t>(dq ? group * ceil_div(ceil_div(queries, rows), kPartTiles) : 0);
    const bool few = interleaved > 1 && few_blocks(a, owners() * int64_t{blocks}, device);
    if (causal && a.g > 1) {
      down_heads = static_cast<int32_t>(clamp_i64(kDownBlocks / std::max(blocks, 1), 1, a.g / 2));
      late = few ? sequences : std::min(sequences, 1);
    }
    // Their rows and sums fit in a third of L2: sections overlap.
    const int64_t bytes = group * queries * (2 * a.d + 2 * a.e + 4 * 64 * panels);
    const int64_t held = std::max<int64_t>(device.l2_bytes / 3 / (bytes + 1), 1);
    const int64_t most = dq && (few || !causal) ? std::max(held, interleaved) : held;
    first = Sections(owners() - late * down_heads, most);
    last = Sections(late * down_heads, std::max<int64_t>(most, down_heads));
  }
  FOVEA_HD int32_t owners() const { return heads * sequences; }
  FOVEA_HD int32_t early() const {  // owners whose parts come among the sections
    return first.count > 2 ? (first.count - 2) * first.size : 0;
  }
  int64_t total() const {
    return int64_t{first.count} * first.size * (blocks + parts) +
           int64_t{last.count} * last.size * blocks + int64_t{owners() - early()} * parts;
  }
};

// A dq semaphore.  It has a sector of its own, so that polling one does not delay another's add.
struct alignas(32) DqOrder {
  int32_t added;
};

struct BackwardWork {
  RowTiles tiles;
  int32_t stats;  // of a row
  float* row_stats;
  float* dq;          // or nullptr
  DqOrder* dq_order;  // with dq
  bool ordered;       // blocks add to dq in one order; else in any, to zeros
  // (caches, t, key heads of the call, d or e), summed later where k or v has fewer; or nullptr.
  float *dk = nullptr, *dv = nullptr;
  int32_t shares = 1;  // attention: key heads of the call for one of k and v

  FOVEA_HD float* lse(int64_t at) const { return row_stats + at * stats * tiles.rows; }
  FOVEA_HD float* delta(int64_t at) const { return lse(at) + tiles.rows; }
};

}  // namespace fovea::cuda
