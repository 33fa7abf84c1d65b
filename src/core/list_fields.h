// SPDX-License-Identifier: Apache-2.0
// The fields of lists (experimental/sparse.h), read and checked: index, index_count, block_rows,
// block_keys, entry_keys, and what else an operation's lists have.
#pragma once
#include "core/fields.h"
#include "core/sparse.h"

namespace fovea {

inline void check_block(const char* op, const char* field, int64_t value, int64_t most, bool wanted,
                        const char* why) {
  if (wanted ? value >= 1 && value <= most : value == 0) return;
  refuse("%s: %s is %lld, wanted %s%lld%s", op, field, lld(value), wanted ? "1 .. " : "",
         wanted ? lld(most) : 0LL, wanted ? "" : why);
}

// Sizes of blocks.  `row_begin`, `key_begin`: given in their place, or nullptr.
template <class P>
void check_blocks(const char* op, const P& p, bool listed, const void* row_begin,
                  const void* key_begin) {
  check_block(op, "block_rows", p.block_rows, kListRowsMost, listed && !row_begin,
              row_begin ? " with row_begin" : " without a list");
  const bool blocks = p.index.data && !key_begin;
  const char* none = key_begin ? " with key_begin" : " without index";
  check_block(op, "block_keys", p.block_keys, kListKeysMost, blocks, none);
  if (p.entry_keys) check_block(op, "entry_keys", p.entry_keys, p.block_keys, blocks, none);
}

// Which lists need which others, and the sizes of blocks, where blocks may be of any size.
template <class P>
void check_clusters(const char* op, const P& p, bool listed) {
  check_needs(op, p.key_begin, "key_begin", p.index, "index");
  check_needs(op, p.tile, "tile", p.index, "index");
  check_together(op, p.tile, "tile", p.tile_bits, "tile_bits");
  if (p.row_begin.data && !listed)
    refuse("%s: row_begin is given without a list, wanted index too", op);
  for (const auto& [x, name] : {std::pair{&p.row_begin, "row_begin"}, {&p.key_begin, "key_begin"}})
    for (const auto& [y, other] : {std::pair{&p.query_start, "query_start"}, {&p.tile, "tile"}})
      if (x->data && y->data)
        refuse("%s: %s is given with %s, wanted one of them", op, name, other);
  check_blocks(op, p, listed, p.row_begin.data, p.key_begin.data);
  check_not_negative(op, "first_keys", p.first_keys);
  check_not_negative(op, "last_keys", p.last_keys);
  for (const auto& [x, name] : {std::pair{p.first_keys, "first_keys"}, {p.last_keys, "last_keys"}})
    if (x && !listed)
      refuse("%s: %s is %lld without a list, wanted 0: every key is seen", op, name, lld(x));
  if (!p.tile.data) return;
  if (p.tile_bits.shape[1] != p.block_rows)
    refuse("%s: tile_bits.shape[1] (tile_rows) is %lld, wanted block_rows = %d", op,
           lld(p.tile_bits.shape[1]), p.block_rows);
  if (p.tile_bits.shape[2] != (p.block_keys + 7) / 8)
    refuse("%s: tile_bits.shape[2] (tile_bytes) is %lld, wanted %d: a bit for each of %d keys", op,
           lld(p.tile_bits.shape[2]), (p.block_keys + 7) / 8, p.block_keys);
}

// The list rows that rows of q need.
template <class P>
void check_list_rows(const char* op, const P& p, const Attend& a, const SparseList& list) {
  const bool packed = p.query_start.data != nullptr;
  const int64_t blocks = packed ? a.s / list.block_rows + a.sequences.count
                                : a.s / list.block_rows + (a.s % list.block_rows != 0);
  const int64_t wanted = list.block_rows == 1 ? a.s : blocks;
  if (list.n < wanted)
    refuse(
        "%s: the lists have %lld rows (n), wanted at least %lld: %lld rows of q in blocks of %d%s",
        op, lld(list.n), lld(wanted), lld(a.s), p.block_rows,
        packed && list.block_rows > 1 ? ", and one more for each sequence" : "");
}

// `heads`: the tensor that says how many heads have a list, nullptr: none does.
template <class P>
SparseList read_list(const char* op, const P& p, const Attend& a, const fovea_tensor* heads) {
  SparseList list{};
  list.index = view_of<4>(p.index), list.index_count = view_of<3>(p.index_count);
  list.keep = p.index.shape[3];
  list.block_rows = p.block_rows, list.block_keys = p.block_keys;
  list.entry_keys = p.entry_keys ? p.entry_keys : p.block_keys;
  if constexpr (requires { p.key_begin; }) {
    list.row_begin = view_of<3>(p.row_begin), list.key_begin = view_of<3>(p.key_begin);
    list.tile = view_of<4>(p.tile), list.tile_bits = view_of<3>(p.tile_bits);
    list.u = p.key_begin.shape[2] - 1, list.tiles = p.tile_bits.shape[0];
    constexpr int64_t all = int64_t{1} << 48;  // leaves room for sums
    list.first_keys = std::min(all, p.first_keys), list.last_keys = std::min(all, p.last_keys);
  }
  if constexpr (requires { p.column; }) {
    list.index_bias = view_of<4>(p.index_bias);
    list.column = view_of<4>(p.column), list.column_count = view_of<3>(p.column_count);
    list.columns = p.column.shape[3];
  }
  list.x = heads ? heads->shape[1] : 1, list.group = 1;
  if (a.h && (!list.x || a.h % list.x))
    refuse("%s: the lists have %lld heads (x), wanted a divisor of q's %lld heads", op, lld(list.x),
           lld(a.h));
  if (list.x) list.group = a.h / list.x;
  check_needs(op, p.index_count, "index_count", p.index, "index");
  if constexpr (requires { p.key_begin; })
    check_clusters(op, p, list.listed());
  else
    check_blocks(op, p, list.listed(), nullptr, nullptr);
  if (!list.listed()) return list;
  list.n = heads->shape[2];
  if (!list.row_begin) check_list_rows(op, p, a, list);
  return list;
}

}  // namespace fovea
