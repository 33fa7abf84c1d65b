// SPDX-License-Identifier: Apache-2.0
// The resolved calls of the quantised operations and the kernels plan() chooses from.
#pragma once
#include "core/attend.h"
#include "core/locate.h"
#include "core/plan.h"
#include "fovea/quant.h"

namespace fovea {

constexpr int64_t kCodeRun = 128;  // tokens in a unit of transposed codes
constexpr float kLift = 256;       // p is rounded at 2^8 p: most of e4m3's range lies below 1

// Where transposed codes keep token i of a run of 16, with v_perm16.
FOVEA_HD int64_t permuted(int64_t i) {
  return (i & ~int64_t{15}) | (i >> 1 & 3) << 2 | (i >> 3 & 1) << 1 | (i & 1);
}
// The block of token i >= 0: blocks are of 16, 32 or a multiple of 64 tokens.  On the device the
// division of two int64 is a call and takes its registers; 2^38 tokens fit no device.
FOVEA_HD int64_t block_of(int64_t i, int64_t block) {
  if (block == kCodeRun) return i >> 7;
  if (block <= 64) return i >> (block == 64 ? 6 : block == 32 ? 5 : 4);
#ifdef __CUDA_ARCH__
  return static_cast<uint32_t>(i >> 6) / static_cast<uint32_t>(block >> 6);
#else
  return i / block;
#endif
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

// The tokens that share a scale, of the groups that every column of a token is in: BLOCK, THREAD_Q,
// THREAD_K and TOKEN.
struct ScaleGroup {
  int32_t kind;   // fovea_scale_group
  int64_t block;  // of BLOCK and THREAD: 0 is one a sequence

  // Scales of a block.
  FOVEA_HD int64_t parts() const {
    return kind == FOVEA_SCALE_GROUP_THREAD_Q ? 8 : kind == FOVEA_SCALE_GROUP_THREAD_K ? 4 : 1;
  }
  // The entry of token i >= 0 of a sequence, counted from the sequence's first.
  FOVEA_HD int64_t entry(int64_t i) const {
    if (kind == FOVEA_SCALE_GROUP_TOKEN) return i;
    const int64_t first = block ? block_of(i, block) : 0;
    if (kind == FOVEA_SCALE_GROUP_THREAD_Q) return first * 8 + i % 8;
    if (kind == FOVEA_SCALE_GROUP_THREAD_K) return first * 4 + i % 8 / 2;
    return first;
  }
  // Where sequence r has its first entry in a row.
  FOVEA_HD int64_t first(const IntVector& start, int64_t s, int64_t r) const {
    if (kind == FOVEA_SCALE_GROUP_TOKEN) return start ? clamp_i64(start[r], 0, s) : 0;
    return first_entry(start, s, r, block) * parts();
  }
};

// How many entries a row of scales of tokens has.
inline int64_t entries(const IntVector& start, int64_t s, int64_t sequences,
                       const ScaleGroup& group) {
  if (group.kind == FOVEA_SCALE_GROUP_TOKEN) return s;
  return entries(start, s, sequences, group.block) * group.parts();
}

// Columns of transposed codes for that many units; no tensor has the most there can be.
inline int64_t code_columns(int64_t units) {
  int64_t columns;
  return __builtin_mul_overflow(units, kCodeRun, &columns) ? INT64_MAX : columns;
}

enum class CodeKind : int32_t { e4m3, i8, i4, e2m1 };

// Codes and their scales: what quantising writes and the reverse reads.
struct Codes {
  View<4> code, code_t;
  View<3> scale;
  View<4> mean;
  IntVector start;
  int64_t b, s, h, d, sequences;
  int64_t scales, padded;  // entries of a row of scale; columns of code_t, in codes
  int64_t units;           // of 128 tokens that are walked, one at least
  int64_t seed;
  int64_t run;  // columns that are rotated together; 0: none are
  ScaleGroup group;
  CodeKind kind;
  int32_t smooth;  // fovea_smooth
  bool permutes;

  // Codes in a byte.
  FOVEA_HD int64_t per_byte() const { return kind >= CodeKind::i4 ? 2 : 1; }
  // Columns of a token, or of code_t with `transposed`, that share a micro scale; 0: no micro
  // group.
  FOVEA_HD int64_t micro() const {
    return group.kind < FOVEA_SCALE_GROUP_MICRO16 ? 0 : group.kind % 2 ? 16 : 32;
  }
  FOVEA_HD bool transposed() const { return group.kind >= FOVEA_SCALE_GROUP_MICRO16_T; }
  FOVEA_HD bool channel() const { return group.kind == FOVEA_SCALE_GROUP_CHANNEL; }
  // Blocks that are no part of a unit.
  FOVEA_HD bool wide() const {
    return group.kind == FOVEA_SCALE_GROUP_BLOCK && (group.block == 0 || group.block > kCodeRun);
  }
};
static_assert(FOVEA_SCALE_GROUP_MICRO16 % 2 && FOVEA_SCALE_GROUP_MICRO16_T % 2);

struct Quantize : Codes {
  View<4> x;
  int32_t x_dtype;
  float most;  // the largest code
  View<4> k, k_mean, delta;
  IntVector key_start;
  int64_t t, g;
};

struct Dequantize : Codes {
  View<4> y;
  int32_t y_dtype;
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
  // Where key j's values start, in v_t if it is given, else in v.
  FOVEA_HD int64_t value_at(const Sequence& q, int64_t r, int64_t g, int64_t j) const {
    const int64_t* v = attend.v.stride;
    if (!v_t) return q.key_batch * v[0] + (q.key_begin + j) * v[1] + g * v[2];
    return q.key_batch * v_t.stride[0] + g * v_t.stride[1] +
           (v_column(r) + (permuted ? fovea::permuted(j) : j)) * v_t.stride[3];
  }
  FOVEA_HD const View<4>& values() const { return v_t ? v_t : attend.v; }
  FOVEA_HD int64_t value_stride() const { return v_t ? v_t.stride[2] : attend.v.stride[3]; }

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
extern const Kernel<Dequantize> quant_dequantize_host;
extern const Kernel<QuantAttend> quant_forward_host;

// CUDA builds only.  tile: aligned rows of 64, 128 or 256 columns; any: every valid call.
extern const Kernel<Quantize> quant_quantize_tile, quant_quantize_any;
extern const Kernel<Dequantize> quant_dequantize_rows, quant_dequantize_any;
// sm90: Hopper's tensor cores; simt: every valid call.
extern const Kernel<QuantAttend> quant_forward_sm90, quant_forward_simt;

}  // namespace fovea
