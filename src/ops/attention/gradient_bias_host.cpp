// SPDX-License-Identifier: Apache-2.0
// dbias = ds, summed over every dimension in which it has stride 0.  An item owns a tile of the
// output and walks all (sequence, head, row tile, key tile) that fall on it in ascending order,
// adding in f64: no two items write one element, and the order is the same for any thread count.
#include <algorithm>

#include "ops/attention/gradient_tile_host.h"

namespace fovea::attend_host {
namespace {

constexpr int64_t kItemsEnough = 16;  // below this an item also has one column tile only

// How the output's dimensions are cut into items; a summed dimension is walked inside them.
struct BiasItems {
  bool sequence_kept, head_kept, row_kept, column_kept;
  int64_t sequences, heads, row_tiles, column_tiles;  // factors of the item count
  int64_t all_row_tiles, all_column_tiles;

  explicit BiasItems(const AttendBackward& b) {
    const Attend& a = b.forward;
    const int64_t* stride = b.dbias.stride;
    head_kept = stride[1] != 0 || a.h <= 1;
    row_kept = stride[2] != 0 || a.s <= 1;
    column_kept = stride[3] != 0 || a.columns <= 1;
    // Packed sequences differ in their rows, padded ones in their batch number.
    sequence_kept = a.sequences.query_start ? row_kept : stride[0] != 0 || a.b <= 1;
    all_row_tiles = ceil_div(a.sequences.query_max, kRows);
    all_column_tiles = ceil_div(a.columns, kKeys);
    sequences = sequence_kept ? a.sequences.count : 1;
    heads = head_kept ? a.h : 1;
    row_tiles = row_kept ? all_row_tiles : 1;
    column_tiles =
        column_kept && sequences * heads * row_tiles < kItemsEnough ? all_column_tiles : 1;
  }
};

struct Range {
  int64_t begin, end;
};
Range range_of(bool one, int64_t which, int64_t all) {
  if (one) return {which, which + 1};
  return {0, all};
}

class BiasItem {
 public:
  BiasItem(const Call& call, const AttendBackward& b, GradientTile& tile, double* sums)
      : call_(call), b_(b), tile_(tile), sums_(sums), cut_(b) {}

  void run(int64_t item) {
    const int64_t column_tile = item % cut_.column_tiles;
    item /= cut_.column_tiles;
    row_tiles_ = range_of(cut_.row_kept, item % cut_.row_tiles, cut_.all_row_tiles);
    item /= cut_.row_tiles;
    heads_ = range_of(cut_.head_kept, item % cut_.heads, call_.a.h);
    sequences_ = range_of(cut_.sequence_kept, item / cut_.heads, call_.a.sequences.count);
    const Range columns = range_of(cut_.column_tiles > 1, column_tile, cut_.all_column_tiles);
    std::fill_n(sums_, kBiasSums, 0.0);
    for (int64_t c = columns.begin; c < columns.end; ++c) {
      add_all(c * kKeys);
      if (cut_.column_kept) {
        write(c * kKeys);
        std::fill_n(sums_, kBiasSums, 0.0);
      }
    }
    if (!cut_.column_kept) write(0);
  }

 private:
  void add_all(int64_t column) {
    for (int64_t r = sequences_.begin; r < sequences_.end; ++r) {
      const Sequence q = call_.a.sequences[r];
      // Columns count from the sequence's first stored key, keys from key_first.
      const int64_t begin = std::max<int64_t>(0, column - q.key_first);
      const int64_t end = std::min(q.keys, column + kKeys - q.key_first);
      if (begin >= end) continue;
      for (int64_t h = heads_.begin; h < heads_.end; ++h)
        for (int64_t t = row_tiles_.begin; t < row_tiles_.end && t * kRows < q.rows; ++t)
          add(r, q, h, t * kRows, begin, end, q.key_first - column);
    }
  }

  void add(int64_t r, const Sequence& q, int64_t h, int64_t row, int64_t begin, int64_t end,
           int64_t shift) {
    const RowTile rows(call_, q, h, 1, row, std::min<int64_t>(kRows, q.rows - row));
    const Cover cover = rows.cover(begin, end);
    if (cover == Cover::none) return;
    if (r != loaded_[0] || h != loaded_[1] || row != loaded_[2]) tile_.load(q, rows);
    loaded_[0] = r, loaded_[1] = h, loaded_[2] = row;
    tile_.step(r, q, rows, begin, end - begin, cover, false);
    for (int64_t j = begin; j < end; ++j) {
      double* to = sums_ + (j + shift) * kRows;
      const float* ds = tile_.ds + (j - begin) * rows.lanes;
      for (int i = 0; i < rows.count; ++i) to[i] += ds[i];
    }
  }

  void write(int64_t column) {
    const Attend& a = call_.a;
    const View<4>& to = b_.dbias;
    int64_t columns = std::min<int64_t>(kKeys, a.columns - column);
    if (!cut_.column_kept) {
      for (int64_t j = 1; j < kKeys; ++j)
        for (int i = 0; i < kRows; ++i) sums_[i] += sums_[j * kRows + i];
      columns = 1;
    }
    int64_t rows = 1, first = 0;
    if (cut_.row_kept) {
      first = row_tiles_.begin * kRows;
      rows = std::min<int64_t>(kRows, a.sequences.query_max - first);
      if (a.sequences.query_start) {
        const Sequence q = a.sequences[sequences_.begin];
        rows = std::min(rows, q.rows - first);
        first += q.row_begin;
      }
    } else {
      for (int64_t j = 0; j < columns; ++j)
        for (int i = 1; i < kRows; ++i) sums_[j * kRows] += sums_[j * kRows + i];
    }
    const int64_t batch = cut_.sequence_kept && !a.sequences.query_start ? sequences_.begin : 0;
    float* out = to.as() + batch * to.stride[0] + heads_.begin * to.stride[1];
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j)
        out[(first + i) * to.stride[2] + (column + j) * to.stride[3]] =
            static_cast<float>(sums_[j * kRows + i]);
  }

  const Call& call_;
  const AttendBackward& b_;
  GradientTile& tile_;
  double* sums_;
  const BiasItems cut_;
  Range sequences_{}, heads_{}, row_tiles_{};
  int64_t loaded_[3] = {-1, -1, -1};
};

}  // namespace

int64_t bias_items(const AttendBackward& request) {
  const BiasItems cut(request);
  return cut.sequences * cut.heads * cut.row_tiles * cut.column_tiles;
}

void bias_item(const Call& call, const AttendBackward& request, int64_t item, GradientTile& tile,
               double* sums) {
  BiasItem(call, request, tile, sums).run(item);
}

}  // namespace fovea::attend_host
