// SPDX-License-Identifier: Apache-2.0
// The resolved calls of the quantised operations and the kernels plan() chooses from.
#pragma once
#include "core/attend.h"
#include "core/convert.h"
#include "core/locate.h"
#include "core/plan.h"
#include "core/scale_group.h"
#include "core/sparse.h"
#include "fovea/quant.h"

namespace fovea {

// Where transposed codes keep token i of a run of 16, with v_perm16.
FOVEA_HD int64_t permuted(int64_t i) {
  return (i & ~int64_t{15}) | (i >> 1 & 3) << 2 | (i >> 3 & 1) << 1 | (i & 1);
}
constexpr int64_t kListTile = 64;  // keys of a tile of a list, which skip_margin may skip
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

// What the elements of a tensor of codes or values are.
enum class ValueKind : int32_t { e4m3, i8, i4, e2m1, f16, bf16 };
FOVEA_HD bool is_packed(ValueKind kind) {
  return kind == ValueKind::i4 || kind == ValueKind::e2m1;
}
// Codes of e2m1: a sign and 0 .5 1 1.5 2 3 4 6, 6 at most.
FOVEA_HD uint32_t e2m1_of(float x) {
  const float m = float_of(bits_of(x) & 0x7fffffffu);
  // Each comparison is a rounding boundary; a tie goes to the even code.
  const uint32_t code = (m > 0.25f) + (m >= 0.75f) + (m > 1.25f) + (m >= 1.75f) + (m > 2.5f) +
                        (m >= 3.5f) + (m > 5.0f);
  return bits_of(x) >> 31 << 3 | code;
}
FOVEA_HD float e2m1_value(uint32_t code) {
  const uint32_t m = code & 7;
  // 2^(m / 2 - 1) (1 + m % 2 / 2), below 1 a half of m.
  const float x =
      m < 2 ? 0.5f * static_cast<float>(m) : float_of(((m >> 1) + 126) << 23 | (m & 1) << 22);
  return code & 8 ? -x : x;
}

// Element `at` of a tensor; of packed ones, in halves of bytes.
FOVEA_HD float code_value(ValueKind kind, const void* base, int64_t at) {
  switch (kind) {
    case ValueKind::e4m3:
      return to_float(static_cast<const E4m3*>(base)[at]);
    case ValueKind::i8:
      return static_cast<const int8_t*>(base)[at];
    case ValueKind::f16:
      return to_float(static_cast<const F16*>(base)[at]);
    case ValueKind::bf16:
      return to_float(static_cast<const Bf16*>(base)[at]);
    default: {
      const uint32_t byte = static_cast<const uint8_t*>(base)[at >> 1];
      const uint32_t code = at & 1 ? byte >> 4 : byte & 15;
      if (kind == ValueKind::e2m1) return e2m1_value(code);
      return static_cast<float>(static_cast<int32_t>(code << 28) >> 28);
    }
  }
}
// A row's element 0 and the way to element c.
struct CodeRow {
  const void* base;
  int64_t at, stride;
  ValueKind kind;
  FOVEA_HD float operator[](int64_t c) const {
    if (!is_packed(kind)) return code_value(kind, base, at + c * stride);
    return code_value(kind, base, 2 * (at + (c >> 1) * stride) + (c & 1));
  }
};

// Where the scales of a tensor's elements stand (quant.h).
struct ScaleAxis {
  View<3> scale;
  int32_t dtype, group;
  int64_t block;
  int64_t runs;  // micro: entries of a token, or of a channel

  FOVEA_HD int64_t each() const {
    return group == FOVEA_SCALE_GROUP_THREAD_Q ? 8 : group == FOVEA_SCALE_GROUP_THREAD_K ? 4 : 1;
  }
  FOVEA_HD bool micro() const {
    return group == FOVEA_SCALE_GROUP_MICRO16 || group == FOVEA_SCALE_GROUP_MICRO32;
  }
  FOVEA_HD bool micro_t() const {
    return group == FOVEA_SCALE_GROUP_MICRO16_T || group == FOVEA_SCALE_GROUP_MICRO32_T;
  }
  FOVEA_HD int64_t run() const {
    return group == FOVEA_SCALE_GROUP_MICRO16 || group == FOVEA_SCALE_GROUP_MICRO16_T ? 16 : 32;
  }
  // By token, or by token and column.
  FOVEA_HD int64_t entry(int64_t i, int64_t c) const {
    switch (group) {
      case FOVEA_SCALE_GROUP_THREAD_Q:
        return block_of(i, block) * 8 + i % 8;
      case FOVEA_SCALE_GROUP_THREAD_K:
        return block_of(i, block) * 4 + i % 8 / 2;
      case FOVEA_SCALE_GROUP_TOKEN:
        return i;
      case FOVEA_SCALE_GROUP_CHANNEL:
        return c;
      case FOVEA_SCALE_GROUP_MICRO16:
        return i * runs + c / 16;
      case FOVEA_SCALE_GROUP_MICRO32:
        return i * runs + c / 32;
      case FOVEA_SCALE_GROUP_MICRO16_T:  // i: the column
        return c * runs + i / 16;
      case FOVEA_SCALE_GROUP_MICRO32_T:
        return c * runs + i / 32;
      default:
        return block ? block_of(i, block) : 0;
    }
  }
  FOVEA_HD float value(const void* first, int64_t entry) const {
    const int64_t at = entry * scale.stride[2];
    if (dtype == FOVEA_F32) return static_cast<const float*>(first)[at];
    if (dtype == FOVEA_E4M3) return to_float(static_cast<const E4m3*>(first)[at]);
    const uint32_t e = static_cast<const uint8_t*>(first)[at];
    return e == 255 ? quiet_nan() : e ? float_of(e << 23) : 0x1p-127f;
  }
};

// Keys whose largest weight decides how they are rounded; 1: each alone.
FOVEA_HD int weight_run(int32_t p_format) {
  return p_format == FOVEA_P_FORMAT_I8         ? 64
         : p_format == FOVEA_P_FORMAT_E2M1_TWO ? 16
         : p_format == FOVEA_P_FORMAT_E2M1_ONE ? 32
                                               : 1;
}
// The factor that rounded weights still have.
FOVEA_HD float weight_lift(int32_t p_format) {
  return p_format == FOVEA_P_FORMAT_E4M3_256   ? 256.f
         : p_format == FOVEA_P_FORMAT_E4M3_448 ? 448.f
         : p_format == FOVEA_P_FORMAT_E2M1_TWO ? 2688.f
                                               : 1.f;
}
// p as the operand of p v, times weight_lift; most: the largest of its run.  A NaN stays.
FOVEA_HD float rounded_weight(int32_t p_format, float p, float most) {
  if (!(p > 0)) return p;
  const float x = p * weight_lift(p_format);
  switch (p_format) {
    case FOVEA_P_FORMAT_HALF:
      return to_float(from_float<F16>(x));
    case FOVEA_P_FORMAT_I8: {
      // Adding 1.5 * 2^23 rounds to an integer.
      const float code = x * (127 / most) + 12582912.f;
      return (code - 12582912.f) * (most / 127);
    }
    case FOVEA_P_FORMAT_E2M1_TWO: {
      const float scale = to_float(from_float<E4m3>(most * 2688.f / 6));
      return scale == 0 ? 0 : e2m1_value(e2m1_of(x / scale)) * scale;
    }
    case FOVEA_P_FORMAT_E2M1_ONE: {
      // 2^(exponent - 127).  A row's own maximum may be a little below e^0, where the scale halves.
      const uint32_t exponent = (bits_of(most) + 16) >> 23;
      if (exponent < 4) return 0;
      const float scale = float_of((exponent - 2) << 23);
      return e2m1_value(e2m1_of(x / scale)) * scale;
    }
    default:
      return to_float(from_float<E4m3>(x));
  }
}

// The scales of a sequence and head; first nullptr: all are 1.
struct ScaleRow {
  ScaleAxis axis;
  const void* first;
  FOVEA_HD float operator()(int64_t i, int64_t c) const {
    return first ? axis.value(first, axis.entry(i, c)) : 1;
  }
};
// The same where they are f32, of blocks of 64 or 128 tokens or of all: cheap on a device.
struct BlockScales {
  const float* first;
  int64_t stride, block;
  FOVEA_HD float operator[](int64_t i) const {
    return first ? first[block ? (i >> (block == kCodeRun ? 7 : 6)) * stride : 0] : 1;
  }
};

// Where a key is kept: the row of k, v, scales and means that has it, and its number there.  Of a
// page both are the page's; row < 0: the page is absent.
struct CodePlace {
  int64_t row, number;
};

// q, k, v of `attend` are codes, its v absent with v_t; `attend.d`: columns they stand for.
struct QuantAttend {
  Attend attend;
  View<4> v_t;
  ScaleAxis q_axis, k_axis, v_axis;
  ValueKind kind, v_kind;
  View<4> k_mean, q_plain, delta, v_mean;
  int32_t q_plain_dtype, p_format, accumulate;
  int64_t padded;
  bool permuted;

  FOVEA_HD ScaleRow q_scales(const Sequence& q, int64_t r, int64_t head) const {
    return row(q_axis, q.batch, head, attend.sequences.query_start, attend.s, r, attend.d);
  }
  FOVEA_HD bool paged() const { return attend.sequences.page; }
  // Key j of a sequence, of those that it has.
  FOVEA_HD CodePlace place(const Sequence& q, int64_t j) const {
    const Sequences& at = attend.sequences;
    if (!at.page) return {q.key_batch, j};
    return {at.page_of(q, j), j % at.page};
  }
  // Of the key at a place, or without pages of a sequence's keys.
  FOVEA_HD ScaleRow k_scales(const CodePlace& at, int64_t r, int64_t g) const {
    return row(k_axis, at.row, g, attend.sequences.key_start, attend.t, r, attend.d);
  }
  FOVEA_HD ScaleRow v_scales(const CodePlace& at, int64_t r, int64_t g) const {
    return row(v_axis, at.row, g, attend.sequences.key_start, attend.t, r, attend.e);
  }
  FOVEA_HD ScaleRow k_scales(const Sequence& q, int64_t r, int64_t g) const {
    return k_scales(CodePlace{q.key_batch, 0}, r, g);
  }
  FOVEA_HD ScaleRow v_scales(const Sequence& q, int64_t r, int64_t g) const {
    return v_scales(CodePlace{q.key_batch, 0}, r, g);
  }
  FOVEA_HD BlockScales q_blocks(const Sequence& q, int64_t r, int64_t head) const {
    return blocks(q_axis, q.batch, head, attend.sequences.query_start, attend.s, r);
  }
  FOVEA_HD BlockScales k_blocks(const Sequence& q, int64_t r, int64_t g) const {
    return blocks(k_axis, q.key_batch, g, attend.sequences.key_start, attend.t, r);
  }
  FOVEA_HD float v_scale_of(const Sequence& q, int64_t r, int64_t g) const {
    return blocks(v_axis, q.key_batch, g, attend.sequences.key_start, attend.t, r)[0];
  }
  // A scale of v that is one for all keys belongs to the finished sums.
  FOVEA_HD bool v_scale_last() const {
    return !paged() && (v_axis.group == FOVEA_SCALE_GROUP_CHANNEL ||
                        (v_axis.group == FOVEA_SCALE_GROUP_BLOCK && !v_axis.block));
  }
  // Means of pages belong to keys, others to rows and to finished sums.
  FOVEA_HD bool k_mean_of_keys() const { return paged() && k_mean; }
  FOVEA_HD bool v_mean_of_keys() const { return paged() && v_mean; }
  FOVEA_HD bool v_mean_last() const { return !paged() && v_mean; }
  // Column of v_t where key 0 of sequence r stands.
  FOVEA_HD int64_t v_column(int64_t r) const {
    return first_entry(attend.sequences.key_start, attend.t, r, kCodeRun) *
           (attend.sequences.key_start ? kCodeRun : 0);
  }
  // Column of v_t, from there on, where key j stands.
  FOVEA_HD int64_t column_of(int64_t j) const { return permuted ? fovea::permuted(j) : j; }
  // Where a key's values start, in v_t if it is given, else in v; packed, in halves of bytes.
  FOVEA_HD int64_t value_at(const Sequence& q, const CodePlace& at, int64_t r, int64_t g) const {
    const int64_t* v = attend.v.stride;
    if (!v_t) return at.row * v[0] + (q.key_begin + at.number) * v[1] + g * v[2];
    const int64_t column = v_column(r) + column_of(at.number);
    const int64_t head = at.row * v_t.stride[0] + g * v_t.stride[1];
    if (!is_packed(v_kind)) return head + column * v_t.stride[3];
    return 2 * (head + (column >> 1) * v_t.stride[3]) + (column & 1);
  }
  FOVEA_HD const View<4>& values() const { return v_t ? v_t : attend.v; }
  FOVEA_HD int64_t value_stride() const {
    return v_t ? v_t.stride[2] * (is_packed(v_kind) ? 2 : 1) : attend.v.stride[3];
  }
  // What codes of v are to be multiplied with before they are summed; of key number j of its row.
  FOVEA_HD float value_scale(const ScaleRow& scales, int64_t j, int64_t c) const {
    if (v_scale_last()) return 1;
    return scales(v_axis.micro_t() ? column_of(j) : j, c);
  }

  // A row constant shows in lse, under softcap and beside a sink.
  FOVEA_HD bool shows_constants() const {
    return attend.lse || attend.score.softcap > 0 || attend.score.sink_logit;
  }
  FOVEA_HD bool shifts() const { return k_mean && !paged() && shows_constants(); }
  // Pages, or rows of a cache, share what has this stride over them.
  FOVEA_HD bool shared_by_pages(int64_t stride) const {
    return stride == 0 || attend.sequences.pool <= 1;
  }
  // A scale of k or v is one of all keys of a pool.
  FOVEA_HD bool one_scale(const ScaleAxis& axis) const {
    return !axis.block && shared_by_pages(axis.scale.stride[0]);
  }
  FOVEA_HD int64_t mean_of(int64_t r, const IntVector& start) const { return start ? r : 0; }
  FOVEA_HD const float* k_mean_of(const Sequence& q, int64_t r, int64_t g) const {
    return k_mean.at(q.key_batch, g, mean_of(r, attend.sequences.key_start));
  }
  FOVEA_HD const float* v_mean_of(const Sequence& q, int64_t r, int64_t g) const {
    return v_mean.at(q.key_batch, g, mean_of(r, attend.sequences.key_start));
  }
  // <q_i, k_mean>.
  FOVEA_HD float mean_dot(const Sequence& q, int64_t r, int64_t head, int64_t i) const {
    const float* mean = k_mean_of(q, r, head / (attend.h / attend.g));
    const int64_t row = q.row_begin + i, step = k_mean.stride[3];
    float sum = 0;
    if (q_plain) {
      const int64_t *at = q_plain.stride, from = q.batch * at[0] + row * at[1] + head * at[2];
      for (int64_t c = 0; c < attend.d; ++c) sum += plain_value(from + c * at[3]) * mean[c * step];
    } else {
      const CodeRow codes = q_codes(q, row, head);
      const ScaleRow scales = q_scales(q, r, head);
      for (int64_t c = 0; c < attend.d; ++c) sum += codes[c] * scales(i, c) * mean[c * step];
    }
    return sum;
  }
  FOVEA_HD CodeRow q_codes(const Sequence& q, int64_t row, int64_t head) const {
    const int64_t* at = attend.q.stride;
    return {attend.q.data, q.batch * at[0] + row * at[1] + head * at[2], at[3], kind};
  }
  FOVEA_HD CodeRow k_codes(const Sequence& q, const CodePlace& place, int64_t g) const {
    const int64_t* at = attend.k.stride;
    return {attend.k.data, place.row * at[0] + (q.key_begin + place.number) * at[1] + g * at[2],
            at[3], kind};
  }
  // delta of row i and key 0 of the sequence.
  FOVEA_HD const float* delta_of(const Sequence& q, int64_t r, int64_t head, int64_t i) const {
    const int64_t block =
        first_entry(attend.sequences.query_start, attend.s, r, kCodeRun) + i / kCodeRun;
    return delta.at(q.batch, head, block, q.key_begin);
  }

 private:
  FOVEA_HD float plain_value(int64_t at) const {
    if (q_plain_dtype == FOVEA_F32) return q_plain.as()[at];
    if (q_plain_dtype == FOVEA_F16) return to_float(q_plain.as<F16>()[at]);
    return to_float(q_plain.as<Bf16>()[at]);
  }
  FOVEA_HD static BlockScales blocks(const ScaleAxis& axis, int64_t batch, int64_t head,
                                     const IntVector& start, int64_t s, int64_t r) {
    if (!axis.scale) return {};
    int64_t entry = start ? r : 0;
    if (start && axis.block) entry += clamp_i64(start[r], 0, s) >> (axis.block == kCodeRun ? 7 : 6);
    const int64_t* stride = axis.scale.stride;
    return {axis.scale.as() + batch * stride[0] + head * stride[1] + entry * stride[2], stride[2],
            axis.block};
  }
  FOVEA_HD ScaleRow row(const ScaleAxis& axis, int64_t batch, int64_t head, const IntVector& start,
                        int64_t s, int64_t r, int64_t columns) const {
    if (!axis.scale) return {axis, nullptr};
    int64_t entry = 0;
    if (axis.micro_t())
      entry = v_column(r) / axis.run();
    else if (axis.group == FOVEA_SCALE_GROUP_CHANNEL)
      entry = start ? r * columns : 0;
    else if (axis.group == FOVEA_SCALE_GROUP_TOKEN || axis.micro())
      entry = start ? clamp_i64(start[r], 0, s) * (axis.micro() ? axis.runs : 1) : 0;
    else
      entry = first_entry(start, s, r, axis.block) * axis.each();
    const int64_t at =
        batch * axis.scale.stride[0] + head * axis.scale.stride[1] + entry * axis.scale.stride[2];
    const int64_t bytes = axis.dtype == FOVEA_F32 ? 4 : 1;
    return {axis, static_cast<const char*>(axis.scale.data) + at * bytes};
  }
};

FOVEA_HD const Attend& attend_in(const QuantAttend& call) {
  return call.attend;
}

// A call of codes whose rows see the keys of lists.  It is no QuantAttend and becomes none, so a
// kernel that knows of no list cannot be given one.
struct QuantListed {
  QuantAttend codes;
  SparseList list;
  int64_t* skipped;
  float skip_margin;  // nats; 0: nothing is skipped

  // Its places, for whoever walks lists and knows no codes.
  FOVEA_HD SparseAttend lists() const {
    SparseAttend call{};
    call.attend = codes.attend, call.list = list;
    call.skipped = skipped, call.skip_margin = skip_margin;
    return call;
  }
};
FOVEA_HD const Attend& attend_in(const QuantListed& call) {
  return call.codes.attend;
}

extern const Kernel<Quantize> quant_quantize_host;
extern const Kernel<Dequantize> quant_dequantize_host;
extern const Kernel<QuantAttend> quant_forward_host;
extern const Kernel<QuantListed> quant_listed_host;

// CUDA builds only.  tile: aligned rows of 64, 128 or 256 columns; any: every valid call.
extern const Kernel<Quantize> quant_quantize_tile, quant_quantize_any;
extern const Kernel<Dequantize> quant_dequantize_rows, quant_dequantize_any;
// sm90, sm90_i8, sm90_i4, sm90_integer, sm90_half: Hopper's tensor cores; sm80_i8: mma.sync; simt:
// every valid call.
extern const Kernel<QuantAttend> quant_forward_sm90, quant_forward_sm90_i8, quant_forward_sm90_i4,
    quant_forward_sm90_integer, quant_forward_sm90_half, quant_forward_sm80_i8, quant_forward_simt;
extern const Kernel<QuantListed> quant_listed_sm90_i8, quant_listed_simt;

}  // namespace fovea
