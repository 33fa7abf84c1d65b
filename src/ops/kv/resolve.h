// SPDX-License-Identifier: Apache-2.0
// The cache of a call, checked.
#pragma once
#include "core/fields.h"
#include "ops/kv/cache.h"

namespace fovea::kv {

inline void check_extent(const char* op, const char* field, int axis, const char* name, int64_t got,
                         int64_t wanted, const char* is) {
  if (got != wanted)
    refuse("%s: %s.shape[%d] (%s) is %lld, wanted %lld (%s)", op, field, axis, name, lld(got),
           lld(wanted), is);
}

inline void check_divides(const char* op, const char* what, int64_t n, int32_t group) {
  if (n % group) refuse("%s: %s is %lld, wanted a multiple of group = %d", op, what, lld(n), group);
}

// A tensor that some formats need or may have: bits of their numbers.
struct FormatField {
  const char* name;
  const fovea_tensor& tensor;
  int32_t formats;
};

template <class P>
void check_format(const char* op, const P& p) {
  constexpr int32_t groups = 1 << FOVEA_X_KV_FORMAT_GROUPS, levels = 1 << FOVEA_X_KV_FORMAT_LEVELS;
  constexpr int32_t norms = 1 << FOVEA_X_KV_FORMAT_NORMS, tiles = 1 << FOVEA_X_KV_FORMAT_TILES;
  if (p.format < 0 || p.format > FOVEA_X_KV_FORMAT_TILES)
    refuse("%s: format is %d, wanted 0 .. 3 of fovea_x_kv_format", op, p.format);
  const int32_t format = 1 << p.format;
  const bool three = format & (levels | norms);
  if (p.bits != 0 && p.bits != 2 && p.bits != 4 && !(three && p.bits == 3))
    refuse("%s: bits is %d in format %d, wanted 2%s or 4, or 0 for 2", op, p.bits, p.format,
           three ? ", 3" : "");
  if (const int32_t bits = p.bits ? p.bits : 2; p.v_bits != 0 && p.v_bits != bits) {
    if (format != tiles)
      refuse("%s: v_bits is %d in format %d, wanted bits = %d, or 0 for that", op, p.v_bits,
             p.format, bits);
    if (p.v_bits != 2 && p.v_bits != 4)
      refuse("%s: v_bits is %d, wanted 2 or 4, or 0 for bits = %d", op, p.v_bits, bits);
  }
  constexpr int32_t scaled = groups | tiles, leveled = levels | norms;
  const FormatField needed[] = {{"k_scale", p.k_scale, scaled},   {"k_zero", p.k_zero, scaled},
                                {"v_scale", p.v_scale, scaled},   {"v_zero", p.v_zero, scaled},
                                {"k_tail", p.k_tail, scaled},     {"v_tail", p.v_tail, scaled},
                                {"k_factor", p.k_factor, tiles},  {"v_factor", p.v_factor, tiles},
                                {"k_level", p.k_level, leveled},  {"v_level", p.v_level, leveled},
                                {"k_offset", p.k_offset, levels}, {"k_range", p.k_range, levels},
                                {"v_bound", p.v_bound, levels},   {"k_norm", p.k_norm, norms},
                                {"v_norm", p.v_norm, norms}};
  const auto has = [&](const FormatField& f) { return (f.formats & format) != 0; };
  for (const FormatField& f : needed) {
    if (has(f) && !f.tensor.data)
      refuse("%s: %s is absent, wanted in format %d", op, f.name, p.format);
    if (!has(f) && f.tensor.data)
      refuse("%s: %s is given, wanted none in format %d", op, f.name, p.format);
  }
  const FormatField optional[] = {{"k_outlier", p.k_outlier, levels},
                                  {"v_outlier", p.v_outlier, levels},
                                  {"k_first", p.k_first, leveled | tiles},
                                  {"v_first", p.v_first, leveled | tiles}};
  for (const FormatField& f : optional)
    if (!has(f) && f.tensor.data)
      refuse("%s: %s is given, wanted none in format %d", op, f.name, p.format);
}

template <class P>
void read_groups(const char* op, const P& p, Cache& c) {
  c.residual = p.k_tail.shape[1];
  if (c.residual < 1) refuse("%s: k_tail.shape[1] (residual) is 0, wanted >= 1", op);
  check_divides(op, "k_tail.shape[1] (residual)", c.residual, c.group);
  if (c.by_tiles()) {
    check_extent(op, "v_scale", 3, "v_groups", p.v_scale.shape[3], 1, "one in format 3");
    check_divides(op, "k_first.shape[1] (firsts)", c.firsts, c.group);
  } else {
    check_extent(op, "v_scale", 3, "v_groups", p.v_scale.shape[3], c.e / c.group, "e / group");
  }
  check_extent(op, "v_tail", 1, "ring", p.v_tail.shape[1], c.ring(),
               c.by_tiles() ? "residual in format 3" : "residual + 1");
  c.k_scale = view_of<4>(p.k_scale), c.k_zero = view_of<4>(p.k_zero);
  c.v_scale = view_of<4>(p.v_scale), c.v_zero = view_of<4>(p.v_zero);
  c.k_tail = view_of<4>(p.k_tail), c.v_tail = view_of<4>(p.v_tail);
  c.k_factor = view_of<3>(p.k_factor), c.v_factor = view_of<4>(p.v_factor);
}

inline int64_t outliers_of(const char* op, const char* field, const fovea_tensor& x,
                           int64_t columns) {
  const int64_t n = x.data ? x.shape[2] : 0;
  if (n && n >= columns)
    refuse("%s: %s.shape[2] is %lld, wanted fewer than the %lld columns of all heads", op, field,
           lld(n), lld(columns));
  if (n && columns > 65535)
    fail(FOVEA_UNSUPPORTED, "%s: %s for %lld columns of all heads, wanted at most 65535", op, field,
         lld(columns));
  return n;
}

template <class P>
void read_levels(const char* op, const P& p, Cache& c) {
  check_extent(op, "k_level", 0, "levels", p.k_level.shape[0], int64_t{1} << c.bits, "2^bits");
  c.k_level = view_of<1>(p.k_level), c.v_level = view_of<1>(p.v_level);
  c.k_offset = view_of<2>(p.k_offset), c.k_range = view_of<2>(p.k_range);
  c.v_bound = view_of<3>(p.v_bound);
  c.k_norm = view_of<3>(p.k_norm), c.v_norm = view_of<3>(p.v_norm);
  c.k_outliers = outliers_of(op, "k_outlier", p.k_outlier, c.g * c.d);
  c.v_outliers = outliers_of(op, "v_outlier", p.v_outlier, c.g * c.e);
  c.k_outlier = view_of<3>(p.k_outlier), c.v_outlier = view_of<3>(p.v_outlier);
}

// keys and values: tensors that have d and e as their last axes.
template <class P>
Cache read_cache(const char* op, const P& p, const fovea_tensor& keys, const fovea_tensor& values) {
  Cache c{};
  check_format(op, p);
  c.format = p.format, c.bits = p.bits ? p.bits : 2, c.v_bits = p.v_bits ? p.v_bits : c.bits;
  const int32_t group = p.group, codes = c.bits == 3 ? 32 : 32 / c.bits;
  if (group < 0 || group % codes)
    refuse("%s: group is %d, wanted a multiple of %d, or 0 for 32", op, group, codes);
  c.group = group ? group : 32;
  c.dtype = keys.dtype;
  c.g = p.k_code.shape[2], c.d = keys.shape[3], c.e = values.shape[3];
  c.rows = p.counter.shape[0];
  c.page = p.v_code.shape[1], c.pool = p.v_code.shape[0], c.pages = p.page_table.shape[1];
  if (c.page < 1) refuse("%s: v_code.shape[1] (page) is 0, wanted >= 1", op);
  check_divides(op, "v_code.shape[1] (page)", c.page, c.group);
  if (!c.by_tiles())
    check_divides(op, "the width of values (e)", c.e, c.group);
  else if (c.e * c.v_bits % 32)
    refuse("%s: the width of values (e) is %lld, wanted a multiple of %d in format 3", op, lld(c.e),
           32 / c.v_bits);
  check_extent(op, "k_code", 1, "page_groups", p.k_code.shape[1], c.page / c.group, "page / group");
  check_extent(op, "k_code", 4, "k_words", p.k_code.shape[4], c.group * c.bits / 32,
               "group * bits / 32");
  check_extent(op, "v_code", 3, "v_words", p.v_code.shape[3], c.e * c.v_bits / 32,
               c.by_tiles() ? "e * v_bits / 32" : "e * bits / 32");
  c.k_code = view_of<5>(p.k_code), c.v_code = view_of<4>(p.v_code);
  c.counter = view_of<2>(p.counter), c.page_table = view_of<2>(p.page_table);
  check_together(op, p.k_first, "k_first", p.v_first, "v_first");
  c.firsts = p.k_first.data ? p.k_first.shape[1] : 0;
  c.k_first = view_of<4>(p.k_first), c.v_first = view_of<4>(p.v_first);
  if (c.by_groups())
    read_groups(op, p, c);
  else
    read_levels(op, p, c);
  if (far_product(c.pages, c.page) > INT32_MAX)
    refuse(
        "%s: page_table.shape[1] (pages) is %lld with pages of %lld, wanted at most 2^31 - 1 "
        "tokens",
        op, lld(c.pages), lld(c.page));
  return c;
}

}  // namespace fovea::kv
