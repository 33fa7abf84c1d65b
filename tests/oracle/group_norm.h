// SPDX-License-Identifier: Apache-2.0
// Root-mean-square norm of each head, with z = 1 / sqrt(mean_c(x_c^2) + eps):
//   y_c = factor gain_c x_c z
//   dx_c = factor z (gain_c dy_c - x_c z^2 mean_c(gain_c dy_c x_c)),  dgain_c = factor sum dy_c x_c
//   z
// Rounded mode is float32 with outputs rounded.
#pragma once
#include <algorithm>

#include "dense.h"

namespace oracle {

struct GroupNorm {
  Dense x, gain, query_len;
  int64_t b = 0, s = 0, h = 0, e = 0;
  double factor = 1, eps = 1e-5;

  int64_t rows(int64_t batch) const {
    return query_len ? std::clamp<int64_t>(query_len.integer(batch), 0, s) : s;
  }
  double weight(int64_t head, int64_t c) const { return gain ? gain(head, c) : 1; }
  // f(batch, row, head) of the rows in use.
  template <class F>
  void each(F f) const {
    for (int64_t batch = 0; batch < b; ++batch)
      for (int64_t i = 0; i < rows(batch); ++i)
        for (int64_t head = 0; head < h; ++head) f(batch, i, head);
  }
  template <class Real>
  Real inverse(const double* row) const {
    Real sum = 0;
    for (int64_t c = 0; c < e; ++c) sum += static_cast<Real>(row[c]) * static_cast<Real>(row[c]);
    return 1 / std::sqrt(sum / static_cast<Real>(e) + static_cast<Real>(eps));
  }
};

template <class P>
GroupNorm load_group_norm(const P& p) {
  GroupNorm n{load(p.x), load(p.gain), load(p.query_len)};
  n.b = p.x.shape[0], n.s = p.x.shape[1], n.h = p.x.shape[2], n.e = p.x.shape[3];
  if (p.factor > 0) n.factor = p.factor;
  n.eps = p.eps > 0 ? p.eps : 1e-5f;
  return n;
}

template <class Real>
Out group_norm_forward(const GroupNorm& n, const fovea_tensor& y, Mode mode) {
  Out out(y, 0);
  n.each([&](int64_t batch, int64_t i, int64_t head) {
    const double* x = n.x.row(batch, i, head);
    const Real z = n.inverse<Real>(x);
    double largest = 0;
    for (int64_t c = 0; c < n.e; ++c) {
      const double value = static_cast<Real>(n.factor) * static_cast<Real>(n.weight(head, c)) *
                           static_cast<Real>(x[c]) * z;
      largest = std::max(largest, std::abs(value));
      out.set(n.x.at_index(batch, i, head, c),
              mode == Mode::rounded ? round_to(y.dtype, value) : value);
    }
    out.terms(largest);
  });
  return out;
}

struct GroupNormGradients {
  std::vector<double> dx, dgain, dx_terms, dgain_terms;
};

template <class Real>
GroupNormGradients group_norm_gradients(const GroupNorm& n, const Dense& dy) {
  GroupNormGradients out;
  out.dx.resize(n.x.value.size()), out.dx_terms.resize(out.dx.size() / n.e);
  out.dgain_terms.resize(n.h * n.e);
  std::vector<Real> dgain(n.h * n.e);
  n.each([&](int64_t batch, int64_t i, int64_t head) {
    const double *x = n.x.row(batch, i, head), *slope = dy.row(batch, i, head);
    const Real z = n.inverse<Real>(x), factor = static_cast<Real>(n.factor);
    Real mean = 0;
    double mean_terms = 0, largest = 0;
    for (int64_t c = 0; c < n.e; ++c) {
      const double g = n.weight(head, c) * slope[c] * x[c];
      mean += static_cast<Real>(n.weight(head, c)) * static_cast<Real>(slope[c]) *
              static_cast<Real>(x[c]);
      mean_terms += std::abs(g) / static_cast<double>(n.e);
      const double part = static_cast<double>(factor) * slope[c] * x[c] * z;
      dgain[head * n.e + c] += static_cast<Real>(part);
      out.dgain_terms[head * n.e + c] += std::abs(part);
    }
    mean /= static_cast<Real>(n.e);
    for (int64_t c = 0; c < n.e; ++c) {
      const Real pull = static_cast<Real>(x[c]) * z * z;
      const double weighed = n.weight(head, c) * slope[c];
      out.dx[n.x.at_index(batch, i, head, c)] =
          factor * z * (static_cast<Real>(weighed) - pull * mean);
      largest = std::max(
          largest, static_cast<double>(factor * z) *
                       (std::abs(weighed) + std::abs(static_cast<double>(pull)) * mean_terms));
    }
    out.dx_terms[n.x.at_index(batch, i, head) / n.e] = largest;
  });
  out.dgain.assign(dgain.begin(), dgain.end());
  return out;
}

}  // namespace oracle
