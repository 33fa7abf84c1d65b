// SPDX-License-Identifier: Apache-2.0
// Multi-token attention backward by the written formula, from the lse it is given:
//   dR^a_ij = <dout^a_i, v^a_j>,  X^an_i = sum_j dR^a_ij P^(base + n)_ij
//   dP^(base + n) = sum_a after[a, n] dR^a,  delta^(base + n)_i = sum_a after[a, n] X^an_i
//   dafter[a, n] = sum_i X^an_i,  dB = P (dP - delta),  dv_j = sum_i R_ij dout_i
//   dbefore[a, n] = sum_ij dB^a A^(base + n),  dA^(base + n) = sum_a before[a, n] dB^a
// and from dA as conv_attention_backward.h.  Rounded mode is float32 with outputs rounded.
#pragma once
#include "conv_attention_backward.h"
#include "multi_token.h"

namespace oracle {

template <class Real>
struct MultiTokenGradients {
  ConvGradients<Real> conv;
  std::vector<Real> dbefore, dafter;  // (h, group)
  std::vector<double> dbefore_terms, dafter_terms;

  explicit MultiTokenGradients(const MultiToken& m)
      : conv(m.conv),
        dbefore(m.conv.h * m.group),
        dafter(dbefore),
        dbefore_terms(dbefore.size()),
        dafter_terms(dbefore.size()) {}
};

// Of one sequence and group.
template <class Real>
class MultiTokenGroup {
 public:
  MultiTokenGroup(const MultiToken& m, const Dense& lse, const Dense& dout, const Sequence& q,
                  int64_t base, MultiTokenGradients<Real>& out)
      : m_(m), lse_(lse), dout_(dout), q_(q), base_(base), x_(m, q, base), out_(out) {
    for (int64_t n = 0; n < m.group; ++n)
      slopes_.emplace_back(m.conv, q, base + n, Mode::exact, out.conv);
  }

  void run() {
    for (int64_t i = m_.conv.history; i < q_.rows; ++i) row(i);
    for (auto& slopes : slopes_) slopes.run();
  }

 private:
  using Row = std::vector<Real>;
  using Terms = std::vector<double>;

  void row(int64_t i) {
    const int64_t group = m_.group, keys = q_.keys, at = m_.conv.out_row(q_, i);
    std::vector<Row> p(group, Row(keys)), dr(p);
    std::vector<Terms> size(group, Terms(keys));  // of dR
    for (int64_t a = 0; a < group; ++a) {
      const double lse = lse_(q_.batch, base_ + a, at);
      const double* dout = dout_.row(q_.batch, at, base_ + a);
      for (int64_t j = 0; j < keys; ++j) {
        if (!x_.heads[a].sees(i, j) || lse == -HUGE_VAL) continue;
        p[a][j] = std::exp(x_.b[a][i * keys + j] - static_cast<Real>(lse));
        dr[a][j] = inner<Real>(dout, x_.heads[a].value(j), m_.conv.e);
        size[a][j] = length(dout, m_.conv.e) * length(x_.heads[a].value(j), m_.conv.e);
        out_.conv.condition = std::max(out_.conv.condition, x_.condition[a][i * keys + j]);
      }
    }
    for (int64_t n = 0; n < group; ++n) logits(i, n, p, dr, size);
    for (int64_t a = 0; a < group; ++a) weighted(a, p, dout_.row(q_.batch, at, base_ + a));
  }

  // dv from R of head `a`.
  void weighted(int64_t a, const std::vector<Row>& p, const double* dout) {
    const ConvAttention& conv = m_.conv;
    for (int64_t j = 0; j < q_.keys; ++j) {
      Real r = 0;
      double size = 0;
      for (int64_t n = 0; n < m_.group; ++n) {
        if (!m_.after && a != n) continue;
        const double w = m_.mix(m_.after, base_ + a, n);
        r += static_cast<Real>(w) * p[n][j], size += std::abs(w) * p[n][j];
      }
      if (size == 0) continue;
      const Place& place = x_.heads[a].place[j];
      const int64_t to = conv.v.at_index(place.row, place.slot, conv.key_head(base_ + a));
      for (int64_t c = 0; c < conv.e; ++c) out_.conv.dv[to + c] += r * static_cast<Real>(dout[c]);
      out_.conv.dv_terms[to / conv.e] += size * greatest(dout, conv.e);
    }
  }

  // dB of head n, and what follows from it.
  void logits(int64_t i, int64_t n, const std::vector<Row>& p, const std::vector<Row>& dr,
              const std::vector<Terms>& size) {
    const int64_t group = m_.group, keys = q_.keys;
    Row dp(keys);
    Terms dp_terms(keys);
    Real delta = 0;
    double delta_terms = 0;
    for (int64_t a = 0; a < group; ++a) {
      const double w = m_.mix(m_.after, base_ + a, n);
      Real x = 0;
      double terms = 0;
      for (int64_t j = 0; j < keys; ++j) {
        if (m_.after || a == n) dp[j] += static_cast<Real>(w) * dr[a][j];
        dp_terms[j] += std::abs(w) * size[a][j];
        x += dr[a][j] * p[n][j], terms += size[a][j] * p[n][j];
      }
      const int64_t to = (base_ + a) * group + n;
      out_.dafter[to] += x, out_.dafter_terms[to] += terms;
      if (m_.after || a == n) delta += static_cast<Real>(w) * x;
      delta_terms += std::abs(w) * terms;
    }
    for (int64_t j = 0; j < keys; ++j) {
      if (!x_.heads[n].sees(i, j)) continue;
      const Real db = p[n][j] * (dp[j] - delta);
      const double terms = p[n][j] * (dp_terms[j] + delta_terms);
      for (int64_t to = 0; to < group; ++to) {
        const int64_t at = i * keys + j, of = (base_ + n) * group + to;
        out_.dbefore[of] += db * x_.heads[to].convolved[at];
        out_.dbefore_terms[of] += terms * x_.heads[to].condition[at];
        if (!m_.before && to != n) continue;
        const double w = m_.mix(m_.before, base_ + n, to);
        slopes_[to].da[at] += static_cast<Real>(w) * db;
        slopes_[to].da_terms[at] += std::abs(w) * terms;
      }
    }
  }

  const MultiToken& m_;
  const Dense &lse_, &dout_;
  const Sequence q_;
  const int64_t base_;
  const MixedLogits<Real> x_;
  std::vector<ConvSlopes<Real>> slopes_;
  MultiTokenGradients<Real>& out_;
};

struct MultiTokenBackward {
  Out dq, dk, dv, dweight, dmix_before, dmix_after;
};

template <class Real, class P>
MultiTokenBackward multi_token_backward(const P& p, Mode mode) {
  const MultiToken m = load_multi_token(p);
  const Dense lse = load(p.lse), dout = load(p.dout);
  MultiTokenGradients<Real> x(m);
  for (int64_t r = 0; r < m.conv.at.sequences; ++r)
    for (int64_t base = 0; base < m.conv.h; base += m.group)
      MultiTokenGroup<Real>(m, lse, dout, sequence(m.conv.at, r), base, x).run();
  const double unit = unit_of(m.conv.q.dtype), c = x.conv.condition;
  const auto& g = x.conv;
  return {conv_output(p.dq, g.dq, g.dq_terms, unit, c, mode),
          conv_output(p.dk, g.dk, g.dk_terms, unit, c, mode),
          conv_output(p.dv, g.dv, g.dv_terms, unit, c, mode),
          conv_output(p.dweight, g.dweight, g.dweight_terms, 0, c, mode),
          conv_output(p.dmix_before, x.dbefore, x.dbefore_terms, 0, c, mode),
          conv_output(p.dmix_after, x.dafter, x.dafter_terms, 0, c, mode)};
}

template <class P>
MultiTokenBackward multi_token_backward(const P& p, Mode mode) {
  return mode == Mode::exact ? multi_token_backward<double>(p, mode)
                             : multi_token_backward<float>(p, mode);
}

}  // namespace oracle
