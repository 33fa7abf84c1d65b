// SPDX-License-Identifier: Apache-2.0
// Attention forward by its formula, one row at a time over all its keys:
//   x = scale (<q_i, k_j> + <q_value_i, v_j>),  c = softcap tanh(x / softcap)
//   score = c - alibi |p_i - p_j| + bias,  m = max_j score (and sink_logit)
//   p_j = key_step j + key_shift,  p_i = i + context_len - Lq
//   l = sum_j exp(score - m) + exp(sink_logit - m),  o = sum_j exp(score - m) v_j / l,  lse = m +
//   ln l
// Rounded mode is the same in float32, with the unnormalised p, the rotated k, code * scale and o
// rounded.
#pragma once
#include <algorithm>

#include "sequence.h"

namespace oracle {

struct Attention {
  Dense q, k, v, q_value, query_position, key_position, head_window, mask, bias, alibi, sink_logit,
      cos, sin, context_len;
  Layout at;
  bool k_codes = false, v_codes = false;  // k and v are codes times scales
  int64_t key_step = 1, key_shift = 0;
  int64_t b = 0, s = 0, h = 0, g = 0, d = 0, e = 0, columns = 0;
  int64_t window_left = 0, window_right = 0, sink_keys = 0, local_chunk = 0;
  double scale = 0, softcap = 0;
  int64_t rope_begin = 0;
  bool rope_interleaved = false;

  int64_t key_head(int64_t head) const { return head / (h / g); }
};

// Each code times its scale.
inline void times_scale(Dense& x, const Dense& scale) {
  if (!scale) return;
  const int64_t columns = x.shape[3] / scale.shape[3];
  for (int64_t i = 0; i < x.shape[0]; ++i)
    for (int64_t j = 0; j < x.shape[1]; ++j)
      for (int64_t g = 0; g < x.shape[2]; ++g)
        for (int64_t c = 0; c < x.shape[3]; ++c)
          x.value[x.at_index(i, j, g, c)] *= scale(i, j, g, c / columns);
}

template <class P>
Attention load_attention(const P& p) {
  Attention a;
  a.q = load(p.q), a.k = load(p.k), a.v = load(p.v);
  a.query_position = load(p.query_position), a.key_position = load(p.key_position);
  a.head_window = load(p.head_window), a.mask = load(p.mask), a.bias = load(p.bias);
  a.alibi = load(p.alibi), a.sink_logit = load(p.sink_logit);
  a.b = p.q.shape[0], a.s = p.q.shape[1], a.h = p.q.shape[2], a.d = p.q.shape[3];
  a.g = p.k.shape[2], a.e = p.v.shape[3];
  a.at.query_start = load(p.query_start), a.at.key_start = load(p.key_start);
  a.at.query_len = load(p.query_len), a.at.key_len = load(p.key_len),
  a.at.key_first = load(p.key_first);
  a.at.s = a.s, a.at.extent = p.k.shape[1];
  a.at.query_max = p.query_max, a.at.key_max = p.key_max;
  a.at.sequences = p.query_start.data ? p.query_start.shape[0] - 1
                   : p.key_start.data ? p.key_start.shape[0] - 1
                                      : a.b;
  double width = static_cast<double>(a.d);
  if constexpr (requires { p.page_table; }) {
    a.q_value = load(p.q_value), a.cos = load(p.cos), a.sin = load(p.sin);
    a.at.page_table = load(p.page_table), a.at.cache_row = load(p.cache_row);
    a.at.caches = p.page_table.data ? p.page_table.shape[0] : p.k.shape[0];
    if (p.page_table.data)
      a.at.page = p.k.shape[1], a.at.extent = p.page_table.shape[1] * a.at.page;
    if (p.q_value.data) width += static_cast<double>(a.e);
    a.k_codes = p.k.dtype != p.q.dtype, a.v_codes = p.v.dtype != p.q.dtype;
    times_scale(a.k, load(p.k_scale)), times_scale(a.v, load(p.v_scale));
    a.k.dtype = a.v.dtype = p.q.dtype;
    a.context_len = load(p.context_len);
    a.key_step = p.key_step ? p.key_step : 1, a.key_shift = p.key_shift;
    a.rope_begin = p.rope_begin, a.rope_interleaved = p.rope_interleaved != 0;
  }
  a.columns = (p.key_start.data || a.at.page) && p.key_max ? p.key_max : a.at.extent;
  a.window_left = p.window_left, a.window_right = p.causal ? 1 : p.window_right;
  a.sink_keys = p.sink_keys, a.local_chunk = p.local_chunk;
  a.scale = p.scale > 0 ? p.scale : 1 / std::sqrt(width);
  a.softcap = p.softcap;
  return a;
}

inline int64_t floor_div(int64_t x, int64_t y) {
  return x / y - (x % y < 0);
}

// A key of a sequence as one head sees it.
struct Key {
  Place at;
  int64_t column, position;
  bool present;
};

inline Key key_of(const Attention& a, const Sequence& q, int64_t g, int64_t j) {
  Key key{place(a.at, q, q.store + j), q.first + j, a.key_step * j + a.key_shift, true};
  if (a.key_position) {
    // Paged: (r, g, column).  Contiguous: (row, g, token of the row).
    key.position = a.at.page ? a.key_position.integer(q.r, g, q.first + j)
                             : a.key_position.integer(a.at.key_start ? 0 : q.r, g, q.store + j);
    key.present = key.position >= 0;
  }
  key.present = key.present && key.at.present;
  return key;
}

inline int64_t row_position(const Attention& a, const Sequence& q, int64_t head, int64_t i) {
  if (a.query_position) return a.query_position.integer(q.batch, head, q.row + i);
  return i + (a.context_len ? a.context_len.integer(q.r) : q.keys) - q.rows;
}

inline bool sees(const Attention& a, const Sequence& q, int64_t head, int64_t i, const Key& key) {
  if (!key.present) return false;
  int64_t left = a.window_left, right = a.window_right, sink = a.sink_keys;
  if (a.head_window)
    left = a.head_window.integer(head, 0), right = a.head_window.integer(head, 1),
    sink = a.head_window.integer(head, 2);
  const int64_t p_i = row_position(a, q, head, i), p_j = key.position;
  if (right > 0 && !(p_j < p_i + right)) return false;
  if (left > 0 && !(p_j > p_i - left || p_j < sink)) return false;
  if (a.local_chunk > 0 && floor_div(p_i, a.local_chunk) != floor_div(p_j, a.local_chunk))
    return false;
  if (!a.mask) return true;
  const auto byte = static_cast<int64_t>(a.mask(q.batch, head, q.row + i, key.column / 8));
  return byte >> (key.column % 8) & 1;
}

template <class Real>
Real dot(const double* x, const double* y, int64_t n) {
  Real sum = 0;
  for (int64_t c = 0; c < n; ++c) sum += static_cast<Real>(x[c]) * static_cast<Real>(y[c]);
  return sum;
}

inline double largest_abs(const double* x, int64_t n) {
  double y = 0;
  for (int64_t c = 0; c < n; ++c) y = std::max(y, std::abs(x[c]));
  return y;
}

inline double norm(const double* x, int64_t n) {
  return std::sqrt(dot<double>(x, x, n));
}

// x is rotated by the table's row `position` (rope.h): y_a = x_a cos - x_b sin, y_b = x_a sin + x_b
// cos.
template <class Real>
void rotate(double* x, const Dense& cos, const Dense& sin, int64_t position, int64_t begin,
            bool interleaved, bool inverse) {
  const int64_t half = cos.shape[1];
  const bool outside = position < 0 || position >= cos.shape[0];
  for (int64_t i = 0; i < half; ++i) {
    double& x_a = x[begin + (interleaved ? 2 * i : i)];
    double& x_b = x[begin + (interleaved ? 2 * i + 1 : i + half)];
    const Real c = static_cast<Real>(outside ? NAN : cos(position, i));
    const Real t = static_cast<Real>(outside   ? NAN
                                     : inverse ? -sin(position, i)
                                               : sin(position, i));
    const Real a = static_cast<Real>(x_a), b = static_cast<Real>(x_b);
    x_a = a * c - b * t, x_b = a * t + b * c;
  }
}

// The keys of one sequence for one key head: where they are, and k as it is multiplied.
template <class Real>
struct Keys {
  std::vector<Key> key;
  std::vector<std::vector<double>> turned, values;  // of k with rope or codes, of v with codes
  std::vector<const double*> k, v;
  std::vector<double> k_norm, v_norm, v_largest;

  Keys(const Attention& a, const Sequence& q, int64_t g, Mode mode) {
    const bool rounds_k = mode == Mode::rounded && a.k_codes,
               rounds_v = mode == Mode::rounded && a.v_codes;
    turned.resize(q.keys), values.resize(q.keys);
    const auto rounded = [](std::vector<double>& to, const double* from, int64_t n, int dtype) {
      to.assign(from, from + n);
      for (double& x : to) x = round_to(dtype, static_cast<float>(x));
      return to.data();
    };
    for (int64_t j = 0; j < q.keys; ++j) {
      key.push_back(key_of(a, q, g, j));
      const Place at = key[j].at;
      k.push_back(at.present ? a.k.row(at.row, at.slot, g) : nullptr);
      v.push_back(at.present ? a.v.row(at.row, at.slot, g) : nullptr);
      if (rounds_k && at.present) k[j] = rounded(turned[j], k[j], a.d, a.k.dtype);
      if (rounds_v && at.present) v[j] = rounded(values[j], v[j], a.e, a.v.dtype);
      if (a.cos && key[j].present) {
        if (!rounds_k) turned[j].assign(k[j], k[j] + a.d);
        rotate<Real>(turned[j].data(), a.cos, a.sin, key[j].position, a.rope_begin,
                     a.rope_interleaved, false);
        if (mode == Mode::rounded)
          for (double& x : turned[j]) x = round_to(a.k.dtype, x);
        k[j] = turned[j].data();
      }
      k_norm.push_back(at.present ? norm(k[j], a.d) : 0);
      v_norm.push_back(at.present ? norm(v[j], a.e) : 0);
      v_largest.push_back(at.present ? largest_abs(v[j], a.e) : 0);
    }
  }
};

// score_ij, and x_ij (after the cap) for the gradient.
template <class Real>
Real score(const Attention& a, const Sequence& q, int64_t head, int64_t i, const Keys<Real>& keys,
           int64_t j, Real* capped = nullptr) {
  const int64_t row = q.row + i;
  Real x = dot<Real>(a.q.row(q.batch, row, head), keys.k[j], a.d);
  if (a.q_value) x += dot<Real>(a.q_value.row(q.batch, row, head), keys.v[j], a.e);
  x *= static_cast<Real>(a.scale);
  if (a.softcap > 0) x = static_cast<Real>(a.softcap) * std::tanh(x / static_cast<Real>(a.softcap));
  if (capped) *capped = x;
  if (a.alibi) {
    const auto distance =
        static_cast<Real>(std::abs(row_position(a, q, head, i) - keys.key[j].position));
    x -= static_cast<Real>(a.alibi(q.r, head)) * distance;
  }
  if (a.bias) x += static_cast<Real>(a.bias(q.batch, head, row, keys.key[j].column));
  return x;
}

struct ForwardResult {
  Out o, lse;
};

template <class Real>
ForwardResult forward(const Attention& a, const fovea_tensor& o, const fovea_tensor& lse,
                      Mode mode) {
  ForwardResult out{Out(o, unit_of(a.q.dtype)), Out()};
  if (lse.data) out.lse = Out(lse, 0);
  std::vector<Real> x, p;
  for (int64_t r = 0; r < a.at.sequences; ++r) {
    const Sequence q = sequence(a.at, r);
    for (int64_t head = 0; head < a.h; ++head) {
      const Keys<Real> keys(a, q, a.key_head(head), mode);
      const Real sink = a.sink_logit ? static_cast<Real>(a.sink_logit(head)) : -HUGE_VAL;
      for (int64_t i = 0; i < q.rows; ++i) {
        x.assign(q.keys, -HUGE_VAL), p.assign(q.keys, 0);
        Real m = sink;
        double condition = 0;
        const double q_norm = norm(a.q.row(q.batch, q.row + i, head), a.d),
                     q_value_norm =
                         a.q_value ? norm(a.q_value.row(q.batch, q.row + i, head), a.e) : 0;
        for (int64_t j = 0; j < q.keys; ++j) {
          if (!sees(a, q, head, i, keys.key[j])) continue;
          x[j] = score(a, q, head, i, keys, j);
          if (x[j] > m || std::isnan(x[j])) m = x[j];
          if (std::isnan(m)) break;
          condition = std::max(condition,
                               a.scale * (q_norm * keys.k_norm[j] + q_value_norm * keys.v_norm[j]));
        }
        // No key, or none that counts: m - m would be NaN.
        Real l = m == -HUGE_VAL ? 0 : std::exp(sink - m);
        for (int64_t j = 0; j < q.keys && m != -HUGE_VAL; ++j) {
          p[j] = std::isnan(m) ? m : std::exp(x[j] - m);
          l += p[j];
          if (mode == Mode::rounded) p[j] = static_cast<Real>(round_to(a.q.dtype, p[j]));
        }
        double terms = 0;
        for (int64_t j = 0; j < q.keys; ++j)
          terms += l > 0 && p[j] > 0 ? p[j] / l * keys.v_largest[j] : 0;
        out.o.terms(terms);
        out.o.condition = std::max(out.o.condition, condition);
        for (int64_t c = 0; c < a.e; ++c) {
          Real sum = 0;
          for (int64_t j = 0; j < q.keys; ++j)
            if (p[j] != 0) sum += p[j] * static_cast<Real>(keys.v[j][c]);
          double y = l == 0 ? 0 : sum / l;
          if (mode == Mode::rounded) y = round_to(o.dtype, y);
          out.o.set(((q.batch * a.s + q.row + i) * a.h + head) * a.e + c, y);
        }
        if (!lse.data) continue;
        const double y = l == 0 ? -HUGE_VAL : static_cast<double>(m + std::log(l));
        out.lse.set((q.batch * a.h + head) * a.s + q.row + i,
                    mode == Mode::rounded ? static_cast<float>(y) : y);
        out.lse.terms(1 + std::abs(y) + condition);
      }
    }
  }
  return out;
}

inline ForwardResult forward(const Attention& a, const fovea_tensor& o, const fovea_tensor& lse,
                             Mode mode) {
  return mode == Mode::exact ? forward<double>(a, o, lse, mode) : forward<float>(a, o, lse, mode);
}

}  // namespace oracle
