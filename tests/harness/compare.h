// SPDX-License-Identifier: Apache-2.0
// The tolerance rule, for every floating output of every operation:
//   err(kernel) <= 2 err(rounded oracle) + eps,   err against the float64 oracle, max and RMS.
//
// err(rounded oracle) is the largest of kDraws draws of its roundings (oracle::round_to).  Where
// few large terms make the errors, one draw's largest is luck: a third of another's, or less. Draws
// after the first, which is to nearest, are made when that does not allow the kernel's error.
//
// eps is f32 noise: 2^-20 (16 roundings of 2^-24, the partial sums of a long row) and one rounding
// of the largest score, times the absolute sum of the terms: cancellation and huge scores are
// allowed for and nothing else.  A handful of rows is too small a sample for the rounded oracle to
// show its typical error: below 64 rows eps adds one rounding of the dtype and four of the scores.
// Infinities must match exactly, NaN must be NaN.
#pragma once
#include <cmath>
#include <cstdio>
#include <string>

#include "oracle/dense.h"

namespace harness {

struct Errors {
  double max = 0, square_sum = 0;
  int64_t count = 0;
  void add(double x) {
    max = std::max(max, std::abs(x));
    square_sum += x * x;
    ++count;
  }
  double rms() const { return count ? std::sqrt(square_sum / static_cast<double>(count)) : 0; }
};

constexpr double kAccumulation = 0x1p-20;
constexpr int64_t kSample = 64;
constexpr uint64_t kDraws = 8;

// What a rounded oracle is off by.
inline Errors errors_of(const oracle::Out& exact, const oracle::Out& rounded) {
  Errors errors;
  for (size_t i = 0; i < exact.value.size(); ++i)
    if (exact.written[i] && std::isfinite(exact.value[i]))
      errors.add(std::isfinite(rounded.value[i]) ? rounded.value[i] - exact.value[i] : 0);
  return errors;
}

// "" or the sentence that says what is wrong.  drawn(draw): `rounded` in another draw, or null.
template <class Drawn>
std::string compare(const oracle::Out& exact, const oracle::Out& rounded,
                    const std::vector<double>& got, bool bitwise, Drawn drawn) {
  Errors kernel;
  size_t worst = 0;
  char text[400];
  for (size_t i = 0; i < got.size(); ++i) {
    if (!exact.written[i]) continue;
    const double want = exact.value[i];
    const bool same = got[i] == want || (std::isnan(got[i]) && std::isnan(want));
    if (same && !std::isfinite(want)) continue;
    if (!std::isfinite(want) || !std::isfinite(got[i]) || (bitwise && !same)) {
      std::snprintf(text, sizeof text, "element %zu is %.9g, wanted %.9g", i, got[i], want);
      return text;
    }
    if (std::abs(got[i] - want) > kernel.max) worst = i;
    kernel.add(got[i] - want);
  }
  if (bitwise) return "";
  const double noise = kAccumulation + 0x1p-24 * exact.condition;
  const double few = exact.samples < kSample ? exact.unit + 0x1p-22 * exact.condition : 0;
  double max = 0, rms = 0, max_limit = 0, rms_limit = 0;
  for (uint64_t draw = 0; draw < kDraws; ++draw) {
    const oracle::Out* one = draw ? drawn(draw) : &rounded;
    if (!one) break;
    const Errors errors = errors_of(exact, *one);
    max = std::max(max, errors.max), rms = std::max(rms, errors.rms());
    max_limit = 2 * max + (noise + few) * exact.largest;
    rms_limit = 2 * rms + (noise + few) * exact.rms();
    if (kernel.max <= max_limit && kernel.rms() <= rms_limit) return "";
  }
  std::snprintf(
      text, sizeof text,
      "max error %.3g (limit %.3g, rounded oracle %.3g) at element %zu: %.9g, wanted %.9g; "
      "rms error %.3g (limit %.3g, rounded oracle %.3g)",
      kernel.max, max_limit, max, worst, got[worst], exact.value[worst], kernel.rms(), rms_limit,
      rms);
  return text;
}
inline std::string compare(const oracle::Out& exact, const oracle::Out& rounded,
                           const std::vector<double>& got, bool bitwise) {
  return compare(exact, rounded, got, bitwise,
                 [](uint64_t) { return static_cast<const oracle::Out*>(nullptr); });
}

}  // namespace harness
