// SPDX-License-Identifier: Apache-2.0
// Masks: ranges of tiles to visit, the tiles that need no element test (tile_full), and that test
// (sees).  Ranges may be wider than what is seen, never narrower.
#pragma once
#include "core/attend.h"

namespace fovea::cuda {

// Tiles of `width` keys, ascending: those of the sink keys, then [first, last).
struct KeyTiles {
  int64_t sinks, first, last;
  FOVEA_HD int64_t count() const { return sinks + last - first; }
  FOVEA_HD int64_t operator[](int64_t n) const { return n < sinks ? n : first + n - sinks; }
};

using Range = Interval;

// No tensor of positions: what a row sees is intervals of keys.
FOVEA_HD bool default_positions(const Mask& mask) {
  return !mask.query_position && !mask.key_position;
}

// f(window) for each window of heads [h0, h1).
template <class F>
FOVEA_HD void each_window(const Mask& mask, int64_t h0, int64_t h1, const F& f) {
  if (!mask.head_window) h1 = h0 + 1;
  for (int64_t h = h0; h < h1; ++h) f(mask.of_head(h));
}

// Key tiles that rows [i0, i1) of heads [h0, h1) may see.  i0 < i1, h0 < h1.
FOVEA_HD KeyTiles key_tiles(const Mask& mask, const Sequence& q, int64_t h0, int64_t h1, int64_t i0,
                            int64_t i1, int64_t width) {
  if (!default_positions(mask)) return {0, 0, (q.keys + width - 1) / width};
  const int64_t p0 = i0 + q.context - q.rows, p1 = i1 - 1 + q.context - q.rows;
  int64_t begin = q.keys, end = 0, sink = 0;
  each_window(mask, h0, h1, [&](const Window& w) {
    const SeenKeys<int64_t> some = w.seen(p0, p1, q.keys, mask.axis);
    begin = begin < some.low ? begin : some.low;
    end = end > some.high ? end : some.high;
    const int64_t kept = some.sink < some.high ? some.sink : some.high;
    sink = sink > kept ? sink : kept;
  });
  begin = clamp_i64(begin, 0, q.keys), end = clamp_i64(end, 0, q.keys),
  sink = clamp_i64(sink, 0, q.keys);
  const int64_t sinks = (sink + width - 1) / width;
  const int64_t first = begin / width > sinks ? begin / width : sinks;
  const int64_t last = (end + width - 1) / width;
  return {sinks, first, last > first ? last : first};
}

// Query rows that may see keys [j0, j1).
FOVEA_HD Range row_range(const Mask& mask, const Sequence& q, int64_t h0, int64_t h1, int64_t j0,
                         int64_t j1) {
  if (!default_positions(mask)) return {0, q.rows};
  int64_t begin = q.rows, end = 0;
  each_window(mask, h0, h1, [&](const Window& w) {
    const Range rows =
        w.rows(mask.axis.at(j0), mask.axis.at(j1 - 1) + 1, q.context - q.rows, q.rows);
    begin = begin < rows.begin ? begin : rows.begin;
    end = end > rows.end ? end : rows.end;
  });
  begin = clamp_i64(begin, 0, q.rows), end = clamp_i64(end, 0, q.rows);
  return {begin, end > begin ? end : begin};
}

// Every row of [i0, i1) of heads [h0, h1) sees every key of [j0, j1), j1 <= keys.  The caller hides
// absent pages.
FOVEA_HD bool tile_full(const Mask& mask, const Sequence& q, int64_t h0, int64_t h1, int64_t i0,
                        int64_t i1, int64_t j0, int64_t j1) {
  if (!default_positions(mask) || mask.bits) return false;
  const int64_t p0 = i0 + q.context - q.rows, p1 = i1 - 1 + q.context - q.rows;
  bool full = true;
  each_window(mask, h0, h1, [&](const Window& w) {
    full = full && w.seen(p1, p0, q.keys, mask.axis).all(j0, j1);
  });
  return full;
}

// Row i of head h, at position p_i under window w, sees key j at position p_j.  The key is there.
FOVEA_HD bool sees(const Mask& mask, const Sequence& q, const Window& w, int64_t h, int64_t i,
                   int64_t j, int64_t p_i, int64_t p_j) {
  return w.sees(p_i, p_j) && mask.bit(q, h, i, j);
}

}  // namespace fovea::cuda
