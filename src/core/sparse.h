// SPDX-License-Identifier: Apache-2.0
// Attention over lists (experimental/sparse.h), resolved: which list a row has, which keys an entry
// names, and which pairs of rows and keys it stands for.  Once for host and device.
#pragma once
#include "core/attend.h"

namespace fovea {

// One list: index on the axes b, x and n of the list tensors, and the rows of its sequence.
struct ListRow {
  int64_t batch, head, row;
  int64_t begin, end;  // rows of the sequence; none: end <= begin
};

// One place of a list.
struct ListEntry {
  Interval keys;  // none: end <= begin
  int64_t first;  // the key that column 0 of its tile is
  int32_t tile;   // -1: all pairs
  FOVEA_HD bool none() const { return keys.end <= keys.begin; }
};

struct SparseList {
  View<4> index;         // (b, x, n, keep)
  View<3> index_count;   // (b, x, n)
  View<4> index_bias;    // (b, h, n, keep)
  View<4> column;        // (b, x, n, columns)
  View<3> column_count;  // (b, x, n)
  View<3> row_begin;     // (b, x, n + 1)
  View<3> key_begin;     // (b, x, u + 1)
  View<4> tile;          // (b, x, n, keep)
  View<3> tile_bits;     // (tiles, tile_rows, tile_bytes)
  int64_t x, n, keep, columns;
  int64_t u;      // entries that key_begin knows
  int64_t tiles;  // of tile_bits
  int64_t group;  // query heads of a list head, h / x
  int64_t block_rows, block_keys,
      entry_keys;  // 0: row_begin, key_begin; entry_keys is never 0 else
  int64_t first_keys, last_keys;

  // Rows see keys by lists; else all of them.
  FOVEA_HD bool listed() const { return index || column; }
  FOVEA_HD int64_t head_of(int64_t h) const { return h / group; }

  // n of the first list row of sequence r, which begins at row_begin.
  FOVEA_HD int64_t first_row(const Sequence& q, int64_t r, bool packed) const {
    if (!packed || row_begin) return 0;
    return block_rows == 1 ? q.row_begin : q.row_begin / block_rows + r;
  }
  // List rows that a sequence may have.
  FOVEA_HD int64_t rows(const Sequence& q) const {
    return row_begin ? n : (q.rows + block_rows - 1) / block_rows;
  }
  // List row `row` of sequence r, counted from the sequence's first.
  FOVEA_HD ListRow at(const Sequence& q, int64_t r, bool packed, int64_t head, int64_t row) const {
    ListRow list{q.batch, head, first_row(q, r, packed) + row, 0, 0};
    if (row_begin) {
      list.begin = clamp_i64(*row_begin.at<int32_t>(q.batch, head, row), 0, q.rows);
      list.end = clamp_i64(*row_begin.at<int32_t>(q.batch, head, row + 1), 0, q.rows);
    } else {
      list.begin = row * block_rows;
      list.end = list.begin + block_rows < q.rows ? list.begin + block_rows : q.rows;
    }
    // Starts that do not ascend must not lead out of the tensor.
    if (list.row >= n) list.row = 0, list.begin = list.end = 0;
    return list;
  }

  // Places of a list in use.
  FOVEA_HD int64_t count(const ListRow& list) const {
    if (!index) return 0;
    if (!index_count) return keep;
    return clamp_i64(*index_count.at<int32_t>(list.batch, list.head, list.row), 0, keep);
  }
  FOVEA_HD int64_t count_columns(const ListRow& list) const {
    if (!column) return 0;
    if (!column_count) return columns;
    return clamp_i64(*column_count.at<int32_t>(list.batch, list.head, list.row), 0, columns);
  }

  // Keys of entry number e of a list head, as far as the sequence has them.
  FOVEA_HD ListEntry entry(const Sequence& q, const ListRow& list, int64_t e) const {
    ListEntry at{{0, 0}, 0, -1};
    if (e < 0) return at;
    if (key_begin) {
      if (e >= u) return at;
      at.keys.begin = *key_begin.at<int32_t>(list.batch, list.head, e);
      at.keys.end = *key_begin.at<int32_t>(list.batch, list.head, e + 1);
      if (at.keys.begin < 0) at.keys.begin = 0;
    } else {
      at.keys.begin = e * entry_keys, at.keys.end = at.keys.begin + block_keys;
    }
    at.first = at.keys.begin;
    if (at.keys.end > q.keys) at.keys.end = q.keys;
    return at;
  }
  // The entry at place m, m < count(list).
  FOVEA_HD ListEntry operator()(const Sequence& q, const ListRow& list, int64_t m) const {
    ListEntry at = entry(q, list, *index.at<int32_t>(list.batch, list.head, list.row, m));
    if (!tile || at.none()) return at;
    at.tile = *tile.at<int32_t>(list.batch, list.head, list.row, m);
    if (at.tile < -1 || at.tile >= tiles) at.keys.end = at.keys.begin;
    return at;
  }
  // Column m, m < count_columns(list), but for entries that name it too; -1: no key.
  FOVEA_HD int64_t column_at(const Sequence& q, const ListRow& list, int64_t m) const {
    const int64_t j = *column.at<int32_t>(list.batch, list.head, list.row, m);
    return j < q.keys ? j : -1;
  }
  // Whether an entry of the list names key j, whatever its tile says.
  FOVEA_HD bool names(const Sequence& q, const ListRow& list, int64_t j) const {
    for (int64_t m = 0, to = count(list); m < to; ++m) {
      const ListEntry at = entry(q, list, *index.at<int32_t>(list.batch, list.head, list.row, m));
      if (at.keys.begin <= j && j < at.keys.end) return true;
    }
    return false;
  }

  // The pair of row i and key j, which the entry names, counts.
  FOVEA_HD bool bit(const ListRow& list, const ListEntry& at, int64_t i, int64_t j) const {
    if (at.tile < 0) return true;
    const int64_t c = j - at.first;
    return *tile_bits.at<uint8_t>(at.tile, i - list.begin, c / 8) >> (c % 8) & 1;
  }
  // Row at position p sees key j at position p_j always, and so once.
  FOVEA_HD bool always(int64_t p, int64_t j, int64_t p_j) const {
    return j < first_keys || (last_keys > 0 && p_j <= p && p - p_j < last_keys);
  }
};

// A call whose rows see the keys of lists.  It is no Attend and becomes none, so a kernel that
// knows of no list cannot be given one.
struct SparseAttend {
  Attend attend;
  SparseList list;
  View<2> head_map;     // (b, h)
  IntVector skip_head;  // (h)
  View<3> mass;         // (key_b, x, t) or (r, x, keys)
  int64_t* skipped;
  float skip_margin;  // nats; 0: nothing is skipped

  FOVEA_HD bool packed() const { return static_cast<bool>(attend.sequences.query_start); }
  // List row `row` of sequence r and list head `head`.
  FOVEA_HD ListRow list_row(const Sequence& q, int64_t r, int64_t head, int64_t row) const {
    return list.at(q, r, packed(), head, row);
  }
  // The head whose q and key head make the scores of head h.
  FOVEA_HD int64_t score_head(const Sequence& q, int64_t h) const {
    if (!head_map) return h;
    const int32_t m = *head_map.at<int32_t>(q.batch, h);
    return m >= 0 && m < attend.h ? m : h;
  }
  FOVEA_HD bool computes(int64_t h) const { return !skip_head || !skip_head[h]; }
};
FOVEA_HD const Attend& attend_in(const SparseAttend& call) {
  return call.attend;
}

struct SparseBackward {
  AttendBackward attend;
  SparseList list;

  FOVEA_HD ListRow list_row(const Sequence& q, int64_t r, int64_t head, int64_t row) const {
    return list.at(q, r, static_cast<bool>(attend.forward.sequences.query_start), head, row);
  }
};

}  // namespace fovea
