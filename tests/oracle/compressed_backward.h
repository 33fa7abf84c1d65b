// SPDX-License-Identifier: Apache-2.0
// x_compressed_backward from the comment of experimental/compressed.h: the formula of
// attention_backward.h over all keys that a row sees, side by side, under the given lists.
//   Rounded mode rounds dq of either set of keys where it is stored.
#pragma once
#include "attention_backward.h"
#include "compressed.h"

namespace oracle {

struct CompressedGradients {
  Out dq, dk, dv, dk_compressed, dv_compressed, dsink_logit;
};

class CompressedBackward {
 public:
  using Params = fovea_x_compressed_backward_params;

  explicit CompressedBackward(const Params& p)
      : p_(p), forward_(of_forward(p)), oracle_(forward_, true) {}

  const CompressedOracle& oracle() const { return oracle_; }
  // What the forward gives: o and lse are inputs here.
  CompressedResult forward() { return oracle_.run(Mode::exact); }

  // After forward(), and with its results in the inputs.
  CompressedGradients run(Mode mode) const { return mode == Mode::exact ? exact() : rounded(); }

 private:
  static fovea_x_compressed_forward_params of_forward(const Params& p) {
    fovea_x_compressed_forward_params f{};
    f.q = p.q, f.k = p.k, f.v = p.v, f.o = p.o, f.lse = p.lse;
    f.k_compressed = p.k_compressed, f.v_compressed = p.v_compressed, f.sink_logit = p.sink_logit;
    f.query_len = p.query_len, f.key_len = p.key_len, f.compressed_len = p.compressed_len;
    f.index = p.index, f.index_count = p.index_count;
    f.compress_step = p.compress_step, f.window = p.window, f.scale = p.scale;
    return f;
  }

  // Rows `first` to `first` + to.shape[1] of gradients of keys side by side.
  template <class Real>
  Out rows(const fovea_tensor& to, int64_t first, const std::vector<Real>& sums,
           const std::vector<double>& terms, double condition, Mode mode) const {
    if (!to.data) return {};
    Out out(to, unit_of(p_.q.dtype));
    out.condition = condition;
    const int64_t all = p_.k.shape[1] + p_.k_compressed.shape[1], width = to.shape[3];
    const int64_t each = to.shape[1] * to.shape[2];  // rows of heads of a sequence
    for (int64_t n = 0; n < to.shape[0] * each; ++n) {
      const int64_t from = each ? n / each * all * to.shape[2] + first * to.shape[2] + n % each : 0;
      out.terms(terms[static_cast<size_t>(from)]);
      for (int64_t c = 0; c < width; ++c) {
        const auto value = static_cast<double>(sums[static_cast<size_t>(from * width + c)]);
        out.set(n * width + c, mode == Mode::rounded ? round_to(to.dtype, value) : value);
      }
    }
    return out;
  }
  template <class Real>
  void sink(const Gradients<Real>& of, CompressedGradients& out, Mode mode) const {
    if (!p_.dsink_logit.data) return;
    out.dsink_logit = gather(p_.dsink_logit, of.dsink_logit, 0, mode);
    out.dsink_logit.terms(of.dsink_terms), out.dsink_logit.condition = of.condition;
  }
  Incoming incoming() const { return {load(p_.o), load(p_.lse), load(p_.dout), {}}; }

  CompressedGradients exact() const {
    const auto g = gradients<double>(oracle_.whole(), incoming(), Mode::exact);
    CompressedGradients out;
    const int64_t t = p_.k.shape[1];
    const auto of = [&](const fovea_tensor& to, int64_t first, const std::vector<double>& sums,
                        const std::vector<double>& terms) {
      return rows(to, first, sums, terms, g.condition, Mode::exact);
    };
    out.dk = of(p_.dk, 0, g.dk, g.dk_terms), out.dv = of(p_.dv, 0, g.dv, g.dv_terms);
    out.dk_compressed = of(p_.dk_compressed, t, g.dk, g.dk_terms);
    out.dv_compressed = of(p_.dv_compressed, t, g.dv, g.dv_terms);
    if (p_.dq.data) {
      out.dq = gather(p_.dq, g.dq, unit_of(p_.q.dtype), Mode::exact);
      for (const double x : g.dq_terms) out.dq.terms(x);
      out.dq.condition = g.condition;
    }
    sink(g, out, Mode::exact);
    return out;
  }

  CompressedGradients rounded() const {
    const Gradients<float> part[] = {gradients<float>(oracle_.part(0), incoming(), Mode::rounded),
                                     gradients<float>(oracle_.part(1), incoming(), Mode::rounded)};
    const double condition = std::max(part[0].condition, part[1].condition);
    CompressedGradients out;
    const int64_t t = p_.k.shape[1];
    const auto of = [&](const fovea_tensor& to, int64_t first, const std::vector<float>& sums,
                        const std::vector<double>& terms) {
      return rows(to, first, sums, terms, condition, Mode::rounded);
    };
    out.dk = of(p_.dk, 0, part[0].dk, part[0].dk_terms);
    out.dv = of(p_.dv, 0, part[0].dv, part[0].dv_terms);
    out.dk_compressed = of(p_.dk_compressed, t, part[1].dk, part[1].dk_terms);
    out.dv_compressed = of(p_.dv_compressed, t, part[1].dv, part[1].dv_terms);
    if (p_.dq.data) {
      out.dq = Out(p_.dq, unit_of(p_.q.dtype)), out.dq.condition = condition;
      for (size_t n = 0; n < part[0].dq.size(); ++n) {
        double value = 0;
        for (const Gradients<float>& one : part)
          value += round_to(p_.q.dtype, static_cast<double>(one.dq[n]));
        out.dq.set(static_cast<int64_t>(n), round_to(p_.dq.dtype, value));
      }
      for (size_t n = 0; n < part[0].dq_terms.size(); ++n)
        out.dq.terms(part[0].dq_terms[n] + part[1].dq_terms[n]);
    }
    sink(part[0], out, Mode::rounded);
    return out;
  }

  const Params& p_;
  const fovea_x_compressed_forward_params forward_;
  CompressedOracle oracle_;
};

}  // namespace oracle
