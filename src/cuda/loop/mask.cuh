// SPDX-License-Identifier: Apache-2.0
// Mask policy.  Ranges decide which tiles are visited at all, `tile_full` which need no element
// test, `sees` is the element test.  Ranges may be wider than what is seen, never narrower.
#pragma once
#include "core/attend.h"

namespace fovea::cuda {

// Tiles of `width` keys, ascending: those of the sink keys, then [first, last).
struct KeyTiles {
  int64_t sinks, first, last;
  FOVEA_HD int64_t count() const { return sinks + last - first; }
  FOVEA_HD int64_t operator[](int64_t n) const { return n < sinks ? n : first + n - sinks; }
};

struct Range {
  int64_t begin, end;
};

// Default positions: index in the sequence, bottom-right aligned.
FOVEA_HD bool default_positions(const Mask& mask) {
  return !mask.query_position && !mask.key_position;
}

// Key tiles that rows [i0, i1) of heads [h0, h1) may see.  i0 < i1, h0 < h1.
FOVEA_HD KeyTiles key_tiles(const Mask& mask, const Sequence& q, int64_t h0, int64_t h1, int64_t i0,
                            int64_t i1, int64_t width) {
  if (!default_positions(mask)) return {0, 0, (q.keys + width - 1) / width};
  const int64_t p0 = i0 + q.keys - q.rows, p1 = i1 - 1 + q.keys - q.rows;
  int64_t begin = q.keys, end = 0, sink = 0;
  if (!mask.head_window) h1 = h0 + 1;
  for (int64_t h = h0; h < h1; ++h) {
    const Window w = mask.of_head(h);
    int64_t from = w.left > 0 ? p0 - w.left + 1 : 0;
    int64_t to = w.right > 0 ? p1 + w.right : q.keys;
    const int64_t kept = w.left > 0 ? (w.sink < to ? w.sink : to) : 0;
    if (w.chunk > 0) {
      const int64_t chunk_begin = w.floor_div(p0) * w.chunk;
      const int64_t chunk_end = (w.floor_div(p1) + 1) * w.chunk;
      from = from > chunk_begin ? from : chunk_begin;
      to = to < chunk_end ? to : chunk_end;
    }
    begin = begin < from ? begin : from;
    end = end > to ? end : to;
    sink = sink > kept ? sink : kept;
  }
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
  const int64_t shift = q.keys - q.rows;
  int64_t begin = q.rows, end = 0;
  if (!mask.head_window) h1 = h0 + 1;
  for (int64_t h = h0; h < h1; ++h) {
    const Window w = mask.of_head(h);
    int64_t from = w.right > 0 ? j0 - w.right + 1 - shift : 0;
    int64_t to = w.left > 0 && j0 >= w.sink ? j1 - 1 + w.left - shift : q.rows;
    if (w.chunk > 0) {
      const int64_t chunk_begin = w.floor_div(j0) * w.chunk - shift;
      const int64_t chunk_end = (w.floor_div(j1 - 1) + 1) * w.chunk - shift;
      from = from > chunk_begin ? from : chunk_begin;
      to = to < chunk_end ? to : chunk_end;
    }
    begin = begin < from ? begin : from;
    end = end > to ? end : to;
  }
  begin = clamp_i64(begin, 0, q.rows), end = clamp_i64(end, 0, q.rows);
  return {begin, end > begin ? end : begin};
}

// Every row of [i0, i1) of heads [h0, h1) sees every key of [j0, j1), j1 <= keys.  Absent pages are
// the caller's to think of.
FOVEA_HD bool tile_full(const Mask& mask, const Sequence& q, int64_t h0, int64_t h1, int64_t i0,
                        int64_t i1, int64_t j0, int64_t j1) {
  if (!default_positions(mask) || mask.bits) return false;
  const int64_t p0 = i0 + q.keys - q.rows, p1 = i1 - 1 + q.keys - q.rows;
  if (!mask.head_window) h1 = h0 + 1;
  for (int64_t h = h0; h < h1; ++h) {
    const Window w = mask.of_head(h);
    if (w.right > 0 && j1 - 1 >= p0 + w.right) return false;
    if (w.left > 0 && j0 <= p1 - w.left && j1 > w.sink) return false;
    if (w.chunk > 0 && (w.floor_div(p0) != w.floor_div(p1) || w.floor_div(p0) != w.floor_div(j0) ||
                        w.floor_div(j0) != w.floor_div(j1 - 1)))
      return false;
  }
  return true;
}

// Row i of head h, at position p_i under window w, sees key j at position p_j (j < keys, present).
FOVEA_HD bool sees(const Mask& mask, const Sequence& q, const Window& w, int64_t h, int64_t i,
                   int64_t j, int64_t p_i, int64_t p_j) {
  return p_j >= 0 && w.sees(p_i, p_j) && mask.bit(q, h, i, j);
}

}  // namespace fovea::cuda
