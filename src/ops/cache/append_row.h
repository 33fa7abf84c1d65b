// SPDX-License-Identifier: Apache-2.0
// One new row on its way into the cache, for host and device alike.  A device append must equal the
// host's bit for bit, so the norm is as careful as the rotation (core/rotate.h): squares of f32 are
// exact in f64, they are added in one fixed order (32 lanes, lane l over columns l, l + 32, ...,
// then a binary tree), and what follows is single f64 operations, each rounded as IEEE 754 says.
//   y = x / sqrt(sum x^2 / width + eps) * weight
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
  const Token token = token_at(a.sequences, slot);
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

}  // namespace fovea
