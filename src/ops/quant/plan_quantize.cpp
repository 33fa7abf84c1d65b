// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "core/convert.h"
#include "core/dtype.h"
#include "ops/quant/scale_fields.h"

namespace fovea {
namespace {

constexpr char kQuantize[] = "quant_quantize";
constexpr char kDequantize[] = "quant_dequantize";
constexpr const char* kGroups[] = {"block",   "thread_q", "thread_k",  "token",    "channel",
                                   "micro16", "micro32",  "micro16_t", "micro32_t"};

void check_enums(const char* op, int32_t group, int32_t format, int32_t smooth) {
  if (group < 0 || group > FOVEA_SCALE_GROUP_MICRO32_T)
    refuse("%s: group is %d, wanted a fovea_scale_group", op, group);
  if (format < 0 || format > FOVEA_CODE_FORMAT_E2M1)
    refuse("%s: code_format is %d, wanted a fovea_code_format", op, format);
  if (smooth < 0 || smooth > FOVEA_SMOOTH_BLOCK)
    refuse("%s: smooth is %d, wanted a fovea_smooth", op, smooth);
  const bool micro = group >= FOVEA_SCALE_GROUP_MICRO16;
  if (micro != (format == FOVEA_CODE_FORMAT_E2M1))
    refuse("%s: group is %s with code_format %d, wanted %s", op, kGroups[group], format,
           micro ? "code_format 2 (e2m1): the others go with block, thread_q, thread_k, token and "
                   "channel"
                 : "micro16, micro32, micro16_t or micro32_t: e2m1 goes with these alone");
}

void check_block_of(const char* op, int32_t group, int64_t block) {
  const bool power = block == 64 || block == 128;
  const bool small = block == 16 || block == 32;
  if (group == FOVEA_SCALE_GROUP_BLOCK) {
    if (block < 0 || (block % 64 && !small))
      refuse("%s: block is %lld, wanted 0, 16, 32 or a multiple of 64", op, lld(block));
  } else if (group == FOVEA_SCALE_GROUP_THREAD_Q) {
    if (!power && !small)
      refuse("%s: block is %lld, wanted 16, 32, 64 or 128 with group thread_q", op, lld(block));
  } else if (group == FOVEA_SCALE_GROUP_THREAD_K) {
    if (!power) refuse("%s: block is %lld, wanted 64 or 128 with group thread_k", op, lld(block));
  } else if (block) {
    refuse("%s: block is %lld, wanted 0 with group %s", op, lld(block), kGroups[group]);
  }
}

void check_code(const char* op, const char* field, const fovea_tensor& x, int32_t format) {
  if (!x.data || (x.dtype == FOVEA_U8) == (format != FOVEA_CODE_FORMAT_DTYPE)) return;
  refuse("%s: %s.dtype is %s, wanted %s with code_format %d", op, field, dtype_name(x.dtype),
         format ? "u8" : "e4m3 or i8", format);
}

CodeKind kind_of(int32_t format, const fovea_tensor& code) {
  if (format == FOVEA_CODE_FORMAT_I4) return CodeKind::i4;
  if (format == FOVEA_CODE_FORMAT_E2M1) return CodeKind::e2m1;
  return code.dtype == FOVEA_I8 ? CodeKind::i8 : CodeKind::e4m3;
}

template <class P>
void check_pairs(const char* op, const P& p, const Codes& a, const char* name) {
  if (a.per_byte() == 2 && a.d % 2)
    refuse("%s: %s.shape[3] (d) is %lld with code_format %d, wanted a multiple of 2", op, name,
           lld(a.d), p.code_format);
  const int64_t columns = a.d / a.per_byte();
  if (p.code.data && p.code.shape[3] != columns)
    refuse("%s: code.shape[3] (code_d) is %lld, wanted %lld with %s's d = %lld and code_format %d",
           op, lld(p.code.shape[3]), lld(columns), name, lld(a.d), p.code_format);
  if (p.code.data && p.code_t.data && p.code.dtype != p.code_t.dtype)
    refuse("%s: code_t.dtype is %s, wanted %s as in code", op, dtype_name(p.code_t.dtype),
           dtype_name(p.code.dtype));
}

void check_scale(const char* op, const Codes& a, const fovea_tensor& scale,
                 const fovea_tensor& start) {
  const int64_t micro = a.micro();
  const int32_t wanted = micro == 16 ? FOVEA_E4M3 : micro == 32 ? FOVEA_U8 : FOVEA_F32;
  if (scale.dtype != wanted)
    refuse("%s: scale.dtype is %s, wanted %s with group %s", op, dtype_name(scale.dtype),
           dtype_name(wanted), kGroups[a.group.kind]);
  check_entries(op, "scale", 2, "n", scale.shape[2], a.scales, start, "start");
}

void check_mean(const char* op, const Codes& a, const fovea_tensor& mean,
                const fovea_tensor& start) {
  if (!a.smooth && mean.data) refuse("%s: mean is given with smooth 0, wanted both or none", op);
  if (!a.smooth) return;
  const int64_t means = entries(a.start, a.s, a.sequences, a.smooth == 2 ? kCodeRun : 0);
  if (!mean.data && a.b && a.h && means)
    refuse("%s: mean.data is NULL with smooth %d, wanted a tensor (b, h, means, d)", op, a.smooth);
  if (mean.data) check_entries(op, "mean", 2, "means", mean.shape[2], means, start, "start");
}

template <class P>
void resolve(Codes& a, const char* op, const P& p, const fovea_tensor& x, const char* name) {
  a.code = view_of<4>(p.code), a.code_t = view_of<4>(p.code_t);
  a.scale = view_of<3>(p.scale), a.mean = view_of<4>(p.mean), a.start = int_vector(p.start);
  a.b = x.shape[0], a.s = x.shape[1], a.h = x.shape[2], a.d = x.shape[3];
  a.sequences = a.start ? p.start.shape[0] - 1 : a.b;
  a.seed = p.seed, a.smooth = p.smooth;
  check_enums(op, p.group, p.code_format, p.smooth);
  check_block_of(op, p.group, p.block);
  check_flag(op, "hadamard", p.hadamard);
  check_order(op, p.code_order);
  check_code(op, "code", p.code, p.code_format);
  check_code(op, "code_t", p.code_t, p.code_format);
  if (p.seed && !p.hadamard) refuse("%s: seed is %lld without hadamard, wanted 0", op, lld(p.seed));
  if (p.code_order && !p.code_t.data)
    refuse("%s: code_order is %d without code_t, wanted 0", op, p.code_order);
  if (a.d < 1) refuse("%s: %s.shape[3] (d) is 0, wanted >= 1", op, name);
  if (a.s > INT32_MAX && a.start)
    refuse("%s: %s.shape[1] (s) is %lld with start, wanted at most 2^31 - 1", op, name, lld(a.s));
  // A block past the last token is as one that ends there, and stays small.
  a.group = {p.group, std::min(p.block, (a.s / 64 + 2) * 64)};
  if (p.block <= kCodeRun) a.group.block = p.block;
  a.kind = kind_of(p.code_format, p.code.data ? p.code : p.code_t);
  check_pairs(op, p, a, name);
  if (a.transposed() && (p.code.data || !p.code_t.data) && a.b && a.s && a.h)
    refuse("%s: group is %s with %s, wanted code_t alone", op, kGroups[p.group],
           p.code.data ? "code" : "no code_t");
  a.units = entries(a.start, a.s, a.sequences, kCodeRun);
  a.padded = code_columns(a.units);
  a.scales = CodeRows{a.start, a.s, a.sequences, a.d}.scales(a.group);
  check_scale(op, a, p.scale, p.start);
  check_mean(op, a, p.mean, p.start);
  if (p.code_t.data)
    check_entries(op, "code_t", 3, "padded", p.code_t.shape[3], a.padded / a.per_byte(), p.start,
                  "start");
  if (!a.units && !a.start) a.units = 1;  // the scale of no tokens is written too
  if (p.hadamard) a.run = a.d & -a.d;
  a.permutes = p.code_order == FOVEA_CODE_ORDER_V_PERM16;
}

float largest_code(const Quantize& a, float scale_max) {
  if (a.kind != CodeKind::e4m3) {
    if (scale_max != 0)
      refuse("%s: scale_max is %g, wanted 0 but with e4m3 codes", kQuantize,
             static_cast<double>(scale_max));
    return a.kind == CodeKind::i8 ? 127 : 7;
  }
  if (scale_max == 0) return 448;
  if (!(scale_max > 0) || to_float(from_float<E4m3>(scale_max)) != scale_max)
    refuse("%s: scale_max is %g, wanted a positive number that e4m3 holds, or 0 for 448", kQuantize,
           static_cast<double>(scale_max));
  return scale_max;
}

void resolve_delta(Quantize& a, const fovea_quant_quantize_params& p) {
  const auto needs = [](const char* field, const fovea_tensor& x, const char* other,
                        const fovea_tensor& y) {
    if (x.data && !y.data) refuse("%s: %s is given without %s", kQuantize, field, other);
  };
  needs("k", p.k, "delta", p.delta);
  needs("k_mean", p.k_mean, "k", p.k);
  needs("key_start", p.key_start, "k", p.k);
  if (!p.delta.data) return;
  if (p.smooth != FOVEA_SMOOTH_BLOCK)
    refuse("%s: delta is given with smooth %d, wanted smooth 2 (block)", kQuantize, p.smooth);
  if (p.hadamard) refuse("%s: delta is given with hadamard, wanted one of them", kQuantize);
  const int64_t deltas = entries(a.start, a.s, a.sequences, kCodeRun);
  check_entries(kQuantize, "delta", 2, "deltas", p.delta.shape[2], deltas, p.start, "start");
  needs("delta", p.delta, "k", p.k);
  a.k = view_of<4>(p.k), a.k_mean = view_of<4>(p.k_mean), a.delta = view_of<4>(p.delta);
  a.key_start = int_vector(p.key_start);
  a.t = p.k.shape[1], a.g = p.k.shape[2];
  if (a.g < 1 || a.h % a.g)
    refuse("%s: k.shape[2] (g) is %lld, wanted a divisor of x's %lld heads", kQuantize, lld(a.g),
           lld(a.h));
  if (p.k_mean.data)
    check_entries(kQuantize, "k_mean", 2, "k_means", p.k_mean.shape[2],
                  entries(a.key_start, a.t, a.sequences, 0), p.key_start, "key_start");
}

Quantize resolve(const fovea_quant_quantize_params& p) {
  Quantize a{};
  resolve(a, kQuantize, p, p.x, "x");
  a.x = view_of<4>(p.x), a.x_dtype = p.x.dtype;
  if (!p.code.data && !p.code_t.data && a.b && a.s && a.h)
    refuse("%s: code.data and code_t.data are NULL, wanted one of them or both", kQuantize);
  a.most = largest_code(a, p.scale_max);
  resolve_delta(a, p);
  return a;
}

Dequantize resolve(const fovea_quant_dequantize_params& p) {
  Dequantize a{};
  resolve(a, kDequantize, p, p.y, "y");
  a.y = view_of<4>(p.y), a.y_dtype = p.y.dtype;
  if (!p.code.data == !p.code_t.data && a.b && a.s && a.h)
    refuse("%s: code.data and code_t.data are %s, wanted one of them", kDequantize,
           p.code.data ? "both given" : "both NULL");
  return a;
}

}  // namespace

Plan plan(const Context& ctx, const fovea_quant_quantize_params& params) {
  return choose(kQuantize, ctx, resolve(params), quant_quantize_host,
                FOVEA_CUDA_KERNELS(quant_quantize_tile, quant_quantize_any));
}

Plan plan(const Context& ctx, const fovea_quant_dequantize_params& params) {
  return choose(kDequantize, ctx, resolve(params), quant_dequantize_host,
                FOVEA_CUDA_KERNELS(quant_dequantize_rows, quant_dequantize_any));
}

}  // namespace fovea
