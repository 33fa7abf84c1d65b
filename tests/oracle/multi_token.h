// SPDX-License-Identifier: Apache-2.0
// Multi-token attention by its formula, a group of heads of a sequence as whole matrices, with A
// of conv_attention.h and base the first head of a's group:
//   B^a = sum_n before[a, n] A^(base + n),  P^a = softmax of B^a over the keys row i sees
//   R^a = sum_n after[a, n] P^(base + n),   o^a_i = sum_j R^a_ij v^a_j
// Rounded mode is float32 with o rounded.
#pragma once
#include "conv_attention.h"

namespace oracle {

struct MultiToken {
  ConvAttention conv;
  Dense before, after;
  int64_t group = 1;

  double mix(const Dense& x, int64_t head, int64_t n) const {
    return x ? x(head, n) : n == head % group;
  }
};

template <class P>
MultiToken load_multi_token(const P& p) {
  MultiToken m{load_conv(p), load(p.mix_before), load(p.mix_after)};
  if (m.before) m.group = p.mix_before.shape[1];
  if (m.after) m.group = p.mix_after.shape[1];
  return m;
}

// [head of the group][row * keys + key]
template <class Real>
using Matrices = std::vector<std::vector<Real>>;

// One group of one sequence, up to B.
template <class Real>
struct MixedLogits {
  const MultiToken& m;
  const Sequence q;
  const int64_t base;
  std::vector<Logits<Real>> heads;
  Matrices<Real> b;
  Matrices<double> condition;  // of B

  MixedLogits(const MultiToken& m_, const Sequence& q_, int64_t base_) : m(m_), q(q_), base(base_) {
    for (int64_t n = 0; n < m.group; ++n) heads.emplace_back(m.conv, q, base + n, Mode::exact);
    const size_t count = heads[0].s.size();
    b.assign(m.group, std::vector<Real>(count));
    condition.assign(m.group, std::vector<double>(count));
    for (int64_t a = 0; a < m.group; ++a)
      for (int64_t n = 0; n < m.group; ++n) {
        const double w = m.mix(m.before, base + a, n);
        if (!m.before && a != n) continue;
        for (size_t x = 0; x < count; ++x) {
          b[a][x] += static_cast<Real>(w) * heads[n].convolved[x];
          condition[a][x] += std::abs(w) * heads[n].condition[x];
        }
      }
  }
};

// P of head `a` of the group, row i; the result is lse.
template <class Real>
double softmax_row(const MixedLogits<Real>& x, int64_t a, int64_t i, std::vector<Real>& p) {
  Real top = -HUGE_VAL, sum = 0;
  const int64_t keys = x.q.keys;
  const auto each = [&](auto f) {
    for (int64_t j = 0; j < keys; ++j)
      if (x.heads[0].sees(i, j)) f(i * keys + j);
  };
  each([&](int64_t n) {
    if (!std::isnan(top) && !(x.b[a][n] <= top)) top = x.b[a][n];
  });
  each([&](int64_t n) { sum += p[n] = std::isnan(top) ? top : std::exp(x.b[a][n] - top); });
  each([&](int64_t n) { p[n] /= sum; });
  return sum == 0 ? -HUGE_VAL : static_cast<double>(top + std::log(sum));
}

template <class Real>
void multi_token_rows(const MixedLogits<Real>& x, const fovea_tensor& lse, Mode mode, int o_dtype,
                      ConvForward& out) {
  const MultiToken& m = x.m;
  const ConvAttention& conv = m.conv;
  const Sequence& q = x.q;
  Matrices<Real> p(m.group, std::vector<Real>(x.b[0].size()));
  for (int64_t i = conv.history; i < q.rows; ++i) {
    const int64_t at = conv.out_row(q, i);
    double condition = 0;
    for (int64_t a = 0; a < m.group; ++a) {
      const double y = softmax_row(x, a, i, p[a]);
      double own = 0;
      for (int64_t j = 0; j < q.keys; ++j)
        if (x.heads[a].sees(i, j)) own = std::max(own, x.condition[a][i * q.keys + j]);
      condition = std::max(condition, own);
      if (!lse.data) continue;
      out.lse.set((q.batch * conv.h + x.base + a) * conv.rows_out + at,
                  mode == Mode::rounded ? static_cast<float>(y) : y);
      out.lse.terms(1 + std::abs(y) + own);
    }
    out.o.condition = std::max(out.o.condition, condition);
    for (int64_t a = 0; a < m.group; ++a) {
      const Logits<Real>& head = x.heads[a];
      std::vector<Real> sum(conv.e);
      double terms = 0;
      for (int64_t j = 0; j < q.keys; ++j) {
        if (!head.sees(i, j)) continue;
        Real r = 0;
        double size = 0;
        for (int64_t n = 0; n < m.group; ++n) {
          if (!m.after && a != n) continue;
          const double w = m.mix(m.after, x.base + a, n);
          r += static_cast<Real>(w) * p[n][i * q.keys + j];
          size += std::abs(w) * p[n][i * q.keys + j];
        }
        for (int64_t c = 0; c < conv.e; ++c) sum[c] += r * static_cast<Real>(head.value(j)[c]);
        terms += size * greatest(head.value(j), conv.e);
      }
      out.o.terms(terms);
      for (int64_t c = 0; c < conv.e; ++c)
        out.o.set(((q.batch * conv.rows_out + at) * conv.h + x.base + a) * conv.e + c,
                  mode == Mode::rounded ? round_to(o_dtype, sum[c]) : sum[c]);
    }
  }
}

template <class Real>
ConvForward multi_token_forward(const MultiToken& m, const fovea_tensor& o, const fovea_tensor& lse,
                                Mode mode) {
  ConvForward out{Out(o, unit_of(m.conv.q.dtype)), Out()};
  if (lse.data) out.lse = Out(lse, 0);
  for (int64_t r = 0; r < m.conv.at.sequences; ++r)
    for (int64_t base = 0; base < m.conv.h; base += m.group)
      multi_token_rows(MixedLogits<Real>(m, sequence(m.conv.at, r), base), lse, mode, o.dtype, out);
  return out;
}

inline ConvForward multi_token_forward(const MultiToken& m, const fovea_tensor& o,
                                       const fovea_tensor& lse, Mode mode) {
  return mode == Mode::exact ? multi_token_forward<double>(m, o, lse, mode)
                             : multi_token_forward<float>(m, o, lse, mode);
}

}  // namespace oracle
