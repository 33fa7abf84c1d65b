// SPDX-License-Identifier: Apache-2.0
// Rotary embedding and its tables, from rope.h:
//   y_a = x_a cos - x_b sin,  y_b = x_a sin + x_b cos for pairs (i, i + half), or (2i, 2i + 1)
//   cos(p f_i), sin(p f_i), f_i = base^(-i / half) bent by the scaling
#pragma once
#include <algorithm>

#include "attention.h"

namespace oracle {

template <class Real>
Out rope_forward(const fovea_rope_forward_params& p, Mode mode) {
  Dense x = load(p.x);
  const Dense cos = load(p.cos), sin = load(p.sin), position = load(p.position),
              start = load(p.start);
  Out y(p.y, 0);
  for (int64_t b = 0; b < x.shape[0]; ++b)
    for (int64_t i = 0; i < x.shape[1]; ++i) {
      int64_t at = start ? -1 : i;  // in the sequence
      for (int64_t r = 0; start && r + 1 < start.shape[0]; ++r)
        if (i >= start.integer(r) && i < start.integer(r + 1)) at = i - start.integer(r);
      if (at < 0) continue;
      if (position) at = position.integer(b, i);
      for (int64_t head = 0; head < x.shape[2]; ++head) {
        double* row = x.value.data() + x.at_index(b, i, head);
        y.terms(largest_abs(row, x.shape[3]));
        rotate<Real>(row, cos, sin, at, p.rope_begin, p.rope_interleaved, p.inverse);
        for (int64_t c = 0; c < x.shape[3]; ++c)
          y.set(x.at_index(b, i, head) + c,
                mode == Mode::rounded ? round_to(p.y.dtype, row[c]) : row[c]);
      }
    }
  return y;
}

// Frequency of pair i in radians a position.
inline double frequency(const fovea_rope_table_get_params& p, const Dense& given, int64_t i) {
  const int64_t half = p.cos.shape[1];
  const double base = p.base > 0 ? static_cast<double>(p.base) : 10000,
               factor = p.factor > 0 ? p.factor : 1;
  const double f =
      given ? given(i) : std::pow(base, -static_cast<double>(i) / static_cast<double>(half));
  const double low = p.low_factor > 0 ? p.low_factor : 1;
  const double pi = 3.14159265358979323846;
  if (p.scaling == FOVEA_SCALING_LINEAR) return f / factor;
  if (p.scaling == FOVEA_SCALING_LLAMA3) {
    // transformers' rope_type "llama3"
    const double length = p.original_len ? static_cast<double>(p.original_len) : 8192;
    const double high = p.high_factor > 0 ? p.high_factor : 4, wavelength = 2 * pi / f;
    if (wavelength > length / low) return f / factor;
    if (wavelength < length / high) return f;
    const double smooth = (length / wavelength - low) / (high - low);
    return (1 - smooth) * f / factor + smooth * f;
  }
  if (p.scaling == FOVEA_SCALING_YARN) {
    // The paper's code: a ramp over pair numbers, between those that turn `high` and `low` times.
    const double length = p.original_len ? static_cast<double>(p.original_len) : 4096;
    const double high = p.high_factor > 0 ? p.high_factor : 32, d = 2 * static_cast<double>(half);
    auto pair = [&](double turns) {
      return d * std::log(length / (turns * 2 * pi)) / (2 * std::log(base));
    };
    const double begin = std::max(std::floor(pair(high)), 0.0);
    double end = std::min(std::ceil(pair(low)), d - 1);
    if (begin == end) end += 0.001;
    const double ramp = std::clamp((static_cast<double>(i) - begin) / (end - begin), 0.0, 1.0);
    return f / factor * ramp + f * (1 - ramp);
  }
  return f;
}

struct Table {
  Out cos, sin;
};

inline Table rope_table(const fovea_rope_table_get_params& p) {
  const Dense given = load(p.frequency);
  Table out{Out(p.cos, 0), Out(p.sin, 0)};
  for (int64_t i = 0; i < p.cos.shape[0]; ++i)
    for (int64_t c = 0; c < p.cos.shape[1]; ++c) {
      const long double angle =
          static_cast<long double>(p.position_begin + i) * frequency(p, given, c);
      out.cos.set(i * p.cos.shape[1] + c, static_cast<double>(std::cos(angle)));
      out.sin.set(i * p.cos.shape[1] + c, static_cast<double>(std::sin(angle)));
    }
  return out;
}

}  // namespace oracle
