// SPDX-License-Identifier: Apache-2.0
// The resolved calls of the quantised operations and the kernels plan() chooses from.
#pragma once
#include "core/attend.h"
#include "core/locate.h"
#include "core/plan.h"

namespace fovea {

constexpr int64_t kCodeRun = 128;  // tokens in a unit of transposed codes
constexpr float kCodeMost = 448;   // largest e4m3

// Where transposed codes keep token i of a run of 16, with v_perm16.
FOVEA_HD int64_t permuted(int64_t i) {
  return (i & ~int64_t{15}) | (i >> 1 & 3) << 2 | (i >> 3 & 1) << 1 | (i & 1);
}
// The token at place p.
FOVEA_HD int64_t unpermuted(int64_t p) {
  return (p & ~int64_t{15}) | (p >> 1 & 1) << 3 | (p >> 2 & 3) << 1 | (p & 1);
}

// The block of token i >= 0, of 64 or kCodeRun tokens: a shift, since the division of two int64
// takes a call and its registers on the device.
FOVEA_HD int64_t block_of(int64_t i, int64_t block) {
  return i >> (block == kCodeRun ? 7 : 6);
}

// Entries of sequence r in a row of scales, or of units of codes: where the first is.
FOVEA_HD int64_t first_entry(const IntVector& start, int64_t s, int64_t r, int64_t block) {
  if (!start) return 0;
  return block ? block_of(clamp_i64(start[r], 0, s), block) + r : r;
}
// How many entries a row has.
inline int64_t entries(const IntVector& start, int64_t s, int64_t sequences, int64_t block) {
  if (start) return (block ? s / block : 0) + sequences;
  return block ? (s + block - 1) / block : 1;
}

// Columns of transposed codes for that many units; no tensor has the most there can be.
inline int64_t code_columns(int64_t units) {
  int64_t columns;
  return __builtin_mul_overflow(units, kCodeRun, &columns) ? INT64_MAX : columns;
}

struct Quantize {
  View<4> x, code, code_t;
  View<3> scale;
  int32_t x_dtype;
  IntVector start;
  int64_t b, s, h, d, sequences;
  int64_t scales, padded;  // entries of a row of scale; columns of code_t
  int64_t units;           // of 128 tokens that are walked, one at least
  int64_t block, seed;
  int64_t run;  // columns that are rotated together; 0: none are
  bool permutes;
};

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

// Scales of the tokens of a sequence and head.  first: the first block's; nullptr: all are 1.
struct ScaleRow {
  const float* first;
  int64_t stride, block;
  FOVEA_HD float operator[](int64_t i) const {
    return first ? first[block ? block_of(i, block) * stride : 0] : 1;
  }
};

// q, k, v of `attend` are e4m3, its v absent with v_t.
struct QuantAttend {
  Attend attend;
  View<4> v_t;
  View<3> q_scale, k_scale, v_scale;
  int64_t q_block, k_block, padded;
  bool permuted;

  FOVEA_HD ScaleRow q_scales(const Sequence& q, int64_t r, int64_t head) const {
    return row(q_scale, q.batch, head, attend.sequences.query_start, attend.s, r, q_block);
  }
  FOVEA_HD ScaleRow k_scales(const Sequence& q, int64_t r, int64_t g) const {
    return row(k_scale, q.key_batch, g, attend.sequences.key_start, attend.t, r, k_block);
  }
  FOVEA_HD float v_scale_of(const Sequence& q, int64_t r, int64_t g) const {
    return row(v_scale, q.key_batch, g, attend.sequences.key_start, attend.t, r, 0)[0];
  }
  // Column of v_t where key 0 of sequence r stands.
  FOVEA_HD int64_t v_column(int64_t r) const {
    return first_entry(attend.sequences.key_start, attend.t, r, kCodeRun) *
           (attend.sequences.key_start ? kCodeRun : 0);
  }

 private:
  FOVEA_HD static ScaleRow row(const View<3>& x, int64_t batch, int64_t head,
                               const IntVector& start, int64_t s, int64_t r, int64_t block) {
    if (!x) return {};
    return {x.as() + batch * x.stride[0] + head * x.stride[1] +
                first_entry(start, s, r, block) * x.stride[2],
            x.stride[2], block};
  }
};

FOVEA_HD const Attend& attend_in(const QuantAttend& call) {
  return call.attend;
}

extern const Kernel<Quantize> quant_quantize_host;
extern const Kernel<QuantAttend> quant_forward_host;

// CUDA builds only.  tile: aligned rows of 64, 128 or 256 columns; any: every valid call.
extern const Kernel<Quantize> quant_quantize_tile, quant_quantize_any;
// sm90: Hopper's tensor cores; simt: every valid call.
extern const Kernel<QuantAttend> quant_forward_sm90, quant_forward_simt;

}  // namespace fovea
