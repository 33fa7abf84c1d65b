// SPDX-License-Identifier: Apache-2.0
// The selection of trace_forward from the comment of trace.h: one row block at a time, f32 chains
// of fused multiply-adds, every score anew, a plain sort by the total order.
#pragma once
#include <algorithm>

#include "sequence.h"

namespace oracle {

struct Trace {
  Dense q, k, v, keep_row, block_mask;
  Layout at;
  int64_t b = 0, s = 0, h = 0, g = 0, d = 0, e = 0, n = 0, keep = 0;
  int64_t block_rows = 0, block_keys = 0;
  double scale = 0;
  bool causal = false;

  int64_t first_row(int64_t block) const { return block * block_rows; }
  int64_t last_row(int64_t block) const { return std::min(s, (block + 1) * block_rows); }
};

inline Trace load_trace(const fovea_trace_forward_params& p) {
  Trace a;
  a.q = load(p.q), a.k = load(p.k), a.v = load(p.v);
  a.keep_row = load(p.keep_row), a.block_mask = load(p.block_mask);
  a.b = p.q.shape[0], a.s = p.q.shape[1], a.h = p.q.shape[2], a.d = p.q.shape[3];
  a.g = p.k.shape[2], a.e = p.v.data            ? p.v.shape[3]
                            : p.o.data          ? p.o.shape[3]
                            : p.edge_value.data ? p.edge_value.shape[4]
                                                : 0;
  a.block_rows = p.block_rows ? p.block_rows : 64;
  a.block_keys = p.block_keys ? p.block_keys : 64;
  a.n = (a.s + a.block_rows - 1) / a.block_rows;
  a.keep = p.keep;
  a.at.key_len = load(p.key_len), a.at.page_table = load(p.page_table);
  a.at.cache_row = load(p.cache_row);
  a.at.s = a.s, a.at.sequences = a.b, a.at.extent = p.k.shape[1];
  a.at.caches = p.page_table.data ? p.page_table.shape[0] : p.k.shape[0];
  if (p.page_table.data) {
    a.at.page = p.k.shape[1];
    a.at.extent = p.page_table.shape[1] * a.at.page;
  }
  a.scale = p.scale > 0 ? p.scale : static_cast<float>(1 / std::sqrt(static_cast<double>(a.d)));
  a.causal = p.causal != 0;
  return a;
}

// A row block of one head.
struct RowBlock {
  Sequence q;
  int64_t head, block, key_head;
};

inline bool causally_valid(const Trace& a, const RowBlock& at, int64_t row, int64_t key) {
  return !a.causal || key <= row + at.q.keys - a.s;
}

inline bool valid(const Trace& a, const RowBlock& at, int64_t row, int64_t key) {
  if (!causally_valid(a, at, row, key) || !place(a.at, at.q, key).present) return false;
  if (!a.block_mask) return true;
  const int64_t u = key / a.block_keys;
  const auto byte = static_cast<int64_t>(a.block_mask(at.q.batch, at.head, at.block, u / 8));
  return byte >> (u % 8) & 1;
}

// f(row, key) for the pairs of the row block and a key block, until it gives true.
template <class F>
bool any_pair(const Trace& a, const RowBlock& at, int64_t key_block, F f) {
  const int64_t end = std::min(at.q.keys, (key_block + 1) * a.block_keys);
  for (int64_t row = a.first_row(at.block); row < a.last_row(at.block); ++row)
    for (int64_t key = key_block * a.block_keys; key < end; ++key)
      if (f(row, key)) return true;
  return false;
}

inline const double* key_row(const Trace& a, const RowBlock& at, int64_t key) {
  const Place where = place(a.at, at.q, key);
  return a.k.row(where.row, where.slot, at.key_head);
}

inline float chain(const double* x, const double* y, int64_t d) {
  float sum = 0;
  for (int64_t c = 0; c < d; ++c)
    sum = std::fma(static_cast<float>(x[c]), static_cast<float>(y[c]), sum);
  return sum;
}

inline float block_score(const Trace& a, const RowBlock& at, int64_t key_block) {
  float best = -HUGE_VALF;
  any_pair(a, at, key_block, [&](int64_t row, int64_t key) {
    if (!valid(a, at, row, key)) return false;
    const float x = chain(a.q.row(at.q.batch, row, at.head), key_row(a, at, key), a.d);
    if (x > best) best = x;  // false for NaN
    return false;
  });
  return best == 0 ? 0 : best;
}

struct Candidate {
  int64_t begin, end;
  int64_t representative;  // -1: none
  float score;
  int64_t branch, bit;
};

inline Candidate candidate(const Trace& a, const RowBlock& at, int64_t begin, int64_t end,
                           int64_t branch, int64_t bit) {
  Candidate c{begin, end, -1, -HUGE_VALF, branch, bit};
  for (int64_t u = begin; u < end && c.representative < 0; ++u)
    if (any_pair(a, at, u, [&](int64_t row, int64_t key) { return valid(a, at, row, key); }))
      c.representative = u;
  if (c.representative >= 0) c.score = block_score(a, at, c.representative);
  return c;
}

inline bool comes_before(const Candidate& x, const Candidate& y) {
  const bool x_empty = x.representative < 0, y_empty = y.representative < 0;
  if (x_empty != y_empty) return y_empty;
  if (x.score != y.score) return x.score > y.score;
  if (x.representative != y.representative) return x.representative < y.representative;
  if (x.branch != y.branch) return x.branch < y.branch;
  return x.bit < y.bit;
}

// The final branches; `kq` of them.  `gap`: the least by which a half that was kept beat one that
// was dropped.
inline std::vector<Candidate> trace_block(const Trace& a, const RowBlock& at,
                                          double* gap = nullptr) {
  const int64_t key_blocks = (at.q.keys + a.block_keys - 1) / a.block_keys;
  int64_t reach = 0, kq = a.keep;
  for (int64_t u = 0; u < key_blocks; ++u)
    if (any_pair(a, at, u,
                 [&](int64_t row, int64_t key) { return causally_valid(a, at, row, key); }))
      reach = u + 1;
  if (a.keep_row) kq = std::clamp<int64_t>(a.keep_row.integer(at.block), 0, a.keep);
  std::vector<Candidate> branches;
  for (int64_t b = 0; b < kq; ++b)
    branches.push_back(candidate(a, at, b * reach / kq, (b + 1) * reach / kq, b, 0));
  for (int64_t size = 1; size < key_blocks; size *= 2) {
    std::vector<Candidate> halves;
    for (int64_t b = 0; b < kq; ++b) {
      const int64_t x = branches[b].begin, y = branches[b].end, middle = x + (y - x + 1) / 2;
      halves.push_back(candidate(a, at, x, middle, b, 0));
      halves.push_back(candidate(a, at, middle, y, b, 1));
    }
    std::stable_sort(halves.begin(), halves.end(), comes_before);
    if (gap && kq > 0 && halves[kq].representative >= 0)
      *gap = std::min(*gap, static_cast<double>(halves[kq - 1].score) - halves[kq].score);
    halves.resize(kq);
    for (Candidate& c : halves)
      if (c.representative < 0) c.begin = c.end = 0;
    branches = halves;
  }
  return branches;
}

inline RowBlock row_block(const Trace& a, int64_t b, int64_t head, int64_t block) {
  return {sequence(a.at, b), head, block, head / (a.h / a.g)};
}

}  // namespace oracle
