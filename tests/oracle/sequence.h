// SPDX-License-Identifier: Apache-2.0
// Where the rows and keys of each sequence are, written from the comments of core.h, attention.h
// and cache.h.
#pragma once
#include "dense.h"

namespace oracle {

// Fields that say where tokens are; a struct that lacks one leaves it not given.
struct Layout {
  Dense query_start, key_start, query_len, key_len, key_first, page_table, cache_row;
  int64_t sequences = 0;  // r
  int64_t s = 0;          // rows of the query side
  int64_t extent = 0;     // keys a sequence can have: t, or pages * page
  int64_t page = 0;       // 0: contiguous
  int64_t caches = 0;     // rows of page_table, or of k and v
  int64_t query_max = 0, key_max = 0;
};

struct Sequence {
  int64_t r;
  int64_t batch, row;  // rows are (batch, row + i)
  int64_t rows;        // Lq
  int64_t keys;        // Lk, key_first's not among them
  int64_t first;       // key_first: column of key 0
  int64_t store;       // token index of key 0 in its row of k, v
  int64_t cache;       // row of k and v, or of page_table
};

struct Place {
  int64_t row, slot;  // k(row, slot, g, d)
  bool present;
};

inline Sequence sequence(const Layout& a, int64_t r) {
  Sequence q{r, r, 0, a.s, a.extent, 0, 0, r};
  if (a.query_start) {
    q.batch = 0;
    q.row = a.query_start.integer(r);
    q.rows = a.query_start.integer(r + 1) - q.row;
  }
  if (a.query_len) q.rows = std::min(q.rows, a.query_len.integer(r));
  if (a.query_max) q.rows = std::min(q.rows, a.query_max);
  if (a.cache_row) q.cache = a.cache_row.integer(r);
  if (a.cache_row && q.cache >= a.caches) q.cache = -1;
  if (a.key_start) {
    q.cache = 0;
    q.store = a.key_start.integer(r);
    q.keys = a.key_start.integer(r + 1) - q.store;
  }
  if (a.key_len) q.keys = std::min(q.keys, a.key_len.integer(r));
  if (a.key_max) q.keys = std::min(q.keys, a.key_max);
  if (q.cache < 0) q.keys = 0;
  if (a.key_first) {
    q.first = std::min(a.key_first.integer(r), q.keys);
    q.store += q.first;
    q.keys -= q.first;
  }
  return q;
}

// Token number `token` of the cache row (counted as `store` counts).
inline Place place(const Layout& a, const Sequence& q, int64_t token) {
  if (!a.page) return {q.cache, token, true};
  const int64_t page = a.page_table.integer(q.cache, token / a.page);
  return {page, token % a.page, page >= 0};
}

}  // namespace oracle
