// SPDX-License-Identifier: Apache-2.0
// What a SIMT sweep knows of each row and key of its tiles, kept in shared memory, and the score of
// a (row, key) pair from its product.
#pragma once
#include "cuda/loop/mask.cuh"
#include "cuda/loop/score.cuh"
#include "cuda/loop/source.cuh"

namespace fovea::cuda {

constexpr int kPairKeys = 64;  // of a tile

struct RowInfo {
  int64_t i, h;  // query row in the sequence (-1: no such row) and head
  int64_t p;
  Window window;
  float slope, lse, delta;  // lse and delta: backward only
  float other, gain;        // of two distributions only: the other's lse, the gradient of kl
};

struct KeyInfo {
  int64_t j;
  int64_t k, v;  // element offsets of its rows; -1: no such key
  int64_t p;
};

inline __device__ __noinline__ RowInfo row_info(const Attend& a, const PackGqaRows& rows,
                                                int64_t m) {
  RowInfo info{};
  info.i = -1;
  if (m < 0 || m >= rows.count()) return info;
  info.i = rows.row(m), info.h = rows.head(m);
  info.p = a.mask.query_at(rows.seq, info.h, info.i);
  info.window = a.mask.of_head(info.h);
  info.slope = alibi_slope(a.score, rows.r, info.h);
  return info;
}

// A key past the length, on an absent page or at a negative position is no key: its rows read as
// zero, whatever lies in memory.
inline __device__ __noinline__ KeyInfo key_info(const Attend& a, const Sequence& seq, int64_t g,
                                                int64_t j) {
  KeyInfo info{j, -1, -1, 0};
  if (j < 0 || j >= seq.keys) return info;
  info.p = a.mask.key_at(seq, g, j);
  const KeyPlace place = key_place(a.sequences, seq, j);
  if (place.absent() || (a.mask.key_position && info.p < 0)) return info;
  info.k = place.offset(g, a.k.stride), info.v = place.offset(g, a.v.stride);
  return info;
}

// -inf where the row does not see the key; `x` is the capped product.  Out of line: most tiles need
// no element test.
inline __device__ __noinline__ float pair_score(const Attend& a, const Sequence& seq,
                                                const RowInfo& row, const KeyInfo& key, float x) {
  if (row.i < 0 || key.k < 0) return -INFINITY;
  if (!sees(a.mask, seq, row.window, row.h, row.i, key.j, row.p, key.p)) return -INFINITY;
  return biased(a.score, seq, row.slope, row.h, row.i, key.j, row.p, key.p, x);
}

// Every pair of rows [m0, m1) and of the 64 keys from j0 on that exists is seen, and nothing but
// scale and softcap makes its score.  `missing`: some key is not there.
__device__ __forceinline__ bool plain_pairs(const Attend& a, const PackGqaRows& rows, int64_t m0,
                                            int64_t m1, int64_t j0, bool missing) {
  if (missing || a.score.bias || a.score.alibi) return false;
  const int64_t j1 = j0 + kPairKeys < rows.seq.keys ? j0 + kPairKeys : rows.seq.keys;
  return tile_full(a.mask, rows.seq, rows.head_begin(), rows.head_end(), rows.row(m0),
                   rows.row(m1 - 1) + 1, j0, j1);
}

}  // namespace fovea::cuda
