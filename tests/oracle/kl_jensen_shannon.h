// SPDX-License-Identifier: Apache-2.0
// The Jensen-Shannon divergence of two attention distributions and its gradient by their formulas
// (experimental/kl.h), one row at a time over all its keys:
//   u_j = ln p_j = x_j - lse_x,  v_j = ln r_j = y_j - lse_y,  m_j = w p_j + (1 - w) r_j
//   kl_x = sum_j p_j (u_j - ln m_j),  kl_y = sum_j r_j (v_j - ln m_j),  js = w kl_x + (1 - w) kl_y
// and from the kl and lse it is given:
//   dx_j = djs w p_j (u_j - ln m_j - kl_x),  dy_j = djs (1 - w) r_j (v_j - ln m_j - kl_y)
// Rounded mode is float32 with dx and dy rounded to their side's dtype where they enter a product.
#pragma once
#include "kl.h"

namespace oracle {

struct JensenShannon {
  Out js, kl_teacher, kl_student, lse_teacher, lse_student;
};

template <class P>
double share_of(const P& p) {
  return p.weight > 0 ? static_cast<double>(p.weight) : 0.5;
}

// ln m, where m itself may be too small for a number.
template <class Real>
Real log_mixture(Real share, Real u, Real v) {
  const Real x = std::log(share) + u, y = std::log(1 - share) + v;
  return x > y ? x + std::log1p(std::exp(y - x)) : y + std::log1p(std::exp(x - y));
}

// p (ln p - ln m) without 0 * infinity.
template <class Real>
Real mixed_term(Real p, Real log_p, Real log_m) {
  return p == 0 ? 0 : p * (log_p - log_m);
}

template <class Real>
JensenShannon jensen_shannon_forward(const KlCall& a, double w, Mode mode) {
  fovea_tensor rows = {};
  rows.ndim = 3;
  rows.shape[0] = a.b, rows.shape[1] = a.h, rows.shape[2] = a.s;
  JensenShannon out{Out(rows, 0), Out(rows, 0), Out(rows, 0), Out(rows, 0), Out(rows, 0)};
  const auto stored = [&](Real x) -> double { return mode == Mode::rounded ? float(x) : x; };
  const Real share = static_cast<Real>(w), rest = 1 - share;
  for (int64_t r = 0; r < a.at.sequences; ++r) {
    const Sequence q = sequence(a.at, r);
    for (int64_t head = 0; head < a.h; ++head)
      for (int64_t i = 0; i < q.rows; ++i) {
        const KlRow<Real> row(a, q, head, i);
        const int64_t at = (q.batch * a.h + head) * a.s + q.row + i;
        for (Out* x :
             {&out.js, &out.kl_teacher, &out.kl_student, &out.lse_teacher, &out.lse_student})
          x->condition = std::max(x->condition, row.condition);
        if (row.keys.empty()) {
          for (Out* x : {&out.js, &out.kl_teacher, &out.kl_student}) x->set(at, 0);
          for (Out* x : {&out.lse_teacher, &out.lse_student}) x->set(at, -HUGE_VAL);
          continue;
        }
        Real l_x, l_y, kl_x = 0, kl_y = 0;
        const Real lse_x = kl_top(row.x, l_x) + std::log(l_x),
                   lse_y = kl_top(row.y, l_y) + std::log(l_y);
        double size_x = 1, size_y = 1;
        for (size_t n = 0; n < row.keys.size(); ++n) {
          const Real u = row.x[n] - lse_x, v = row.y[n] - lse_y;
          const Real p = std::exp(u), r_n = std::exp(v), m = log_mixture(share, u, v);
          const Real x = mixed_term(p, u, m), y = mixed_term(r_n, v, m);
          kl_x += x, kl_y += y;
          size_x += std::abs(x), size_y += std::abs(y);
        }
        out.kl_teacher.set(at, stored(kl_x)), out.kl_teacher.terms(size_x);
        out.kl_student.set(at, stored(kl_y)), out.kl_student.terms(size_y);
        out.js.set(at, stored(share * kl_x + rest * kl_y));
        out.js.terms(w * size_x + (1 - w) * size_y);
        out.lse_teacher.set(at, stored(lse_x));
        out.lse_teacher.terms(1 + std::abs(lse_x) + row.condition);
        out.lse_student.set(at, stored(lse_y));
        out.lse_student.terms(1 + std::abs(lse_y) + row.condition);
      }
  }
  return out;
}

inline JensenShannon jensen_shannon_forward(const fovea_x_kl_jensen_shannon_forward_params& p,
                                            Mode mode) {
  const KlCall a = load_kl(p);
  return mode == Mode::exact ? jensen_shannon_forward<double>(a, share_of(p), mode)
                             : jensen_shannon_forward<float>(a, share_of(p), mode);
}

struct JensenShannonIncoming {
  Dense kl_teacher, kl_student, lse_teacher, lse_student, djs;
};

// The teacher is the first side.
template <class Real>
KlGradients jensen_shannon_backward(const KlCall& a, const JensenShannonIncoming& in, double w,
                                    Mode mode) {
  KlSums<Real> teacher(a.teacher), student(a.student);
  double condition = 0;
  const Real share = static_cast<Real>(w), rest = 1 - share;
  for (int64_t r = 0; r < a.at.sequences; ++r) {
    const Sequence q = sequence(a.at, r);
    for (int64_t head = 0; head < a.h; ++head)
      for (int64_t i = 0; i < q.rows; ++i) {
        const int64_t at = q.row + i;
        const Real grad = static_cast<Real>(in.djs(q.batch, head, at));
        if (grad == 0) continue;
        const KlRow<Real> row(a, q, head, i);
        condition = std::max(condition, row.condition);
        const auto given = [&](const Dense& x) { return static_cast<Real>(x(q.batch, head, at)); };
        for (size_t n = 0; n < row.keys.size(); ++n) {
          const Real u = row.x[n] - given(in.lse_teacher), v = row.y[n] - given(in.lse_student);
          const Real p = std::exp(u), r_n = std::exp(v), m = log_mixture(share, u, v);
          const Real x = mixed_term(p, u, m), y = mixed_term(r_n, v, m);
          const Real kl_x = given(in.kl_teacher), kl_y = given(in.kl_student);
          const double size = std::abs(grad);
          teacher.add(a, a.teacher, q, head, i, row.keys[n], grad * share * (x - p * kl_x),
                      size * w * (p + std::abs(x) + p * std::abs(kl_x)), mode);
          student.add(a, a.student, q, head, i, row.keys[n], grad * rest * (y - r_n * kl_y),
                      size * (1 - w) * (r_n + std::abs(y) + r_n * std::abs(kl_y)), mode);
        }
      }
  }
  const int x = a.teacher.q.dtype, y = a.student.q.dtype;
  return {teacher.gather(teacher.dq, teacher.dq_terms, x, condition, mode),
          teacher.gather(teacher.dk, teacher.dk_terms, x, condition, mode),
          student.gather(student.dq, student.dq_terms, y, condition, mode),
          student.gather(student.dk, student.dk_terms, y, condition, mode)};
}

inline JensenShannonIncoming load_jensen_shannon_incoming(
    const fovea_x_kl_jensen_shannon_backward_params& p) {
  return {load(p.kl_teacher), load(p.kl_student), load(p.lse_teacher), load(p.lse_student),
          load(p.djs)};
}

inline KlGradients jensen_shannon_backward(const fovea_x_kl_jensen_shannon_backward_params& p,
                                           Mode mode) {
  const KlCall a = load_kl(p);
  const JensenShannonIncoming in = load_jensen_shannon_incoming(p);
  return mode == Mode::exact ? jensen_shannon_backward<double>(a, in, share_of(p), mode)
                             : jensen_shannon_backward<float>(a, in, share_of(p), mode);
}

}  // namespace oracle
