// SPDX-License-Identifier: Apache-2.0
// A low-bit cache, resolved, and its arithmetic for host and device alike: where codes lie, a group
// on its way in and a number on its way out.  Each step is one f32 operation, rounded as IEEE 754
// says, so a device's bits are the host's.
#pragma once
#include <cmath>

#include "core/attend.h"
#include "core/convert.h"
#include "core/locate.h"
#include "fovea/experimental/kv.h"

namespace fovea::kv {

// Of one cache row: what counter holds.
struct State {
  int64_t length, keys, values;
};

struct Cache {
  View<5> k_code;
  View<4> k_scale, k_zero, v_code, v_scale, v_zero, k_tail, v_tail;
  View<3> k_factor;  // of tiles
  View<4> v_factor;
  View<2> counter, page_table;
  // Of the formats of levels.
  View<1> k_level, v_level;
  View<2> k_offset, k_range;
  View<3> v_bound, k_norm, v_norm, k_outlier, v_outlier;
  View<4> k_first, v_first;
  int32_t dtype;  // of tails and first tokens
  int32_t bits, v_bits, group, format;
  int64_t g, d, e, residual, page, pages, pool, rows;
  int64_t firsts, k_outliers, v_outliers;

  FOVEA_HD int64_t ring() const { return by_tiles() ? residual : residual + 1; }
  FOVEA_HD int64_t capacity() const { return pages * page; }
  FOVEA_HD int32_t largest() const { return (1 << bits) - 1; }
  FOVEA_HD int32_t word_codes() const { return 32 / bits; }
  // With scales, zeros and tails; tiles have factors too.
  FOVEA_HD bool by_groups() const { return format == FOVEA_X_KV_FORMAT_GROUPS || by_tiles(); }
  FOVEA_HD bool by_tiles() const { return format == FOVEA_X_KV_FORMAT_TILES; }

  // Within bounds, whatever the device holds.
  FOVEA_HD State state(int64_t row) const {
    const int32_t* at = counter.at<int32_t>(row);
    State s;
    s.length = clamp_i64(at[0], 0, capacity());
    if (!by_groups()) return {s.length, s.length, s.length};
    const int64_t first = s.length - residual, keys = at[counter.stride[1]];
    s.keys = clamp_i64(keys, first > 0 ? first : 0, s.length);
    if (s.keys < firsts) s.keys = firsts < s.length ? firsts : s.length;
    s.values = s.keys;
    if (by_tiles()) return s;
    const int64_t values = at[2 * counter.stride[1]];
    s.values = clamp_i64(values, first > 1 ? first - 1 : 0, s.keys);
    return s;
  }
  // j % n of counts.
  static FOVEA_HD int64_t rest(int64_t j, int64_t n) { return j - quotient(j, n) * n; }
  // The pool's page of token j; -1: absent.
  FOVEA_HD int64_t page_of(int64_t row, int64_t j) const {
    const int32_t id = *page_table.at<int32_t>(row, quotient(j, page));
    return id < 0 || id >= pool ? -1 : id;
  }
  // Code n of a stream whose word w is at(w).  Codes of 3 bits may lie in two words.
  template <class At>
  static FOVEA_HD uint32_t code_in(const At& at, int64_t n, int32_t bits) {
    const int64_t bit = n * bits, w = bit / 32;
    const auto low = static_cast<int32_t>(bit % 32);
    uint32_t word = *at(w) >> low;
    if (low + bits > 32) word |= *at(w + 1) << (32 - low);
    return word & ((uint32_t{1} << bits) - 1);
  }
  // Codes of column c of key j of a page, and of value j.
  FOVEA_HD uint32_t key_code(int64_t id, int64_t head, int64_t j, int64_t c) const {
    const int64_t slot = rest(j, page), block = quotient(slot, group);
    return code_in([&](int64_t w) { return k_code.at<uint32_t>(id, block, head, c, w); },
                   slot - block * group, bits);
  }
  FOVEA_HD uint32_t value_code(int64_t id, int64_t head, int64_t j, int64_t c) const {
    const int64_t slot = rest(j, page);
    return code_in([&](int64_t w) { return v_code.at<uint32_t>(id, slot, head, w); }, c, v_bits);
  }
  // The numbers of formats 0 and 3.
  FOVEA_HD float key(int64_t id, int64_t head, int64_t j, int64_t c) const {
    const int64_t slot = rest(j, page), block = quotient(slot, group);
    const float x = number(key_code(id, head, j, c), *k_scale.at<F16>(id, block, head, c),
                           *k_zero.at<F16>(id, block, head, c));
    return by_tiles() ? x * to_float(*k_factor.at<F16>(id, slot, head)) : x;
  }
  FOVEA_HD float value(int64_t id, int64_t head, int64_t j, int64_t c) const {
    const int64_t slot = rest(j, page), part = by_tiles() ? 0 : quotient(c, group);
    const float x = number(value_code(id, head, j, c), *v_scale.at<F16>(id, slot, head, part),
                           *v_zero.at<F16>(id, slot, head, part));
    return by_tiles() ? x * to_float(*v_factor.at<F16>(id, quotient(slot, group), head, c)) : x;
  }
  FOVEA_HD float key_in_tail(int64_t row, const State& s, int64_t head, int64_t j,
                             int64_t c) const {
    return load_fp(k_tail.at<F16>(row, j - s.keys, head, c), dtype, 0);
  }
  // Of token j in v_tail; `keys` are in no tail, or were when the tail was empty.
  FOVEA_HD int64_t value_slot(int64_t keys, int64_t j) const {
    return by_tiles() ? rest(j - keys, residual) : rest(j, ring());
  }
  FOVEA_HD float value_in_tail(int64_t row, const State& s, int64_t head, int64_t j,
                               int64_t c) const {
    return load_fp(v_tail.at<F16>(row, value_slot(s.keys, j), head, c), dtype, 0);
  }

  // code scale + zero: the product is exact, so this is one rounding.
  static FOVEA_HD float number(uint32_t code, F16 scale, F16 zero) {
    return static_cast<float>(code) * to_float(scale) + to_float(zero);
  }
};

FOVEA_HD float quotient_of(float x, float y) {
#ifdef __CUDA_ARCH__
  return __fdiv_rn(x, y);
#else
  return x / y;
#endif
}

// Nearest even of x, within 0 .. largest; NaN: 0.  Adding 1.5 * 2^23 rounds.
FOVEA_HD uint32_t code_of(float x, int32_t largest) {
  if (!(x > 0)) return 0;
  if (x >= static_cast<float>(largest)) return static_cast<uint32_t>(largest);
  const float shift = 12582912.0f;
  return bits_of(x + shift) - bits_of(shift);
}

// Quantises x = read(0) .. read(count - 1).  put(word, n) stores word n of the codes.
template <class Read, class Put>
FOVEA_HD void quantise(int32_t count, int32_t bits, const Read& read, F16* scale, F16* zero,
                       const Put& put) {
  float low = read(0), high = low;
  for (int32_t n = 1; n < count; ++n) {
    const float x = read(n);
    // NaN stays: no number is above or below it.
    if (x < low || x != x) low = x;
    if (x > high || x != x) high = x;
  }
  const int32_t largest = (1 << bits) - 1;
  const F16 step = from_float<F16>(quotient_of(high - low, static_cast<float>(largest)));
  const F16 from = from_float<F16>(low);
  *scale = step, *zero = from;
  const float by = to_float(step), off = to_float(from);
  const int32_t codes = 32 / bits;
  for (int32_t w = 0; w < count / codes; ++w) {
    uint32_t word = 0;
    for (int32_t i = 0; i < codes && by != 0; ++i)
      word |= code_of(quotient_of(read(w * codes + i) - off, by), largest) << (i * bits);
    put(word, w);
  }
}

}  // namespace fovea::kv
