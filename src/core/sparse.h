// SPDX-License-Identifier: Apache-2.0
// Attention over lists (experimental/sparse.h), resolved: which list a row has, which keys an entry
// names, and which pairs of rows and keys it stands for.  Once for host and device.
#pragma once
#include "core/list_rows.h"

namespace fovea {

// A block of rows and its list: index on the axes b, x and n of the list tensors, and the rows of
// its sequence.
struct ListRow {
  int64_t batch, head;
  int64_t row;         // -1: no list
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

  // n of the first list row of sequence r.
  FOVEA_HD int64_t first_row(const Sequence& q, int64_t r, bool packed) const {
    if (!packed || row_begin) return 0;
    return first_list_row(q.row_begin, r, block_rows);
  }
  // Blocks of rows of a sequence.  With row_begin there are two more, without a list: the rows
  // before the first and behind the last.
  FOVEA_HD int64_t blocks(const Sequence& q) const {
    if (!listed()) return 1;
    return row_begin ? n + 2 : (q.rows + block_rows - 1) / block_rows;
  }
  // Block `block` of sequence r.
  FOVEA_HD ListRow at(const Sequence& q, int64_t r, bool packed, int64_t head,
                      int64_t block) const {
    ListRow list{q.batch, head, -1, 0, q.rows};
    if (!listed()) return list;
    if (row_begin) {
      if (block > 0) list.begin = row_start(q, head, block - 1);
      if (block <= n) list.end = row_start(q, head, block);
      if (block > 0 && block <= n) list.row = block - 1;
    } else {
      list.row = first_row(q, r, packed) + block;
      list.begin = block * block_rows;
      if (list.begin + block_rows < q.rows) list.end = list.begin + block_rows;
      // Starts that do not ascend must not lead out of the tensor.
      if (list.row >= n) list.row = -1, list.end = list.begin;
    }
    return list;
  }

  // Rows of `heads` heads packed, row * heads + head, stand in tiles of `lanes`, which begin anew
  // in each block of rows.  The tiles of a block have slots in a row; some slots have no tile.
  FOVEA_HD int64_t slots(const Sequence& q, int64_t heads, int64_t lanes) const {
    if (!listed()) return (q.rows * heads + lanes - 1) / lanes;
    if (by_row(q)) return q.rows * ((heads + lanes - 1) / lanes);
    if (row_begin) return q.rows * heads / lanes + n + 2;
    return blocks(q) * slots_of_block(heads, lanes);
  }
  // The most there can be in a sequence of `rows` rows.
  FOVEA_HD int64_t most_slots(int64_t rows, int64_t heads, int64_t lanes) const {
    Sequence q{};
    q.rows = rows;
    return slots(q, heads, lanes);
  }
  // The block and its packed rows [begin, end), counted from its first; none: end <= begin.
  struct Tile {
    ListRow list;
    int64_t begin, end;
  };
  FOVEA_HD Tile tile_at(const Sequence& q, int64_t r, bool packed, int64_t head, int64_t heads,
                        int64_t lanes, int64_t slot) const {
    if (by_row(q)) return row_tile(q, r, packed, head, heads, lanes, slot);
    int64_t block = 0, first = slot;
    if (row_begin) {
      // The first slot of block k is row_start * heads / lanes + k, which ascends.
      block = last_block(
          [&](int64_t k) { return row_start(q, head, k - 1) * heads / lanes + k <= slot; });
      if (block > 0) first -= row_start(q, head, block - 1) * heads / lanes + block;
    } else if (listed()) {
      const int64_t each = slots_of_block(heads, lanes);
      block = slot / each, first = slot % each;
    }
    Tile tile{at(q, r, packed, head, block), first * lanes, 0};
    const int64_t end = (tile.list.end - tile.list.begin) * heads;
    tile.end = tile.begin + lanes < end ? tile.begin + lanes : end;
    return tile;
  }

  // Places of a list in use.
  FOVEA_HD int64_t count(const ListRow& list) const {
    if (!index || list.row < 0) return 0;
    if (!index_count) return keep;
    return clamp_i64(*index_count.at<int32_t>(list.batch, list.head, list.row), 0, keep);
  }
  FOVEA_HD int64_t count_columns(const ListRow& list) const {
    if (!column || list.row < 0) return 0;
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
    return j >= 0 && j < q.keys ? j : -1;
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

  // Places of the list that are a tile of at most `keys` keys.
  FOVEA_HD int64_t places(int64_t keys) const {
    return block_keys > 0 && block_keys < keys ? keys / block_keys : 1;
  }

 private:
  FOVEA_HD int64_t row_start(const Sequence& q, int64_t head, int64_t row) const {
    return clamp_i64(*row_begin.at<int32_t>(q.batch, head, row), 0, q.rows);
  }
  FOVEA_HD int64_t slots_of_block(int64_t heads, int64_t lanes) const {
    return (block_rows * heads + lanes - 1) / lanes;
  }
  // More blocks than rows: each row has slots, and most of the blocks have no row.
  FOVEA_HD bool by_row(const Sequence& q) const { return row_begin && n > q.rows; }
  // The last k in [1, n + 2) that `begun` holds for, else 0; it holds up to some k.
  template <class Begun>
  FOVEA_HD int64_t last_block(Begun begun) const {
    int64_t low = 0, high = n + 2;
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (begun(middle) ? low : high) = middle;
    }
    return low;
  }
  // A tile begins at a row, or within it where the heads need several tiles.
  FOVEA_HD Tile row_tile(const Sequence& q, int64_t r, bool packed, int64_t head, int64_t heads,
                         int64_t lanes, int64_t slot) const {
    const int64_t each = (heads + lanes - 1) / lanes, row = slot / each, part = slot % each;
    const int64_t rows = heads < lanes ? lanes / heads : 1;
    const int64_t block = last_block([&](int64_t k) { return row_start(q, head, k - 1) <= row; });
    Tile tile{at(q, r, packed, head, block), 0, 0};
    const int64_t within = row - tile.list.begin;
    if (within < 0 || within % rows) return tile;
    tile.begin = within * heads + part * lanes, tile.end = (within + rows) * heads;
    if (tile.end > tile.begin + lanes) tile.end = tile.begin + lanes;
    const int64_t all = (tile.list.end - tile.list.begin) * heads;
    if (tile.end > all) tile.end = all;
    return tile;
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
  FOVEA_HD SparseList::Tile tile_at(const Sequence& q, int64_t r, int64_t list_head, int64_t heads,
                                    int64_t lanes, int64_t slot) const {
    return list.tile_at(q, r, packed(), list_head, heads, lanes, slot);
  }
  // Query heads of a key head that share a list, and so may share a tile of rows; else 1.
  FOVEA_HD int64_t shared_heads() const {
    const int64_t group = attend.g ? attend.h / attend.g : 1;
    const bool alike = group > 0 && list.group % group == 0;
    return alike && !head_map && !skip_head && skip_margin == 0 ? group : 1;
  }
  // The first field that asks more of a kernel than lists of blocks of keys; nullptr: none.
  const char* other_list() const {
    if (list.column) return "column";
    if (list.key_begin) return "key_begin";
    if (list.tile) return "tile";
    if (head_map) return "head_map";
    if (skip_head) return "skip_head";
    if (mass) return "mass";
    if (skip_margin > 0) return "skip_margin";
    return skipped ? "skipped" : nullptr;
  }
  // The head whose q and key head make the scores of head h.
  FOVEA_HD int64_t score_head(const Sequence& q, int64_t h) const {
    if (!head_map) return h;
    const int32_t m = *head_map.at<int32_t>(q.batch, h);
    return m >= 0 && m < attend.h ? m : h;
  }
  // Keys that a row may meet, of its sequence's key_max.
  int64_t keys_bound() const {
    const int64_t most = attend.sequences.key_max;
    if (!list.listed() || list.key_begin) return most;
    const double keys =
        static_cast<double>(list.index ? list.keep : 0) * static_cast<double>(list.block_keys) +
        static_cast<double>(list.columns) + static_cast<double>(list.first_keys) +
        static_cast<double>(list.last_keys);
    return keys < static_cast<double>(most) ? static_cast<int64_t>(keys) : most;
  }
  FOVEA_HD bool computes(int64_t h) const { return !skip_head || !skip_head[h]; }
};
FOVEA_HD const Attend& attend_in(const SparseAttend& call) {
  return call.attend;
}

struct SparseBackward {
  AttendBackward attend;
  SparseList list;
  // What the forward was.
  SparseAttend forward() const {
    SparseAttend call{};
    call.attend = attend.forward, call.list = list;
    return call;
  }
};

}  // namespace fovea
