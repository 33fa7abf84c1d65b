// SPDX-License-Identifier: Apache-2.0
// x_norm_gate from the comments of experimental/norm.h, a row of a head at a time.  Gradients
// follow the chain from y back, not the kernels' closed form: each v moves mean and size of its
// group. Rounded mode is float32 with outputs rounded.
#pragma once
#include <algorithm>

#include "dense.h"
#include "fovea/experimental/norm.h"

namespace oracle {

template <class Real>
class NormGate {
 public:
  using Row = std::vector<Real>;

  template <class P>
  explicit NormGate(const P& p)
      : x_(load(p.x)),
        gate_(load(p.gate)),
        before_(load(p.add_before)),
        weight_(load(p.weight)),
        bias_(load(p.bias)),
        query_len_(load(p.query_len)),
        b(p.x.shape[0]),
        s(p.x.shape[1]),
        h(p.x.shape[2]),
        e(p.x.shape[3]),
        group_(p.group ? p.group : e),
        factor_(p.factor > 0 ? static_cast<Real>(p.factor) : Real{1}),
        eps_(static_cast<Real>(p.eps > 0 ? p.eps : 1e-5f)),
        norm_(p.norm),
        act_(p.act),
        first_(p.gate_first != 0) {}

  Out forward(const fovea_x_norm_gate_forward_params& p, Mode mode) const {
    const Dense after = load(p.add_after);
    Out out(p.y, 0);
    each([&](int64_t batch, int64_t i, int64_t head) {
      const Made made = make(batch, i, head);
      double largest = 0;
      for (int64_t c = 0; c < e; ++c) {
        Real y = made.w[c];
        if (gate_ && !first_) y *= made.a[c];
        double terms = std::abs(static_cast<double>(y)) + made.terms[c];
        if (after) {
          y += static_cast<Real>(after(batch, i, head, c));
          terms += std::abs(after(batch, i, head, c));
        }
        largest = std::max(largest, terms);
        const auto value = static_cast<double>(y);
        out.set(x_.at_index(batch, i, head, c),
                mode == Mode::rounded ? round_to(p.y.dtype, value) : value);
      }
      out.terms(largest);
    });
    return out;
  }

  struct Gradients {
    std::vector<double> dx, dgate, dweight, dbias;   // values
    std::vector<double> dx_terms, dgate_terms;       // of each row
    std::vector<double> dweight_terms, dbias_terms;  // of each element
    // An output with its values, and a magnitude for each row of `columns`.
    static Out out(const fovea_tensor& to, const std::vector<double>& value,
                   const std::vector<double>& terms, Mode mode) {
      if (!to.data) return {};
      Out made(to, 0);
      for (size_t n = 0; n < value.size(); ++n)
        made.set(static_cast<int64_t>(n),
                 mode == Mode::rounded ? round_to(to.dtype, value[n]) : value[n]);
      for (const double one : terms) made.terms(one);
      return made;
    }
  };
  Gradients backward(const fovea_tensor& dy_) const {
    const Dense dy = load(dy_);
    Gradients out;
    out.dx.resize(static_cast<size_t>(b * s * h * e)), out.dgate = out.dx;
    out.dweight.resize(static_cast<size_t>(h * e)), out.dbias = out.dweight;
    out.dweight_terms = out.dbias_terms = out.dweight;
    Row dweight(static_cast<size_t>(h * e)), dbias = dweight;
    each([&](int64_t batch, int64_t i, int64_t head) {
      const Made made = make(batch, i, head);
      Row t(e), dgate(e), dn(e);
      std::vector<double> terms(e);
      for (int64_t c = 0; c < e; ++c) {
        t[c] = static_cast<Real>(dy(batch, i, head, c));
        if (gate_ && !first_) dgate[c] = t[c] * made.w[c] * made.slope[c], t[c] *= made.a[c];
        const int64_t at = head * e + c;
        const Real part = factor_ * t[c] * made.n[c];
        dbias[at] += t[c], dweight[at] += part;
        out.dbias_terms[at] += std::abs(static_cast<double>(t[c]));
        out.dweight_terms[at] += std::abs(static_cast<double>(part));
        dn[c] = factor_ * weight(head, c) * t[c];
      }
      const Row dv = through_norm(made, dn, terms);
      double dx_terms = 0, dgate_terms = 0;
      for (int64_t c = 0; c < e; ++c) {
        Real dx = dv[c];
        double size = terms[c], gate_size = std::abs(static_cast<double>(dgate[c]));
        if (gate_ && first_) {
          dgate[c] = dv[c] * made.u[c] * made.slope[c];
          gate_size = size * std::abs(static_cast<double>(made.u[c] * made.slope[c]));
          dx *= made.a[c], size *= std::abs(static_cast<double>(made.a[c]));
        }
        const auto at = static_cast<size_t>(x_.at_index(batch, i, head, c));
        out.dx[at] = static_cast<double>(dx), out.dgate[at] = static_cast<double>(dgate[c]);
        dx_terms = std::max(dx_terms, size), dgate_terms = std::max(dgate_terms, gate_size);
      }
      out.dx_terms.push_back(dx_terms), out.dgate_terms.push_back(dgate_terms);
    });
    out.dweight.assign(dweight.begin(), dweight.end());
    out.dbias.assign(dbias.begin(), dbias.end());
    return out;
  }

 private:
  struct Made {
    Row u, a, slope, v, n, w, size;  // size: of each column's group
    std::vector<double> terms;       // magnitudes of what w is the sum of
  };

  template <class F>
  void each(F f) const {
    for (int64_t batch = 0; batch < b; ++batch) {
      const int64_t rows = query_len_ ? std::clamp<int64_t>(query_len_.integer(batch), 0, s) : s;
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t head = 0; head < h; ++head) f(batch, i, head);
    }
  }
  Real weight(int64_t head, int64_t c) const {
    return weight_ ? static_cast<Real>(weight_(head, c)) : Real{1};
  }
  Made make(int64_t batch, int64_t i, int64_t head) const {
    Made m;
    for (Row* row : {&m.u, &m.a, &m.slope, &m.v, &m.n, &m.w, &m.size}) row->resize(e);
    m.terms.resize(e);
    for (int64_t c = 0; c < e; ++c) {
      m.u[c] = static_cast<Real>(x_(batch, i, head, c));
      if (before_) m.u[c] += static_cast<Real>(before_(batch, i, head, c));
      m.a[c] = 1;
      if (gate_) activate(static_cast<Real>(gate_(batch, i, head, c)), m.a[c], m.slope[c]);
      m.v[c] = first_ ? m.u[c] * m.a[c] : m.u[c];
    }
    for (int64_t from = 0; from < e; from += group_) {
      Real mean = 0, squares = 0;
      for (int64_t c = from; c < from + group_; ++c) mean += m.v[c];
      mean = norm_ == FOVEA_X_NORM_GATE_NORM_LAYER ? mean / static_cast<Real>(group_) : Real{0};
      for (int64_t c = from; c < from + group_; ++c) squares += (m.v[c] - mean) * (m.v[c] - mean);
      if (norm_ != FOVEA_X_NORM_GATE_NORM_L2) squares /= static_cast<Real>(group_);
      const Real size =
          norm_ == FOVEA_X_NORM_GATE_NORM_NONE ? Real{1} : 1 / std::sqrt(squares + eps_);
      for (int64_t c = from; c < from + group_; ++c) {
        m.size[c] = size, m.n[c] = (m.v[c] - mean) * size;
        const Real scaled = factor_ * weight(head, c) * m.n[c];
        m.w[c] = scaled + (bias_ ? static_cast<Real>(bias_(head, c)) : Real{0});
        const Real a = first_ ? Real{1} : m.a[c];
        // A mean is as exact as the largest of what it is taken of.
        m.terms[c] = std::abs(static_cast<double>(a * scaled)) +
                     std::abs(static_cast<double>(a * factor_ * weight(head, c) * size * mean)) +
                     std::abs(static_cast<double>(a) * (bias_ ? bias_(head, c) : 0));
      }
    }
    return m;
  }
  void activate(Real x, Real& value, Real& slope) const {
    if (act_ == FOVEA_X_NORM_GATE_ACT_NONE) {
      value = x, slope = 1;
      return;
    }
    const Real on = 1 / (1 + std::exp(-x));
    value = act_ == FOVEA_X_NORM_GATE_ACT_SIGMOID ? on : x * on;
    slope = on * (1 - on);
    if (act_ == FOVEA_X_NORM_GATE_ACT_SILU) slope = on + x * slope;
  }
  // The gradient of v from that of n: directly, by the group's mean, and by its size.
  Row through_norm(const Made& m, const Row& dn, std::vector<double>& terms) const {
    Row dv(dn);
    for (int64_t c = 0; c < e; ++c) terms[c] = std::abs(static_cast<double>(dn[c]));
    if (norm_ == FOVEA_X_NORM_GATE_NORM_NONE) return dv;
    const Real count = norm_ == FOVEA_X_NORM_GATE_NORM_L2 ? Real{1} : static_cast<Real>(group_);
    for (int64_t from = 0; from < e; from += group_) {
      Real size_pull = 0, mean_pull = 0;
      double size_terms = 0, mean_terms = 0;
      for (int64_t c = from; c < from + group_; ++c) {
        const Real one = dn[c] * m.n[c];
        size_pull += one, mean_pull += dn[c];
        size_terms += std::abs(static_cast<double>(one));
        mean_terms += std::abs(static_cast<double>(dn[c]));
      }
      size_pull /= count, size_terms /= static_cast<double>(count);
      const bool layer = norm_ == FOVEA_X_NORM_GATE_NORM_LAYER;
      mean_pull = layer ? mean_pull / count : Real{0};
      mean_terms = layer ? mean_terms / static_cast<double>(count) : 0;
      for (int64_t c = from; c < from + group_; ++c) {
        dv[c] = m.size[c] * (dn[c] - mean_pull - m.n[c] * size_pull);
        terms[c] = static_cast<double>(m.size[c]) *
                   (terms[c] + mean_terms + std::abs(static_cast<double>(m.n[c])) * size_terms);
      }
    }
    return dv;
  }

  Dense x_, gate_, before_, weight_, bias_, query_len_;
  int64_t b, s, h, e, group_;
  Real factor_, eps_;
  int32_t norm_, act_;
  bool first_;
};

}  // namespace oracle
