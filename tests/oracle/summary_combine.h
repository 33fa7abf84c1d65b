// SPDX-License-Identifier: Apache-2.0
// Weighted sums of branches, their gradients, and distances, from the comments of
// experimental/summary.h.  Rounded mode is float32 with outputs rounded.
#pragma once
#include <algorithm>

#include "tracked.h"

namespace oracle {

template <class Real>
class Combine {
 public:
  static constexpr int kTerms = 5;

  template <class P>
  Combine(const P& p, const fovea_tensor& y)
      : row_begin_(load(p.row_begin)), query_len_(load(p.query_len)) {
    const fovea_tensor* xs[] = {&p.x, &p.x2, &p.x3, &p.x4, &p.coarse};
    const fovea_tensor* gates[] = {&p.gate, &p.gate2, &p.gate3, &p.gate4, &p.gate_coarse};
    const float factors[] = {p.coefficient, p.coefficient2, p.coefficient3, p.coefficient4,
                             p.coefficient_coarse};
    const int32_t acts[] = {p.gate_act, p.gate2_act, p.gate3_act, p.gate4_act, p.gate_coarse_act};
    for (int n = 0; n < kTerms; ++n) {
      x[n] = Tracked(*xs[n]), gate[n] = Tracked(*gates[n]), act_[n] = acts[n];
      factor_[n] = factors[n] != 0 ? static_cast<Real>(factors[n]) : Real{1};
    }
    b = y.shape[0], s = y.shape[1], h = y.shape[2], e = y.shape[3];
    u = p.coarse.data ? p.coarse.shape[1] : 0, block_rows_ = p.block_rows ? p.block_rows : 64;
  }
  Tracked x[kTerms], gate[kTerms];
  int64_t b, s, h, e, u;

  int64_t rows(int64_t batch) const {
    return query_len_ ? std::clamp<int64_t>(query_len_.integer(batch), 0, s) : s;
  }
  // f(batch, row, head, column) of the rows in use.
  template <class F>
  void each(F f) const {
    for (int64_t batch = 0; batch < b; ++batch)
      for (int64_t i = 0; i < rows(batch); ++i)
        for (int64_t head = 0; head < h; ++head)
          for (int64_t c = 0; c < e; ++c) f(batch, i, head, c);
  }
  // Row of branch n for row i; -1: none.
  int64_t source(int n, int64_t batch, int64_t i) const {
    if (!x[n]) return -1;
    if (n != kTerms - 1) return i;
    for (int64_t c = 0; c < u; ++c) {
      const int64_t begin = row_begin_ ? row_begin_.integer(batch, c) : c * block_rows_;
      const int64_t end = row_begin_ ? row_begin_.integer(batch, c + 1) : begin + block_rows_;
      if (begin <= i && i < end) return c;
    }
    return -1;
  }
  Real weight(int n, int64_t batch, int64_t i, int64_t head, int64_t c, Real* slope) const {
    *slope = 0;
    if (!gate[n]) return factor_[n];
    const Real g = static_cast<Real>(gate[n](batch, i, head, c));
    const Real on = 1 / (1 + std::exp(-g)), off = 1 / (1 + std::exp(g));
    const Real values[] = {g, on, 1 - g, off}, slopes[] = {1, on * off, -1, -on * off};
    *slope = factor_[n] * slopes[act_[n]];
    return factor_[n] * values[act_[n]];
  }

  Out forward(const fovea_tensor& y, Mode mode) const {
    Out out(y, 0);
    int64_t at = 0;
    double largest = 0;
    for (int64_t batch = 0; batch < b; ++batch)
      for (int64_t i = 0; i < s; ++i)
        for (int64_t head = 0; head < h; ++head, out.terms(largest), largest = 0)
          for (int64_t c = 0; c < e; ++c, ++at) {
            if (i >= rows(batch)) continue;
            Real sum = 0, slope;
            double terms = 0;
            for (int n = 0; n < kTerms; ++n) {
              const int64_t row = source(n, batch, i);
              if (row < 0) continue;
              const Real one = weight(n, batch, i, head, c, &slope) *
                               static_cast<Real>(x[n](batch, row, head, c));
              sum += one, terms += std::abs(static_cast<double>(one));
            }
            const double value = static_cast<double>(sum);
            out.set(at, mode == Mode::rounded ? round_to(y.dtype, value) : value);
            largest = std::max(largest, terms);
          }
    return out;
  }

  // Gradient of branch n, or of its gate, where strides of 0 sum.
  Out gradient(const fovea_tensor& to, int n, bool of_gate, const Tracked& dy, Mode mode) const {
    if (!to.data) return {};
    Out out(to, 0);
    const int64_t rows_of = !of_gate && n == kTerms - 1 ? u : s;
    std::vector<double> sum(out.value.size()), terms(sum.size());
    std::vector<int64_t> place(sum.size());
    const auto index = [&](int64_t batch, int64_t i, int64_t head, int64_t c) {
      const int64_t at[] = {to.stride[0] ? batch : 0, to.stride[1] ? i : 0, to.stride[2] ? head : 0,
                            to.stride[3] ? c : 0};
      return ((at[0] * rows_of + at[1]) * h + at[2]) * e + at[3];
    };
    each([&](int64_t batch, int64_t i, int64_t head, int64_t c) {
      const int64_t row = source(n, batch, i);
      if (row < 0) return;
      Real slope;
      const Real w = weight(n, batch, i, head, c, &slope);
      const Real g = static_cast<Real>(dy(batch, i, head, c));
      const Real one = of_gate ? slope * static_cast<Real>(x[n](batch, row, head, c)) * g : w * g;
      const int64_t at = index(batch, of_gate || n != kTerms - 1 ? i : row, head, c);
      sum[at] += static_cast<double>(one), terms[at] += std::abs(static_cast<double>(one));
    });
    int64_t at = 0;
    for (int64_t batch = 0; batch < b; ++batch)
      for (int64_t i = 0; i < rows_of; ++i)
        for (int64_t head = 0; head < h; ++head)
          for (int64_t c = 0; c < e; ++c, ++at) {
            const double value = sum[index(batch, i, head, c)];
            out.set(at,
                    mode == Mode::rounded ? round_to(to.dtype, static_cast<float>(value)) : value);
            out.terms(terms[index(batch, i, head, c)]);
          }
    return out;
  }

 private:
  Dense row_begin_, query_len_;
  int32_t act_[kTerms];
  Real factor_[kTerms];
  int64_t block_rows_;
};

struct Distances {
  Out distance, best;
};

// Which distance is least is taken from float64; cases leave a margin.
template <class Real>
Distances compare(const fovea_x_compare_forward_params& p) {
  const Dense reference = load(p.reference), candidate = load(p.candidate);
  const Dense query_len = load(p.query_len);
  const int64_t b = p.reference.shape[0], s = p.reference.shape[1], h = p.reference.shape[2];
  const int64_t e = p.reference.shape[3], n = p.candidate.shape[0];
  Distances out;
  if (p.distance.data) out.distance = Out(p.distance, 0);
  if (p.best.data) out.best = Out(p.best, 0);
  for (int64_t batch = 0; batch < b; ++batch)
    for (int64_t head = 0; head < h; ++head) {
      const int64_t rows = query_len ? std::clamp<int64_t>(query_len.integer(batch), 0, s) : s;
      double least = HUGE_VAL;
      int64_t best = n ? 0 : -1;
      for (int64_t m = 0; m < n; ++m) {
        double sum = 0, terms = 0;
        for (int64_t i = 0; i < rows; ++i) {
          Real own = 0, other = 0, part = 0;
          for (int64_t c = 0; c < e; ++c) {
            own += static_cast<Real>(reference(batch, i, head, c));
            other += static_cast<Real>(candidate(m, batch, i, head, c));
          }
          for (int64_t c = 0; c < e; ++c) {
            Real x = static_cast<Real>(reference(batch, i, head, c));
            Real y = static_cast<Real>(candidate(m, batch, i, head, c));
            if (p.measure == FOVEA_X_COMPARE_MSE) {
              part += (x - y) * (x - y);
              continue;
            }
            x = own == 0 ? 0 : x / own, y = other == 0 ? 0 : y / other;
            const Real mean = (x + y) / 2;
            if (x > 0) part += x * std::log(x / mean) / 2;
            if (y > 0) part += y * std::log(y / mean) / 2;
          }
          const bool mse = p.measure == FOVEA_X_COMPARE_MSE;
          sum += static_cast<double>(mse ? part : std::sqrt(std::max(part, Real{0})));
          terms += mse ? static_cast<double>(part) : 1;
        }
        const double count =
            static_cast<double>(p.measure == FOVEA_X_COMPARE_MSE ? rows * e : rows);
        const double value = count > 0 ? sum / count : 0;
        if (p.distance.data) {
          out.distance.set((m * b + batch) * h + head, value);
          out.distance.terms(count > 0 ? terms / count : 0);
        }
        if (value < least) least = value, best = m;
      }
      if (p.best.data) out.best.set(batch * h + head, static_cast<double>(best));
    }
  return out;
}

}  // namespace oracle
