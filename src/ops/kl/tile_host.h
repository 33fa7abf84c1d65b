// SPDX-License-Identifier: Apache-2.0
// What the host's forward and backward share: a tile of consecutive rows of one query head in
// vector lanes, a tile of keys, and of each side the logit tile x[key][lane] between them.
//   A key tile is read in place where it is f32 with dense rows, else converted to scratch.
//   Row tiles are numbered by sequence, head, tile: the numbers follow from shapes and lengths
//   alone.
#pragma once
#include "core/workspace.h"
#include "host/parts.h"
#include "host/rows.h"
#include "ops/kl/kernels.h"

namespace fovea::kl_host {

using host::ceil_div;

constexpr int kRows = 64;  // lanes of a full tile: four AVX-512 vectors
constexpr int kKeys = 96;  // keys of a tile: a multiple of the 6 rows of a register block

inline int64_t padded(int64_t width) {
  const int64_t vector = host::simd().width;
  return ceil_div(width, vector) * vector;
}

enum class Cover { none, part, full };

struct RowTile {
  int64_t head, first;  // rows first .. first + count - 1 of the sequence
  int count, lanes;     // lanes: count in whole vectors
  KeyRange seen[kRows];
  int64_t begin, end;  // no lane sees a key outside

  RowTile(const Kl& a, const Sequence& q, int64_t head, int64_t first);
  bool sees_any(int r) const {
    return seen[r].low < seen[r].high || seen[r].first_low < seen[r].first_high;
  }
  // From now on row r sees nothing; bound() when the last was dropped.
  void drop(int r) { seen[r] = {}; }
  void bound();
  Cover cover(int64_t key_begin, int64_t key_end) const;
};

// Intervals of a row tile within keys [begin, begin + count), for Simd.
struct LocalSeen {
  LocalSeen(const RowTile& rows, int64_t begin, int64_t count);
  host::Seen view() const { return {low, high, first_low, first_high}; }
  int32_t low[kRows], high[kRows], first_low[kRows], first_high[kRows];
};

// Where the row tiles are.  `first` is workspace of count + 1 numbers.
class RowTiles {
 public:
  RowTiles(const Kl& a, int64_t* first) : a_(a), first_(first) {}
  void find();
  int64_t count() const { return first_[a_.sequences.count] * a_.h; }
  struct Place {
    int64_t sequence, head, first;
  };
  // The last tile of a head comes first: under a causal mask it has most keys.
  Place operator[](int64_t item) const;
  // The most there can be, whatever the lengths say; find() stops there.
  static int64_t most(const Kl& a);

 private:
  const Kl& a_;
  int64_t* first_;
};

// Room of one side for a worker.
struct SideRoom {
  SideRoom(const KlSide& side, Layout& layout);
  Slot<float> rows, columns, x, k;
};

// One side of a row tile against a key tile.
class SideTile {
 public:
  SideTile(const Kl& a, const KlSide& side, const SideRoom& room, void* base);

  // q (scaled) of the rows, 0 of those that see nothing: a NaN there is of no account, and how the
  // others are added up may not depend on it.
  void load_rows(const Sequence& q, const RowTile& rows);
  // k, and x = its logits.  `wide`: k is read as vectors later on.
  void load_keys(const Sequence& q, int64_t query_head, int64_t begin, int64_t count, bool wide);
  void score(int64_t lanes);
  bool finite() const;  // of q and k of the tile

  const KlSide& side;
  const int64_t pad;  // width in whole vectors
  float *rows, *x;    // [lane][pad], [key][lane]
  const float* k;
  int64_t k_row, keys;
  int row_count;

 private:
  const Kl& a_;
  const host::Simd& simd_;
  float *columns_, *k_room_;
  bool rows_finite_;
};

inline float row_value(const View<3>& x, const Sequence& q, int64_t head, int64_t row) {
  return x.as()[q.batch * x.stride[0] + head * x.stride[1] + (q.row_begin + row) * x.stride[2]];
}
inline float& row_slot(const View<3>& x, const Sequence& q, int64_t head, int64_t row) {
  return x.as()[q.batch * x.stride[0] + head * x.stride[1] + (q.row_begin + row) * x.stride[2]];
}
inline float weight_of(const Kl& a, const Sequence& q, int64_t head, int64_t row) {
  return a.row_weight ? row_value(a.row_weight, q, head, row) : 1.0f;
}

// Sums over the rows of tiles, and theirs in a tree of fixed shape.
struct Totals {
  double value, weight;
};
Totals add_up(const Totals* tiles, int64_t count);

}  // namespace fovea::kl_host
