// SPDX-License-Identifier: Apache-2.0
// The divergence of a teacher summed over its heads from an indexer's scores, and its gradient, by
// their formulas (experimental/kl.h), one row at a time over all its keys:
//   P_j = 1/h sum_m exp(a_mj - lse_m),  z_nj = <q_n, k_j>,  b_j = sum_n w_n max(z_nj, 0)
//   kl = sum_j P_j (ln P_j - (b_j - lse))
// and from the lse it is given, with u = 1 where z > 0, else 0:
//   db_j = dkl (exp(b_j - lse) - P_j),  dz_nj = db_j w_n u_nj,  dw_n = sum_j db_j max(z_nj, 0)
//   dq_n = sum_j dz_nj k_j,  dk_j = sum_in dz_inj q_in
// Rounded mode is float32 with dz rounded to the student's dtype where it enters a product.
#pragma once
#include "kl.h"

namespace oracle {

struct Indexer {
  KlCall call;  // the student's k has one head
  Dense weight;
  int64_t heads = 0;  // of the student
};

template <class P>
Indexer load_indexer(const P& p) {
  return {load_kl(p), load(p.weight), p.q_student.shape[2]};
}

// max(z, 0) that keeps NaN.
template <class Real>
Real rectify(Real z) {
  return z <= 0 ? 0 : z;
}

template <class Real>
struct IndexerRow {
  std::vector<int64_t> keys;
  std::vector<std::vector<Real>> a, z;  // [teacher head][key], [student head][key]
  std::vector<Real> weight, b;
  double condition = 0;  // of the logits

  IndexerRow(const Indexer& x, const Sequence& q, int64_t i)
      : a(x.call.h), z(x.heads), weight(x.heads) {
    const KlCall& c = x.call;
    for (int64_t j = 0; j < q.keys; ++j)
      if (kl_sees(c, q, 0, i, j)) keys.push_back(j);
    double size = 0;
    for (int64_t m = 0; m < c.h; ++m)
      for (int64_t j : keys)
        a[m].push_back(product(c.teacher, q, i, m, j, m / (c.h / c.teacher.key_heads), size) *
                       static_cast<Real>(c.teacher.scale));
    condition = c.teacher.scale * size;
    b.assign(keys.size(), 0);
    double total = 0;
    for (int64_t n = 0; n < x.heads; ++n) {
      weight[n] = static_cast<Real>(x.weight(q.batch, q.row + i, n));
      size = 0;
      for (int64_t j : keys) z[n].push_back(product(c.student, q, i, n, j, 0, size));
      for (size_t k = 0; k < keys.size(); ++k) b[k] += weight[n] * rectify(z[n][k]);
      total += std::abs(weight[n]) * size;
    }
    condition = std::max(condition, total);
  }

  // <q, k>; the largest |q| |k| in `size`.
  static Real product(const KlSide& side, const Sequence& q, int64_t i, int64_t head, int64_t j,
                      int64_t key_head, double& size) {
    const double* q_row = side.q.row(q.batch, q.row + i, head);
    const double* k_row = side.k.row(q.cache, q.store + j, key_head);
    Real sum = 0;
    double q_square = 0, k_square = 0;
    for (int64_t c = 0; c < side.width; ++c) {
      sum += static_cast<Real>(q_row[c]) * static_cast<Real>(k_row[c]);
      q_square += q_row[c] * q_row[c], k_square += k_row[c] * k_row[c];
    }
    const double product = std::sqrt(q_square * k_square);
    if (std::isfinite(product)) size = std::max(size, product);
    return sum;
  }

  // P from the lse of each head.
  template <class Lse>
  std::vector<Real> teacher(Lse lse) const {
    std::vector<Real> p(keys.size());
    for (size_t k = 0; k < keys.size(); ++k) {
      for (size_t m = 0; m < a.size(); ++m) p[k] += std::exp(a[m][k] - static_cast<Real>(lse(m)));
      p[k] /= static_cast<Real>(a.size());
    }
    return p;
  }
};

struct IndexerResult {
  Out kl, lse_teacher, lse_student;
};

template <class Real>
IndexerResult indexer_forward(const Indexer& x, Mode mode) {
  const KlCall& c = x.call;
  fovea_tensor rows = {}, head_rows = {};
  rows.ndim = 2, rows.shape[0] = c.b, rows.shape[1] = c.s;
  head_rows.ndim = 3, head_rows.shape[0] = c.b, head_rows.shape[1] = c.h, head_rows.shape[2] = c.s;
  IndexerResult out{Out(rows, 0), Out(head_rows, 0), Out(rows, 0)};
  const auto stored = [&](Real v) -> double { return mode == Mode::rounded ? float(v) : v; };
  for (int64_t r = 0; r < c.at.sequences; ++r) {
    const Sequence q = sequence(c.at, r);
    for (int64_t i = 0; i < q.rows; ++i) {
      const IndexerRow<Real> row(x, q, i);
      const int64_t at = q.batch * c.s + q.row + i;
      const auto head_at = [&](int64_t m) { return (q.batch * c.h + m) * c.s + q.row + i; };
      for (Out* y : {&out.kl, &out.lse_teacher, &out.lse_student})
        y->condition = std::max(y->condition, row.condition);
      if (row.keys.empty()) {
        out.kl.set(at, 0), out.lse_student.set(at, -HUGE_VAL);
        for (int64_t m = 0; m < c.h; ++m) out.lse_teacher.set(head_at(m), -HUGE_VAL);
        continue;
      }
      const auto log_sum = [&](const std::vector<Real>& logits) {
        Real l;
        const Real top = kl_top(logits, l);
        return top + std::log(l);
      };
      std::vector<Real> lse(c.h);
      for (int64_t m = 0; m < c.h; ++m) {
        lse[m] = log_sum(row.a[m]);
        out.lse_teacher.set(head_at(m), stored(lse[m]));
        out.lse_teacher.terms(1 + std::abs(lse[m]) + row.condition);
      }
      const Real lse_b = log_sum(row.b);
      out.lse_student.set(at, stored(lse_b));
      out.lse_student.terms(1 + std::abs(lse_b) + row.condition);
      const std::vector<Real> p = row.teacher([&](size_t m) { return lse[m]; });
      Real kl = 0;
      double size = 1;
      for (size_t k = 0; k < p.size(); ++k) {
        if (p[k] == 0) continue;
        const Real term = p[k] * (std::log(p[k]) - (row.b[k] - lse_b));
        kl += term, size += std::abs(term);
      }
      out.kl.set(at, stored(kl)), out.kl.terms(size);
    }
  }
  return out;
}

inline IndexerResult indexer_forward(const fovea_x_kl_indexer_forward_params& p, Mode mode) {
  const Indexer x = load_indexer(p);
  return mode == Mode::exact ? indexer_forward<double>(x, mode) : indexer_forward<float>(x, mode);
}

struct IndexerIncoming {
  Dense lse_teacher, lse_student, dkl;
};

struct IndexerGradients {
  Out dq, dk, dweight;
};

template <class Real>
IndexerGradients indexer_backward(const Indexer& x, const IndexerIncoming& in, Mode mode) {
  const KlCall& c = x.call;
  KlSums<Real> sums(c.student);
  std::vector<Real> dweight(x.weight.value.size());
  std::vector<double> dweight_terms(dweight.size());
  double condition = 0;
  for (int64_t r = 0; r < c.at.sequences; ++r) {
    const Sequence q = sequence(c.at, r);
    for (int64_t i = 0; i < q.rows; ++i) {
      const int64_t at = q.row + i;
      const Real grad = static_cast<Real>(in.dkl(q.batch, at));
      if (grad == 0) continue;
      const IndexerRow<Real> row(x, q, i);
      condition = std::max(condition, row.condition);
      const std::vector<Real> p =
          row.teacher([&](int64_t m) { return in.lse_teacher(q.batch, m, at); });
      for (size_t k = 0; k < p.size(); ++k) {
        const Real r_k = std::exp(row.b[k] - static_cast<Real>(in.lse_student(q.batch, at)));
        const Real db = grad * (r_k - p[k]);
        const double size = std::abs(grad) * (r_k + p[k]);
        for (int64_t n = 0; n < x.heads; ++n) {
          const int64_t w = x.weight.at_index(q.batch, at, n);
          double product = 0;
          IndexerRow<Real>::product(c.student, q, i, n, row.keys[k], 0, product);
          dweight[w] += db * rectify(row.z[n][k]), dweight_terms[w] += size * product;
          const Real on = row.z[n][k] > 0 ? 1 : 0;
          sums.add(c.student, q, n, 0, i, row.keys[k], db * row.weight[n] * on,
                   size * std::abs(row.weight[n]), mode);
        }
      }
    }
  }
  IndexerGradients out;
  out.dq = sums.gather(sums.dq, sums.dq_terms, c.student.q.dtype, condition, mode);
  out.dk = sums.gather(sums.dk, sums.dk_terms, c.student.q.dtype, condition, mode);
  out.dweight = sums.gather(dweight, dweight_terms, FOVEA_F32, condition, mode);
  return out;
}

inline IndexerIncoming load_indexer_incoming(const fovea_x_kl_indexer_backward_params& p) {
  return {load(p.lse_teacher), load(p.lse_student), load(p.dkl)};
}

inline IndexerGradients indexer_backward(const fovea_x_kl_indexer_backward_params& p, Mode mode) {
  const Indexer x = load_indexer(p);
  const IndexerIncoming in = load_indexer_incoming(p);
  return mode == Mode::exact ? indexer_backward<double>(x, in, mode)
                             : indexer_backward<float>(x, in, mode);
}

}  // namespace oracle
