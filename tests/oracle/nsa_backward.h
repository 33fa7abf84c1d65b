// SPDX-License-Identifier: Apache-2.0
// x_nsa_backward from the comment of experimental/nsa.h: the formula of attention_backward.h over
// what each branch sees, with the forward's lists.
//   Rounded mode rounds a branch's gradients where they are stored: dout, dq, dk, dv of each.
#pragma once
#include "attention_backward.h"
#include "nsa.h"

namespace oracle {

struct NsaGradients {
  Out dq, dk, dv, dk_compressed, dv_compressed, dk_window, dv_window, dgate[3];
};

class NsaBackward {
 public:
  using Params = fovea_x_nsa_backward_params;

  // `count`: of the forward.
  NsaBackward(const Params& p, int64_t count) : p_(p), forward_{}, oracle_(of_forward(count)) {}

  const Layout& layout() const { return oracle_.layout(); }
  int64_t compressed(int64_t keys) const { return oracle_.compressed(keys); }
  // What the forward gives: o, lse and lists are inputs here.
  NsaResult forward() { return oracle_.run(Mode::exact); }

  // After forward(), and with its results in the inputs.
  NsaGradients run(Mode mode) {
    return mode == Mode::exact ? gradients_of<double>(mode) : gradients_of<float>(mode);
  }

 private:
  const fovea_x_nsa_forward_params& of_forward(int64_t count) {
    fovea_x_nsa_forward_params& f = forward_;
    f.q = p_.q, f.k = p_.k, f.v = p_.v, f.o = p_.dout;
    f.k_compressed = p_.k_compressed, f.v_compressed = p_.v_compressed;
    f.k_window = p_.k_window, f.v_window = p_.v_window;
    f.gate_compressed = p_.gate_compressed, f.gate_selected = p_.gate_selected;
    f.gate_window = p_.gate_window;
    f.query_len = p_.query_len, f.key_len = p_.key_len, f.compressed_len = p_.compressed_len;
    f.index = p_.index, f.index_count = p_.index_count;
    f.o_compressed = p_.o_compressed, f.o_selected = p_.o_selected, f.o_window = p_.o_window;
    f.lse_compressed = p_.lse_compressed, f.lse_selected = p_.lse_selected;
    f.lse_window = p_.lse_window;
    f.compress_keys = p_.compress_keys, f.compress_step = p_.compress_step, f.count = count;
    f.window = p_.window, f.scale = p_.scale, f.block_keys = p_.block_keys;
    f.gate_plain = p_.gate_plain;
    return f;
  }

  // One branch's gradient of a tensor as it is stored, and the terms of each of its rows.
  struct Part {
    std::vector<double> value, terms;
  };
  template <class Real>
  Part stored(const std::vector<Real>& x, const std::vector<double>& terms, Mode mode) const {
    Part part{{}, terms};
    for (Real y : x) {
      const auto value = static_cast<double>(y);
      part.value.push_back(mode == Mode::rounded ? round_to(p_.q.dtype, value) : value);
    }
    return part;
  }
  // The sum of parts with rows of `columns`, as an output.
  Out sum(const fovea_tensor& to, int64_t columns, const std::vector<const Part*>& parts,
          double condition, Mode mode) const {
    if (!to.data) return {};
    Out out(to, unit_of(p_.q.dtype));
    out.condition = condition;
    for (size_t n = 0; n < out.value.size(); ++n) {
      double value = 0;
      for (const Part* part : parts) value += part->value[n];
      out.set(static_cast<int64_t>(n), mode == Mode::rounded ? round_to(to.dtype, value) : value);
    }
    for (size_t row = 0; row < out.value.size() / static_cast<size_t>(columns); ++row) {
      double terms = 0;
      for (const Part* part : parts) terms += part->terms[row];
      out.terms(terms);
    }
    return out;
  }
  // What means of x pass on to x (b, t, g, columns).
  Part to_tokens(const Part& means, const fovea_tensor& x, Mode mode) const {
    const int64_t each = p_.compress_keys ? p_.compress_keys : 32,
                  step = p_.compress_step ? p_.compress_step : 16;
    const int64_t t = x.shape[1], g = x.shape[2], columns = x.shape[3], u = compressed(t);
    Part part;
    for (int64_t b = 0; b < x.shape[0]; ++b)
      for (int64_t j = 0; j < t; ++j)
        for (int64_t head = 0; head < g; ++head) {
          std::vector<double> value(static_cast<size_t>(columns));
          double terms = 0;
          for (int64_t c = 0; c < u; ++c) {
            if (j < c * step || j >= c * step + each) continue;
            const auto row = static_cast<size_t>((b * u + c) * g + head);
            for (size_t n = 0; n < value.size(); ++n)
              value[n] += means.value[row * value.size() + n] / static_cast<double>(each);
            terms += means.terms[row] / static_cast<double>(each);
          }
          for (double y : value)
            part.value.push_back(mode == Mode::rounded ? round_to(x.dtype, y) : y);
          part.terms.push_back(terms);
        }
    return part;
  }

  template <class Real>
  NsaGradients gradients_of(Mode mode) {
    const fovea_tensor* o[] = {&p_.o_compressed, &p_.o_selected, &p_.o_window};
    const fovea_tensor* lse[] = {&p_.lse_compressed, &p_.lse_selected, &p_.lse_window};
    const fovea_tensor* gates[] = {&p_.gate_compressed, &p_.gate_selected, &p_.gate_window};
    const fovea_tensor* dgates[] = {&p_.dgate_compressed, &p_.dgate_selected, &p_.dgate_window};
    const std::array<Attention, 3> branches = oracle_.branches(mode);
    NsaGradients out;
    Part dq[3], dk[3], dv[3];
    double condition = 0;
    for (size_t n = 0; n < 3; ++n) {
      Incoming in{load(*o[n]), load(*lse[n]), load(p_.dout), {}};
      out.dgate[n] = split<Real>(load(*gates[n]), *dgates[n], in, mode);
      const Gradients<Real> g = gradients<Real>(branches[n], in, mode);
      dq[n] = stored(g.dq, g.dq_terms, mode), dk[n] = stored(g.dk, g.dk_terms, mode);
      dv[n] = stored(g.dv, g.dv_terms, mode), condition = std::max(condition, g.condition);
    }
    std::vector<const Part*> of_k = {&dk[1]}, of_v = {&dv[1]};
    if (!p_.k_window.data) of_k.push_back(&dk[2]), of_v.push_back(&dv[2]);
    Part k, v;
    if (!p_.k_compressed.data) {
      k = to_tokens(dk[0], p_.k, mode), v = to_tokens(dv[0], p_.v, mode);
      of_k.push_back(&k), of_v.push_back(&v);
    }
    const int64_t d = p_.q.shape[3], e = p_.v.shape[3];
    out.dq = sum(p_.dq, d, {&dq[0], &dq[1], &dq[2]}, condition, mode);
    out.dk = sum(p_.dk, d, of_k, condition, mode), out.dv = sum(p_.dv, e, of_v, condition, mode);
    out.dk_compressed = sum(p_.dk_compressed, d, {&dk[0]}, condition, mode);
    out.dv_compressed = sum(p_.dv_compressed, e, {&dv[0]}, condition, mode);
    out.dk_window = sum(p_.dk_window, d, {&dk[2]}, condition, mode);
    out.dv_window = sum(p_.dv_window, e, {&dv[2]}, condition, mode);
    return out;
  }

  // A branch's dout from that of the sum, and the gradient of its gate.
  template <class Real>
  Out split(const Dense& gate, const fovea_tensor& dgate, Incoming& in, Mode mode) const {
    const bool rounds = mode == Mode::rounded;
    const int64_t s = p_.q.shape[1], h = p_.q.shape[2], e = p_.v.shape[3];
    Out out = dgate.data ? Out(dgate, 0) : Out();
    in.dout.dtype = p_.q.dtype;
    for (int64_t b = 0; b < p_.q.shape[0]; ++b)
      for (int64_t line = b * s * h; line < (b + 1) * s * h; ++line) {
        const bool used = line / h - b * s < sequence(layout(), b).rows;
        double slope, terms = 0;
        const Real w =
            used ? static_cast<Real>(NsaOracle::gate_of(gate, p_.gate_plain, line, &slope)) : 0;
        Real product = 0;
        for (int64_t c = line * e; used && c < (line + 1) * e; ++c) {
          double& dout = in.dout.value[static_cast<size_t>(c)];
          const Real one = static_cast<Real>(slope) *
                           static_cast<Real>(in.o.value[static_cast<size_t>(c)]) *
                           static_cast<Real>(dout);
          product += one, terms += std::abs(static_cast<double>(one));
          dout = static_cast<double>(w * static_cast<Real>(dout));
          if (rounds) dout = round_to(p_.q.dtype, dout);
        }
        if (!dgate.data) continue;
        const auto value = static_cast<double>(product);
        out.set(line, rounds ? round_to(dgate.dtype, value) : value), out.terms(terms);
      }
    return out;
  }

  const Params& p_;
  fovea_x_nsa_forward_params forward_;
  NsaOracle oracle_;
};

}  // namespace oracle
