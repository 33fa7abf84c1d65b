// SPDX-License-Identifier: Apache-2.0
// Lists of keys, one a row, and the same lists by key: for each (sequence, head with a list of its
// own, tile of keys) the entries that name one of its keys, rows ascending.
//   An entry is a number: its tile in the high bits, then row, key within the tile and place in the
//   row's list.  Entries that name no key stand last.
//   A run is some of what a row has in a tile, keys ascending, so that a key that stands twice is
//   in two runs.  Where tiles have more than one key, lists are sorted 2048 entries at a time
//   first.
#pragma once
#include "core/sparse.h"
#include "core/workspace.h"
#include "cuda/launch.h"

namespace fovea::cuda {

// Every row's list of n entries: the numbers of keys in its sequence; others name none.
struct KeyLists {
  View<4> index;  // (b, h, s, n)
  Sequences sequences;
  int64_t h, n;

  int64_t heads() const {
    // Without heads there is no list, whatever the stride says.
    return index.stride[1] == 0 ? h < 1 ? h : 1 : h;
  }
  FOVEA_HD int64_t rows_most() const { return sequences.query_max; }
  FOVEA_HD int64_t rows(const Sequence& q) const { return q.rows; }
  int64_t keys_most() const { return sequences.key_max; }
  FOVEA_HD int64_t key(const Sequence& q, int64_t, int64_t head, int64_t i, int64_t entry) const {
    return key(q, head, i, entry);
  }
  // Key that entry n of row i names; -1: none.
  FOVEA_HD int64_t key(const Sequence& q, int64_t head, int64_t i, int64_t entry) const {
    if (entry >= n) return -1;
    const int64_t* stride = index.stride;
    const int64_t j = index.as<int32_t>()[q.batch * stride[0] + head * stride[1] +
                                          (q.row_begin + i) * stride[2] + entry * stride[3]];
    return j >= 0 && j < q.keys ? j : -1;
  }
};

// Lists of blocks of rows (core/sparse.h), a "row" being a list row of its sequence and a "key" the
// number of an entry.  n: places of a list.
struct BlockLists {
  SparseList list;
  Sequences sequences;
  int64_t n;

  int64_t heads() const { return list.x; }
  FOVEA_HD int64_t rows_most() const { return rows_of(sequences.query_max); }
  FOVEA_HD int64_t rows(const Sequence& q) const { return rows_of(q.rows); }
  int64_t keys_most() const {
    if (list.key_begin) return list.u > 0 ? list.u : 0;
    return (sequences.key_max + list.entry_keys - 1) / list.entry_keys;
  }
  FOVEA_HD ListRow at(const Sequence& q, int64_t r, int64_t head, int64_t i) const {
    const bool packed = static_cast<bool>(sequences.query_start);
    return list.at(q, r, packed, head, list.row_begin ? i + 1 : i);
  }
  FOVEA_HD int64_t key(const Sequence& q, int64_t r, int64_t head, int64_t i, int64_t m) const {
    const ListRow row = at(q, r, head, i);
    if (m >= list.count(row) || row.end <= row.begin) return -1;
    const int64_t e = *list.index.at<int32_t>(row.batch, row.head, row.row, m);
    return list.entry(q, row, e).none() ? -1 : e;
  }

 private:
  FOVEA_HD int64_t rows_of(int64_t rows) const {
    return list.row_begin ? list.n : (rows + list.block_rows - 1) / list.block_rows;
  }
};

struct ListTranspose {
  int64_t heads;  // with lists of their own
  int64_t tiles;  // of 2^key_bits keys, that a sequence may have
  int64_t entries;
  uint64_t none;  // tile of entries that name no key
  int list_bits, key_bits, row_bits, bits;
  template <class Lists>
  ListTranspose(const Lists& lists, int key_bits);
  // "" or why not.
  const char* refuses() const {
    return bits > 64 ? "more than 2^64 entries of pairs of rows and keys" : "";
  }

  FOVEA_HD uint64_t tile(int64_t sequence, int64_t h, int64_t j) const {
    return static_cast<uint64_t>((sequence * heads + (heads == 1 ? 0 : h)) * tiles +
                                 (j >> key_bits));
  }
  // Below the entries of a tile from row i on, above those before.
  FOVEA_HD uint64_t from(uint64_t tile, int64_t i) const {
    return ((tile << row_bits) + static_cast<uint64_t>(i)) << (key_bits + list_bits);
  }
  // The first of the sorted entries of this tile or of one after it.
  FOVEA_HD int64_t start_of(const uint64_t* sorted, int64_t tile) const {
    const uint64_t bound = from(static_cast<uint64_t>(tile), 0);
    int64_t begin = 0, end = entries;
    while (begin < end) {
      const int64_t middle = (begin + end) / 2;
      if (sorted[middle] < bound)
        begin = middle + 1;
      else
        end = middle;
    }
    return begin;
  }
  // An entry that names key j, but for its place; `first` is from() of its row in tile 0.
  FOVEA_HD uint64_t named(uint64_t first, int64_t j) const {
    const uint64_t key = static_cast<uint64_t>(low(static_cast<uint64_t>(j), key_bits));
    return first + (static_cast<uint64_t>(j >> key_bits) << (row_bits + key_bits + list_bits)) +
           (key << list_bits);
  }
  FOVEA_HD uint64_t tile_of(uint64_t entry) const {
    return entry >> (row_bits + key_bits + list_bits);
  }
  FOVEA_HD int64_t row_of(uint64_t entry) const {
    return low(entry >> key_bits >> list_bits, row_bits);
  }
  FOVEA_HD int key_of(uint64_t entry) const {
    return static_cast<int>(entry >> list_bits) & ((1 << key_bits) - 1);
  }
  FOVEA_HD int64_t place_of(uint64_t entry) const { return low(entry, list_bits); }

 private:
  FOVEA_HD static int64_t low(uint64_t x, int bits) {
    return static_cast<int64_t>(x & ((uint64_t{1} << bits) - 1));
  }
};

// Sorted entries, and the first of each run; the entries that name no key are one run at the end.
struct ListRuns {
  const uint64_t* entries;
  const int64_t* first;
  const int64_t* count;
};

// Two buffers of entries and CUB's own room.
template <class Lists>
struct ListTransposeSlots {
  Lists lists;
  ListTranspose order;
  Slot<uint64_t> entries[2];
  Slot<int64_t> count;
  Slot<unsigned char> room;
  ListTransposeSlots(Layout& layout, const char* op, const Lists& lists, int key_bits, bool needed);
  // Runs are found where a tile has more than one key.
  ListRuns sort(Context& ctx, const char* op, void* base) const;
};

}  // namespace fovea::cuda
