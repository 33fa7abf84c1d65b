// SPDX-License-Identifier: Apache-2.0
// The lists of a chunk's rows, as a source of cuda/loop/pick_rows.cuh and pick_short.cuh.  An entry
// is a score of the chunk, or with Pooled the largest of `cells` scores.
#pragma once
#include <climits>

#include "ops/select/token_scores.cuh"

namespace fovea::cuda {

template <bool Pooled>
struct TokenLists {
  struct Row {
    const uint32_t* key;
    int64_t wanted, batch, list, at;
    int n, forced, cells;  // cells: that were written
  };
  SelectToken a;
  TokenGroups groups;
  const uint32_t* keys;
  int64_t pitch, first, keep;
  int32_t rows_each, cells;

  TokenLists(const TokenScores90& call, int cells)
      : a(call.a),
        groups(call.groups),
        keys(call.key),
        pitch(call.pitch),
        first(call.first),
        keep(call.a.keep),
        rows_each(call.rows_each),
        cells(cells) {}

  __device__ bool open(int64_t w, Row& row) const {
    const int64_t unit = quotient(w, rows_each), i = w - unit * rows_each;
    const int64_t group = quotient(unit, a.x);
    const TokenGroup at = groups.at(a.attend.sequences, first + group);
    if (i >= at.rows) return false;
    const TokenRow seen = a.row(at.sequence, at.first + i);
    row.key = keys + w * pitch, row.wanted = a.wanted(seen);
    row.batch = at.sequence.batch, row.list = unit - group * a.x;
    row.at = at.sequence.row_begin + at.first + i;
    row.n = static_cast<int>(seen.units);
    row.forced = static_cast<int>(clamp_i64(seen.forced, 0, INT_MAX));
    if constexpr (Pooled) row.cells = static_cast<int>((seen.high + kTokenKeys - 1) / kTokenKeys);
    return true;
  }
  using Raw = uint32_t;
  __device__ __forceinline__ Raw load(const Row& row, int i) const {
    if constexpr (Pooled) {
      if (cells > 1) {
        Raw top = 0;
        for (int cell = i * cells; cell < min((i + 1) * cells, row.cells); ++cell)
          top = max(top, row.key[cell]);
        return top;
      }
    }
    return row.key[i];
  }
  __device__ __forceinline__ void load4(const Row& row, int i, Raw (&to)[4]) const
      requires(!Pooled) {
    const uint4 x = *reinterpret_cast<const uint4*>(row.key + i);
    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
  }
  __device__ int plain(const Row& row) const requires(!Pooled) { return min(row.n, row.forced); }
  __device__ __forceinline__ uint32_t key(const Row& row, int i, Raw own) const {
    return own && i >= row.forced ? kPickForced : own;
  }
  __device__ void put(const Row& row, int64_t place, int i) const {
    *a.index.at<int32_t>(row.batch, row.list, row.at, place) = i;
    if (a.kept_score)
      *a.kept_score.at(row.batch, row.list, row.at, place) = pick_value(load(row, i));
  }
  __device__ void pad(const Row& row, int64_t place) const {
    *a.index.at<int32_t>(row.batch, row.list, row.at, place) = -1;
    if (a.kept_score) *a.kept_score.at(row.batch, row.list, row.at, place) = -INFINITY;
  }
  __device__ void count(const Row& row, int64_t wanted) const {
    if (a.index_count)
      *a.index_count.at<int32_t>(row.batch, row.list, row.at) = static_cast<int32_t>(wanted);
  }
};

}  // namespace fovea::cuda
