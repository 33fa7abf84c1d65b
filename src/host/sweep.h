// SPDX-License-Identifier: Apache-2.0
// The frame of a host operation that sweeps over keys.  Query rows lie in vector lanes, keys are
// f32 rows, and the score tile between them is x[key][lane].
//
//   RowTiles       numbers the row tiles of all sequences; an item of work is one, or a part of one
//   RowTile        what each row of a tile sees, as intervals of keys
//   KeyWalk        the key tiles a row tile visits: a range, a grid, or a list of key blocks
//   LocalSeen      those intervals within one key tile, for Simd
//   load_keys      keys of a tile as f32 rows, contiguous or paged
//   SplitRows      split-K: softmax states of parts of the keys, combined in order
//   PartRows       split-K of a gradient: the parts' sums of dq, added in order
//   WorkerScratch  each worker's room in the workspace
//   host_plan      the last lines of a prepare
//
// Tiles and parts follow from shapes, lengths and lists alone.  So the bits do not change with the
// number of threads.
#pragma once
#include <algorithm>
#include <limits>

#include "core/attend.h"
#include "core/dtype.h"
#include "core/plan.h"
#include "host/device.h"
#include "host/parts.h"
#include "host/rows.h"
#include "host/tiles.h"

namespace fovea::host {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int kLanesMost = 128;  // rows of the widest tile: eight AVX-512 vectors
constexpr int kRows = 64;  // of a full tile, where an operation has no reason for another size
constexpr int kKeys = 96;  // keys of a tile: a multiple of the 6 rows of a register block
constexpr double kFlopsPerNanosecond = 25;  // low enough for the slowest instruction set

// Columns in whole vectors.
inline int64_t padded(int64_t width) {
  return ceil_div(width, simd().width) * simd().width;
}

// Terms in whole tiles.
inline int64_t tile_padded(int64_t width) {
  return ceil_div(width, kTileTerms) * kTileTerms;
}

enum class Cover { none, part, full };

// A tile of query rows.  Operations derive from it and add what else a row has.
struct RowTile {
  int count, lanes;           // lanes: count in whole vectors
  KeyRange seen[kLanesMost];  // of each lane; of those past `count` nothing
  int64_t begin, end;         // no lane sees a key outside

  // The caller fills seen[0 .. rows), then calls bound().
  explicit RowTile(int64_t rows)
      : count(static_cast<int>(rows)), lanes(static_cast<int>(padded(rows))), begin(0), end(0) {
    std::fill(seen + count, seen + lanes, KeyRange{});
  }
  bool sees_any(int r) const {
    return seen[r].low < seen[r].high || seen[r].first_low < seen[r].first_high;
  }
  // From now on row r sees nothing.  bound() when the last was dropped.
  void drop(int r) { seen[r] = {}; }
  void bound();
  Cover cover(int64_t key_begin, int64_t key_end) const;
};

// What the lanes see of keys [begin, begin + count).
struct LocalSeen {
  LocalSeen(const RowTile& rows, int64_t begin, int64_t count);
  Seen view() const { return {low, high, first_low, first_high}; }
  bool sees(int r, int64_t j) const {
    return (low[r] <= j && j < high[r]) || (first_low[r] <= j && j < first_high[r]);
  }
  int32_t low[kLanesMost], high[kLanesMost], first_low[kLanesMost], first_high[kLanesMost];
};

// The row tiles of a call, found.  Within a sequence and a head the last tile comes first: under a
// causal mask it has most keys.
class RowPlaces {
 public:
  struct Place {
    int64_t sequence, head, tile;
  };
  RowPlaces(int64_t sequences, int64_t heads, const int64_t* first)
      : sequences_(sequences), heads_(heads), first_(first) {}
  int64_t tiles() const { return first_[sequences_]; }  // of each head
  int64_t count() const { return tiles() * heads_; }
  // Item by (sequence, head, tile).
  Place operator[](int64_t item) const;
  // Item by (sequence, tile, head): heads that share keys follow each other.
  Place tile_first(int64_t item) const;

 private:
  int64_t find(int64_t tile) const;
  int64_t sequences_, heads_;
  const int64_t* first_;
};

// Where row tiles are is known when the lengths are: room for the numbers.
class RowTiles {
 public:
  RowTiles() = default;
  // limit: tiles of a head that there is room for elsewhere; find() stops there.
  RowTiles(int64_t sequences, int64_t heads, Layout& workspace, int64_t limit = INT64_MAX)
      : sequences_(sequences),
        heads_(heads),
        limit_(limit),
        first_(workspace.add<int64_t>(sequences + 1)) {}
  // The most tiles of kRows rows there can be, whatever the lengths say.
  static int64_t most(const Sequences& sequences, int64_t heads);

  // tiles_of(r): row tiles of sequence r, of each head.
  template <class TilesOf>
  RowPlaces find(void* base, TilesOf tiles_of) const {
    int64_t* first = first_.at(base);
    first[0] = 0;
    for (int64_t r = 0; r < sequences_; ++r)
      first[r + 1] = std::min(limit_, first[r] + tiles_of(r));
    return {sequences_, heads_, first};
  }

 private:
  int64_t sequences_ = 0, heads_ = 0, limit_ = 0;
  Slot<int64_t> first_;
};

// Keys [begin, begin + count) of a walk.
struct KeySpan {
  int64_t begin, count;
  Cover cover;
  int64_t entry;  // of the list
  bool masked() const { return cover == Cover::part; }
};

// The key source of a sweep: which keys a row tile visits, in tiles of kKeys or in blocks of a
// list. Tiles that no row sees are skipped.  Where a key is stored, page or not, load_keys knows.
class KeyWalk {
 public:
  // Keys [begin, end): tiles begin at the first key that some row sees.
  static KeyWalk range(int64_t begin, int64_t end) { return {begin, end, INT64_MAX, -1}; }
  // Tiles of [begin, end), cut at multiples of kKeys from `origin` on; the last ends at `keys`.
  // Every row tile has the same cuts, so sums over rows and over keys add the same products.
  static KeyWalk grid(int64_t begin, int64_t end, int64_t keys, int64_t origin = 0) {
    return {begin, end, keys, origin};
  }
  // Blocks of `block_keys` keys, in the order of the list.  Entries that name no key are skipped.
  static KeyWalk list(IntVector blocks, int64_t count, int64_t block_keys, int64_t keys) {
    KeyWalk walk(0, count, keys, -1);
    walk.blocks_ = blocks, walk.block_keys_ = block_keys;
    return walk;
  }

  template <class Visit>
  void each(const RowTile& rows, Visit visit) const {
    if (blocks_) return each_block(rows, visit);
    int64_t j = std::max(begin_, rows.begin);
    if (origin_ >= 0) j = origin_ + (j - origin_) / kKeys * kKeys;
    for (const int64_t end = std::min(end_, rows.end); j < end; j += kKeys) {
      const int64_t count = std::min<int64_t>(kKeys, (origin_ >= 0 ? keys_ : end) - j);
      const Cover cover = rows.cover(j, j + count);
      if (cover != Cover::none) visit(KeySpan{j, count, cover, 0});
    }
  }

 private:
  KeyWalk(int64_t begin, int64_t end, int64_t keys, int64_t origin)
      : begin_(begin), end_(end), keys_(keys), origin_(origin) {}

  template <class Visit>
  void each_block(const RowTile& rows, Visit& visit) const {
    for (int64_t entry = begin_; entry < end_; ++entry) {
      const int64_t j = blocks_[entry] * block_keys_;
      if (j < 0 || j >= keys_) continue;
      const int64_t count = std::min(block_keys_, keys_ - j);
      const Cover cover = rows.cover(j, j + count);
      if (cover != Cover::none) visit(KeySpan{j, count, cover, entry});
    }
  }

  int64_t begin_, end_, keys_;
  int64_t origin_;  // -1: no grid
  IntVector blocks_{};
  int64_t block_keys_ = 0;
};

// Keys of a tile as f32 rows, `row` floats apart.
struct KeyRows {
  const float* x;
  int64_t row;
};
struct KeyUse {
  bool wide;           // read as whole vectors: rows are padded with zeros where need be
  bool once = false;   // few rows read the tile: nothing is gained by copying rows together
  bool whole = false;  // the keys lie in one page, which is there
  bool copy = false;   // the rows are to be written to
};

// k or v of a call.
struct KeySide {
  const Simd& simd;
  const Sequences& sequences;
  const View<4>& data;
  int32_t dtype;
  int64_t width;
  View<4> scale = {};  // of codes, for each of `groups` equal parts of a row; not given: 1
  int64_t groups = 1;
};

// Keys [begin, begin + count) of a key head.  Dense f32 rows are read in place, others are copied
// to `room`, padded(width) floats a key.  absent (or nullptr) marks keys that are not there: 0 in
// room.
KeyRows load_keys(const KeySide& side, const Sequence& q, int64_t key_head, int64_t begin,
                  int64_t count, KeyUse use, const bool* absent, float* room);
// The same of bf16 as it is, for tiles: rows padded with zeros to kTileTerms columns, and so many
// of them that their number is a multiple of kTileTerms.
Bf16Rows load_bf16_keys(const KeySide& side, const Sequence& q, int64_t key_head, int64_t begin,
                        int64_t count, const bool* absent, uint16_t* room);
// Marks the keys whose page is absent.  Returns whether there are any.
bool find_absent(const Sequences& sequences, const Sequence& q, int64_t begin, int64_t count,
                 const View<4>& k, bool* absent);

// o = shrink o + x' v over the pairs for which sees(j, r) holds; shrink nullptr: 1.  The product of
// all pairs would not do: p = 0 of a masked key times a NaN or infinity in v is NaN.
template <class Sees>
void add_values(const Simd& simd, int64_t rows, int64_t lanes, int64_t keys, const float* x,
                const KeyRows& v, int64_t e, const float* shrink, float* o, int64_t o_row,
                Sees sees) {
  for (int64_t r = 0; r < rows; ++r, o += o_row) {
    if (shrink) simd.scale(o_row, o, shrink[r], o);
    for (int64_t j = 0; j < keys; ++j)
      if (sees(j, r)) add_row(e, x[j * lanes + r], v.x + j * v.row, o);
  }
}

// Every score that is not -inf lies below its row's top, in units of log2, by more than `margin`
// nats.  seen: there is one.
bool skips(const RowTile& rows, int64_t keys, const float* x, const float* top, float margin,
           bool& seen);

// ln of a sum of 2^(.. - top); top in units of log2.
float lse_of(float top, float sum);

// Parts of the keys, as asked for or (0) enough to keep a large machine busy with `items`.
int64_t forward_parts(int32_t splits, int64_t items, int64_t key_max);

// Rows whose keys are cut into parts: o unnormalised, top in units of log2, sum.
struct SplitRows {
  SplitRows() = default;
  SplitRows(int64_t part_count, int64_t row_count, int64_t row_width, Layout& workspace);
  struct State {
    float top, sum;
  };
  void save(void* base, int64_t part, int64_t row, const float* from, State state) const;
  // All parts of a row, in order; `to` has room for a row.
  State combine(void* base, int64_t row, float* to) const;

  int64_t parts = 1, rows = 0, width = 0;
  Slot<float> o, state;
};

// What becomes of a row's sums: the factor of o, and lse.  sink, if given, is a logit without a
// value.
struct RowEnd {
  RowEnd(SplitRows::State state, const float* sink);
  float factor, lse;
};

// <dout, o> - dlse of one row; `o` and `dout` have room for a row.
float delta_of(const Simd& simd, const AttendBackward& call, const Sequence& q, int64_t row,
               int64_t head, float* o, float* dout);
// sum_i exp(sink_logit - lse_i) delta_i over the rows of one head.
double sink_sum(const Simd& simd, const AttendBackward& call, const Sequence& q, int64_t head,
                float* o, float* dout);

// dq where an item owns a part of the keys: with one part a row is stored when it is complete, else
// each part's sums are kept and added in order by a second pass.
class PartRows {
 public:
  PartRows() = default;
  PartRows(const Attend& a, const GradientView& dq, int64_t parts, Layout& workspace);
  // One row of a part, before the scale.
  void save(void* base, const Attend& a, const Sequence& q, int64_t row, int64_t head, int64_t part,
            const float* from) const;
  void combine(Pool& pool, void* base, const Attend& a) const;

 private:
  float* at(void* base, const Attend& a, const Sequence& q, int64_t row, int64_t head,
            int64_t part) const;
  void store(const Attend& a, const Sequence& q, int64_t row, int64_t head,
             const float* from) const;
  GradientView dq_{};
  int64_t parts_ = 1;
  Slot<float> sums_;
};

// Each worker's room, laid out by `worker`.  items: more workers than that have nothing to do.
class WorkerScratch {
 public:
  WorkerScratch() = default;
  WorkerScratch(const Context& ctx, double items, const Layout& worker, Layout& workspace)
      : bytes_(worker.bytes()), all_(workspace.add_all(worker, workers_for(ctx, items))) {}
  void* at(void* base, int32_t worker) const {
    return all_.at(base) + static_cast<size_t>(worker) * bytes_;
  }

 private:
  size_t bytes_ = 0;
  Slot<unsigned char> all_;
};

// Rows times keys, over all sequences: what a sweep costs is a multiple of it.
double pairs_of(const Sequences& sequences);

// ".bf16.d64", of a kernel's name.
inline Text shape_name(int32_t dtype, int64_t width) {
  return Text(".") + dtype_name(dtype) + ".d" + Text::number(width);
}

// The kernel's name, and Run{p, base}.run(ctx) as its launch.
template <class Run, class P>
void host_plan(Plan& plan, const P& p, const Text& shape) {
  plan.kernel += Text(".") + simd().name + shape;
  plan.launch = [p](Context& ctx, void* base) { Run{p, base}.run(ctx); };
}

}  // namespace fovea::host
