// SPDX-License-Identifier: Apache-2.0
// Attention backward by the written formula (attention.h), from the o and lse it is given:
//   delta_i = <dout_i, o_i> - dlse_i,  p_ij = exp(score_ij - lse_i),  ds_ij = p_ij (<dout_i, v_j> -
//   delta_i) dv_j = sum_i p_ij dout_i,  dbias_ij = ds_ij,  dx_ij = ds_ij (1 - (x_ij / softcap)^2)
//   dq_i = scale sum_j dx_ij k_j,  dk_j = scale sum_i dx_ij q_i
//   dsink_logit_h = - sum_i exp(sink_logit_h - lse_i) delta_i,  dalibi_rh = - sum ds_ij |p_i - p_j|
// Rounded mode is float32 with p and dx rounded where they enter a product, and outputs rounded.
#pragma once
#include "attention.h"

namespace oracle {

struct BackwardResult {
  Out dq, dk, dv, dsink_logit, dbias, dalibi;
};

// The gradients as plain sums; which of them are wanted, and how broadcasts fold, is the caller's.
template <class Real>
struct Gradients {
  std::vector<Real> dq, dk, dv, dsink_logit, dbias, dalibi;
  std::vector<double> dq_terms, dk_terms,
      dv_terms;  // of each row: what was added, in absolute value
  double dsink_terms = 0, dbias_terms = 0, dalibi_terms = 0, condition = 0;

  explicit Gradients(const Attention& a)
      : dq(a.q.value.size()),
        dk(a.k.value.size()),
        dv(a.v.value.size()),
        dsink_logit(a.h),
        dbias(a.bias ? a.q.shape[0] * a.h * a.s * a.columns : 0),
        dalibi(a.at.sequences * a.h),
        dq_terms(dq.size() / a.d),
        dk_terms(dk.size() / a.d),
        dv_terms(dv.size() / a.e) {}
};

struct Incoming {
  Dense o, lse, dout, dlse;
};

// `met`: the keys that the row meets, each as often.
template <class Real>
void backward_row(const Attention& a, const Incoming& in, const Sequence& q, int64_t head,
                  int64_t i, const Keys<Real>& keys, const std::vector<int64_t>& met, Mode mode,
                  Gradients<Real>& out) {
  const int64_t g = a.key_head(head), row = q.row + i;
  const double lse = in.lse(q.batch, head, row);
  if (lse == -HUGE_VAL) return;
  const double *dout = in.dout.row(q.batch, row, head), *o = in.o.row(q.batch, row, head);
  const double* q_row = a.q.row(q.batch, row, head);
  const Real dlse = in.dlse ? static_cast<Real>(in.dlse(q.batch, head, row)) : 0;
  const Real delta = dot<Real>(dout, o, a.e) - dlse;
  const double dout_norm = norm(dout, a.e), o_norm = norm(o, a.e), q_norm = norm(q_row, a.d);
  const double q_largest = largest_abs(q_row, a.d), dout_largest = largest_abs(dout, a.e);
  const int64_t q_at = a.q.at_index(q.batch, row, head);
  if (a.sink_logit) {
    const Real w = std::exp(static_cast<Real>(a.sink_logit(head)) - static_cast<Real>(lse));
    out.dsink_logit[head] -= w * delta;
    out.dsink_terms += w * (dout_norm * o_norm + std::abs(dlse));
  }
  for (int64_t j : met) {
    Real capped;
    const Real x = score(a, q, head, i, keys, j, &capped);
    Real p = std::exp(x - static_cast<Real>(lse));
    if (p == 0) continue;
    const double *k = keys.k[j], *v = keys.v[j];
    const Real ds = p * (dot<Real>(dout, v, a.e) - delta);
    Real dx = ds;
    if (a.softcap > 0) {
      const Real ratio = capped / static_cast<Real>(a.softcap);
      dx *= 1 - ratio * ratio;
    }
    const double ds_terms = p * (dout_norm * (keys.v_norm[j] + o_norm) + std::abs(dlse));
    const Place at = keys.key[j].at;
    const int64_t k_at = a.k.at_index(at.row, at.slot, g), v_at = a.v.at_index(at.row, at.slot, g);
    if (a.bias)
      out.dbias[((q.batch * a.h + head) * a.s + row) * a.columns + keys.key[j].column] += ds;
    const int64_t distance = std::abs(row_position(a, q, head, i) - keys.key[j].position);
    out.dalibi[q.r * a.h + head] -= ds * static_cast<Real>(distance);
    out.dbias_terms = std::max(out.dbias_terms, ds_terms);
    out.dalibi_terms += ds_terms * static_cast<double>(distance);
    out.condition = std::max(out.condition, a.scale * q_norm * keys.k_norm[j]);
    if (mode == Mode::rounded) {
      p = static_cast<Real>(round_to(a.q.dtype, p));
      dx = static_cast<Real>(round_to(a.q.dtype, dx));
    }
    dx *= static_cast<Real>(a.scale);
    for (int64_t c = 0; c < a.d; ++c) {
      out.dq[q_at + c] += dx * static_cast<Real>(k[c]);
      out.dk[k_at + c] += dx * static_cast<Real>(q_row[c]);
    }
    for (int64_t c = 0; c < a.e; ++c) out.dv[v_at + c] += p * static_cast<Real>(dout[c]);
    out.dq_terms[q_at / a.d] += a.scale * ds_terms * largest_abs(k, a.d);
    out.dk_terms[k_at / a.d] += a.scale * ds_terms * q_largest;
    out.dv_terms[v_at / a.e] += p * dout_largest;
  }
}

template <class Real>
Gradients<Real> gradients(const Attention& a, const Incoming& in, Mode mode) {
  Gradients<Real> out(a);
  for (int64_t r = 0; r < a.at.sequences; ++r) {
    const Sequence q = sequence(a.at, r);
    for (int64_t head = 0; head < a.h; ++head) {
      const Keys<Real> keys(a, q, a.key_head(head), mode);
      for (int64_t i = 0; i < q.rows; ++i) {
        std::vector<int64_t> met;
        for (int64_t j = 0; j < q.keys; ++j)
          if (sees(a, q, head, i, keys.key[j])) met.push_back(j);
        backward_row(a, in, q, head, i, keys, met, mode, out);
      }
    }
  }
  return out;
}

// The output that fovea_tensor `x` asks for: a stride of 0 sums over its dimension, and every
// element of the sum shows it.
template <class Real>
Out gather(const fovea_tensor& x, const std::vector<Real>& sums, double unit, Mode mode) {
  Out out;
  if (!x.data) return out;
  out = Out(x, unit);
  std::vector<double> folded(count_of(x));
  std::vector<int64_t> first(count_of(x));  // index of the element each one folds into
  int64_t index[FOVEA_MAX_DIMS] = {};
  for (size_t n = 0; n < folded.size(); ++n) {
    int64_t at = 0;
    for (int i = 0; i < x.ndim; ++i) at = at * x.shape[i] + (x.stride[i] ? index[i] : 0);
    first[n] = at;
    folded[at] += sums[n];
    for (int i = x.ndim - 1; i >= 0 && ++index[i] == x.shape[i]; --i) index[i] = 0;
  }
  for (size_t n = 0; n < folded.size(); ++n)
    out.set(static_cast<int64_t>(n),
            mode == Mode::rounded ? round_to(x.dtype, folded[first[n]]) : folded[first[n]]);
  return out;
}

template <class Real, class P>
BackwardResult backward(const Attention& a, const Incoming& in, const P& p, Mode mode) {
  const Gradients<Real> sums = gradients<Real>(a, in, mode);
  const double unit = unit_of(a.q.dtype);
  BackwardResult out{
      gather(p.dq, sums.dq, unit, mode),    gather(p.dk, sums.dk, unit, mode),
      gather(p.dv, sums.dv, unit, mode),    gather(p.dsink_logit, sums.dsink_logit, 0, mode),
      gather(p.dbias, sums.dbias, 0, mode), gather(p.dalibi, sums.dalibi, 0, mode)};
  for (double x : sums.dq_terms) out.dq.terms(x);
  for (double x : sums.dk_terms) out.dk.terms(x);
  for (double x : sums.dv_terms) out.dv.terms(x);
  double dbias_terms = sums.dbias_terms;
  for (int i = 0; i < p.dbias.ndim; ++i)
    if (!p.dbias.stride[i]) dbias_terms *= static_cast<double>(p.dbias.shape[i]);
  out.dsink_logit.terms(sums.dsink_terms), out.dbias.terms(dbias_terms),
      out.dalibi.terms(sums.dalibi_terms);
  for (Out* x : {&out.dq, &out.dk, &out.dv, &out.dsink_logit, &out.dbias, &out.dalibi})
    x->condition = sums.condition;
  return out;
}

template <class P>
BackwardResult backward(const P& p, Mode mode) {
  const Attention a = load_attention(p);
  const Incoming in{load(p.o), load(p.lse), load(p.dout), load(p.dlse)};
  return mode == Mode::exact ? backward<double>(a, in, p, mode) : backward<float>(a, in, p, mode);
}

}  // namespace oracle
