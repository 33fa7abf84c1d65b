// SPDX-License-Identifier: Apache-2.0
// One new row on its way into the cache, for host and device alike.  A device append must equal the
// host's bit for bit, so the norm is as careful as the rotation (core/rotate.h): squares of f32 are
// exact in f64, they are added in one fixed order (32 lanes, lane l over columns l, l + 32, ...,
// then a binary tree), and what follows is single f64 operations, each rounded as IEEE 754 says.
//   y = x / sqrt(sum x^2 / width + eps) * weight
// A scale that is found: amax / largest code, in f64, of a part of the row.
#pragma once
#include <cmath>
#include <type_traits>

#include "core/locate.h"
#include "core/rotate.h"
#include "ops/cache/kernels.h"

namespace fovea {

constexpr int kLanes = 32;

// Where a new token goes and the position it turns by.
struct AppendToken {
  int64_t batch, row;  // of the new rows
  int64_t number;      // of the sequence; < 0: dropped
  Sequence sequence;
  int64_t key;  // logical key it becomes
  int64_t position;
};

FOVEA_HD AppendToken append_token(const Append& a, int64_t slot) {
  const Token token = token_at(a.sequences, slot, a.by_row);
  AppendToken to;
  to.number = token.number;
  if (token.number < 0) return to;
  const Sequence& q = token.sequence;
  to.sequence = q;
  to.batch = q.batch, to.row = q.row_begin + token.index;
  to.key = a.length(token.number) + token.index;
  if (to.key >= q.keys) to.number = -1;
  to.position =
      a.position
          ? a.position
                .as<int32_t>()[to.batch * a.position.stride[0] + to.row * a.position.stride[1]]
          : to.key;
  return to;
}

FOVEA_HD int64_t fresh_offset(const AppendPart& part, const AppendToken& to) {
  return to.batch * part.fresh.stride[0] + to.row * part.fresh.stride[1];
}

// Element offset in the cache; < 0: its page is absent.
FOVEA_HD int64_t cache_offset(const Append& a, const AppendPart& part, const AppendToken& to) {
  return a.sequences.key_offset(to.sequence, to.key, part.cache.stride);
}

// Where the found scales of a row go.
FOVEA_HD float* scale_row(const Append& a, const AppendPart& part, const AppendToken& to,
                          int64_t head) {
  const int64_t* stride = part.scale_out.stride;
  return part.scale_out.as<float>() + a.sequences.key_offset(to.sequence, to.key, stride) +
         head * stride[2];
}

FOVEA_HD float scale_of(const AppendPart& part, int64_t head) {
  return part.scale ? part.scale.as<float>()[head * part.scale.stride[0]] : 1;
}

template <class New>
FOVEA_HD double lane_squares(const AppendPart& part, const New* x, int lane) {
  double sum = 0;
  for (int64_t c = lane; c < part.norm_width; c += kLanes) {
    const double value = to_float(x[c * part.fresh.stride[3]]);
    sum += value * value;
  }
  return sum;
}

FOVEA_HD double norm_factor(const AppendPart& part, double squares) {
  return 1 /
         sqrt(squares / static_cast<double>(part.norm_width) + static_cast<double>(part.norm_eps));
}

FOVEA_HD float norm_weight(const AppendPart& part, int64_t c) {
  const int64_t i = c * part.norm_weight.stride[0];
  if (part.norm_dtype == FOVEA_F32) return part.norm_weight.as<float>()[i];
  if (part.norm_dtype == FOVEA_F16) return to_float(part.norm_weight.as<F16>()[i]);
  return to_float(part.norm_weight.as<Bf16>()[i]);
}

FOVEA_HD float normed(const AppendPart& part, float x, int64_t c, double factor) {
  if (!part.norm_weight || c >= part.norm_width) return x;
  return canonical(static_cast<double>(x) * factor * static_cast<double>(norm_weight(part, c)));
}

// IEEE division on both sides, whatever the compiler was told about f32.
FOVEA_HD float scaled(float x, float scale) {
  return canonical(static_cast<double>(x) / static_cast<double>(scale));
}

template <class New, class Cache>
bool wide(const AppendPart& part) {
  constexpr int v = kWide<New, Cache>;
  return divides(part.rope, part.width, v) && chunked(part.fresh, sizeof(New), v) &&
         chunked(part.cache, sizeof(Cache), v);
}

// Unit `unit` of V columns or column pairs of one row.  read(c, x) reads V columns from c on,
// normed; write(c, x) writes them; copy(c) copies them and is false where types or the norm forbid
// it.
template <int V, class Read, class Write, class Copy>
FOVEA_HD void append_columns(const AppendPart& part, const Turn& turn, int64_t unit, float scale,
                             const Read& read, const Write& write, const Copy& copy) {
  const auto put = [&](int64_t c, float(&value)[V]) {
    for (int i = 0; i < V; ++i) value[i] = part.scale ? scaled(value[i], scale) : value[i];
    write(c, value);
  };
  const auto pass = [&](int64_t c) {
    if (copy(c)) return;
    float value[V];
    read(c, value);
    put(c, value);
  };
  rotate_unit<V>(part.rope, turn, unit, read, put, pass);
}

// The same of elements of known types; V > 1 has unit column strides.  Without `Norm` part has
// none.
template <int V, bool Norm, class New, class Cache>
FOVEA_HD void append_unit(const AppendPart& part, const Turn& turn, int64_t unit, const New* x,
                          Cache* y, double factor, float scale) {
  using In = Chunk<New, V>;
  using Out = Chunk<Cache, V>;
  const int64_t step_x = V > 1 ? 1 : part.fresh.stride[3];
  const int64_t step_y = V > 1 ? 1 : part.cache.stride[3];
  const auto read = [&](int64_t c, float(&value)[V]) {
    const In in = *reinterpret_cast<const In*>(x + c * step_x);
    for (int i = 0; i < V; ++i) {
      value[i] = to_float(in.x[i]);
      if constexpr (Norm) value[i] = normed(part, value[i], c + i, factor);
    }
  };
  const auto write = [&](int64_t c, const float(&value)[V]) {
    Out out;
    for (int i = 0; i < V; ++i) out.x[i] = from_float<Cache>(value[i]);
    *reinterpret_cast<Out*>(y + c * step_y) = out;
  };
  const auto copy = [&](int64_t c) {
    if constexpr (std::is_same_v<New, Cache>) {
      if (!Norm || !part.norm_weight) {
        *reinterpret_cast<Out*>(y + c * step_y) = *reinterpret_cast<const In*>(x + c * step_x);
        return true;
      }
    }
    return false;
  };
  append_columns<V>(part, turn, unit, scale, read, write, copy);
}

// The unit of one column that column c is in.
FOVEA_HD int64_t unit_of(const Rope& rope, int64_t c) {
  const int64_t turned = c - rope.begin;
  if (turned < 0) return rope.half + c;
  if (turned >= 2 * rope.half) return c - rope.half;
  return rope.interleaved ? turned / 2 : turned % rope.half;
}

// Column c of a row as it is stored, before the scale.
template <class Read>
FOVEA_HD float final_column(const AppendPart& part, const Turn& turn, int64_t c, const Read& read) {
  float found = 0;
  const auto take = [&](int64_t at, const float(&x)[1]) {
    if (at == c) found = x[0];
  };
  const auto pass = [&](int64_t at) {
    float x[1];
    read(at, x);
    take(at, x);
  };
  rotate_unit<1>(part.rope, turn, unit_of(part.rope, c), read, take, pass);
  return found;
}

// |x|, or 0 of what is not finite.
FOVEA_HD float finite_magnitude(float x) {
  const uint32_t bits = bits_of(x) & 0x7fffffffu;
  return bits < 0x7f800000u ? float_of(bits) : 0.0f;
}

// cache.h: amax / largest code, at least 2^-126, 1 of zeros; or the power of two above.
FOVEA_HD float found_scale(float amax, int32_t dtype, bool power_of_two) {
  if (amax == 0) return 1;
  const double largest = dtype == FOVEA_E4M3 ? 448 : dtype == FOVEA_E5M2 ? 57344 : 127;
  const double least = static_cast<double>(float_of(0x00800000u)), wanted = amax / largest;
  if (wanted <= least) return float_of(0x00800000u);
  if (!power_of_two) return canonical(wanted);
  const auto bits = __builtin_bit_cast(uint64_t, wanted);
  const uint64_t up = bits & ((uint64_t{1} << 52) - 1) ? 1 : 0;
  return float_of(static_cast<uint32_t>((bits >> 52) - 1023 + 127 + up) << 23);
}

// One row whose scales are found.  Lane `lane` of `lanes` takes every lanes-th column of a part;
// most(x) is the largest x of them all; put(c, x) stores x, scaled.
template <class Read, class Most, class Put>
FOVEA_HD void append_scaled(const AppendPart& part, const Turn& turn, int lane, int lanes,
                            float* scales, const Read& read, const Most& most, const Put& put) {
  const int64_t columns = part.width / part.groups;
  for (int64_t n = 0; n < part.groups; ++n) {
    const int64_t first = n * columns + lane, end = (n + 1) * columns;
    float amax = 0;
    for (int64_t c = first; c < end; c += lanes) {
      const float x = finite_magnitude(final_column(part, turn, c, read));
      if (x > amax) amax = x;
    }
    const float scale = found_scale(most(amax), part.cache_dtype, part.power_of_two);
    if (lane == 0) scales[n * part.scale_out.stride[3]] = scale;
    for (int64_t c = first; c < end; c += lanes)
      put(c, scaled(final_column(part, turn, c, read), scale));
  }
}

}  // namespace fovea
