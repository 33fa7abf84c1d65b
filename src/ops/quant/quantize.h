// SPDX-License-Identifier: Apache-2.0
// What the quantising kernels of the host and of devices share: units of tokens and their scales,
// a token's rotation and its codes.
#pragma once
#include <cmath>

#include "core/convert.h"
#include "ops/quant/kernels.h"

namespace fovea {

constexpr float kCodeMost = 448;  // largest e4m3

// The token at place p.
FOVEA_HD int64_t unpermuted(int64_t p) {
  return (p & ~int64_t{15}) | (p >> 1 & 1) << 3 | (p >> 2 & 3) << 1 | (p & 1);
}

// 128 tokens of a sequence, or its share of padding: what one block of threads, or one item of the
// host, works on.
struct CodeUnit {
  int64_t sequence, batch;
  int64_t index;   // in the sequence
  int64_t token;   // its first, on the s axis
  int64_t tokens;  // 0 .. 128
  int64_t column;  // its first, in code_t
};

FOVEA_HD int64_t unit_count(const Quantize& a) {
  return a.start ? a.units : a.b * a.units;
}

// sequence < 0: nobody's.
FOVEA_HD CodeUnit unit_at(const Quantize& a, int64_t slot) {
  CodeUnit unit{};
  int64_t begin = 0, end = a.s;
  if (a.start) {
    // The last sequence whose first unit is not past the slot: first units ascend strictly.
    int64_t low = 0, high = a.sequences;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (first_entry(a.start, a.s, middle, kCodeRun) <= slot)
        low = middle + 1;
      else
        high = middle;
    }
    unit.sequence = low - 1;
    if (unit.sequence < 0) return unit;
    begin = clamp_i64(a.start[unit.sequence], 0, a.s);
    end = clamp_i64(a.start[unit.sequence + 1], begin, a.s);
    unit.index = slot - first_entry(a.start, a.s, unit.sequence, kCodeRun);
    unit.column = slot * kCodeRun;
  } else {
    unit.sequence = unit.batch = quotient(slot, a.units);
    unit.index = slot - unit.batch * a.units;
    unit.column = unit.index * kCodeRun;
  }
  unit.token = begin + unit.index * kCodeRun;
  unit.tokens = clamp_i64(end - unit.token, 0, kCodeRun);
  return unit;
}

// Part i of a unit: tokens with a scale of their own.  With one scale a sequence: all of them.
struct CodePart {
  int64_t begin, end;  // in the unit, padding among them
  int64_t tokens;
  int64_t entry;  // of `scale`; -1: another unit's.  The last ones are perhaps of no token.

  static FOVEA_HD int count(const Quantize& a) { return a.block == 64 ? 2 : 1; }
  FOVEA_HD CodePart(const Quantize& a, const CodeUnit& unit, int64_t i) {
    const int64_t rows = kCodeRun / count(a);
    begin = i * rows, end = begin + rows, tokens = clamp_i64(unit.tokens - begin, 0, rows);
    entry = first_entry(a.start, a.s, unit.sequence, a.block);
    const int64_t past = a.block && a.start && unit.sequence + 1 < a.sequences
                             ? first_entry(a.start, a.s, unit.sequence + 1, a.block)
                             : a.scales;
    entry += a.block ? unit.index * count(a) + i : 0;
    if (a.block ? entry >= past : unit.index > 0) entry = -1;
  }
};

FOVEA_HD void put_scale(const Quantize& a, const CodeUnit& unit, int64_t head, const CodePart& part,
                        float scale) {
  const int64_t* stride = a.scale.stride;
  if (part.entry >= 0)
    a.scale.as()[unit.batch * stride[0] + head * stride[1] + part.entry * stride[2]] =
        part.tokens ? scale : 0;
}

// Units of a sequence are neighbours: those of the one that unit number `slot` is of.
FOVEA_HD Interval units_of(const Quantize& a, const CodeUnit& unit, int64_t slot) {
  const int64_t begin = slot - unit.index;
  if (!a.start) return {begin, begin + a.units};
  const int64_t next = unit.sequence + 1;
  return {begin, next < a.sequences ? first_entry(a.start, a.s, next, kCodeRun) : a.units};
}

// Where token i of a unit is in x or code, and token 0 in code_t.
FOVEA_HD int64_t token_at(const View<4>& x, const CodeUnit& unit, int64_t head, int64_t i) {
  return unit.batch * x.stride[0] + (unit.token + i) * x.stride[1] + head * x.stride[2];
}
FOVEA_HD int64_t column_at(const View<4>& x, const CodeUnit& unit, int64_t head) {
  return unit.batch * x.stride[0] + head * x.stride[1] + unit.column * x.stride[3];
}

// The sign column c of x gets before it is rotated.
FOVEA_HD bool flips(int64_t seed, int64_t c) {
  uint64_t z = static_cast<uint64_t>(seed) + (static_cast<uint64_t>(c) + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return (z ^ z >> 31) >> 63;
}

// The larger, or NaN if either is.
FOVEA_HD float greatest(float x, float y) {
#ifdef __CUDA_ARCH__
  float z;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
#else
  return x != x || x > y ? x : y;
#endif
}

// Codes of a group whose largest magnitude is `most`.
struct CodeScale {
  float scale, factor;  // factor 0: every code is 0
  explicit FOVEA_HD CodeScale(float most) {
    most = greatest(most, 1e-7f);
    scale = most / kCodeMost;
    factor = most - most == 0 ? kCodeMost / most : 0;
  }
};

FOVEA_HD float root_of(int64_t run) {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(run)));
}

// A token has a row of floats and Lanes lanes: a warp's, or one thread.
template <int Lanes>
FOVEA_HD void sync_lanes() {
#ifdef __CUDA_ARCH__
  if (Lanes > 1) __syncwarp();
#endif
}

// Token i of a unit to its row, rotated if that is wanted.
template <class X, int Lanes>
FOVEA_HD void load_token(const Quantize& a, const CodeUnit& unit, int64_t head, int64_t i, int lane,
                         float* row) {
  const X* x = a.x.as<X>() + token_at(a.x, unit, head, i);
  sync_lanes<Lanes>();
  for (int64_t c = lane; c < a.d; c += Lanes) {
    const float y = to_float(x[c * a.x.stride[3]]);
    row[c] = a.run && flips(a.seed, c) ? -y : y;
  }
  sync_lanes<Lanes>();
  if (!a.run) return;
  for (int64_t step = 1; step < a.run; step *= 2) {
    for (int64_t c = lane; c < a.d; c += Lanes) {
      if (c & step) continue;
      const float low = row[c], high = row[c + step];
      row[c] = low + high, row[c + step] = low - high;
    }
    sync_lanes<Lanes>();
  }
  const float root = root_of(a.run);
  for (int64_t c = lane; c < a.d; c += Lanes) row[c] *= root;
}

// Its codes, 0 past the unit's tokens.
template <int Lanes>
FOVEA_HD void store_token(const Quantize& a, const CodeUnit& unit, int64_t head, int64_t i,
                          float factor, int lane, const float* row) {
  const bool there = i < unit.tokens;
  const auto store = [&](E4m3* to, int64_t stride) {
    for (int64_t c = lane; c < a.d; c += Lanes)
      to[c * stride] = there && factor != 0 ? from_float<E4m3>(row[c] * factor) : E4m3{0};
  };
  if (a.code && there) store(a.code.as<E4m3>() + token_at(a.code, unit, head, i), a.code.stride[3]);
  if (a.code_t && unit.column < a.padded)
    store(a.code_t.as<E4m3>() + column_at(a.code_t, unit, head) +
              (a.permutes ? permuted(i) : i) * a.code_t.stride[3],
          a.code_t.stride[2]);
}

}  // namespace fovea
