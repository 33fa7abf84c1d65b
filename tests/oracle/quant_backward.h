// SPDX-License-Identifier: Apache-2.0
// x_quant_backward from the comment of experimental/quantised.h (SageBwd, algorithm 3), a tile of
// 64 rows and 64 keys at a time:
//   exact: gradients of attention over the numbers that q's and k's codes stand for, in float64
//   rounded: p, ds and dout in 8 bits too, sums of tiles in float32
// Which numbers q and k stand for is the caller's: codes of quant_quantize, or a paper's rounding.
#pragma once
#include "quantised.h"

namespace oracle {

struct QuantGradients {
  Out dq, dk, dv;
};

// Numbers that share a scale, as codes of i8 times it.
inline void round_together(std::vector<double>& x) {
  double most = 0;
  for (double y : x) most = std::max(most, std::abs(y));
  if (most < 0x1p-100) std::fill(x.begin(), x.end(), 0);
  for (double& y : x)
    if (most >= 0x1p-100) y = std::nearbyint(y / most * 127) * most / 127;
}

class TileGradients {
 public:
  using Params = fovea_x_quant_backward_params;
  TileGradients(const QuantAttention& a, const Params& p)
      : a_(a),
        p_(p),
        o_(load(p.o)),
        lse_(load(p.lse)),
        dout_(load(p.dout)),
        dq_(a.q.value.size()),
        dk_(a.k.value.size()),
        dv_(a.v.value.size()),
        dq_terms_(dq_.size() / a.d),
        dk_terms_(dk_.size() / a.d),
        dv_terms_(dv_.size() / a.e) {}

  // o and lse of the same numbers, as the calls that follow read them.
  static std::pair<std::vector<double>, std::vector<double>> forward(const QuantAttention& a,
                                                                     const Params& p) {
    std::vector<double> o(a.b * a.s * a.h * a.e), lse(a.b * a.h * a.s, -HUGE_VAL);
    const TileGradients of(a, p);
    of.each_head([&](const Sequence& q, int64_t head) {
      for (int64_t i = 0; i < q.rows; ++i) {
        const int64_t at = (q.batch * a.s + q.row + i) * a.h + head;
        const double constant = a.row_constant(q, head, i);
        double top = -HUGE_VAL, sum = 0;
        std::vector<double> x(q.keys, -HUGE_VAL);
        for (int64_t j = 0; j < q.keys; ++j)
          if (of.sees(q, i, j)) top = std::max(top, x[j] = of.score(q, head, i, j, constant));
        for (int64_t j = 0; j < q.keys; ++j) sum += top == -HUGE_VAL ? 0 : std::exp(x[j] - top);
        for (int64_t j = 0; j < q.keys && sum > 0; ++j)
          for (int64_t c = 0; c < a.e; ++c)
            o[at * a.e + c] += std::exp(x[j] - top) / sum * of.value(q, head, j)[c];
        if (sum > 0) lse[(q.batch * a.h + head) * a.s + q.row + i] = top + std::log(sum);
      }
    });
    return {o, lse};
  }

  QuantGradients run(Mode mode) {
    exact_ = mode == Mode::exact;
    each_head([&](const Sequence& q, int64_t head) {
      for (int64_t i = 0; i < q.rows; i += 64)
        for (int64_t j = 0; j < q.keys; j += 64)
          tile(q, head, i, std::min<int64_t>(64, q.rows - i), j, std::min<int64_t>(64, q.keys - j));
    });
    return {made(p_.dq, dq_, dq_terms_), made(p_.dk, dk_, dk_terms_), made(p_.dv, dv_, dv_terms_)};
  }

 private:
  template <class Visit>
  void each_head(Visit visit) const {
    for (int64_t r = 0; r < a_.at.sequences; ++r)
      for (int64_t head = 0; head < a_.h; ++head) visit(sequence(a_.at, r), head);
  }
  double real(double x) const { return exact_ ? x : static_cast<double>(static_cast<float>(x)); }
  int64_t key_head(int64_t head) const { return head / (a_.h / a_.g); }
  bool sees(const Sequence& q, int64_t i, int64_t j) const {
    const int64_t position = i + q.keys - q.rows;
    return (a_.right == 0 || j < position + a_.right) && (a_.left == 0 || j > position - a_.left);
  }
  double query(const Sequence& q, int64_t head, int64_t i, int64_t c) const {
    return a_.q(q.batch, q.row + i, head, c) *
           a_.q_scale(a_.at.query_start, q.batch, head, q.r, i, c);
  }
  double key(const Sequence& q, int64_t head, int64_t j, int64_t c) const {
    const int64_t g = key_head(head);
    return a_.k(q.cache, q.store + j, g, c) * a_.k_scale(a_.at.key_start, q.cache, g, q.r, j, c);
  }
  const double* value(const Sequence& q, int64_t head, int64_t j) const {
    return a_.v.row(q.cache, q.store + j, key_head(head));
  }
  // constant: what scores of row i lack.
  double score(const Sequence& q, int64_t head, int64_t i, int64_t j, double constant) const {
    double dot = 0;
    for (int64_t c = 0; c < a_.d; ++c) dot += query(q, head, i, c) * key(q, head, j, c);
    return real(real(a_.scale * dot) + real(constant));
  }
  static double length(const double* x, int64_t n) {
    double sum = 0;
    for (int64_t c = 0; c < n; ++c) sum += x[c] * x[c];
    return std::sqrt(sum);
  }

  void tile(const Sequence& q, int64_t head, int64_t i0, int64_t rows, int64_t j0, int64_t keys) {
    std::vector<double> p(rows * keys), ds(rows * keys), dout(rows * a_.e), size(rows * keys);
    bool any = false;
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t row = q.row + i0 + i;
      const double *gradient = dout_.row(q.batch, row, head), *o = o_.row(q.batch, row, head);
      std::copy_n(gradient, a_.e, dout.begin() + i * a_.e);
      const double constant = a_.row_constant(q, head, i0 + i);
      constant_ = std::max(constant_, std::abs(constant));
      double delta = 0;
      for (int64_t c = 0; c < a_.e; ++c) delta = real(delta + gradient[c] * o[c]);
      for (int64_t j = 0; j < keys; ++j) {
        if (!sees(q, i0 + i, j0 + j)) continue;
        any = true;
        const double *v = value(q, head, j0 + j), x = score(q, head, i0 + i, j0 + j, constant);
        double dp = 0;
        for (int64_t c = 0; c < a_.e; ++c) dp = real(dp + gradient[c] * v[c]);
        const int64_t at = i * keys + j;
        p[at] = real(std::exp(x - lse_(q.batch, head, row)));
        ds[at] = real(p[at] * real(dp - delta));
        size[at] = p[at] * length(gradient, a_.e) * (length(v, a_.e) + length(o, a_.e));
      }
    }
    if (!any) return;
    std::vector<double> plain = p;
    if (!exact_) round_together(p), round_together(ds), round_together(dout);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < keys; ++j)
        if (sees(q, i0 + i, j0 + j))
          note(q, head, i0 + i, j0 + j, plain[i * keys + j], size[i * keys + j]);
    add(q, head, {i0, rows, j0, keys}, p, ds, dout);
  }

  // How large the terms are that a pair adds.
  void note(const Sequence& q, int64_t head, int64_t i, int64_t j, double p, double ds) {
    double q_most = 0, k_most = 0, dout_most = 0, q_norm = 0, k_norm = 0;
    for (int64_t c = 0; c < a_.d; ++c) {
      const double x = query(q, head, i, c), y = key(q, head, j, c);
      q_most = std::max(q_most, std::abs(x)), k_most = std::max(k_most, std::abs(y));
      q_norm += x * x, k_norm += y * y;
    }
    for (int64_t c = 0; c < a_.e; ++c)
      dout_most = std::max(dout_most, std::abs(dout_(q.batch, q.row + i, head, c)));
    condition_ = std::max(condition_, a_.scale * std::sqrt(q_norm * k_norm));
    dq_terms_[(q.batch * a_.s + q.row + i) * a_.h + head] += a_.scale * ds * k_most;
    const int64_t at = (q.cache * a_.at.extent + q.store + j) * a_.g + key_head(head);
    dk_terms_[at] += a_.scale * ds * q_most, dv_terms_[at] += p * dout_most;
  }

  struct Part {
    int64_t i0, rows, j0, keys;
  };
  void add(const Sequence& q, int64_t head, const Part& t, const std::vector<double>& p,
           const std::vector<double>& ds, const std::vector<double>& dout) {
    const int64_t g = key_head(head);
    for (int64_t i = 0; i < t.rows; ++i)
      for (int64_t c = 0; c < a_.d; ++c) {
        double sum = 0;
        for (int64_t j = 0; j < t.keys; ++j) sum += ds[i * t.keys + j] * key(q, head, t.j0 + j, c);
        double& to = dq_[a_.q.at_index(q.batch, q.row + t.i0 + i, head, c)];
        to = real(to + sum);
      }
    for (int64_t j = 0; j < t.keys; ++j) {
      for (int64_t c = 0; c < a_.d; ++c) {
        double sum = 0;
        for (int64_t i = 0; i < t.rows; ++i)
          sum += ds[i * t.keys + j] * query(q, head, t.i0 + i, c);
        double& to = dk_[a_.k.at_index(q.cache, q.store + t.j0 + j, g, c)];
        to = real(to + real(a_.scale * sum));
      }
      for (int64_t c = 0; c < a_.e; ++c) {
        double sum = 0;
        for (int64_t i = 0; i < t.rows; ++i) sum += p[i * t.keys + j] * dout[i * a_.e + c];
        double& to = dv_[a_.v.at_index(q.cache, q.store + t.j0 + j, g, c)];
        to = real(to + sum);
      }
    }
  }

  Out made(const fovea_tensor& x, const std::vector<double>& sums,
           const std::vector<double>& terms) const {
    if (!x.data) return {};
    Out out(x, 1.0 / 254);
    const double factor = &sums == &dq_ ? a_.scale : 1;
    for (size_t i = 0; i < sums.size(); ++i)
      out.set(static_cast<int64_t>(i),
              exact_ ? factor * sums[i] : round_to(x.dtype, real(factor * sums[i])));
    for (double size : terms) out.terms(size);
    out.condition = condition_ + constant_;
    return out;
  }

  const QuantAttention& a_;
  const Params& p_;
  const Dense o_, lse_, dout_;
  bool exact_ = true;
  double condition_ = 0, constant_ = 0;
  std::vector<double> dq_, dk_, dv_, dq_terms_, dk_terms_, dv_terms_;
};

// What the call's q and k stand for: codes of i8 in blocks of 64, k less its mean.
inline QuantAttention load_quant_backward(const fovea_x_quant_backward_params& p) {
  QuantAttention a;
  a.v = load(p.v);
  read_places(a, p);
  const auto codes = [](const fovea_tensor& x, const fovea_tensor& start, int smooth, Dense& code,
                        Scales& scale, Dense* mean) {
    const int64_t b = x.shape[0], s = x.shape[1], h = x.shape[2], d = x.shape[3];
    const int64_t sequences = start.data ? start.shape[0] - 1 : 1;
    fovea_quant_quantize_params part{};
    part.x = x, part.start = start, part.block = 64, part.smooth = smooth;
    part.code = shaped(FOVEA_I8, {b, s, h, d});
    part.scale = shaped(FOVEA_F32, {b, h, start.data ? s / 64 + sequences : (s + 63) / 64});
    if (smooth) part.mean = shaped(FOVEA_F32, {b, h, sequences, d});
    const QuantizeResult made = quantize(part, Mode::rounded);
    code = dense_of(made.code, part.code);
    scale = {dense_of(made.scale, part.scale), FOVEA_SCALE_GROUP_BLOCK, 64, d, 0};
    if (smooth) *mean = dense_of(made.mean, part.mean);
  };
  codes(p.q, p.query_start, 0, a.q, a.q_scale, nullptr);
  codes(p.k, p.key_start, p.k_smooth, a.k, a.k_scale, &a.k_mean);
  if (a.k_mean) a.q_plain = load(p.q);
  return a;
}

}  // namespace oracle
