// SPDX-License-Identifier: Apache-2.0
// Gradients of a recurrence, from the terms that its reverse pass leaves in the workspace: what an
// element of an output is, or a term of it where strides of 0 sum.  Host and device agree.
#pragma once
#include "core/recur.h"

namespace fovea {

// Terms in f32, row = batch * s + position.  What sums over value columns has a plane for each
// slice of them, and one for the normaliser.
//   A kernel that goes by chunks has terms of k^ and of rows by output of a head: key_slices
//   planes. It sums over d itself: then dk is whole, dbeta too, and row_dg is dg's sum.
struct RecurTerms {
  int64_t slices;
  int64_t key_slices;  // of dk, row_dg and dbeta; 0: slices
  float* dq;           // (slices, b s, heads_out, d): of q^, without the bonus
  float* dk;           // (slices, b t, heads, d): of k^, without the bonus and without p = beta k^
  float* dg;           // (slices, b s, heads, d): of the log of a row's decay
  float* dp;           // (slices, b s, heads, d): of p; low_a's with low_rank
  float* db;           // (slices, b s, heads, d): of low_b
  float* dbeta;        // (slices, b s, heads): du . v
  float* de;           // (slices, b s, heads_out): of scale q^ . (bonus . k^)
  float* row_dg;       // (key_slices, b s, heads)
  float* dv;           // (b t, heads, e), without skip
  float* dgv;          // (b s, heads, e): of the log of a column's decay
  float* q_norm;       // (b s, h, 2): 1 / |q|, and q^ . dq^
  float* k_norm;       // (b s, g, 2)
  float* select;       // (select_slices, heads, b t), nullptr: sums of dk
  int64_t select_slices;
};

enum class RecurGradient {
  q,
  k,
  v,
  gate_head,
  gate_key,
  gate_value,
  rate,
  bias,
  select,
  beta,
  bonus,
  skip,
  erase,
  low_a,
  low_b
};
constexpr int kRecurGradients = 15;

struct RecurBackward {
  Recur forward;
  Floats<4> to[kRecurGradients];  // strides of 0 where there is no axis
  View<4> dstate_out, dstate_in;  // (r, heads, d, e) f32
  View<3> dz_out, dz_in;
  bool normalise;
  RecurTerms terms;

  FOVEA_HD const Floats<4>& output(RecurGradient what) const { return to[static_cast<int>(what)]; }
  // Without rows and keys, or without value columns, there are no terms: what is left is the
  // gradient of a first state.
  FOVEA_HD bool idle() const {
    const Recur& a = forward;
    if (a.e == 0 && !(normalise && (dz_out || dz_in))) return true;
    return !dstate_in && !dz_in && a.run.token_max == 0 && (!a.full || a.t == 0);
  }
  // The extents of an output and of what sums into it.
  struct Extents {
    int64_t n[4];
  };
  FOVEA_HD Extents extents(RecurGradient what) const {
    const Recur& a = forward;
    switch (what) {
      case RecurGradient::q:
        return {{a.b, a.s, a.h, a.d}};
      case RecurGradient::k:
        return {{a.b, a.t, a.g, a.d}};
      case RecurGradient::v:
        return {{a.b, a.t, a.x, a.e}};
      case RecurGradient::gate_head:
      case RecurGradient::rate:
      case RecurGradient::beta:
        return {{a.b, a.s, a.heads, 1}};
      case RecurGradient::select:
        return {{a.b, a.t, a.heads, 1}};
      case RecurGradient::gate_value:
      case RecurGradient::skip:
        return {{a.b, a.s, a.heads, a.e}};
      default:
        return {{a.b, a.s, a.heads, a.d}};
    }
  }

  // The term of (batch, row, head, column): 0 where no sequence has the row.
  FOVEA_HD float term(RecurGradient what, int64_t batch, int64_t at, int64_t head,
                      int64_t c) const {
    if (idle()) return 0;
    const Recur& a = forward;
    const bool of_keys =
        what == RecurGradient::k || what == RecurGradient::v || what == RecurGradient::select;
    if (!(of_keys ? a.key_in_use(batch, at) : a.in_use(batch, at))) return 0;
    switch (what) {
      case RecurGradient::q:
        return of_query(batch, at, head, c);
      case RecurGradient::k:
        return of_key(batch, at, head, c);
      case RecurGradient::v:
        return of_value(batch, at, head, c);
      case RecurGradient::gate_head:
        return times(row_decay(batch, at, head), a.head_gate(batch, at, head).slope);
      case RecurGradient::gate_key:
        return times(decay(batch, at, head, c), a.key_gate(batch, at, head, c).slope);
      case RecurGradient::gate_value:
        return times(column_decay(batch, at, head, c), a.value_gate(batch, at, head, c).slope);
      case RecurGradient::rate:
        return of_rate(batch, at, head);
      case RecurGradient::bias:
        if (a.gate_key)
          return times(decay(batch, at, head, c), a.key_gate(batch, at, head, c).slope);
        return c ? 0 : times(row_decay(batch, at, head), a.head_gate(batch, at, head).slope);
      case RecurGradient::select:
        return of_select(batch, at, head);
      case RecurGradient::beta:
        return of_beta(batch, at, head);
      case RecurGradient::bonus:
        return of_bonus(batch, at, head, c);
      case RecurGradient::skip:
        return of_skip(batch, at, head, c);
      case RecurGradient::erase:
      case RecurGradient::low_a:
        return plane(terms.dp, batch, at, head, c);
      default:
        return plane(terms.db, batch, at, head, c);
    }
  }

  // Whether an output reads what find_norm finds: of k dbeta too, which is of beta k^.
  FOVEA_HD bool reads_norm(bool of_q) const {
    if (of_q) return static_cast<bool>(output(RecurGradient::q));
    return output(RecurGradient::k) || (output(RecurGradient::beta) && !terms.key_slices);
  }
  // q^ . dq^ of a row of q, or the same of k: what the gradient of its norm takes.
  FOVEA_HD void find_norm(bool of_q, int64_t batch, int64_t at, int64_t head) const {
    const Recur& a = forward;
    if (!a.in_use(batch, at)) return;
    const Floats<4>& x = of_q ? a.q : a.k;
    float squares = 0, along = 0;
    for (int64_t c = 0; c < a.d; ++c) {
      const float value = x(batch, at, head, c);
      squares += value * value;
    }
    const float size = 1 / sqrtf(squares + a.eps);
    float* to_norm = of_q ? terms.q_norm + (batch * a.s + at) * a.h * 2 + head * 2
                          : terms.k_norm + (batch * a.s + at) * a.g * 2 + head * 2;
    to_norm[0] = size;
    for (int64_t c = 0; c < a.d; ++c)
      along += x(batch, at, head, c) * size *
               (of_q ? query_hat(batch, at, head, c) : key_hat(batch, at, head, c));
    to_norm[1] = along;
  }

 private:
  static FOVEA_HD float times(float gradient, float slope) {
    return gradient == 0 || slope == 0 ? 0 : gradient * slope;
  }
  static FOVEA_HD float over(int64_t slices, const float* x, int64_t rows, int64_t i) {
    float sum = 0;
    for (int64_t slice = 0; slice < slices; ++slice) sum += x[slice * rows + i];
    return sum;
  }
  FOVEA_HD float over_slices(const float* x, int64_t rows, int64_t i) const {
    return over(terms.slices, x, rows, i);
  }
  FOVEA_HD float over_key_slices(const float* x, int64_t rows, int64_t i) const {
    return over(terms.key_slices ? terms.key_slices : terms.slices, x, rows, i);
  }
  // Of an array (slices, b s, heads, d).
  FOVEA_HD float plane(const float* x, int64_t batch, int64_t at, int64_t head, int64_t c) const {
    const Recur& a = forward;
    return over_slices(x, a.b * a.s * a.heads * a.d,
                       ((batch * a.s + at) * a.heads + head) * a.d + c);
  }
  FOVEA_HD float decay(int64_t batch, int64_t at, int64_t head, int64_t c) const {
    return plane(terms.dg, batch, at, head, c);
  }
  FOVEA_HD float row_decay(int64_t batch, int64_t at, int64_t head) const {
    const Recur& a = forward;
    if (terms.row_dg)
      return over_key_slices(terms.row_dg, a.b * a.s * a.heads,
                             (batch * a.s + at) * a.heads + head);
    float sum = 0;
    for (int64_t c = 0; c < forward.d; ++c) sum += decay(batch, at, head, c);
    return sum;
  }
  FOVEA_HD float column_decay(int64_t batch, int64_t at, int64_t head, int64_t j) const {
    const Recur& a = forward;
    return terms.dgv[((batch * a.s + at) * a.heads + head) * a.e + j];
  }
  FOVEA_HD float bonus_term(int64_t batch, int64_t at, int64_t output) const {
    const Recur& a = forward;
    return a.scale * over_slices(terms.de, a.b * a.s * a.heads_out,
                                 (batch * a.s + at) * a.heads_out + output);
  }
  FOVEA_HD float mapped_query(int64_t batch, int64_t at, int64_t head, int64_t c) const {
    return feature_of(forward.map_q, forward.q(batch, at, head, c)).value;
  }
  FOVEA_HD float key_norm(int64_t batch, int64_t at, int64_t head) const {
    return forward.l2_norm ? terms.k_norm[((batch * forward.s + at) * forward.g + head) * 2] : 1.f;
  }
  // k^ of a state head.
  FOVEA_HD float mapped_key(int64_t batch, int64_t at, int64_t head, int64_t c) const {
    const Recur& a = forward;
    const int64_t from = a.key_head(head);
    return a.select_of(batch, at, head) * feature_of(a.map_k, a.k(batch, at, from, c)).value *
           key_norm(batch, at, from);
  }

  // The gradient of q^, of all that read the head.
  FOVEA_HD float query_hat(int64_t batch, int64_t at, int64_t head, int64_t c) const {
    const Recur& a = forward;
    const int64_t each = a.heads_out / a.h;
    float sum = 0;
    for (int64_t j = head * each; j < (head + 1) * each; ++j) {
      sum += over_slices(terms.dq, a.b * a.s * a.heads_out * a.d,
                         ((batch * a.s + at) * a.heads_out + j) * a.d + c);
      if (!a.bonus) continue;
      const int64_t n = j / a.outputs();
      sum += bonus_term(batch, at, j) * *a.bonus.at(n, c) * mapped_key(batch, at, n, c);
    }
    return sum;
  }
  FOVEA_HD float of_query(int64_t batch, int64_t at, int64_t head, int64_t c) const {
    const Recur& a = forward;
    const float hat = query_hat(batch, at, head, c);
    if (!a.l2_norm) return times(hat, feature_of(a.map_q, a.q(batch, at, head, c)).slope);
    const float* norm = terms.q_norm + ((batch * a.s + at) * a.h + head) * 2;
    return norm[0] * (hat - a.q(batch, at, head, c) * norm[0] * norm[1]);
  }
  // The gradient of k^ of a state head.
  FOVEA_HD float state_key_hat(int64_t batch, int64_t at, int64_t head, int64_t c) const {
    const Recur& a = forward;
    float sum = over_key_slices(terms.dk, a.b * a.t * a.heads * a.d,
                                ((batch * a.t + at) * a.heads + head) * a.d + c);
    if (a.form == Recurrence::corrected && !a.erase && terms.dp)
      sum += a.beta_at(batch, at, head).value * plane(terms.dp, batch, at, head, c);
    for (int64_t j = head * a.outputs(); a.bonus && j < (head + 1) * a.outputs(); ++j)
      sum += bonus_term(batch, at, j) * *a.bonus.at(head, c) *
             mapped_query(batch, at, a.query_head(j), c);
    return sum;
  }
  FOVEA_HD float key_hat(int64_t batch, int64_t at, int64_t head, int64_t c) const {
    const Recur& a = forward;
    const int64_t each = a.heads / a.g;
    float sum = 0;
    for (int64_t n = head * each; n < (head + 1) * each; ++n)
      sum += a.select_of(batch, at, n) * state_key_hat(batch, at, n, c);
    return sum;
  }
  FOVEA_HD float of_key(int64_t batch, int64_t at, int64_t head, int64_t c) const {
    const Recur& a = forward;
    const float hat = key_hat(batch, at, head, c);
    if (!a.l2_norm) return times(hat, feature_of(a.map_k, a.k(batch, at, head, c)).slope);
    const float* norm = terms.k_norm + ((batch * a.s + at) * a.g + head) * 2;
    return norm[0] * (hat - a.k(batch, at, head, c) * norm[0] * norm[1]);
  }
  FOVEA_HD float of_select(int64_t batch, int64_t at, int64_t head) const {
    const Recur& a = forward;
    float sum = 0;
    for (int64_t slice = 0; terms.select && slice < terms.select_slices; ++slice)
      sum += terms.select[((slice * a.heads + head) * a.b + batch) * a.t + at];
    if (terms.select) return sum;
    for (int64_t c = 0; c < a.d; ++c)
      sum += state_key_hat(batch, at, head, c) *
             feature_of(a.map_k, a.k(batch, at, a.key_head(head), c)).value;
    return sum;
  }
  // Has the row an output whose gradient counts?
  FOVEA_HD bool has_output(int64_t batch, int64_t at) const {
    const RunTokens q = forward.run[forward.sequence_of(batch, at)];
    return at - q.begin >= q.from;
  }
  FOVEA_HD float of_value(int64_t batch, int64_t at, int64_t head, int64_t j) const {
    const Recur& a = forward;
    const int64_t each = a.heads / a.x;
    float sum = 0;
    for (int64_t n = head * each; n < (head + 1) * each; ++n) {
      sum += terms.dv[((batch * a.t + at) * a.heads + n) * a.e + j];
      if (!a.skip || !has_output(batch, at)) continue;
      for (int64_t output = n * a.outputs(); output < (n + 1) * a.outputs(); ++output)
        sum += *a.skip.at(n, j) * a.o(batch, at, output, j);
    }
    return sum;
  }
  FOVEA_HD float of_rate(int64_t batch, int64_t at, int64_t head) const {
    const Recur& a = forward;
    float sum = 0, rows = 0;
    if (terms.row_dg) rows = row_decay(batch, at, head);
    for (int64_t c = 0; a.row_gates() && !terms.row_dg && c < a.d; ++c) {
      const float dg = decay(batch, at, head, c);
      rows += dg;
      if (a.gate_key) sum += times(dg, a.key_gate(batch, at, head, c).by_rate);
    }
    if (a.gate_head) sum += times(rows, a.head_gate(batch, at, head).by_rate);
    for (int64_t j = 0; a.gate_value && j < a.e; ++j)
      sum += times(column_decay(batch, at, head, j), a.value_gate(batch, at, head, j).by_rate);
    return sum;
  }
  FOVEA_HD float of_beta(int64_t batch, int64_t at, int64_t head) const {
    const Recur& a = forward;
    float sum =
        over_key_slices(terms.dbeta, a.b * a.s * a.heads, (batch * a.s + at) * a.heads + head);
    for (int64_t c = 0; !a.erase && terms.dp && c < a.d; ++c)
      sum += plane(terms.dp, batch, at, head, c) * mapped_key(batch, at, head, c);
    return times(sum, a.beta_at(batch, at, head).slope);
  }
  FOVEA_HD float of_bonus(int64_t batch, int64_t at, int64_t head, int64_t c) const {
    const Recur& a = forward;
    float sum = 0;
    for (int64_t j = head * a.outputs(); j < (head + 1) * a.outputs(); ++j)
      sum += bonus_term(batch, at, j) * mapped_query(batch, at, a.query_head(j), c);
    return sum * mapped_key(batch, at, head, c);
  }
  FOVEA_HD float of_skip(int64_t batch, int64_t at, int64_t head, int64_t j) const {
    const Recur& a = forward;
    if (!has_output(batch, at)) return 0;
    float sum = 0;
    for (int64_t output = head * a.outputs(); output < (head + 1) * a.outputs(); ++output)
      sum += a.o(batch, at, output, j);
    return sum * a.value_of(batch, at, head, j);
  }
};

// Calls visit(what) for every output that is given.
template <class Visit>
void each_gradient(const RecurBackward& b, Visit visit) {
  for (int i = 0; i < kRecurGradients; ++i)
    if (b.to[i]) visit(static_cast<RecurGradient>(i));
}

}  // namespace fovea
