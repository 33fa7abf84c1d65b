// SPDX-License-Identifier: Apache-2.0
// Caches, one token at a time: append (norm, rotation, scale, cast), copy of pages, read back.
#pragma once
#include <algorithm>

#include "attention.h"

namespace oracle {

struct Appended {
  Out k, v, key_len_out, k_scale, v_scale;
};

// The scale of the values of one part of a row, for codes of `dtype`.
inline double part_scale(const double* x, int64_t n, int dtype, bool power_of_two) {
  double amax = 0;
  for (int64_t c = 0; c < n; ++c)
    if (std::isfinite(x[c])) amax = std::max(amax, std::abs(x[c]));
  if (amax == 0) return 1;
  const double largest = dtype == FOVEA_I8 ? 127 : format_of(dtype).largest;
  const double scale = std::max(amax / largest, std::ldexp(1.0, -126));
  return power_of_two ? std::exp2(std::ceil(std::log2(scale))) : static_cast<float>(scale);
}

// A row of k_new as it is stored, before the cast.  value / scale is one f32 division.
template <class Real>
std::vector<double> new_row(const fovea_cache_append_params& p, const Dense& x, const Dense& weight,
                            const Dense& cos, const Dense& sin, const Dense& scale, int64_t b,
                            int64_t i, int64_t head, int64_t position) {
  std::vector<double> row(x.row(b, i, head), x.row(b, i, head) + x.shape[3]);
  if (weight) {
    const int64_t width = weight.shape[0];
    Real squares = 0;
    for (int64_t c = 0; c < width; ++c)
      squares += static_cast<Real>(row[c]) * static_cast<Real>(row[c]);
    const Real eps = p.norm_eps > 0 ? p.norm_eps : static_cast<Real>(1e-6);
    const Real factor = 1 / std::sqrt(squares / static_cast<Real>(width) + eps);
    for (int64_t c = 0; c < width; ++c)
      row[c] = static_cast<Real>(row[c]) * factor * static_cast<Real>(weight(c));
  }
  if (cos) rotate<Real>(row.data(), cos, sin, position, p.rope_begin, p.rope_interleaved, false);
  if (scale)
    for (double& y : row) y = static_cast<float>(y) / static_cast<float>(scale(head));
  return row;
}

template <class Real>
Appended cache_append(const fovea_cache_append_params& p, Mode mode) {
  const Dense k_new = load(p.k_new), v_new = load(p.v_new), position = load(p.position),
              key_len = load(p.key_len);
  const Dense cos = load(p.cos), sin = load(p.sin), weight = load(p.norm_weight), none;
  const Dense k_scale = load(p.k_scale), v_scale = load(p.v_scale);
  const fovea_tensor &fresh = p.k_new.data ? p.k_new : p.v_new, &cache = p.k_new.data ? p.k : p.v;
  Layout at;
  at.query_start = load(p.query_start), at.key_start = load(p.key_start),
  at.query_len = load(p.query_len);
  at.page_table = load(p.page_table), at.cache_row = load(p.cache_row);
  at.s = fresh.shape[1], at.query_max = p.query_max, at.key_max = p.key_max,
  at.extent = cache.shape[1];
  at.caches = p.page_table.data ? p.page_table.shape[0] : cache.shape[0];
  if (p.page_table.data) at.page = cache.shape[1], at.extent = p.page_table.shape[1] * at.page;
  at.sequences = p.query_start.data ? p.query_start.shape[0] - 1
                 : p.key_start.data ? p.key_start.shape[0] - 1
                                    : fresh.shape[0];
  Appended out;
  if (p.k.data) out.k = Out(p.k, unit_of(p.k.dtype));
  if (p.v.data) out.v = Out(p.v, unit_of(p.v.dtype));
  if (p.key_len_out.data) out.key_len_out = Out(p.key_len_out, 0);
  if (p.k_scale_out.data) out.k_scale = Out(p.k_scale_out, 0);
  if (p.v_scale_out.data) out.v_scale = Out(p.v_scale_out, 0);
  // Without arithmetic before it the cast is exact: bit for bit.
  const bool plain = !weight && !cos;
  auto store = [&](Out& to, const fovea_tensor& x, const Place& place, int64_t head,
                   const std::vector<double>& row, bool cast) {
    const int64_t first = ((place.row * x.shape[1] + place.slot) * x.shape[2] + head) * x.shape[3];
    double largest = 0;
    for (size_t c = 0; c < row.size(); ++c) {
      to.set(first + static_cast<int64_t>(c),
             cast || mode == Mode::rounded ? round_to(x.dtype, row[c]) : row[c]);
      largest = std::max(largest, std::abs(row[c]));
    }
    to.terms(largest);
  };
  // Finds the scales of a row and divides it.
  auto divide = [&](Out& to, const fovea_tensor& x, int dtype, const Place& place, int64_t head,
                    std::vector<double> row) {
    if (!x.data) return row;
    const int64_t groups = x.shape[3], columns = static_cast<int64_t>(row.size()) / groups;
    const int64_t first = ((place.row * x.shape[1] + place.slot) * x.shape[2] + head) * groups;
    for (int64_t n = 0; n < groups; ++n) {
      double* part = row.data() + n * columns;
      const double scale = part_scale(part, columns, dtype, p.scale_power_of_two != 0);
      to.set(first + n, scale), to.terms(scale);
      for (int64_t c = 0; c < columns; ++c)
        part[c] = static_cast<float>(static_cast<float>(part[c]) / static_cast<float>(scale));
    }
    return row;
  };
  for (int64_t r = 0; r < at.sequences; ++r) {
    const Sequence q = sequence(at, r);
    const int64_t before = key_len ? key_len.integer(r) : 0;
    if (p.key_len_out.data)
      out.key_len_out.set(r, static_cast<double>(before + (q.cache < 0 ? 0 : q.rows)));
    for (int64_t i = 0; i < q.rows; ++i) {
      const int64_t token = before + i;
      if (token >= q.keys) continue;  // past the cache's extent; no keys where cache_row is -1
      const Place to = place(at, q, q.store + token);
      if (!to.present) continue;
      const int64_t turn = position ? position.integer(q.batch, q.row + i) : token;
      for (int64_t head = 0; k_new && head < k_new.shape[2]; ++head)
        store(out.k, p.k, to, head,
              divide(out.k_scale, p.k_scale_out, p.k.dtype, to, head,
                     new_row<Real>(p, k_new, weight, cos, sin, k_scale, q.batch, q.row + i, head,
                                   turn)),
              plain);
      for (int64_t head = 0; v_new && head < v_new.shape[2]; ++head)
        store(out.v, p.v, to, head,
              divide(out.v_scale, p.v_scale_out, p.v.dtype, to, head,
                     new_row<Real>(p, v_new, none, none, none, v_scale, q.batch, q.row + i, head,
                                   turn)),
              true);
    }
  }
  return out;
}

inline Out cache_copy(const fovea_cache_copy_params& p) {
  const Dense source = load(p.source), pair = load(p.pair);
  Out out(p.target, 0);
  const int64_t page = count_of(p.source) / std::max<int64_t>(p.source.shape[0], 1);
  for (int64_t n = 0; n < p.pair.shape[0]; ++n) {
    const int64_t from = pair.integer(n, 0), to = pair.integer(n, 1);
    if (from < 0 || to < 0 || from >= p.source.shape[0] || to >= p.target.shape[0]) continue;
    for (int64_t i = 0; i < page; ++i) out.set(to * page + i, source.value[from * page + i]);
  }
  return out;
}

// k_out = k times k_scale, one f32 product, rounded.
inline Out cache_get(const fovea_cache_get_params& p) {
  const Dense k = load(p.k), scale = load(p.k_scale);
  Layout at;  // the tokens of k_out are the rows, those of k the keys
  at.query_start = load(p.key_start), at.query_len = load(p.key_len);
  at.page_table = load(p.page_table), at.cache_row = load(p.cache_row);
  at.s = p.k_out.shape[1], at.key_max = p.key_max, at.extent = p.k.shape[1];
  at.caches = p.page_table.data ? p.page_table.shape[0] : p.k.shape[0];
  if (p.page_table.data) at.page = p.k.shape[1], at.extent = p.page_table.shape[1] * at.page;
  at.sequences = p.key_start.data ? p.key_start.shape[0] - 1 : p.k_out.shape[0];
  Out out(p.k_out, 0);
  for (int64_t r = 0; r < at.sequences; ++r) {
    const Sequence q = sequence(at, r);
    for (int64_t i = 0; i < std::min(q.rows, q.keys); ++i) {
      const Place from = place(at, q, i);
      for (int64_t head = 0; head < k.shape[2]; ++head)
        for (int64_t c = 0; c < k.shape[3]; ++c) {
          const double x = from.present ? k(from.row, from.slot, head, c) : 0;
          const float y =
              static_cast<float>(x) * static_cast<float>(scale && from.present ? scale(head) : 1);
          out.set(((q.batch * at.s + q.row + i) * k.shape[2] + head) * k.shape[3] + c,
                  round_to(p.k_out.dtype, y));
        }
    }
  }
  return out;
}

}  // namespace oracle
