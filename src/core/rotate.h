// SPDX-License-Identifier: Apache-2.0
// Rotary embedding of one row, cut into units of V columns (pass-through) or V column pairs.  Host
// and device run this same code and agree bit for bit: the product of two f32 is exact in f64, so
// contracting a multiply and an add cannot change the sum, which is rounded once to f64, once to
// f32.
#pragma once
#include "core/chunk.h"
#include "core/convert.h"

namespace fovea {

// The table row of one position; outside the table every rotated column is NaN.
struct Turn {
  const float *cos, *sin;
  int64_t cos_stride, sin_stride;
  float sign;  // -1 turns back
  bool outside;
  bool wide;  // both rows are contiguous and start on 16 bytes
};

FOVEA_HD Turn turn_at(const Rope& rope, int64_t position, float sign) {
  const bool outside = position < 0 || position >= rope.positions;
  const int64_t row = outside ? 0 : position;
  Turn turn{rope.cos.as<float>() + row * rope.cos.stride[0],
            rope.sin.as<float>() + row * rope.sin.stride[0],
            rope.cos.stride[1],
            rope.sin.stride[1],
            sign,
            outside,
            false};
  turn.wide =
      turn.cos_stride == 1 && turn.sin_stride == 1 &&
      (reinterpret_cast<uintptr_t>(turn.cos) | reinterpret_cast<uintptr_t>(turn.sin)) % 16 == 0;
  return turn;
}

// V entries of a table row.
template <int V>
FOVEA_HD void read_table(const float* row, int64_t stride, bool wide, int64_t first,
                         float (&out)[V]) {
  if constexpr (V % 4 == 0) {
    if (wide) {
      for (int i = 0; i < V; i += 4) {
        const auto four = *reinterpret_cast<const Chunk<float, 4>*>(row + first + i);
        for (int k = 0; k < 4; ++k) out[i + k] = four.x[k];
      }
      return;
    }
  }
  for (int i = 0; i < V; ++i) out[i] = row[(first + i) * stride];
}

template <int V>
FOVEA_HD void rotate(const Turn& turn, int64_t first, float (&a)[V], float (&b)[V]) {
  if (turn.outside) {
    for (int i = 0; i < V; ++i) a[i] = b[i] = quiet_nan();
    return;
  }
  float cos[V], sin[V];
  read_table(turn.cos, turn.cos_stride, turn.wide, first, cos);
  read_table(turn.sin, turn.sin_stride, turn.wide, first, sin);
  for (int i = 0; i < V; ++i) {
    const double c = cos[i], s = turn.sign * sin[i], x = a[i], y = b[i];
    a[i] = canonical(x * c - y * s);
    b[i] = canonical(x * s + y * c);
  }
}

// Units of a row of `width` columns, 2 * half of them rotated (half is 0 without a rotation).
FOVEA_HD int64_t row_units(const Rope& rope, int64_t width, int v) {
  return (width - rope.half) / v;
}

// Whether a row divides into units of v.
FOVEA_HD bool divides(const Rope& rope, int64_t width, int v) {
  return width % v == 0 && rope.half % v == 0 && rope.begin % v == 0;
}

// Does one unit: get(column, x) reads V columns, put(column, y) writes them rotated, pass(column)
// moves V columns that do not turn.
template <int V, class Get, class Put, class Pass>
FOVEA_HD void rotate_unit(const Rope& rope, const Turn& turn, int64_t unit, const Get& get,
                          const Put& put, const Pass& pass) {
  const int64_t pairs = rope.half / V;
  if (unit >= pairs) {
    const int64_t column = (unit - pairs) * V;
    pass(column < rope.begin ? column : column + 2 * rope.half);
    return;
  }
  float a[V], b[V], x[V], y[V];
  const int64_t first = unit * V;
  if (!rope.interleaved) {
    get(rope.begin + first, a), get(rope.begin + rope.half + first, b);
    rotate(turn, first, a, b);
    put(rope.begin + first, a), put(rope.begin + rope.half + first, b);
    return;
  }
  const int64_t column = rope.begin + 2 * first;
  get(column, x), get(column + V, y);
  for (int i = 0; i < V; ++i) {
    a[i] = 2 * i < V ? x[2 * i] : y[2 * i - V];
    b[i] = 2 * i + 1 < V ? x[2 * i + 1] : y[2 * i + 1 - V];
  }
  rotate(turn, first, a, b);
  for (int i = 0; i < V; ++i) {
    x[i] = i % 2 ? b[i / 2] : a[i / 2];
    y[i] = (V + i) % 2 ? b[(V + i) / 2] : a[(V + i) / 2];
  }
  put(column, x), put(column + V, y);
}

}  // namespace fovea
