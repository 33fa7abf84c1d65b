// SPDX-License-Identifier: Apache-2.0
// The formats of levels: a number's code and back, and outliers.  Each step is one f32 operation,
// rounded as IEEE 754 says, so a device's bits are the host's.
#pragma once
#include "ops/kv/cache.h"

namespace fovea::kv {

FOVEA_HD float fused(float x, float y, float z) {
#ifdef __CUDA_ARCH__
  return __fmaf_rn(x, y, z);
#else
  return std::fma(x, y, z);
#endif
}
FOVEA_HD float root_of(float x) {
#ifdef __CUDA_ARCH__
  return __fsqrt_rn(x);
#else
  return std::sqrt(x);
#endif
}

// What takes a number to a level: y = (x - offset) / range.
struct Bound {
  float offset, range;
  FOVEA_HD float in(float x) const { return quotient_of(x - offset, range); }
  FOVEA_HD float out(float level) const { return fused(level, range, offset); }
};

// Page id, slot of the token in it.
FOVEA_HD Bound key_bound(const Cache& c, int64_t id, int64_t slot, int64_t head, int64_t column) {
  if (c.format == FOVEA_X_KV_FORMAT_NORMS) return {0, *c.k_norm.at<float>(id, slot, head)};
  return {*c.k_offset.at<float>(head, column), *c.k_range.at<float>(head, column)};
}
FOVEA_HD Bound value_bound(const Cache& c, int64_t id, int64_t slot, int64_t head) {
  if (c.format == FOVEA_X_KV_FORMAT_NORMS) return {0, *c.v_norm.at<float>(id, slot, head)};
  return {*c.v_bound.at<float>(id, slot, 0), *c.v_bound.at<float>(id, slot, 1)};
}

// Midpoints below y; NaN: 0.
FOVEA_HD uint32_t level_of(const View<1>& levels, int32_t largest, float y) {
  uint32_t code = 0;
  for (int32_t i = 0; i < largest; ++i)
    code += (*levels.at<float>(i) + *levels.at<float>(i + 1)) * 0.5f < y;
  return code;
}
FOVEA_HD float level(const View<1>& levels, uint32_t code) {
  return *levels.at<float>(code);
}

// An outlier: the column of all heads, and f16 of what x' lacks.
FOVEA_HD uint32_t entry_of(int64_t column, float lacks) {
  return static_cast<uint32_t>(column) | static_cast<uint32_t>(from_float<F16>(lacks).bits) << 16;
}
constexpr uint32_t kNoEntry = 65535;
FOVEA_HD int64_t column_of(uint32_t entry) {
  return entry & 65535;
}
FOVEA_HD float lacks_of(uint32_t entry) {
  return to_float(F16{static_cast<uint16_t>(entry >> 16)});
}

// x' of a key and of a value, without outliers.
FOVEA_HD float key_by_level(const Cache& c, int64_t id, int64_t head, int64_t j, int64_t column) {
  const Bound bound = key_bound(c, id, Cache::rest(j, c.page), head, column);
  return bound.out(level(c.k_level, c.key_code(id, head, j, column)));
}
FOVEA_HD float value_by_level(const Cache& c, int64_t id, int64_t head, int64_t j, int64_t column) {
  const Bound bound = value_bound(c, id, Cache::rest(j, c.page), head);
  return bound.out(level(c.v_level, c.value_code(id, head, j, column)));
}

// Numbers of a token in their order, all different: NaN is largest, of equals the lower column.
FOVEA_HD uint64_t ordered(float x, int64_t column) {
  const uint32_t bits = bits_of(x + 0.0f);  // -0 is 0
  const uint32_t order = x != x ? 0xfffffffeu : bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(order) << 32 | (0xffffffffu - static_cast<uint32_t>(column));
}
FOVEA_HD int64_t place_of(uint64_t number) {
  return static_cast<int64_t>(0xffffffffu - static_cast<uint32_t>(number));
}

// The outliers of a token: `half` numbers from each end, and the ends of the rest.
struct Ends {
  uint64_t high, low;         // outliers are at `high` or above, and at `low` or below
  int64_t largest, smallest;  // columns, of the rest
};

// The threads of a token, of which this is number `lane`: all call each function together.
struct Alone {
  int64_t lane = 0, lanes = 1;
  uint64_t most(uint64_t x) const { return x; }
  uint64_t least(uint64_t x) const { return x; }
  // Of those who say `here` how many are before this, and in all.
  int64_t before(bool) const { return 0; }
  int64_t all(bool here) const { return here; }
  void meet() const {}  // what was written before is seen after
};

// number(column) is `ordered`.
template <class Team, class Number>
FOVEA_HD Ends find_ends(const Team& team, int64_t columns, int64_t half, const Number& number) {
  Ends ends{UINT64_MAX, 0, 0, 0};
  uint64_t high = UINT64_MAX, low = 0;
  for (int64_t n = 0; n <= half; ++n) {
    uint64_t most = 0, least = UINT64_MAX;
    for (int64_t i = team.lane; i < columns; i += team.lanes) {
      const uint64_t x = number(i);
      if (x < high && x > most) most = x;
      if (x > low && x < least) least = x;
    }
    high = team.most(most), low = team.least(least);
    if (n < half) ends.high = high, ends.low = low;
  }
  ends.largest = place_of(high), ends.smallest = place_of(low);
  return ends;
}

// Writes the outliers of a token, sorted by column.  `entry(column)` is one, kNoEntry: no outlier.
template <class Team, class Entry, class Put>
FOVEA_HD void put_outliers(const Team& team, int64_t columns, int64_t outliers, const Entry& entry,
                           const Put& put) {
  int64_t count = 0;
  for (int64_t first = 0; first < columns; first += team.lanes) {
    const int64_t i = first + team.lane;
    const uint32_t one = i < columns ? entry(i) : kNoEntry;
    const bool here = one != kNoEntry;
    const int64_t at = count + team.before(here);
    if (here) put(at, one);
    count += team.all(here);
  }
  for (int64_t n = count + team.lane; n < outliers; n += team.lanes) put(n, kNoEntry);
}

}  // namespace fovea::kv
