// SPDX-License-Identifier: Apache-2.0
// The parts of x_kv_append in the format of tiles, for host and device alike.  A tile is `group`
// tokens of a head on their way into a page.  Its columns, tokens of keys or channels of values,
// have factors; its lines, channels of keys or tokens of values, have a scale and a zero.
#pragma once
#include "ops/kv/append_item.h"
#include "ops/kv/levels.h"

namespace fovea::kv {

constexpr int kTilePasses = 16;

FOVEA_HD float times(float x, float y) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(x, y);  // not part of a fused multiply-add
#else
  return x * y;
#endif
}

// A factor after a pass in which its column or line deviates by `deviation`.
FOVEA_HD float next_factor(float factor, float deviation) {
  const auto within = [](float x, float low, float high) {
    return x < low ? low : x > high ? high : x;
  };
  const float by = within(quotient_of(deviation, factor), 0.001f, 1000.0f);
  return within(times(factor, by), 0.7408182f, 22026.465f);
}

// Largest / smallest of numbers; NaN stays.
struct Spread {
  float largest, smallest;
  FOVEA_HD explicit Spread(float x) : largest(x), smallest(x) {}
  FOVEA_HD void add(float x) {
    if (x > largest || x != x) largest = x;
    if (x < smallest || x != x) smallest = x;
  }
  FOVEA_HD float ratio() const { return quotient_of(largest, smallest < 1e-8f ? 1e-8f : smallest); }
};

struct Tile {
  bool keys;
  int64_t head, first;      // token
  int64_t id, block, slot;  // of the page, of the first token in it

  FOVEA_HD int64_t width(const Cache& c) const { return keys ? c.d : c.e; }
  FOVEA_HD int64_t columns(const Cache& c) const { return keys ? c.group : c.e; }
  FOVEA_HD int64_t lines(const Cache& c) const { return keys ? c.d : c.group; }
  FOVEA_HD F16* factor(const Cache& c, int64_t column) const {
    return keys ? c.k_factor.at<F16>(id, slot + column, head)
                : c.v_factor.at<F16>(id, block, head, column);
  }
};

// Tile (block, head, side) of those that leave the tails; false: there is none.
FOVEA_HD bool find_tile(const KvAppend& a, const KvAppend::Turn& t, int64_t item, Tile& tile) {
  const Cache& c = a.cache;
  const int64_t rest = quotient(item, 2), block = quotient(rest, c.g);
  tile.keys = item == 2 * rest, tile.head = rest - block * c.g;
  tile.first = t.from.keys + block * c.group;
  if (tile.first >= t.to.keys || !tile.width(c)) return false;
  tile.id = c.page_of(t.row, tile.first);
  tile.slot = Cache::rest(tile.first, c.page), tile.block = quotient(tile.slot, c.group);
  return tile.id >= 0;
}

// Token n of a tile.
FOVEA_HD uint16_t* tile_element(const KvAppend& a, const KvAppend::Turn& t, const Tile& tile,
                                int64_t n, int64_t channel) {
  const int64_t j = tile.first + n;
  if (j >= t.from.length) return fresh(tile.keys ? a.k_new : a.v_new, t, j, tile.head, channel);
  return element(tile.keys ? a.cache.k_tail : a.cache.v_tail, t.row, j - t.from.keys, tile.head,
                 channel);
}

// Codes, scale and zero of a line: read(n) is its number n over the column's factor.
template <class Read>
FOVEA_HD void put_line(const Cache& c, const Tile& tile, int64_t line, const Read& read) {
  if (tile.keys)
    quantise(c.group, c.bits, read, c.k_scale.at<F16>(tile.id, tile.block, tile.head, line),
             c.k_zero.at<F16>(tile.id, tile.block, tile.head, line), [&](uint32_t word, int32_t n) {
               *c.k_code.at<uint32_t>(tile.id, tile.block, tile.head, line, n) = word;
             });
  else
    quantise(static_cast<int32_t>(c.e), c.v_bits, read,
             c.v_scale.at<F16>(tile.id, tile.slot + line, tile.head, 0),
             c.v_zero.at<F16>(tile.id, tile.slot + line, tile.head, 0),
             [&](uint32_t word, int32_t n) {
               *c.v_code.at<uint32_t>(tile.id, tile.slot + line, tile.head, n) = word;
             });
}

// New token n of a sequence, where it is a first one: one column of a head.
FOVEA_HD void to_firsts(const KvAppend& a, const KvAppend::Turn& t, int64_t n, int64_t head,
                        int64_t column) {
  const Cache& c = a.cache;
  const int64_t j = t.from.length + n;
  if (j >= c.firsts || j >= t.to.length) return;
  if (column < c.d)
    *element(c.k_first, t.row, j, head, column) = *fresh(a.k_new, t, j, head, column);
  if (column < c.e)
    *element(c.v_first, t.row, j, head, column) = *fresh(a.v_new, t, j, head, column);
}

}  // namespace fovea::kv
