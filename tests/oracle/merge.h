// SPDX-License-Identifier: Apache-2.0
// Merging of attention states by its formula, one row of o at a time over the parts that have it:
//   lse = ln sum_n exp(lse_n),  o = sum_n exp(lse_n - lse) o_n
//   w_n = exp(lse_n - lse),  do_n = w_n dout,  dlse_n = w_n (<dout, o_n - o> + dlse)
#pragma once
#include <algorithm>

#include "dense.h"

namespace oracle {

struct Merge {
  Dense o_part, lse_part, row;
  int64_t n = 0, b = 0, u = 0, s = 0, h = 0, e = 0;

  // Row of part `part` that is row i of o; -1: none.  Of several the last counts.
  int64_t source(int64_t part, int64_t i) const {
    if (!row) return i;
    for (int64_t j = u - 1; j >= 0; --j)
      if (row.integer(part, j) == i) return j;
    return -1;
  }
};

template <class P>
Merge load_merge(const P& p) {
  const int64_t* shape = p.o_part.shape;
  return {load(p.o_part), load(p.lse_part), load(p.row), shape[0], shape[1],
          shape[2],       p.o.shape[1],     shape[3],    shape[4]};
}

struct MergeResult {
  Out o, lse, do_part, dlse_part;
};

template <class Real>
MergeResult merge_forward(const fovea_merge_forward_params& p, Mode mode) {
  const Merge a = load_merge(p);
  MergeResult out;
  out.o = Out(p.o, unit_of(FOVEA_F32));
  if (p.lse.data) out.lse = Out(p.lse, 0);
  for (int64_t b = 0; b < a.b; ++b)
    for (int64_t i = 0; i < a.s; ++i)
      for (int64_t head = 0; head < a.h; ++head) {
        Real m = -HUGE_VAL, l = 0;
        std::vector<int64_t> at(a.n);
        for (int64_t n = 0; n < a.n; ++n) {
          at[n] = a.source(n, i);
          const double x = at[n] < 0 ? -HUGE_VAL : a.lse_part(n, b, head, at[n]);
          if (x == -HUGE_VAL)
            at[n] = -1;
          else if (!(x <= m))
            m = static_cast<Real>(x);
          if (std::isnan(m)) break;
        }
        std::vector<Real> w(a.n);
        for (int64_t n = 0; n < a.n; ++n) {
          if (std::isnan(m))
            w[n] = NAN;
          else if (at[n] >= 0)
            w[n] = std::exp(static_cast<Real>(a.lse_part(n, b, head, at[n])) - m);
          l += w[n];
        }
        double terms = 0;
        for (int64_t c = 0; c < a.e; ++c) {
          Real sum = std::isnan(m) ? NAN : 0;
          double absolute = 0;
          for (int64_t n = 0; n < a.n; ++n)
            if (at[n] >= 0 && !std::isnan(m)) {
              const Real x = static_cast<Real>(a.o_part(n, b, at[n], head, c));
              sum += w[n] * x;
              absolute += w[n] / l * std::abs(x);
            }
          terms = std::max(terms, absolute);
          double y = l == 0 ? 0 : sum / l;
          if (mode == Mode::rounded) y = round_to(p.o.dtype, y);
          out.o.set(((b * a.s + i) * a.h + head) * a.e + c, y);
        }
        out.o.terms(terms);
        if (!p.lse.data) continue;
        const double y = l == 0 ? -HUGE_VAL : static_cast<double>(m + std::log(l));
        out.lse.set((b * a.h + head) * a.s + i, y);
        out.lse.terms(1 + std::abs(y));
      }
  return out;
}

template <class Real>
MergeResult merge_backward(const fovea_merge_backward_params& p, Mode mode) {
  const Merge a = load_merge(p);
  const Dense o = load(p.o), lse = load(p.lse), dout = load(p.dout), dlse = load(p.dlse);
  MergeResult out;
  if (p.do_part.data) out.do_part = Out(p.do_part, unit_of(FOVEA_F32));
  if (p.dlse_part.data) out.dlse_part = Out(p.dlse_part, unit_of(FOVEA_F32));
  for (int64_t n = 0; n < a.n; ++n)
    for (int64_t b = 0; b < a.b; ++b)
      for (int64_t j = 0; j < a.u; ++j)
        for (int64_t head = 0; head < a.h; ++head) {
          // The row of o that this row of the part is, if no later one is it too.
          int64_t i = a.row ? a.row.integer(n, j) : j;
          if (i < 0 || i >= a.s || a.source(n, i) != j) i = -1;
          Real w = 0;
          if (i >= 0 && lse(b, head, i) != -HUGE_VAL)
            w = std::exp(static_cast<Real>(a.lse_part(n, b, head, j)) -
                         static_cast<Real>(lse(b, head, i)));
          Real sum = 0;
          double terms = 0, largest = 0;
          for (int64_t c = 0; c < a.e; ++c) {
            double y = 0;
            if (w != 0) {
              const Real g = static_cast<Real>(dout(b, i, head, c));
              const Real x = static_cast<Real>(a.o_part(n, b, j, head, c)),
                         mean = static_cast<Real>(o(b, i, head, c));
              sum += g * (x - mean);
              terms += std::abs(g) * (std::abs(x) + std::abs(mean));
              largest = std::max<double>(largest, w * std::abs(g));
              y = w * g;
            }
            if (mode == Mode::rounded) y = round_to(p.o_part.dtype, y);
            if (p.do_part.data)
              out.do_part.set((((n * a.b + b) * a.u + j) * a.h + head) * a.e + c, y);
          }
          if (w != 0 && dlse)
            sum += static_cast<Real>(dlse(b, head, i)), terms += std::abs(dlse(b, head, i));
          out.do_part.terms(largest);
          if (p.dlse_part.data)
            out.dlse_part.set(((n * a.b + b) * a.h + head) * a.u + j, w == 0 ? 0 : w * sum);
          out.dlse_part.terms(w * terms);
        }
  return out;
}

}  // namespace oracle
