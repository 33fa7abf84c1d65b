// SPDX-License-Identifier: Apache-2.0
// Convolutional attention backward by the written formula, from the o and lse it is given:
//   delta_i = <dout_i, o_i>,  P_ij = exp(A_ij - lse_i),  dA_ij = P_ij (<dout_i, v_j> - delta_i)
//   dW[u,v] = sum_ij dA_ij S[i - (c_q - 1) + u, j - pl + v],  dv_j = sum_i P_ij dout_i
//   dS_mn = sum_uv W[u,v] dA[m + (c_q - 1) - u, n + pl - v] where row m sees key n, else 0
//   dq_m = scale sum_n dS_mn k_n,  dk_n = scale sum_m dS_mn q_m
// Rounded mode is float32 with P and dS rounded where they enter a product, and outputs rounded;
// where q is f16 or bf16 S and W as in the forward, and dA to f16 in units of the power of two
// above the head's largest |dout|, which tensor cores convolve.
#pragma once
#include "conv_attention.h"

namespace oracle {

struct ConvIncoming {
  Dense o, lse, dout;
};

// Sums, and for each row what was added in absolute value.
template <class Real>
struct ConvGradients {
  std::vector<Real> dq, dk, dv, dweight;
  std::vector<double> dq_terms, dk_terms, dv_terms, dweight_terms;
  double condition = 0;

  explicit ConvGradients(const ConvAttention& a)
      : dq(a.q.value.size()),
        dk(a.k.value.size()),
        dv(a.v.value.size()),
        dweight(a.weight.value.size()),
        dq_terms(dq.size() / a.d),
        dk_terms(dk.size() / a.d),
        dv_terms(dv.size() / a.e),
        dweight_terms(dweight.size()) {}
};

// Of one sequence and head: from dA, dweight, dS, dq and dk.
template <class Real>
class ConvSlopes {
 public:
  ConvSlopes(const ConvAttention& a, const Sequence& q, int64_t head, Mode mode,
             ConvGradients<Real>& out)
      : x(a, q, head, mode), da(x.s.size()), da_terms(x.s.size()), mode_(mode), out_(out) {}

  const Logits<Real> x;
  std::vector<Real> da;
  std::vector<double> da_terms;

  void run() {
    const Sequence& q = x.q;
    for (int64_t i = 0; i < q.rows; ++i)
      for (int64_t j = 0; j < q.keys; ++j) weights(i, j);
    for (int64_t m = 0; m < q.rows; ++m)
      for (int64_t n = 0; n < q.keys; ++n)
        if (x.sees(m, n)) score(m, n);
  }

 private:
  void weights(int64_t i, int64_t j) {
    const int64_t n = i * x.q.keys + j;
    if (da_terms[n] == 0) return;
    x.taps(i, j, [&](int64_t u, int64_t v, int64_t m, int64_t key) {
      if (m < 0 || key < 0 || key >= x.q.keys) return;
      const int64_t to = x.a.weight.at_index(x.head, u, v);
      out_.dweight[to] += da[n] * x.s[m * x.q.keys + key];
      out_.dweight_terms[to] += da_terms[n] * std::abs(x.s[m * x.q.keys + key]);
    });
  }

  void score(int64_t m, int64_t n) {
    const ConvAttention& a = x.a;
    const int64_t left = (a.kernel_columns - 1) / 2;
    Real ds = 0;
    double terms = 0;
    for (int64_t u = 0; u < a.kernel_rows; ++u)
      for (int64_t v = 0; v < a.kernel_columns; ++v) {
        const int64_t i = m + a.kernel_rows - 1 - u, j = n + left - v;
        if (i >= x.q.rows || j < 0 || j >= x.q.keys) continue;
        const double tap = a.weight(x.head, u, v);
        const double w = x.halves ? round_to(FOVEA_F16, tap) : tap;
        ds += static_cast<Real>(w) * da[i * x.q.keys + j];
        terms += std::abs(w) * da_terms[i * x.q.keys + j];
      }
    if (mode_ == Mode::rounded) ds = static_cast<Real>(round_to(a.q.dtype, ds));
    ds *= static_cast<Real>(a.scale), terms *= a.scale;
    const double *row = x.row(m), *key = x.key(n);
    const int64_t q_at = a.q.at_index(x.q.batch, x.q.row + m, x.head),
                  k_at = a.k.at_index(x.place[n].row, x.place[n].slot, a.key_head(x.head));
    for (int64_t c = 0; c < a.d; ++c) {
      out_.dq[q_at + c] += ds * static_cast<Real>(key[c]);
      out_.dk[k_at + c] += ds * static_cast<Real>(row[c]);
    }
    out_.dq_terms[q_at / a.d] += terms * greatest(key, a.d);
    out_.dk_terms[k_at / a.d] += terms * greatest(row, a.d);
  }

  const Mode mode_;
  ConvGradients<Real>& out_;
};

// Of one sequence and head.
template <class Real>
class ConvHead {
 public:
  ConvHead(const ConvAttention& a, const ConvIncoming& in, const Sequence& q, int64_t head,
           Mode mode, ConvGradients<Real>& out)
      : a_(a),
        in_(in),
        q_(q),
        head_(head),
        mode_(mode),
        slopes_(a, q, head, mode, out),
        out_(out) {}

  void run() {
    for (int64_t i = a_.history; i < q_.rows; ++i)
      largest_ =
          std::max(largest_, greatest(in_.dout.row(q_.batch, a_.out_row(q_, i), head_), a_.e));
    for (int64_t i = a_.history; i < q_.rows; ++i) row(i);
    slopes_.run();
  }

 private:
  // P and dA of row i, and dv.
  void row(int64_t i) {
    const Logits<Real>& x = slopes_.x;
    const int64_t at = a_.out_row(q_, i);
    const double lse = in_.lse(q_.batch, head_, at);
    if (lse == -HUGE_VAL) return;
    const double *dout = in_.dout.row(q_.batch, at, head_), *o = in_.o.row(q_.batch, at, head_);
    const Real delta = inner<Real>(dout, o, a_.e);
    const double size = length(dout, a_.e), o_size = length(o, a_.e);
    for (int64_t j = 0; j < q_.keys; ++j) {
      if (!x.sees(i, j)) continue;
      const int64_t n = i * q_.keys + j;
      Real p = std::exp(x.convolved[n] - static_cast<Real>(lse));
      Real& da = slopes_.da[n];
      da = p * (inner<Real>(dout, x.value(j), a_.e) - delta);
      if (x.halves && largest_ > 0) {
        const double unit = std::exp2(std::floor(std::log2(largest_)) + 1);
        da = static_cast<Real>(round_to(FOVEA_F16, da / unit) * unit);
      }
      slopes_.da_terms[n] = p * size * (length(x.value(j), a_.e) + o_size);
      out_.condition = std::max(out_.condition, x.condition[n]);
      if (mode_ == Mode::rounded) p = static_cast<Real>(round_to(a_.q.dtype, p));
      const int64_t v_at = a_.v.at_index(x.place[j].row, x.place[j].slot, a_.key_head(head_));
      for (int64_t c = 0; c < a_.e; ++c) out_.dv[v_at + c] += p * static_cast<Real>(dout[c]);
      out_.dv_terms[v_at / a_.e] += p * greatest(dout, a_.e);
    }
  }

  const ConvAttention& a_;
  const ConvIncoming& in_;
  const Sequence q_;
  const int64_t head_;
  const Mode mode_;
  ConvSlopes<Real> slopes_;
  ConvGradients<Real>& out_;
  double largest_ = 0;  // |dout|
};

template <class Real>
ConvGradients<Real> conv_gradients(const ConvAttention& a, const ConvIncoming& in, Mode mode) {
  ConvGradients<Real> out(a);
  for (int64_t r = 0; r < a.at.sequences; ++r)
    for (int64_t head = 0; head < a.h; ++head)
      ConvHead<Real>(a, in, sequence(a.at, r), head, mode, out).run();
  return out;
}

struct ConvBackward {
  Out dq, dk, dv, dweight;
};

// The output that `x` asks for: a stride of 0 sums over its dimension, and every element of the sum
// shows it.
template <class Real>
Out conv_output(const fovea_tensor& x, const std::vector<Real>& sums,
                const std::vector<double>& terms, double unit, double condition, Mode mode) {
  Out out;
  if (!x.data) return out;
  out = Out(x, unit);
  out.condition = condition;
  std::vector<double> folded(sums.size()), folded_terms(sums.size());
  std::vector<size_t> first(sums.size());
  const size_t width = terms.empty() ? 1 : sums.size() / terms.size();
  int64_t index[FOVEA_MAX_DIMS] = {};
  for (size_t n = 0; n < sums.size(); ++n) {
    int64_t at = 0;
    for (int i = 0; i < x.ndim; ++i) at = at * x.shape[i] + (x.stride[i] ? index[i] : 0);
    first[n] = static_cast<size_t>(at);
    folded[at] += sums[n];
    folded_terms[at] += terms[n / width];
    for (int i = x.ndim - 1; i >= 0 && ++index[i] == x.shape[i]; --i) index[i] = 0;
  }
  for (size_t n = 0; n < sums.size(); ++n) {
    const double y = folded[first[n]];
    out.set(static_cast<int64_t>(n), mode == Mode::rounded ? round_to(x.dtype, y) : y);
    if (n % width == 0) out.terms(folded_terms[first[n]]);
  }
  return out;
}

template <class Real, class P>
ConvBackward conv_backward(const P& p, Mode mode) {
  const ConvAttention a = load_conv(p);
  const auto x = conv_gradients<Real>(a, {load(p.o), load(p.lse), load(p.dout)}, mode);
  const double unit = unit_of(a.q.dtype), c = x.condition;
  return {conv_output(p.dq, x.dq, x.dq_terms, unit, c, mode),
          conv_output(p.dk, x.dk, x.dk_terms, unit, c, mode),
          conv_output(p.dv, x.dv, x.dv_terms, unit, c, mode),
          conv_output(p.dweight, x.dweight, x.dweight_terms, 0, c, mode)};
}

template <class P>
ConvBackward conv_backward(const P& p, Mode mode) {
  return mode == Mode::exact ? conv_backward<double>(p, mode) : conv_backward<float>(p, mode);
}

}  // namespace oracle
