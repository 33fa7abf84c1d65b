// SPDX-License-Identifier: Apache-2.0
// The short causal convolution of experimental/linear.h, channel by channel.  The tokens of a
// sequence stand behind the T - 1 of its state in one list:
//   z_t = bias + sum_u weight[u] list[t + u],  y_t = act(z_t),  state after t tokens = list[t ..]
// Its adjoint walks the same list.  Rounded mode is float32 with outputs rounded.
#pragma once
#include <algorithm>
#include <cmath>

#include "oracle/conv_attention_backward.h"
#include "oracle/run.h"

namespace oracle {

template <class Real, class P>
class Conv1d {
 public:
  Dense x, weight, bias, state;

  explicit Conv1d(const P& p)
      : x(load(p.x)),
        weight(load(p.weight)),
        bias(load(p.bias)),
        state(load(p.state_in)),
        p_(p),
        run_(load_run(p)),
        f_(p.x.shape[2]),
        taps_(p.weight.shape[1]) {}

  struct Forward {
    Out y, state_out, snapshot;
  };
  Forward forward(Mode mode) const {
    Forward out{made(p_.y), made(p_.state_out), made(p_.snapshot)};
    for (int64_t i = 0; i < run_.r; ++i) {
      const auto q = run_[i];
      std::vector<double> terms(static_cast<size_t>(q.count));
      for (int64_t c = 0; c < f_; ++c) {
        const auto list = list_of(i, c);
        for (int64_t t = q.from; t < q.count && p_.y.data; ++t) {
          const Real z = sum(list, t, c, &terms[t]);
          put(out.y, p_.y, mode, {q.batch, q.begin + t, c}, silu() ? z / (1 + std::exp(-z)) : z);
        }
        if (p_.state_out.data)
          put_state(out.state_out, p_.state_out, run_.out_row(i, p_.state_out.shape[0]), c, list,
                    q.count, mode);
        for (int64_t n = 0; p_.snapshot.data && n < run_.snapshot_row.shape[1]; ++n)
          if ((n + 1) * run_.every <= q.count)
            put_state(out.snapshot, p_.snapshot, run_.snapshot_row.integer(i, n), c, list,
                      (n + 1) * run_.every, mode);
      }
      for (int64_t t = q.from; t < q.count && p_.y.data; ++t) out.y.terms(terms[t]);
    }
    return out;
  }

  struct Backward {
    Out dx, dweight, dbias, dstate_in;
  };
  Backward backward(Mode mode) const {
    const Dense dy = load(p_.dy), dstate = load(p_.dstate_out);
    std::vector<Real> dweight(f_ * taps_), dbias(f_);
    std::vector<double> weight_terms(f_ * taps_), bias_terms(f_);
    Backward out{made(p_.dx), {}, {}, made(p_.dstate_in)};
    std::fill(out.dx.written.begin(), out.dx.written.end(), 1);
    std::fill(out.dstate_in.written.begin(), out.dstate_in.written.end(), 1);
    for (int64_t i = 0; i < run_.r; ++i)
      for (int64_t c = 0; c < f_; ++c) {
        const auto q = run_[i];
        const auto list = list_of(i, c);
        std::vector<Real> grad(list.size());
        std::vector<double> terms(list.size());
        for (int64_t t = q.from; t < q.count; ++t) {
          const Real z = sum(list, t, c, nullptr), part = 1 / (1 + std::exp(-z));
          const Real dz = static_cast<Real>(dy(q.batch, q.begin + t, c)) *
                          (silu() ? part * (1 + z * (1 - part)) : Real{1});
          dbias[c] += dz, bias_terms[c] += std::abs(dz);
          for (int64_t u = 0; u < taps_; ++u) {
            const Real w = static_cast<Real>(weight(c, u));
            grad[t + u] += w * dz, terms[t + u] += std::abs(w * dz);
            dweight[c * taps_ + u] += dz * list[t + u];
            weight_terms[c * taps_ + u] += std::abs(dz * list[t + u]);
          }
        }
        for (int64_t k = 0; dstate && k < taps_ - 1; ++k) {
          const double g = dstate(i, c, dstate.shape[2] - (taps_ - 1) + k);
          grad[q.count + k] += static_cast<Real>(g), terms[q.count + k] += std::abs(g);
        }
        for (int64_t k = 0; k < static_cast<int64_t>(list.size()); ++k) {
          const int64_t t = k - (taps_ - 1);
          if (t >= 0 && p_.dx.data)
            put(out.dx, p_.dx, mode, {q.batch, q.begin + t, c}, grad[k]), out.dx.terms(terms[k]);
          if (t < 0 && p_.dstate_in.data)
            put(out.dstate_in, p_.dstate_in, mode, {i, c, p_.dstate_in.shape[2] + t}, grad[k]),
                out.dstate_in.terms(terms[k]);
        }
      }
    out.dweight = conv_output(p_.dweight, dweight, weight_terms, 0, 0, mode);
    out.dbias = conv_output(p_.dbias, dbias, bias_terms, 0, 0, mode);
    return out;
  }

 private:
  static Out made(const fovea_tensor& x) { return x.data ? Out(x, 0) : Out(); }
  bool silu() const { return p_.activation == FOVEA_X_CONV1D_ACTIVATION_SILU; }

  std::vector<Real> list_of(int64_t i, int64_t c) const {
    const auto q = run_[i];
    const int64_t row = state ? run_.in_row(i, state.shape[0]) : -1;
    std::vector<Real> list;
    for (int64_t k = 0; k < taps_ - 1; ++k)
      list.push_back(row < 0 ? Real{0}
                             : static_cast<Real>(state(row, c, state.shape[2] - (taps_ - 1) + k)));
    for (int64_t t = 0; t < q.count; ++t)
      list.push_back(static_cast<Real>(x(q.batch, q.begin + t, c)));
    return list;
  }
  // `terms` becomes the larger of itself and the sum of absolute terms.
  Real sum(const std::vector<Real>& list, int64_t t, int64_t c, double* terms) const {
    Real z = bias ? static_cast<Real>(bias(c)) : Real{0};
    double all = std::abs(static_cast<double>(z));
    for (int64_t u = 0; u < taps_; ++u) {
      const Real term = static_cast<Real>(weight(c, u)) * list[t + u];
      z += term, all += std::abs(static_cast<double>(term));
    }
    if (terms) *terms = std::max(*terms, all);
    return z;
  }
  static void put(Out& out, const fovea_tensor& x, Mode mode, const std::array<int64_t, 3>& at,
                  Real value) {
    const double y = static_cast<double>(value);
    out.set((at[0] * x.shape[1] + at[1]) * x.shape[2] + at[2],
            mode == Mode::rounded ? round_to(x.dtype, y) : y);
  }
  void put_state(Out& out, const fovea_tensor& x, int64_t row, int64_t c,
                 const std::vector<Real>& list, int64_t count, Mode mode) const {
    if (row < 0 || row >= x.shape[0]) return;
    for (int64_t k = 0; k < taps_ - 1; ++k)
      put(out, x, mode, {row, c, x.shape[2] - (taps_ - 1) + k}, list[count + k]);
  }

  const P& p_;
  const RunOracle run_;
  const int64_t f_, taps_;
};

}  // namespace oracle
