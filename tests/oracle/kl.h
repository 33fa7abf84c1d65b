// SPDX-License-Identifier: Apache-2.0
// The divergence of two attention distributions and its gradient by their formulas (kl.h), one row
// at a time over all its keys.  x are the logits of the distribution that weighs, y those of the
// other:
//   x_j = scale <q_i, k_j>,  X = max x,  l = sum_j exp(x_j - X),  lse_x = X + ln l,  p_j = exp(x_j
//   - X) / l kl = sum_j p_j ((x_j - X) - (y_j - Y)) - ln l_x + ln l_y total = sum w kl,  with mean
//   / sum w
// and from the kl and lse it is given, with G = dkl + dtotal w (/ sum w):
//   p = exp(x - lse_x),  r = exp(y - lse_y),  dy = G (r - p),  dx = G p (x - lse_x - y + lse_y -
//   kl) dq_i = scale sum_j dx_ij k_j,  dk_j = scale sum_i dx_ij q_i, and so with dy
// Rounded mode is float32 with dx and dy rounded to their side's dtype where they enter a product.
#pragma once
#include <algorithm>

#include "sequence.h"

namespace oracle {

// For kl_forward of a call that has no total.
struct NoTotal {
  fovea_tensor total = {};
};

struct KlSide {
  Dense q, k, lse;
  double scale = 0;
  int64_t width = 0, key_heads = 0;
};

struct KlCall {
  KlSide teacher, student;
  Dense row_weight, head_window, index;  // index: the keys of each row, in place of what it sees
  Layout at;
  int64_t b = 0, s = 0, h = 0;
  int64_t window_left = 0, window_right = 0, sink_keys = 0;
  bool reverse = false, mean = false;
  int64_t block_keys = 0;  // > 0: the teacher pooled over blocks, the student's keys are blocks
  bool pool_max = false;
  const KlSide& first() const { return reverse ? student : teacher; }
  const KlSide& second() const { return reverse ? teacher : student; }
};

inline KlSide load_kl_side(const fovea_tensor& q, const fovea_tensor& k, float scale) {
  KlSide side{load(q), load(k), {}, scale, q.shape[3], k.shape[2]};
  if (scale == 0) side.scale = 1 / std::sqrt(static_cast<double>(side.width));
  return side;
}

template <class P>
KlCall load_kl(const P& p) {
  KlCall a;
  a.teacher = load_kl_side(p.q_teacher, p.k_teacher, p.scale_teacher);
  if constexpr (requires { p.scale_student; })
    a.student = load_kl_side(p.q_student, p.k_student, p.scale_student);
  else
    a.student = load_kl_side(p.q_student, p.k_student, 1);
  if constexpr (requires { p.head_window; }) a.head_window = load(p.head_window);
  a.b = p.q_teacher.shape[0], a.s = p.q_teacher.shape[1], a.h = p.q_teacher.shape[2];
  a.at.query_start = load(p.query_start), a.at.key_start = load(p.key_start);
  a.at.query_len = load(p.query_len), a.at.key_len = load(p.key_len);
  a.at.s = a.s, a.at.extent = p.k_teacher.shape[1];
  a.at.query_max = p.query_max, a.at.key_max = p.key_max;
  a.at.sequences = p.query_start.data ? p.query_start.shape[0] - 1
                   : p.key_start.data ? p.key_start.shape[0] - 1
                                      : a.b;
  if constexpr (requires { p.block_keys; }) {
    a.block_keys = p.block_keys ? p.block_keys : 64;
    a.pool_max = p.pool == FOVEA_X_POOL_MAX;
  }
  if constexpr (requires { p.index; }) {
    a.index = load(p.index);
  } else {
    a.window_left = p.window_left, a.window_right = p.causal ? 1 : p.window_right;
    a.sink_keys = p.sink_keys;
  }
  if constexpr (requires { p.direction; }) {
    a.row_weight = load(p.row_weight);
    a.reverse = p.direction == FOVEA_DIRECTION_STUDENT_TEACHER, a.mean = p.mean != 0;
  }
  return a;
}

inline bool kl_sees(const KlCall& a, const Sequence& q, int64_t head, int64_t i, int64_t j) {
  int64_t left = a.window_left, right = a.window_right, sink = a.sink_keys;
  if (a.head_window)
    left = a.head_window.integer(head, 0), right = a.head_window.integer(head, 1),
    sink = a.head_window.integer(head, 2);
  const int64_t p_i = i + q.keys - q.rows;
  if (right > 0 && !(j < p_i + right)) return false;
  return !(left > 0) || j > p_i - left || j < sink;
}

// A sequence with blocks in place of keys.
inline Sequence kl_units(const KlCall& a, const Sequence& q) {
  if (!a.block_keys) return q;
  Sequence units = q;
  units.keys = (q.keys + a.block_keys - 1) / a.block_keys;
  units.store = a.at.key_start ? q.store / a.block_keys + q.r : 0;
  return units;
}

// What one row sees: keys, and the logits of both sides over them.
template <class Real>
struct KlRow {
  std::vector<int64_t> keys;
  std::vector<Real> x, y;
  double condition = 0;

  KlRow(const KlCall& a, const Sequence& q, int64_t head, int64_t i) {
    if (a.block_keys) {
      pooled(a, q, head, i);
      return;
    }
    for (int64_t n = 0; n < (a.index ? a.index.shape[3] : q.keys); ++n) {
      const int64_t j = a.index ? listed(a, q, head, i, n) : n;
      if (j < 0 || j >= q.keys || !kl_sees(a, q, head, i, j)) continue;
      keys.push_back(j);
      x.push_back(logit(a, a.first(), q, head, i, j));
      y.push_back(logit(a, a.second(), q, head, i, j));
    }
  }
  // Blocks: x_u = max, or ln sum exp, of the teacher's logits over the keys of u that are seen.
  void pooled(const KlCall& a, const Sequence& q, int64_t head, int64_t i) {
    const Sequence units = kl_units(a, q);
    for (int64_t u = 0; u < units.keys; ++u) {
      std::vector<Real> logits;
      for (int64_t j = u * a.block_keys; j < std::min(q.keys, (u + 1) * a.block_keys); ++j)
        if (kl_sees(a, q, head, i, j)) logits.push_back(logit(a, a.teacher, q, head, i, j));
      if (logits.empty()) continue;
      Real sum, top = -HUGE_VAL;
      for (Real v : logits) top = std::isfinite(v) ? std::max(top, v) : static_cast<Real>(NAN);
      for (Real v : logits)
        if (!std::isfinite(v)) top = NAN;
      sum = 0;
      for (Real v : logits) sum += std::exp(v - top);
      keys.push_back(u);
      x.push_back(a.pool_max ? top : top + std::log(sum));
      y.push_back(logit(a, a.student, units, head, i, u));
    }
  }
  static int64_t listed(const KlCall& a, const Sequence& q, int64_t head, int64_t i, int64_t n) {
    return static_cast<int64_t>(a.index(q.batch, head, q.row + i, n));
  }
  Real logit(const KlCall& a, const KlSide& side, const Sequence& q, int64_t head, int64_t i,
             int64_t j) {
    const double* q_row = side.q.row(q.batch, q.row + i, head);
    const double* k_row = side.k.row(q.cache, q.store + j, head / (a.h / side.key_heads));
    Real sum = 0;
    double q_square = 0, k_square = 0;
    for (int64_t c = 0; c < side.width; ++c) {
      sum += static_cast<Real>(q_row[c]) * static_cast<Real>(k_row[c]);
      q_square += q_row[c] * q_row[c], k_square += k_row[c] * k_row[c];
    }
    const double size = side.scale * std::sqrt(q_square * k_square);
    if (std::isfinite(size)) condition = std::max(condition, size);
    return sum * static_cast<Real>(side.scale);
  }
};

// X, and l in `sum`; NaN where some logit is no number.
template <class Real>
Real kl_top(const std::vector<Real>& x, Real& sum) {
  Real top = -HUGE_VAL;
  for (Real v : x) top = std::isfinite(v) ? std::max(top, v) : static_cast<Real>(NAN);
  for (Real v : x)
    if (!std::isfinite(v)) top = NAN;
  sum = 0;
  for (Real v : x) sum += std::exp(v - top);
  return top;
}

struct KlResult {
  Out kl, lse_first, lse_second, total;
};

template <class Real, class P>
KlResult kl_forward(const KlCall& a, const P& p, Mode mode) {
  fovea_tensor rows = {};
  rows.ndim = 3;
  rows.shape[0] = a.b, rows.shape[1] = a.h, rows.shape[2] = a.s;
  KlResult out{Out(rows, 0), Out(rows, 0), Out(rows, 0), Out(p.total, 0)};
  const auto stored = [&](Real x) -> double { return mode == Mode::rounded ? float(x) : x; };
  double value = 0, weights = 0, terms = 0, weighed = 0;
  for (int64_t r = 0; r < a.at.sequences; ++r) {
    const Sequence q = sequence(a.at, r);
    for (int64_t head = 0; head < a.h; ++head)
      for (int64_t i = 0; i < q.rows; ++i) {
        const KlRow<Real> row(a, q, head, i);
        const int64_t at = (q.batch * a.h + head) * a.s + q.row + i;
        for (Out* x : {&out.kl, &out.lse_first, &out.lse_second, &out.total})
          x->condition = std::max(x->condition, row.condition);
        if (row.keys.empty()) {
          out.kl.set(at, 0), out.lse_first.set(at, -HUGE_VAL), out.lse_second.set(at, -HUGE_VAL);
          continue;
        }
        Real l_x, l_y, cross = 0;
        const Real top_x = kl_top(row.x, l_x), top_y = kl_top(row.y, l_y);
        double size = 1 + std::abs(std::log(l_x)) + std::abs(std::log(l_y));
        for (size_t n = 0; n < row.keys.size(); ++n) {
          const Real weight = std::exp(row.x[n] - top_x),
                     ratio = (row.x[n] - top_x) - (row.y[n] - top_y);
          if (weight != 0) cross += weight * ratio, size += weight / l_x * std::abs(ratio);
        }
        const Real kl = cross / l_x - std::log(l_x) + std::log(l_y);
        out.kl.set(at, stored(kl)), out.kl.terms(size);
        out.lse_first.set(at, stored(top_x + std::log(l_x)));
        out.lse_first.terms(1 + std::abs(top_x + std::log(l_x)) + row.condition);
        out.lse_second.set(at, stored(top_y + std::log(l_y)));
        out.lse_second.terms(1 + std::abs(top_y + std::log(l_y)) + row.condition);
        const double w = a.row_weight ? a.row_weight(q.batch, head, q.row + i) : 1;
        if (w == 0) continue;
        value += w * stored(kl), weights += w;
        terms += std::abs(w) * size, weighed += std::abs(w);
      }
  }
  if (!p.total.data) return out;
  if (a.mean)
    value = weights == 0 ? 0 : value / weights, terms /= std::max(std::abs(weights), 1e-30);
  out.total.set(0, stored(static_cast<Real>(value)));
  out.total.terms(weighed > 0 ? terms : 0);
  return out;
}

template <class P>
KlResult kl_forward(const P& p, Mode mode) {
  const KlCall a = load_kl(p);
  return mode == Mode::exact ? kl_forward<double>(a, p, mode) : kl_forward<float>(a, p, mode);
}

struct KlGradients {
  Out dq_first, dk_first, dq_second, dk_second;
};

struct KlIncoming {
  Dense kl, lse_first, lse_second, dkl, dtotal;
};

// Plain sums of one side, and the absolute sizes of each row's terms.
template <class Real>
struct KlSums {
  std::vector<Real> dq, dk;
  std::vector<double> dq_terms, dk_terms;
  explicit KlSums(const KlSide& side)
      : dq(side.q.value.size()),
        dk(side.k.value.size()),
        dq_terms(dq.size() / static_cast<size_t>(side.width)),
        dk_terms(dk.size() / static_cast<size_t>(side.width)) {}

  void add(const KlCall& a, const KlSide& side, const Sequence& q, int64_t head, int64_t i,
           int64_t j, Real dx, double size, Mode mode) {
    add(side, q, head, head / (a.h / side.key_heads), i, j, dx, size, mode);
  }
  void add(const KlSide& side, const Sequence& q, int64_t head, int64_t key_head, int64_t i,
           int64_t j, Real dx, double size, Mode mode) {
    const int64_t q_at = side.q.at_index(q.batch, q.row + i, head),
                  k_at = side.k.at_index(q.cache, q.store + j, key_head);
    if (mode == Mode::rounded) dx = static_cast<Real>(round_to(side.q.dtype, dx));
    double q_largest = 0, k_largest = 0;
    for (int64_t c = 0; c < side.width; ++c) {
      const double q_c = side.q.value[q_at + c], k_c = side.k.value[k_at + c];
      dq[q_at + c] += dx * static_cast<Real>(side.scale) * static_cast<Real>(k_c);
      dk[k_at + c] += dx * static_cast<Real>(side.scale) * static_cast<Real>(q_c);
      q_largest = std::max(q_largest, std::abs(q_c));
      k_largest = std::max(k_largest, std::abs(k_c));
    }
    dq_terms[q_at / side.width] += side.scale * size * k_largest;
    dk_terms[k_at / side.width] += side.scale * size * q_largest;
  }

  Out gather(const std::vector<Real>& sums, const std::vector<double>& terms, int dtype,
             double condition, Mode mode) const {
    Out out;
    out.value.resize(sums.size()), out.written.assign(sums.size(), 1), out.unit = unit_of(dtype);
    for (size_t n = 0; n < sums.size(); ++n)
      out.value[n] = mode == Mode::rounded ? round_to(dtype, sums[n]) : sums[n];
    for (double x : terms) out.terms(x);
    out.condition = condition;
    return out;
  }
};

// What a row's weight is multiplied with.
inline double kl_total_factor(const KlCall& a, const KlIncoming& in) {
  if (!in.dtotal) return 0;
  if (!a.mean) return in.dtotal(0);
  double weights = 0;
  for (int64_t r = 0; r < a.at.sequences; ++r) {
    const Sequence q = sequence(a.at, r);
    for (int64_t head = 0; head < a.h; ++head)
      for (int64_t i = 0; i < q.rows; ++i) {
        bool any = false;
        for (int64_t j = 0; j < q.keys; ++j) any = any || kl_sees(a, q, head, i, j);
        if (any) weights += a.row_weight ? a.row_weight(q.batch, head, q.row + i) : 1;
      }
  }
  return weights == 0 ? 0 : in.dtotal(0) / weights;
}

template <class Real>
KlGradients kl_backward(const KlCall& a, const KlIncoming& in, Mode mode) {
  KlSums<Real> first(a.first()), second(a.second());
  const double factor = kl_total_factor(a, in);
  double condition = 0;
  for (int64_t r = 0; r < a.at.sequences; ++r) {
    const Sequence q = sequence(a.at, r);
    for (int64_t head = 0; head < a.h; ++head)
      for (int64_t i = 0; i < q.rows; ++i) {
        const int64_t at = q.row + i;
        double gradient = in.dkl ? in.dkl(q.batch, head, at) : 0;
        const double w = a.row_weight ? a.row_weight(q.batch, head, at) : 1;
        if (w != 0) gradient += factor * w;
        if (gradient == 0) continue;
        const KlRow<Real> row(a, q, head, i);
        condition = std::max(condition, row.condition);
        const Real lse_x = static_cast<Real>(in.lse_first(q.batch, head, at)),
                   lse_y = static_cast<Real>(in.lse_second(q.batch, head, at)),
                   kl = static_cast<Real>(in.kl(q.batch, head, at)),
                   grad = static_cast<Real>(gradient);
        for (size_t n = 0; n < row.keys.size(); ++n) {
          const Real log_p = row.x[n] - lse_x, log_r = row.y[n] - lse_y;
          const Real p = std::exp(log_p), r_n = std::exp(log_r);
          const Real dx = p == 0 ? 0 : grad * p * (log_p - log_r - kl), dy = grad * (r_n - p);
          const double size =
              p == 0 ? 0 : std::abs(grad) * p * (1 + std::abs(log_p - log_r) + std::abs(kl));
          if (!a.block_keys) first.add(a, a.first(), q, head, i, row.keys[n], dx, size, mode);
          second.add(a, a.second(), kl_units(a, q), head, i, row.keys[n], dy,
                     std::abs(grad) * (p + r_n), mode);
        }
      }
  }
  const int x = a.first().q.dtype, y = a.second().q.dtype;
  return {first.gather(first.dq, first.dq_terms, x, condition, mode),
          first.gather(first.dk, first.dk_terms, x, condition, mode),
          second.gather(second.dq, second.dq_terms, y, condition, mode),
          second.gather(second.dk, second.dk_terms, y, condition, mode)};
}

inline KlIncoming load_kl_incoming(const fovea_kl_backward_params& p) {
  const bool reverse = p.direction == FOVEA_DIRECTION_STUDENT_TEACHER;
  return {load(p.kl), load(reverse ? p.lse_student : p.lse_teacher),
          load(reverse ? p.lse_teacher : p.lse_student), load(p.dkl), load(p.dtotal)};
}

inline KlGradients kl_backward(const fovea_kl_backward_params& p, Mode mode) {
  const KlCall a = load_kl(p);
  const KlIncoming in = load_kl_incoming(p);
  return mode == Mode::exact ? kl_backward<double>(a, in, mode) : kl_backward<float>(a, in, mode);
}

}  // namespace oracle
