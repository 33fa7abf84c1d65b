// SPDX-License-Identifier: Apache-2.0
// Tensor product attention from the comments of experimental/tpa.h: rows of all heads from their
// factors, then attention.h's formulas over them, and the chain rule back to the factors.
//   Rounded mode rounds rows of heads, and their gradients, to the dtype of the factors.
#pragma once
#include "attention_backward.h"

namespace oracle {

// scale sum_a a[a, i] b[a], for every head i of every token.
inline Dense tensor_product(const Dense& a, const Dense& b, double scale, Mode mode) {
  const int64_t ranks = a.shape[2], heads = a.shape[3], width = b.shape[3];
  Dense y{true, a.dtype, {a.shape[0], a.shape[1], heads, width, 1}, {}};
  y.value.reserve(y.shape[0] * y.shape[1] * heads * width);
  for (int64_t n = 0; n < y.shape[0]; ++n)
    for (int64_t t = 0; t < y.shape[1]; ++t)
      for (int64_t i = 0; i < heads; ++i)
        for (int64_t c = 0; c < width; ++c) {
          double sum = 0;
          for (int64_t r = 0; r < ranks; ++r) sum += a(n, t, r, i) * b(n, t, r, c);
          y.value.push_back(mode == Mode::rounded ? round_to(a.dtype, scale * sum) : scale * sum);
        }
  return y;
}

inline double or_one_over(float scale, int64_t rank) {
  return scale > 0 ? scale : 1 / static_cast<double>(rank);
}

// The call as attention over heads of its own.
template <class P>
Attention tpa_attention(const P& p, Mode mode) {
  Attention a;
  const auto rows = [&](const fovea_tensor& x, const fovea_tensor& y, float scale) {
    return tensor_product(load(x), load(y), or_one_over(scale, x.shape[2]), mode);
  };
  a.k = rows(p.a_k, p.b_k, p.scale_k), a.v = rows(p.a_v, p.b_v, p.scale_v);
  a.q = p.q.data ? load(p.q) : rows(p.a_q, p.b_q, p.scale_q);
  a.b = p.o.shape[0], a.s = p.o.shape[1], a.h = a.g = p.o.shape[2], a.e = p.o.shape[3];
  a.d = p.b_k.shape[3];
  a.at.query_start = load(p.query_start), a.at.key_start = load(p.key_start);
  a.at.query_len = load(p.query_len), a.at.key_len = load(p.key_len);
  a.at.s = a.s, a.at.extent = p.a_k.shape[1];
  a.at.query_max = p.query_max, a.at.key_max = p.key_max;
  a.at.sequences = p.query_start.data ? p.query_start.shape[0] - 1
                   : p.key_start.data ? p.key_start.shape[0] - 1
                                      : a.b;
  if constexpr (requires { p.page_table; }) {
    a.at.page_table = load(p.page_table), a.at.cache_row = load(p.cache_row);
    a.at.caches = p.page_table.data ? p.page_table.shape[0] : p.a_k.shape[0];
    if (p.page_table.data)
      a.at.page = p.a_k.shape[1], a.at.extent = p.page_table.shape[1] * a.at.page;
    a.context_len = load(p.context_len);
    a.key_step = p.key_step ? p.key_step : 1, a.key_shift = p.key_shift;
  }
  a.columns = a.at.extent;
  a.window_left = p.window_left, a.window_right = p.causal ? 1 : p.window_right;
  a.sink_keys = p.sink_keys;
  a.scale = p.scale > 0 ? p.scale : 1 / std::sqrt(static_cast<double>(a.d));
  return a;
}

struct TpaGradients {
  Out da_k, db_k, da_v, db_v, dq, da_q, db_q;
};

// Factors' gradients of rows' gradients dy, whose rows have sums of `terms`.  Rows without terms
// are 0 in every mode, and no sample of an error.
struct FactorGradients {
  const Dense &a, &b;
  double scale;
  Mode mode;

  void run(const Dense& dy, const std::vector<double>& terms, Out& da, Out& db) const {
    const int64_t ranks = a.shape[2], heads = a.shape[3], width = b.shape[3];
    for (int64_t n = 0; n < a.shape[0]; ++n)
      for (int64_t t = 0; t < a.shape[1]; ++t)
        for (int64_t r = 0; r < ranks; ++r) {
          std::vector<double> sum(width);
          double squares = 0;
          for (int64_t i = 0; i < heads; ++i) {
            const double *row = dy.row(n, t, i), by = a(n, t, r, i);
            const double size = terms[dy.at_index(n, t, i) / width];
            put(da, a.at_index(n, t, r, i), scale * dot<double>(row, b.row(n, t, r), width));
            if (!da.value.empty() && size > 0) da.terms(scale * size * norm(b.row(n, t, r), width));
            for (int64_t c = 0; c < width; ++c) sum[c] += by * row[c];
            squares += by * by * size * size;
          }
          for (int64_t c = 0; c < width; ++c) put(db, b.at_index(n, t, r, c), scale * sum[c]);
          if (!db.value.empty() && squares > 0) db.terms(scale * std::sqrt(squares));
        }
  }
  void put(Out& to, int64_t at, double x) const {
    if (!to.value.empty()) to.set(at, mode == Mode::rounded ? round_to(a.dtype, x) : x);
  }
};

template <class Real>
TpaGradients tpa_backward(const fovea_x_tpa_backward_params& p, Mode mode) {
  const Attention a = tpa_attention(p, mode);
  const Incoming in{load(p.o), load(p.lse), load(p.dout), load(p.dlse)};
  const Gradients<Real> sums = gradients<Real>(a, in, mode);
  const double unit = unit_of(a.q.dtype);
  const auto made = [&](const fovea_tensor& x) {
    Out out;
    if (x.data) out = Out(x, unit);
    out.condition = sums.condition;
    return out;
  };
  // Rows' gradients as they are stored.
  const auto rows = [&](const Dense& like, const std::vector<Real>& x) {
    Dense y = like;
    for (size_t n = 0; n < x.size(); ++n) {
      const auto value = static_cast<double>(x[n]);
      y.value[n] = mode == Mode::rounded ? round_to(like.dtype, value) : value;
    }
    return y;
  };
  TpaGradients out{made(p.da_k), made(p.db_k), made(p.da_v), made(p.db_v),
                   made(p.dq),   made(p.da_q), made(p.db_q)};
  const auto through = [&](const fovea_tensor& x, const fovea_tensor& y, float scale,
                           const Dense& dy, const std::vector<double>& terms, Out& da, Out& db) {
    const Dense of = load(x), by = load(y);
    FactorGradients{of, by, or_one_over(scale, x.shape[2]), mode}.run(dy, terms, da, db);
  };
  through(p.a_k, p.b_k, p.scale_k, rows(a.k, sums.dk), sums.dk_terms, out.da_k, out.db_k);
  through(p.a_v, p.b_v, p.scale_v, rows(a.v, sums.dv), sums.dv_terms, out.da_v, out.db_v);
  const Dense dq = rows(a.q, sums.dq);
  if (p.a_q.data) through(p.a_q, p.b_q, p.scale_q, dq, sums.dq_terms, out.da_q, out.db_q);
  if (p.dq.data) {
    for (size_t n = 0; n < dq.value.size(); ++n) out.dq.set(static_cast<int64_t>(n), dq.value[n]);
    for (const double x : sums.dq_terms) out.dq.terms(x);
  }
  return out;
}

inline TpaGradients tpa_backward(const fovea_x_tpa_backward_params& p, Mode mode) {
  return mode == Mode::exact ? tpa_backward<double>(p, mode) : tpa_backward<float>(p, mode);
}

}  // namespace oracle
