// SPDX-License-Identifier: Apache-2.0
// Fields that several operations have, read and checked: flags and numbers, and the groups {seq}
// {paged} {mask} {score} of attention-like calls.  `op` is named in every refusal.
#pragma once
#include <algorithm>
#include <cmath>

#include "core/attend.h"
#include "core/dtype.h"
#include "core/status.h"

namespace fovea {

// Wide enough for every published model; wider rows would not fit a block's shared memory.
constexpr int64_t kWidthMax = 576;

// value, where it bounds n; 0 is no bound.
inline int64_t bounded(int64_t value, int64_t n) {
  return value && value < n ? value : n;
}

// n / unit, rounded up.
inline int64_t ceil_of(int64_t n, int64_t unit) {
  return n / unit + (n % unit != 0);
}

// An extent of which no tensor has all: what no memory holds is cut to INT64_MAX / 4.
inline int64_t far_product(int64_t x, int64_t y) {
  constexpr int64_t far = INT64_MAX / 4;
  int64_t z;
  return __builtin_mul_overflow(x, y, &z) || z > far ? far : z;
}

inline void check_not_negative(const char* op, const char* field, int64_t value) {
  if (value < 0) refuse("%s: %s is %lld, wanted >= 0", op, field, lld(value));
}

inline void check_flag(const char* op, const char* field, int32_t value) {
  if (value != 0 && value != 1) refuse("%s: %s is %d, wanted 0 or 1", op, field, value);
}

// `zero`: what 0 means.
inline void check_number(const char* op, const char* field, float value, const char* zero) {
  if (!(value >= 0) || std::isinf(value))
    refuse("%s: %s is %g, wanted > 0, or 0 for %s", op, field, value, zero);
}

// A scale of scores over `width` columns; `zero`: what 0 means.
inline float read_scale(const char* op, const char* field, float scale, int64_t width,
                        const char* zero) {
  check_number(op, field, scale, zero);
  return scale > 0 ? scale : static_cast<float>(1.0 / std::sqrt(static_cast<double>(width)));
}

inline void check_needs(const char* op, const fovea_tensor& x, const char* x_name,
                        const fovea_tensor& y, const char* y_name) {
  if (x.data && !y.data) refuse("%s: %s is given without %s, wanted both", op, x_name, y_name);
}

inline void check_together(const char* op, const fovea_tensor& x, const char* x_name,
                           const fovea_tensor& y, const char* y_name) {
  check_needs(op, x, x_name, y, y_name), check_needs(op, y, y_name, x, x_name);
}

// cos, sin, rope_begin and rope_interleaved, for rows of `width` columns.
template <class P>
Rope read_rope(const char* op, const P& p, int64_t width) {
  check_flag(op, "rope_interleaved", p.rope_interleaved);
  const int64_t half = p.cos.shape[1];
  if (p.rope_begin < 0 || p.rope_begin + 2 * half > width)
    refuse("%s: rope_begin is %d with 2 * %lld rotated columns, wanted them inside d = %lld", op,
           p.rope_begin, lld(half), lld(width));
  return {view_of<2>(p.cos), view_of<2>(p.sin), p.cos.shape[0], half,
          p.rope_begin,      p.rope_interleaved};
}

// The same where no cos and sin means no rotation.
template <class P>
Rope read_optional_rope(const char* op, const P& p, int64_t width) {
  check_together(op, p.cos, "cos", p.sin, "sin");
  if (p.cos.data) return read_rope(op, p, width);
  check_flag(op, "rope_interleaved", p.rope_interleaved);
  if (p.rope_begin || p.rope_interleaved)
    refuse("%s: rope_begin or rope_interleaved is set without cos and sin", op);
  return {};
}

// q, k, o, lse and the extents; `values` has e as its last axis.
template <class P>
void read_operands(Attend& a, const char* op, const P& p, const fovea_tensor& values,
                   const char* values_name) {
  a.q = view_of<4>(p.q), a.k = view_of<4>(p.k), a.v = view_of<4>(p.v);
  a.o = view_of<4>(p.o), a.lse = view_of<3>(p.lse);
  a.dtype = a.k_dtype = a.v_dtype = p.q.dtype, a.o_dtype = p.o.dtype;
  a.b = p.q.shape[0], a.s = p.q.shape[1], a.h = p.q.shape[2], a.d = p.q.shape[3];
  a.t = p.k.shape[1], a.g = p.k.shape[2], a.e = values.shape[3];
  if (a.h && (!a.g || a.h % a.g))
    refuse(
        "%s: k.shape[2] (g) is %lld, wanted a divisor of q's %lld heads: (b, s, h, d), not SDPA's "
        "order",
        op, lld(a.g), lld(a.h));
  if (a.d < 1 || a.e < 1)
    refuse("%s: q.shape[3] (d) is %lld and %s.shape[3] (e) %lld, wanted >= 1", op, lld(a.d),
           values_name, lld(a.e));
  if (a.d > kWidthMax || a.e > kWidthMax)
    fail(FOVEA_UNSUPPORTED, "%s: widths d = %lld and e = %lld, wanted at most %lld", op, lld(a.d),
         lld(a.e), lld(kWidthMax));
}

// Which rows and keys belong together, but for where keys lie (place_keys).  After read_operands.
template <class P>
void read_sequences(Attend& a, const char* op, const P& p) {
  check_not_negative(op, "query_max", p.query_max);
  check_not_negative(op, "key_max", p.key_max);
  Sequences& q = a.sequences;
  q.query_start = int_vector(p.query_start), q.key_start = int_vector(p.key_start);
  if constexpr (requires { p.query_len; })
    q.query_len = int_vector(p.query_len), q.key_len = int_vector(p.key_len);
  q.s = a.s;
  q.count = p.query_start.data ? p.query_start.shape[0] - 1
            : p.key_start.data ? p.key_start.shape[0] - 1
                               : a.b;
  q.query_max = p.query_max && p.query_max < a.s ? p.query_max : a.s;
  if (!q.count || !a.h) q.query_max = 0;  // there is no row to bound
}

// Where keys lie: in `cache` (rows, t, ...), or in its pages (pool, page, ...) by `table`, if
// given.
inline void place_keys(Sequences& q, const char* op, const char* name, const fovea_tensor& cache,
                       const fovea_tensor& table, int64_t key_max) {
  q.capacity = cache.shape[1], q.caches = cache.shape[0];
  if (table.data) {
    q.page_table = view_of<2>(table);
    q.pool = cache.shape[0], q.page = cache.shape[1];
    if (q.page < 1) refuse("%s: %s.shape[1] (page) is 0, wanted >= 1", op, name);
    q.capacity = table.shape[1] * q.page, q.caches = table.shape[0];
  }
  q.key_max = key_max && key_max < q.capacity ? key_max : q.capacity;
  if (!q.count) q.key_max = 0;
}

// A limit of a window that nobody reaches: sums of it and a position fit int64_t.
constexpr int64_t kUnlimited = int64_t{1} << 61;

// window_left, window_right and causal.
template <class P>
Window read_window(const char* op, const P& p) {
  check_not_negative(op, "window_left", p.window_left);
  check_not_negative(op, "window_right", p.window_right);
  check_flag(op, "causal", p.causal);
  if (p.causal && p.window_right > 1)
    refuse("%s: window_right is %lld with causal = 1, wanted 0 or 1", op, lld(p.window_right));
  return {std::min(p.window_left, kUnlimited), p.causal ? 1 : std::min(p.window_right, kUnlimited),
          0, 0};
}

// sink_keys.
template <class P>
void read_sinks(Window& window, const char* op, const P& p) {
  check_not_negative(op, "sink_keys", p.sink_keys);
  if (p.sink_keys && !p.window_left)
    refuse("%s: sink_keys is %lld without window_left: there is no left window to see through", op,
           lld(p.sink_keys));
  window.sink = std::min(p.sink_keys, kUnlimited);
}

// context_len, key_step and key_shift.  After place_keys.
template <class P>
void read_axis(Attend& a, const char* op, const P& p) {
  constexpr int64_t limit = int64_t{1} << 31;  // positions of tensors are i32
  if (p.key_step < 0 || p.key_step >= limit)
    refuse("%s: key_step is %lld, wanted 0 .. 2^31 - 1", op, lld(p.key_step));
  if (p.key_shift <= -limit || p.key_shift >= limit)
    refuse("%s: key_shift is %lld, wanted it within 2^31 of 0", op, lld(p.key_shift));
  KeyAxis& axis = a.mask.axis;
  axis = {p.key_step ? p.key_step : 1, p.key_shift};
  if constexpr (requires { p.key_position; }) {
    if (!axis.by_index() && p.key_position.data)
      refuse("%s: %s is %lld with key_position, wanted one of them", op,
             axis.step != 1 ? "key_step" : "key_shift",
             lld(axis.step != 1 ? axis.step : axis.shift));
    if (p.context_len.data && p.query_position.data)
      refuse("%s: context_len is given with query_position, wanted one of them", op);
  }
  if (a.sequences.key_max > kUnlimited / axis.step)
    refuse("%s: key_step is %lld over %lld keys, wanted positions below 2^61", op, lld(axis.step),
           lld(a.sequences.key_max));
  a.sequences.context_len = int_vector(p.context_len);
}

// k_scale and v_scale of caches that may hold codes; `values` has the rows of v.
template <class P>
void read_codes(Attend& a, const char* op, const P& p, const fovea_tensor& values) {
  a.k_dtype = p.k.dtype, a.v_dtype = values.dtype;
  const auto scale = [&](const fovea_tensor& x, const char* name, const char* of, int32_t dtype,
                         int64_t width) {
    if (!x.data) return View<4>{};
    if (dtype == a.dtype)
      refuse("%s: %s.dtype is %s with %s, wanted e4m3, e5m2 or i8", op, of, dtype_name(dtype),
             name);
    const int64_t groups = x.shape[3];
    if (groups < 1 || width % groups)
      refuse("%s: %s.shape[3] (groups) is %lld, wanted a divisor of the %lld columns of %s", op,
             name, lld(groups), lld(width), of);
    a.groups = groups;
    return view_of<4>(x);
  };
  a.k_scale = scale(p.k_scale, "k_scale", "k", a.k_dtype, a.d);
  a.v_scale = scale(p.v_scale, "v_scale", "v", a.v_dtype, a.e);
}

// read_window, sink_keys, and head_window in place of them all.
template <class P>
Window read_windows(const char* op, const P& p) {
  Window window = read_window(op, p);
  check_not_negative(op, "sink_keys", p.sink_keys);
  if (p.head_window.data && (p.window_left || p.window_right || p.sink_keys || p.causal))
    refuse(
        "%s: head_window is given, wanted window_left, window_right, sink_keys and causal all 0: "
        "it has them for each head",
        op);
  read_sinks(window, op, p);
  return window;
}

// scale, softcap and sink_logit.  After read_operands.
template <class P>
void read_score(Attend& a, const char* op, const P& p) {
  a.score.scale = read_scale(op, "scale", p.scale, a.d, "1 / sqrt(d)");
  check_number(op, "softcap", p.softcap, "none");
  a.score.softcap = p.softcap;
  a.score.sink_logit = view_of<1>(p.sink_logit);
}

}  // namespace fovea
