// SPDX-License-Identifier: Apache-2.0
// The order of every selection, its cumulative rules and the steps of a radix select: one text for
// host and device.
//   order   higher score first, then lower index; NaN counts as -inf, -0 equals 0
//   key     a score as 32 bits of the same order; an entry at -inf is never taken
//   mass    a score as a 64-bit fixed-point number, whose sums do not depend on their order
#pragma once
#include <cstdint>
#include <cstring>

#include "core/convert.h"

namespace fovea {

constexpr uint32_t kPickNone = 0x007fffff;  // the key of -inf

// A product that no sum is fused with.
FOVEA_HD float rounded_product(float x, float y) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(x, y);
#else
  return x * y;
#endif
}
// NaN as -inf and -0 as 0.
FOVEA_HD float pick_score(float x) {
  return x == x ? x + 0.0f : float_of(0xff800000u);
}
FOVEA_HD uint32_t pick_key(float x) {
  const uint32_t bits = bits_of(pick_score(x));
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
// The score of a key.
FOVEA_HD float pick_value(uint32_t key) {
  return float_of(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}

// What a rule takes of a sequence of entries in their order.
enum class PickRule : int32_t { count, cover_reach, cover_exceed, cover_under, above, at_least };

// 2^exponent, for exponents of normal numbers.
FOVEA_HD double power_of_two(int exponent) {
  const uint64_t bits = static_cast<uint64_t>(exponent + 1023) << 52;
  double x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

// The fixed point of the masses of a scope: q bits below the exponent of the largest of n.
struct PickMass {
  double unit = 0;  // 0: every mass is 0

  PickMass() = default;
  FOVEA_HD PickMass(float largest, int64_t n) : unit(0) {
    if (!(largest > 0)) return;
    const double w = weight(largest);
    uint64_t bits;
    memcpy(&bits, &w, sizeof bits);
    const int exponent = static_cast<int>(bits >> 52) - 1023;
    int log = 0;
    while (log < 62 && int64_t{1} << log < n) ++log;
    const int q = 61 - log < 40 ? 61 - log : 40;
    unit = power_of_two(q - exponent);
  }
  // Negative scores weigh nothing, and an infinity as much as the largest number.
  FOVEA_HD static double weight(float x) {
    constexpr float most = 3.402823466e38f;
    return x > 0 ? static_cast<double>(x < most ? x : most) : 0.0;
  }
  FOVEA_HD int64_t operator()(float x) const { return static_cast<int64_t>(weight(x) * unit); }
};

// The mass at which a cumulative rule ends, of a total.
FOVEA_HD int64_t pick_target(PickRule rule, float cover, int64_t total) {
  const double target = static_cast<double>(cover) * static_cast<double>(total);
  if (target >= 9.2e18) return INT64_MAX;
  const auto whole = static_cast<int64_t>(target);
  return rule == PickRule::cover_reach && static_cast<double>(whole) < target ? whole + 1 : whole;
}

// Where a sequence is cut: keys above `key` are taken, and of that key the entries before `end`.
struct PickCut {
  uint32_t key = UINT32_MAX;  // nothing
  int64_t end = 0;
  FOVEA_HD static PickCut all() { return {kPickNone, 0}; }
  FOVEA_HD bool takes(uint32_t at, int64_t index) const {
    return at > key || (at == key && index < end);
  }
};

// Bounds of a list; 0: none.
struct PickLimits {
  int64_t least, most;
  int64_t capacity;  // what fits the list; < 0: there is no list
};

// How many entries a list keeps: `forced` of the forced ones, `free` of the others, which the rule
// takes `taken` of.  `wanted` is what it would keep if it had room.
struct PickKeep {
  int64_t forced, free, wanted;

  FOVEA_HD PickKeep(const PickLimits& limits, int64_t all_forced, int64_t taken, int64_t others)
      : forced(all_forced), free(taken) {
    if (forced + free < limits.least)
      free = limits.least - forced < others ? limits.least - forced : others;
    if (limits.most) cut(limits.most);
    wanted = forced + free;
    if (limits.capacity >= 0) cut(limits.capacity);
  }

 private:
  FOVEA_HD void cut(int64_t most) {
    if (forced > most) forced = most;
    if (free > most - forced) free = most - forced;
  }
};

// A radix select, digit by digit from the top.  `count` and `mass` are those of the entries before
// the cut's digit.  Some entry crosses the limit: the caller knows that.
struct PickWalk {
  static constexpr int kDigits = 4, kBins = 256;

  bool by_mass;   // else by count
  PickRule rule;  // cumulative, by mass
  int64_t limit;  // entries to take, or the target
  int64_t count, mass;
  uint32_t prefix;

  FOVEA_HD static int shift(int digit) { return 24 - 8 * digit; }
  // Whether the entry belongs to the digits found so far.
  FOVEA_HD bool has(uint32_t key, int digit) const {
    return digit == 0 || key >> (shift(digit) + 8) == prefix;
  }
  FOVEA_HD static int bin(uint32_t key, int digit) { return key >> shift(digit) & (kBins - 1); }
  // Whether a sequence that ends with this count and mass holds an entry that is not taken, or the
  // last one that is.
  FOVEA_HD bool crosses(int64_t at_count, int64_t at_mass) const {
    if (!by_mass) return at_count >= limit;
    return rule == PickRule::cover_reach ? at_mass >= limit : at_mass > limit;
  }
  // Of `most` entries of one key that follow, with a mass each: how many are taken.
  FOVEA_HD int64_t ties(int64_t most, int64_t each) const {
    int64_t taken;
    if (!by_mass)
      taken = limit - count;
    else if (each == 0)
      taken = rule == PickRule::cover_reach && mass >= limit ? 0 : most;
    else if (rule == PickRule::cover_reach)
      taken = mass >= limit ? 0 : (limit - mass + each - 1) / each;
    else if (mass > limit)
      taken = 0;
    else
      taken = (limit - mass) / each + (rule == PickRule::cover_exceed ? 1 : 0);
    return taken < most ? taken : most;
  }
};

}  // namespace fovea
