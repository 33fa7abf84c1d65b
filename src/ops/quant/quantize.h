// SPDX-License-Identifier: Apache-2.0
// What the quantising kernels of the host and of devices share: units of tokens and their groups,
// a token's rotation, its codes, and the trees of means.
#pragma once
#include <cmath>

#include "core/convert.h"
#include "ops/quant/kernels.h"

namespace fovea {

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
  int64_t length;  // tokens of the sequence
};

FOVEA_HD int64_t unit_count(const Codes& a) {
  return a.start ? a.units : a.b * a.units;
}

// sequence < 0: nobody's.
FOVEA_HD CodeUnit unit_at(const Codes& a, int64_t slot) {
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
  unit.length = end - begin;
  return unit;
}

// A unit's parts: the groups of its tokens, where those are of BLOCK, THREAD and TOKEN.  A wide
// block is gathered of halves.
FOVEA_HD int part_of(const Codes& a, int i) {
  return a.wide() ? i >> 6 : static_cast<int>(a.group.entry(i));
}
FOVEA_HD int part_count(const Codes& a) {
  if (a.group.kind == FOVEA_SCALE_GROUP_TOKEN) return kCodeRun;
  return a.wide() ? 2 : static_cast<int>(block_of(kCodeRun, a.group.block) * a.group.parts());
}

// A part's scale to its row.  A part of no token has 0; what lies past the blocks that have tokens
// is clear_rest's.
FOVEA_HD void put_part(const Codes& a, const CodeUnit& unit, int64_t head, int part, float scale) {
  int begin = part, i = part;  // first tokens of the block and of the part
  if (a.wide()) {
    begin = i = part * 64;
    if (a.group.entry(unit.index * kCodeRun + i) * a.group.block != unit.index * kCodeRun + i)
      return;
  } else if (a.group.kind != FOVEA_SCALE_GROUP_TOKEN) {
    const int parts = static_cast<int>(a.group.parts()), in = part & (parts - 1);
    begin = part / parts * static_cast<int>(a.group.block);
    i = begin + (parts == 4 ? 2 * in : in);
  }
  if (begin >= unit.tokens) return;
  const int64_t entry =
      a.group.first(a.start, a.s, unit.sequence) + a.group.entry(unit.index * kCodeRun + i);
  *a.scale.at(unit.batch, head, entry) = i < unit.tokens ? scale : 0;
}

// Entries of a sequence that no block with tokens has, by threads `at` of `step`: of the first
// unit.
FOVEA_HD void clear_rest(const Codes& a, const CodeUnit& unit, int64_t head, int at, int step) {
  if (unit.index > 0 || a.group.kind > FOVEA_SCALE_GROUP_THREAD_K) return;
  const int64_t first = a.group.first(a.start, a.s, unit.sequence);
  const int64_t past = a.start && unit.sequence + 1 < a.sequences
                           ? a.group.first(a.start, a.s, unit.sequence + 1)
                           : a.scales;
  int64_t used = 0;
  if (unit.length)
    used = a.group.parts() * (1 + (a.group.block ? block_of(unit.length - 1, a.group.block) : 0));
  for (int64_t i = first + used + at; i < past; i += step) *a.scale.at(unit.batch, head, i) = 0;
}

// Halves, of 64 tokens, of the block that half number `half` is of; `units` are its sequence's.
FOVEA_HD Interval halves_of(const Codes& a, const Interval& units, int64_t half) {
  const int64_t begin = 2 * units.begin, end = 2 * units.end;
  if (a.group.block == 0) return {begin, end};
  const int64_t count = a.group.block >> 6;
  const int64_t first = begin + a.group.entry((half - begin) * 64) * count;
  return {first, first + count < end ? first + count : end};
}

// Units of a sequence are neighbours: those of the one that unit number `slot` is of.
FOVEA_HD Interval units_of(const Codes& a, const CodeUnit& unit, int64_t slot) {
  const int64_t begin = slot - unit.index;
  if (!a.start) return {begin, begin + a.units};
  const int64_t next = unit.sequence + 1;
  return {begin, next < a.sequences ? first_entry(a.start, a.s, next, kCodeRun) : a.units};
}

// Where token i of a unit is in x or code, and token 0 in code_t.
FOVEA_HD int64_t token_at(const View<4>& x, const CodeUnit& unit, int64_t head, int64_t i) {
  return unit.batch * x.stride[0] + (unit.token + i) * x.stride[1] + head * x.stride[2];
}
FOVEA_HD int64_t column_at(const View<4>& x, const CodeUnit& unit, int64_t head,
                           int64_t per_byte = 1) {
  return unit.batch * x.stride[0] + head * x.stride[1] + unit.column / per_byte * x.stride[3];
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

// Not one operation with a sum that follows.
FOVEA_HD float product_of(float x, float y) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(x, y);
#else
  return x * y;
#endif
}

// Codes of a group whose largest magnitude is `top`, the largest code being `most`.
struct CodeScale {
  float scale, factor;  // factor 0: every code is 0
  explicit FOVEA_HD CodeScale(float top, float most) {
    top = greatest(top, 1e-7f);
    scale = top / most;
    factor = top - top == 0 ? most / top : 0;
  }
};

// The same of 16 or 32 codes of e2m1, the scale as its byte.
struct MicroScale {
  uint8_t byte;
  float factor;
  FOVEA_HD MicroScale(float top, int64_t micro) {
    const bool finite = top - top == 0;
    if (micro == 16) {
      byte = finite ? from_float<E4m3>(top / 6).bits : 0x7f;
      factor = finite && byte ? 1 / to_float(E4m3{byte}) : 0;
      return;
    }
    const int exponent = static_cast<int>(bits_of(top) >> 23);  // top >= 0
    byte = finite ? static_cast<uint8_t>(exponent > 2 ? exponent - 2 : 0) : 0xff;
    factor = finite && top > 0 ? float_of((254u - byte) << 23) : 0;
  }
};

// The nearest integer, at most `most` in magnitude; x is finite.
FOVEA_HD int rounded(float x, int most) {
  const int y = +from_float<int8_t>(x);
  return y < -most ? -most : y > most ? most : y;
}

// y * factor as a code: a byte, or the low half of one.
FOVEA_HD uint32_t code_of(CodeKind kind, float y, float factor) {
  if (factor == 0) return 0;
  const float x = product_of(y, factor);
  switch (kind) {
    case CodeKind::e4m3:
      return from_float<E4m3>(x).bits;
    case CodeKind::i8:
      return static_cast<uint32_t>(rounded(x, 127)) & 0xff;
    case CodeKind::i4:
      return static_cast<uint32_t>(rounded(x, 7)) & 0xf;
    default:
      return e2m1_of(x);
  }
}

// What a code stands for before its scale.
FOVEA_HD float code_value(CodeKind kind, uint32_t code) {
  switch (kind) {
    case CodeKind::e4m3:
      return to_float(E4m3{static_cast<uint8_t>(code)});
    case CodeKind::i8:
      return static_cast<float>(static_cast<int8_t>(code));
    case CodeKind::i4:
      return static_cast<float>(static_cast<int>((code & 15) ^ 8) - 8);
    default:
      return e2m1_value(code);
  }
}

// The sum of `count` terms as a tree: of 2i and 2i + 1, of such pairs, and so on.
template <class Term>
FOVEA_HD float tree_sum(int64_t count, Term term) {
  float level[40];
  for (int64_t i = 0; i < count; ++i) {
    float sum = term(i);
    int bit = 0;
    for (; i >> bit & 1; ++bit) sum = level[bit] + sum;
    level[bit] = sum;
  }
  float sum = 0;  // turns -0 into 0, whatever else is absent
  for (int bit = 0; count >> bit; ++bit)
    if (count >> bit & 1) sum = level[bit] + sum;
  return sum;
}

// The mean of a column, and what is kept of a block's.
FOVEA_HD float mean_of(const Codes& a, float sum, int64_t count) {
  const float mean = count ? (sum + 0.0f) / static_cast<float>(count) : 0;
  if (mean != mean) return quiet_nan();
  return a.smooth == FOVEA_SMOOTH_BLOCK ? to_float(from_float<Bf16>(mean)) : mean;
}

// Where a unit's means start.
FOVEA_HD float* mean_row(const Codes& a, const CodeUnit& unit, int64_t head) {
  const int64_t first = a.start ? first_entry(a.start, a.s, unit.sequence, 0) : 0;
  return a.mean.at(unit.batch, head,
                   a.smooth == FOVEA_SMOOTH_BLOCK ? unit.column / kCodeRun : first);
}

// Keys of sequence r.
FOVEA_HD Interval keys_of(const Quantize& a, int64_t r) {
  if (!a.key_start) return {0, a.t};
  const int64_t begin = clamp_i64(a.key_start[r], 0, a.t);
  return {begin, clamp_i64(a.key_start[r + 1], begin, a.t)};
}

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

template <int Lanes>
FOVEA_HD void rotate(const Codes& a, int lane, float* row) {
  sync_lanes<Lanes>();
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

// Token i of a unit to its row, rotated and less `mean` if that is wanted.
template <class X, int Lanes>
FOVEA_HD void load_token(const Quantize& a, const CodeUnit& unit, int64_t head, int64_t i, int lane,
                         float* row, const float* mean = nullptr) {
  const X* x = a.x.as<X>() + token_at(a.x, unit, head, i);
  sync_lanes<Lanes>();
  for (int64_t c = lane; c < a.d; c += Lanes) {
    const float y = to_float(x[c * a.x.stride[3]]);
    row[c] = a.run && flips(a.seed, c) ? -y : y;
  }
  if (a.run) rotate<Lanes>(a, lane, row);
  if (mean)
    for (int64_t c = lane; c < a.d; c += Lanes) row[c] -= mean[c * a.mean.stride[3]];
  sync_lanes<Lanes>();
}

// Codes of tokens i and i + 1 of a unit, i even, from rows y that are d apart; 0 past the unit's
// tokens.  factor(j, c) is that of column c of the first or the second.
template <int Lanes, class Factor>
FOVEA_HD void store_pair(const Quantize& a, const CodeUnit& unit, int64_t head, int64_t i, int lane,
                         const float* y, Factor factor) {
  const bool pairs = a.per_byte() == 2;
  const auto code = [&](int j, int64_t c) {
    return i + j < unit.tokens ? code_of(a.kind, y[j * a.d + c], factor(j, c)) : 0;
  };
  for (int j = 0; a.code && j < 2 && i + j < unit.tokens; ++j) {
    uint8_t* to = a.code.as<uint8_t>() + token_at(a.code, unit, head, i + j);
    for (int64_t c = lane; c < a.d / a.per_byte(); c += Lanes)
      to[c * a.code.stride[3]] =
          static_cast<uint8_t>(pairs ? code(j, 2 * c) | code(j, 2 * c + 1) << 4 : code(j, c));
  }
  if (!a.code_t || unit.column >= a.padded) return;
  const int64_t* stride = a.code_t.stride;
  const int64_t place = a.permutes ? permuted(i) : i;  // the second one's follows
  uint8_t* to = a.code_t.as<uint8_t>() + column_at(a.code_t, unit, head, a.per_byte());
  for (int64_t c = lane; c < a.d; c += Lanes) {
    if (pairs) {
      to[c * stride[2] + place / 2 * stride[3]] =
          static_cast<uint8_t>(code(0, c) | code(1, c) << 4);
      continue;
    }
    to[c * stride[2] + place * stride[3]] = static_cast<uint8_t>(code(0, c));
    to[c * stride[2] + (place + 1) * stride[3]] = static_cast<uint8_t>(code(1, c));
  }
}

// Scales of the runs of columns of token i, and their factors.
template <int Lanes>
FOVEA_HD void scale_runs(const Quantize& a, const CodeUnit& unit, int64_t head, int64_t i, int lane,
                         const float* y, float* factor) {
  const int64_t micro = a.micro(), runs = (a.d + micro - 1) / micro;
  sync_lanes<Lanes>();
  for (int64_t run = lane; run < runs; run += Lanes) {
    float top = 0;
    for (int64_t c = run * micro; c < run * micro + micro && c < a.d; ++c)
      top = greatest(top, std::abs(y[c]));
    const MicroScale scale(top, micro);
    *a.scale.at<uint8_t>(unit.batch, head, (unit.token + i) * runs + run) = scale.byte;
    factor[run] = scale.factor;
  }
  sync_lanes<Lanes>();
}

// The scale of `micro` columns of code_t from column `at` of the unit, of column c of x.
FOVEA_HD float put_run(const Quantize& a, const CodeUnit& unit, int64_t head, int64_t c, int64_t at,
                       float top) {
  const int64_t micro = a.micro();
  MicroScale scale(top, micro);
  if (at >= unit.tokens) scale.byte = 0;
  *a.scale.at<uint8_t>(unit.batch, head, c * (a.padded / micro) + (unit.column + at) / micro) =
      scale.byte;
  return scale.factor;
}

}  // namespace fovea
