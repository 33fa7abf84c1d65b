// SPDX-License-Identifier: Apache-2.0
// Calls of x_combine and x_compare, resolved, and their formulas for one element.
#pragma once
#include <cmath>

#include "core/convert.h"
#include "core/plan.h"
#include "fovea/experimental/summary.h"

namespace fovea {

// A branch: x (b, s, h, e), or of coarse (b, u, h, e).
struct CombineTerm {
  View<4> x, gate, dx, dgate;
  float coefficient;
  int32_t act, gate_dtype, dgate_dtype;
};

constexpr int kCombineTerms = 5;  // the last is coarse

struct Combine {
  CombineTerm term[kCombineTerms];
  View<4> y;  // dy in the backward
  View<2> row_begin;
  IntVector query_len;
  int32_t dtype, y_dtype;
  int64_t b, s, h, e, u, block_rows;

  FOVEA_HD int64_t rows(int64_t batch) const {
    return query_len ? clamp_i64(query_len[batch], 0, s) : s;
  }
  // Rows of block c.
  FOVEA_HD Interval block(int64_t batch, int64_t c) const {
    const int64_t all = rows(batch);
    if (!row_begin) {
      const int64_t begin = c * block_rows;
      return {begin < all ? begin : all, begin + block_rows < all ? begin + block_rows : all};
    }
    const int64_t begin = clamp_i64(*row_begin.at<int32_t>(batch, c), 0, all);
    return {begin, clamp_i64(*row_begin.at<int32_t>(batch, c + 1), begin, all)};
  }
  // The block of row i; -1: none.
  FOVEA_HD int64_t block_of(int64_t batch, int64_t i) const {
    if (!row_begin) return i / block_rows < u ? i / block_rows : -1;
    int64_t low = 0, high = u;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (*row_begin.at<int32_t>(batch, middle) <= i)
        low = middle + 1;
      else
        high = middle;
    }
    if (low == 0) return -1;
    const Interval rows = block(batch, low - 1);
    return rows.begin <= i && i < rows.end ? low - 1 : -1;
  }
};

FOVEA_HD int64_t combine_at(const View<4>& x, int64_t batch, int64_t i, int64_t head, int64_t c) {
  return batch * x.stride[0] + i * x.stride[1] + head * x.stride[2] + c * x.stride[3];
}

struct CombineGate {
  float value, slope;
};
FOVEA_HD CombineGate combine_gate(const CombineTerm& t, int64_t batch, int64_t i, int64_t head,
                                  int64_t c) {
  if (!t.gate) return {1, 0};
  const float g = load_fp(t.gate.data, t.gate_dtype, combine_at(t.gate, batch, i, head, c));
  if (t.act == FOVEA_X_GATE_NONE) return {g, 1};
  if (t.act == FOVEA_X_GATE_COMPLEMENT) return {1 - g, -1};
  const float on = 1 / (1 + expf(-g)), off = 1 / (1 + expf(g));
  return t.act == FOVEA_X_GATE_SIGMOID ? CombineGate{on, on * off} : CombineGate{off, -on * off};
}
// The element of branch n that row i takes; `row`: i, or the block of coarse.
FOVEA_HD float combine_x(const Combine& a, int n, int64_t batch, int64_t row, int64_t head,
                         int64_t c) {
  const View<4>& x = a.term[n].x;
  return load_fp(x.data, a.dtype, combine_at(x, batch, row, head, c));
}
FOVEA_HD float combine_dy(const Combine& a, int64_t batch, int64_t i, int64_t head, int64_t c) {
  return load_fp(a.y.data, a.y_dtype, combine_at(a.y, batch, i, head, c));
}

FOVEA_HD void combine_store(const Combine& a, int64_t batch, int64_t i, int64_t head, int64_t c,
                            int64_t block) {
  float sum = 0;
  for (int n = 0; n < kCombineTerms; ++n) {
    const CombineTerm& t = a.term[n];
    const int64_t row = n == kCombineTerms - 1 ? block : i;
    if (!t.x || row < 0) continue;
    sum += t.coefficient * combine_gate(t, batch, i, head, c).value *
           combine_x(a, n, batch, row, head, c);
  }
  store_fp(a.y.data, a.y_dtype, combine_at(a.y, batch, i, head, c), sum);
}

// What element (batch, i, head, c) gives dx, or dgate, of branch n.
FOVEA_HD float combine_dx(const Combine& a, int n, int64_t batch, int64_t i, int64_t head,
                          int64_t c) {
  if (i >= a.rows(batch)) return 0;
  const CombineTerm& t = a.term[n];
  return t.coefficient * combine_gate(t, batch, i, head, c).value *
         combine_dy(a, batch, i, head, c);
}
FOVEA_HD float combine_dgate(const Combine& a, int n, int64_t batch, int64_t i, int64_t head,
                             int64_t c) {
  if (i >= a.rows(batch)) return 0;
  const CombineTerm& t = a.term[n];
  const int64_t row = n == kCombineTerms - 1 ? a.block_of(batch, i) : i;
  if (row < 0) return 0;
  return t.coefficient * combine_gate(t, batch, i, head, c).slope *
         combine_x(a, n, batch, row, head, c) * combine_dy(a, batch, i, head, c);
}
// Column c of block `row` of dcoarse.
FOVEA_HD float combine_dcoarse(const Combine& a, int64_t batch, int64_t row, int64_t head,
                               int64_t c) {
  float sum = 0;
  const Interval rows = a.block(batch, row);
  for (int64_t i = rows.begin; i < rows.end; ++i)
    if (a.block_of(batch, i) == row) sum += combine_dx(a, kCombineTerms - 1, batch, i, head, c);
  return sum;
}

// One gradient of (b, s, h, e): elements apart, and those that fall on each, by strides of 0.
struct CombineSum {
  View<4> to;
  int32_t dtype;
  int branch;
  bool gate;
  int64_t apart[4], together[4];
  FOVEA_HD int64_t elements() const { return apart[0] * apart[1] * apart[2] * apart[3]; }
  FOVEA_HD int64_t terms() const { return together[0] * together[1] * together[2] * together[3]; }
  // The index of term `term` of element `element`.
  FOVEA_HD void index(int64_t element, int64_t term, int64_t* at) const {
    for (int axis = 3; axis >= 0; --axis) {
      at[axis] = element % apart[axis] + term % together[axis];
      element /= apart[axis], term /= together[axis];
    }
  }
  FOVEA_HD float value(const Combine& a, int64_t element, int64_t term) const {
    int64_t at[4];
    index(element, term, at);
    return gate ? combine_dgate(a, branch, at[0], at[1], at[2], at[3])
                : combine_dx(a, branch, at[0], at[1], at[2], at[3]);
  }
  FOVEA_HD void store(int64_t element, float sum) const {
    int64_t at[4];
    index(element, 0, at);
    store_fp(to.data, dtype, combine_at(to, at[0], at[1], at[2], at[3]), sum);
  }
};

inline CombineSum combine_sum(const Combine& a, int branch, bool gate) {
  const CombineTerm& t = a.term[branch];
  CombineSum sum{gate ? t.dgate : t.dx, gate ? t.dgate_dtype : a.dtype, branch, gate, {}, {}};
  const int64_t extent[] = {a.b, a.s, a.h, a.e};
  for (int axis = 0; axis < 4; ++axis) {
    sum.apart[axis] = sum.to.stride[axis] ? extent[axis] : 1;
    sum.together[axis] = sum.to.stride[axis] ? 1 : extent[axis];
  }
  return sum;
}
// f(sum) for every gradient of (b, s, h, e) that is asked for.
template <class F>
void each_combine_sum(const Combine& a, F f) {
  for (int n = 0; n < kCombineTerms; ++n) {
    if (a.term[n].dx && n != kCombineTerms - 1) f(combine_sum(a, n, false));
    if (a.term[n].dgate) f(combine_sum(a, n, true));
  }
}

extern const Kernel<Combine> combine_forward_host, combine_backward_host;

struct Compare {
  View<4> reference;
  View<5> candidate;
  View<3> distance;
  View<2> best;
  IntVector query_len;
  int32_t dtype;
  int64_t n, b, s, h, e;
  bool jsd;

  FOVEA_HD int64_t rows(int64_t batch) const {
    return query_len ? clamp_i64(query_len[batch], 0, s) : s;
  }
  FOVEA_HD float own(int64_t batch, int64_t i, int64_t head, int64_t c) const {
    return load_fp(reference.data, dtype, combine_at(reference, batch, i, head, c));
  }
  FOVEA_HD float other(int64_t m, int64_t batch, int64_t i, int64_t head, int64_t c) const {
    return load_fp(candidate.data, dtype,
                   m * candidate.stride[0] + batch * candidate.stride[1] + i * candidate.stride[2] +
                       head * candidate.stride[3] + c * candidate.stride[4]);
  }
};

// A column's part of 1/2 KL(p, m) + 1/2 KL(q, m).
FOVEA_HD float compare_jsd(float p, float q) {
  const float m = (p + q) / 2;
  return ((p > 0 ? p * logf(p / m) : 0.f) + (q > 0 ? q * logf(q / m) : 0.f)) / 2;
}
FOVEA_HD float compare_share(float x, float sum) {
  return sum == 0 ? 0.f : x / sum;
}
// Whether x is a better distance than `best` of the candidates before it.
FOVEA_HD bool compare_better(float x, float best, bool any) {
  return x == x && (!any || x < best);
}

extern const Kernel<Compare> compare_forward_host;

// CUDA builds only.
extern const Kernel<Combine> combine_forward_rows, combine_forward_simt, combine_backward_simt;
extern const Kernel<Compare> compare_forward_simt;

}  // namespace fovea
