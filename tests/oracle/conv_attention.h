// SPDX-License-Identifier: Apache-2.0
// Convolutional attention by its formula, each sequence and head as whole matrices:
//   S_ij = scale <q_i, k_j> where row i sees key j, else 0
//   A_ij = sum_uv W[u,v] S[i - (c_q - 1) + u, j - pl + v], pl = (c_k - 1) / 2, 0 outside
//   m = max_j A_ij, l = sum_j exp(A_ij - m), o = sum_j exp(A_ij - m) v_j / l, lse = m + ln l
// over the keys row i sees; rows of history have no o.  Rounded mode is the same in float32, with
// the unnormalised p and o rounded and, where q is f16 or bf16, S / 64 and W rounded to f16: what
// tensor cores convolve.
#pragma once
#include <algorithm>

#include "sequence.h"

namespace oracle {

struct ConvAttention {
  Dense q, k, v, weight;
  Layout at;
  int64_t b = 0, s = 0, h = 0, g = 0, d = 0, e = 0, rows_out = 0, history = 0;
  int64_t kernel_rows = 0, kernel_columns = 0;
  double scale = 0;
  bool causal = false;

  int64_t key_head(int64_t head) const { return head / (h / g); }
  // Row of o and lse that is row i of the sequence.
  int64_t out_row(const Sequence& q_, int64_t i) const {
    return q_.row + i - history * (at.query_start ? q_.r + 1 : 1);
  }
};

template <class P>
ConvAttention load_conv(const P& p) {
  ConvAttention a;
  a.q = load(p.q), a.k = load(p.k), a.v = load(p.v), a.weight = load(p.weight);
  a.b = p.q.shape[0], a.s = p.q.shape[1], a.h = p.q.shape[2], a.d = p.q.shape[3];
  a.g = p.k.shape[2], a.e = p.v.shape[3], a.history = p.history;
  if constexpr (requires { p.o; })
    a.rows_out = p.o.shape[1];
  else
    a.rows_out = p.dout.shape[1];
  a.kernel_rows = p.weight.shape[1], a.kernel_columns = p.weight.shape[2];
  a.at.query_start = load(p.query_start), a.at.key_start = load(p.key_start);
  a.at.query_len = load(p.query_len), a.at.key_len = load(p.key_len);
  a.at.s = a.s, a.at.extent = p.k.shape[1];
  a.at.query_max = p.query_max, a.at.key_max = p.key_max;
  a.at.sequences = p.query_start.data ? p.query_start.shape[0] - 1
                   : p.key_start.data ? p.key_start.shape[0] - 1
                                      : a.b;
  if constexpr (requires { p.page_table; }) {
    a.at.page_table = load(p.page_table), a.at.cache_row = load(p.cache_row);
    a.at.caches = p.page_table.data ? p.page_table.shape[0] : p.k.shape[0];
    if (p.page_table.data)
      a.at.page = p.k.shape[1], a.at.extent = p.page_table.shape[1] * a.at.page;
  }
  a.scale = p.scale > 0 ? p.scale : 1 / std::sqrt(static_cast<double>(a.d));
  a.causal = p.causal != 0;
  return a;
}

template <class Real>
Real inner(const double* x, const double* y, int64_t n) {
  Real sum = 0;
  for (int64_t c = 0; c < n; ++c) sum += static_cast<Real>(x[c]) * static_cast<Real>(y[c]);
  return sum;
}

inline double length(const double* x, int64_t n) {
  return std::sqrt(inner<double>(x, x, n));
}

inline double greatest(const double* x, int64_t n) {
  double y = 0;
  for (int64_t c = 0; c < n; ++c) y = std::max(y, std::abs(x[c]));
  return y;
}

// S and A of one sequence and head, and how large the terms of A are.
template <class Real>
struct Logits {
  const ConvAttention& a;
  const Sequence q;
  const int64_t head;
  const bool halves;  // S and W are f16
  std::vector<Place> place;
  std::vector<Real> s, convolved;
  std::vector<double> condition;  // of A: sum |W| scale |q| |k|

  Logits(const ConvAttention& a_, const Sequence& q_, int64_t head_, Mode mode)
      : a(a_),
        q(q_),
        head(head_),
        halves(mode == Mode::rounded && a.q.dtype != FOVEA_F32),
        s(q.rows * q.keys),
        convolved(s),
        condition(s.size()) {
    for (int64_t j = 0; j < q.keys; ++j) place.push_back(oracle::place(a.at, q, q.store + j));
    std::vector<double> size(s.size());
    for (int64_t i = 0; i < q.rows; ++i)
      for (int64_t j = 0; j < q.keys; ++j) {
        if (!sees(i, j)) continue;
        const Real score = static_cast<Real>(a.scale) * inner<Real>(row(i), key(j), a.d);
        s[i * q.keys + j] =
            halves ? static_cast<Real>(64 * round_to(FOVEA_F16, score / 64)) : score;
        size[i * q.keys + j] = a.scale * length(row(i), a.d) * length(key(j), a.d);
      }
    for (int64_t i = 0; i < q.rows; ++i)
      for (int64_t j = 0; j < q.keys; ++j)
        taps(i, j, [&](int64_t u, int64_t v, int64_t m, int64_t n) {
          const double tap = a.weight(head, u, v), w = halves ? round_to(FOVEA_F16, tap) : tap;
          const bool inside = m >= 0 && n >= 0 && n < q.keys;
          convolved[i * q.keys + j] +=
              static_cast<Real>(w) * (inside ? s[m * q.keys + n] : static_cast<Real>(0));
          if (inside) condition[i * q.keys + j] += std::abs(w) * size[m * q.keys + n];
        });
  }

  bool sees(int64_t i, int64_t j) const {
    return place[j].present && (!a.causal || j <= i + q.keys - q.rows);
  }
  // f(u, v, row, key) for every tap of A_ij.
  template <class F>
  void taps(int64_t i, int64_t j, F f) const {
    const int64_t left = (a.kernel_columns - 1) / 2;
    for (int64_t u = 0; u < a.kernel_rows; ++u)
      for (int64_t v = 0; v < a.kernel_columns; ++v)
        f(u, v, i - (a.kernel_rows - 1) + u, j - left + v);
  }
  const double* row(int64_t i) const { return a.q.row(q.batch, q.row + i, head); }
  const double* key(int64_t j) const {
    return a.k.row(place[j].row, place[j].slot, a.key_head(head));
  }
  const double* value(int64_t j) const {
    return a.v.row(place[j].row, place[j].slot, a.key_head(head));
  }
};

struct ConvForward {
  Out o, lse;
};

template <class Real>
void conv_row(const Logits<Real>& x, int64_t i, const fovea_tensor& lse, Mode mode, int o_dtype,
              ConvForward& out) {
  const ConvAttention& a = x.a;
  const Sequence& q = x.q;
  const int64_t at = a.out_row(q, i);
  std::vector<Real> p(q.keys);
  Real m = -HUGE_VAL, l = 0;
  double condition = 0, terms = 0;
  for (int64_t j = 0; j < q.keys; ++j) {
    if (!x.sees(i, j)) continue;
    const Real score = x.convolved[i * q.keys + j];
    if (!std::isnan(m) && !(score <= m)) m = score;
    condition = std::max(condition, x.condition[i * q.keys + j]);
  }
  for (int64_t j = 0; j < q.keys; ++j) {
    if (!x.sees(i, j)) continue;
    p[j] = std::isnan(m) ? m : std::exp(x.convolved[i * q.keys + j] - m);
    l += p[j];
    if (mode == Mode::rounded) p[j] = static_cast<Real>(round_to(a.q.dtype, p[j]));
  }
  for (int64_t j = 0; j < q.keys; ++j)
    if (p[j] > 0) terms += p[j] / l * greatest(x.value(j), a.e);
  out.o.terms(terms);
  out.o.condition = std::max(out.o.condition, condition);
  for (int64_t c = 0; c < a.e; ++c) {
    Real sum = 0;
    for (int64_t j = 0; j < q.keys; ++j)
      if (p[j] != 0) sum += p[j] * static_cast<Real>(x.value(j)[c]);
    const double y = l == 0 ? 0 : sum / l;
    out.o.set(((q.batch * a.rows_out + at) * a.h + x.head) * a.e + c,
              mode == Mode::rounded ? round_to(o_dtype, y) : y);
  }
  if (!lse.data) return;
  const double y = l == 0 ? -HUGE_VAL : static_cast<double>(m + std::log(l));
  out.lse.set((q.batch * a.h + x.head) * a.rows_out + at,
              mode == Mode::rounded ? static_cast<float>(y) : y);
  out.lse.terms(1 + std::abs(y) + condition);
}

template <class Real>
ConvForward conv_forward(const ConvAttention& a, const fovea_tensor& o, const fovea_tensor& lse,
                         Mode mode) {
  ConvForward out{Out(o, unit_of(a.q.dtype)), Out()};
  if (lse.data) out.lse = Out(lse, 0);
  for (int64_t r = 0; r < a.at.sequences; ++r)
    for (int64_t head = 0; head < a.h; ++head) {
      const Logits<Real> x(a, sequence(a.at, r), head, mode);
      for (int64_t i = a.history; i < x.q.rows; ++i) conv_row(x, i, lse, mode, o.dtype, out);
    }
  return out;
}

inline ConvForward conv_forward(const ConvAttention& a, const fovea_tensor& o,
                                const fovea_tensor& lse, Mode mode) {
  return mode == Mode::exact ? conv_forward<double>(a, o, lse, mode)
                             : conv_forward<float>(a, o, lse, mode);
}

}  // namespace oracle
