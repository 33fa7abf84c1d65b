// SPDX-License-Identifier: Apache-2.0
// x_gla of experimental/linear.h.  Exact mode is the recurrence token by token and its adjoint, as
// the header has them.  Rounded mode is float32 in chunks of 64 rows (oracle/gla_state.h), with
// operands rounded where q is f16 or bf16, and outputs rounded.  Calls that no tensor core serves
// (full, other value gates than alone) are the recurrence in float32.  The normaliser is one more
// column of v, all ones: its state is z.
#pragma once
#include "oracle/conv_attention_backward.h"
#include "oracle/gate_map.h"
#include "oracle/gla_state.h"
#include "oracle/run.h"
#include "oracle/tracked.h"

namespace oracle {

template <class Real>
Mapped<Real> feature_map_of(int32_t map, Real x) {
  if (map == FOVEA_X_FEATURE_MAP_RELU) return {std::max(x, Real{0}), Real(x > 0), 0};
  if (map == FOVEA_X_FEATURE_MAP_ELU_PLUS_ONE)
    return x < 0 ? Mapped<Real>{std::exp(x), std::exp(x), 0} : Mapped<Real>{x + 1, 1, 0};
  if (map == FOVEA_X_FEATURE_MAP_SILU)
    return {x * sigmoid_of(x), sigmoid_of(x) * (1 + x * (1 - sigmoid_of(x))), 0};
  return {x, 1, 0};
}

template <class Real, class P>
class Gla {
 public:
  using List = std::vector<Real>;
  Tracked q, k, v, gate_head, gate_key, gate_value, gate_rate, gate_bias, select, bonus, skip;
  Tracked state_in, z_in, dout, dstate_out, dz_out;

  explicit Gla(const P& p)
      : q(p.q),
        k(p.k),
        v(p.v),
        gate_head(p.gate_head),
        gate_key(p.gate_key),
        gate_value(p.gate_value),
        gate_rate(p.gate_rate),
        gate_bias(p.gate_bias),
        select(p.select),
        bonus(p.bonus),
        skip(p.skip),
        state_in(p.state_in),
        z_in(p.z_in),
        p_(p),
        run_(load_run(p)),
        log_gate_(GateMap::of(p)),
        key_start_(load(p.key_start)),
        key_len_(load(p.key_len)),
        h_(p.q.shape[2]),
        g_(p.k.shape[2]),
        x_(p.v.shape[2]),
        d_(p.q.shape[3]),
        e_(p.v.shape[3]),
        heads_(std::max(g_, x_)),
        heads_out_(std::max(h_, heads_)),
        scale_(p.scale == 0 ? 1 / std::sqrt(static_cast<Real>(d_)) : static_cast<Real>(p.scale)),
        eps_(p.eps == 0 ? Real(1e-6f) : Real(p.eps)) {
    if constexpr (requires { p.dout; })
      dout = Tracked(p.dout), dstate_out = Tracked(p.dstate_out), dz_out = Tracked(p.dz_out);
  }

  struct Forward {
    Out o, state_out, z_out, snapshot, z_snapshot;
  };
  Forward forward(Mode mode) const {
    Forward out{made(p_.o), made(p_.state_out), made(p_.z_out), made(p_.snapshot),
                made(p_.z_snapshot)};
    for (int64_t i = 0; i < run_.r; ++i)
      for (int64_t n = 0; n < heads_; ++n) forward_of(head_of(i, n, mode), mode, out);
    return out;
  }

  struct Backward {
    Out dq, dk, dv, dgate_head, dgate_key, dgate_value, dgate_rate, dgate_bias, dselect, dbonus,
        dskip, dstate_in, dz_in;
  };
  Backward backward(Mode mode) const {
    Sums sums(*this);
    for (int64_t i = 0; i < run_.r; ++i)
      for (int64_t n = 0; n < heads_; ++n) backward_of(head_of(i, n, mode), mode, sums);
    const auto out = [&](const fovea_tensor& x, const Sum& sum) {
      return conv_output(x, sum.value, sum.terms, unit_of(p_.q.dtype), 0, mode);
    };
    return {out(p_.dq, sums.dq),
            out(p_.dk, sums.dk),
            out(p_.dv, sums.dv),
            out(p_.dgate_head, sums.dgate_head),
            out(p_.dgate_key, sums.dgate_key),
            out(p_.dgate_value, sums.dgate_value),
            out(p_.dgate_rate, sums.dgate_rate),
            out(p_.dgate_bias, sums.dgate_bias),
            out(p_.dselect, sums.dselect),
            out(p_.dbonus, sums.dbonus),
            out(p_.dskip, sums.dskip),
            out(p_.dstate_in, sums.dstate_in),
            out(p_.dz_in, sums.dz_in)};
  }

 private:
  static constexpr bool kBackward = requires(const P& p) { p.dout; };

  Out made(const fovea_tensor& x) const { return x.data ? Out(x, unit_of(p_.q.dtype)) : Out(); }

  // One state head of one sequence, with what its maps did.
  struct Head {
    int64_t i, n;
    RunOracle::Tokens at;
    int64_t key_begin;
    GlaState<Real> x;
    List q_slope, k_slope, k_plain;  // k_plain: before select
  };

  int64_t outputs() const { return heads_out_ / heads_; }
  int64_t query_head(int64_t output) const { return output / (heads_out_ / h_); }
  int64_t key_head(int64_t n) const { return n / (heads_ / g_); }
  int64_t value_head(int64_t n) const { return n / (heads_ / x_); }
  int64_t columns() const { return e_ + (p_.normalise ? 1 : 0); }
  Real rate_of(int64_t n) const { return gate_rate ? Real(gate_rate(n)) : Real{0}; }
  Mapped<Real> head_gate(const Head& a, int64_t t) const {
    Real x = static_cast<Real>(gate_head(a.at.batch, a.at.begin + t, a.n));
    if (gate_bias && !gate_key) x += static_cast<Real>(gate_bias(a.n, 0));
    return log_gate_(x, rate_of(a.n));
  }
  Mapped<Real> key_gate(const Head& a, int64_t t, int64_t c) const {
    Real x = static_cast<Real>(gate_key(a.at.batch, a.at.begin + t, a.n, c));
    if (gate_bias) x += static_cast<Real>(gate_bias(a.n, c));
    return log_gate_(x, rate_of(a.n));
  }
  Mapped<Real> value_gate(const Head& a, int64_t t, int64_t j) const {
    return log_gate_(static_cast<Real>(gate_value(a.at.batch, a.at.begin + t, a.n, j)),
                     rate_of(a.n));
  }

  // Whether tensor cores take the call's value gates.
  bool swaps() const {
    const auto takes = [](int64_t width) { return width == 64 || width == 128; };
    if (!gate_value || gate_head || gate_key || select || bonus || skip || p_.map_q || p_.map_k)
      return false;
    if constexpr (!kBackward)
      if (p_.snapshot.data) return false;
    if constexpr (kBackward)
      if (p_.output_from.data) return false;
    return p_.q.dtype == FOVEA_BF16 && takes(d_) && takes(e_) && h_ == heads_ && !p_.read_before &&
           p_.q.shape[1] >= 64 && (p_.token_max == 0 || p_.token_max >= 64);
  }
  Head head_of(int64_t i, int64_t n, Mode mode) const {
    Head a{i, n, run_[i], 0, {}, {}, {}, {}};
    GlaState<Real>& x = a.x;
    x.tokens = x.keys = a.at.count, a.key_begin = a.at.begin;
    if (p_.full) {
      a.key_begin = key_start_ ? key_start_.integer(i) : 0;
      x.keys = (key_start_ ? key_start_.integer(i + 1) : p_.k.shape[1]) - a.key_begin;
      if (key_len_) x.keys = std::clamp<int64_t>(key_len_.integer(i), 0, x.keys);
    }
    x.d = d_, x.e = columns(), x.outputs = outputs(), x.scale = scale_;
    if constexpr (!kBackward) x.outputs = p_.o.data ? outputs() : 0;
    x.full = p_.full, x.before = p_.read_before, x.uniform = !gate_key;
    if (mode == Mode::rounded) x.operand = p_.q.dtype;
    x.swaps = swaps();
    rows(a), keys(a), gates(a);
    x.first.assign(d_ * x.e, 0);
    const int64_t row = state_in ? run_.in_row(i, p_.state_in.shape[0]) : -1;
    for (int64_t c = 0; row >= 0 && c < d_; ++c) {
      for (int64_t j = 0; j < e_; ++j) x.first[c * x.e + j] = Real(state_in(row, n, c, j));
      if (p_.normalise) x.first[c * x.e + e_] = Real(z_in(row, n, c));
    }
    return a;
  }
  void rows(Head& a) const {
    GlaState<Real>& x = a.x;
    x.q.assign(x.outputs * x.tokens * d_, 0), a.q_slope = x.q;
    for (int64_t o = 0; o < x.outputs; ++o)
      for (int64_t t = kBackward ? 0 : a.at.from; t < x.tokens; ++t)
        for (int64_t c = 0; c < d_; ++c) {
          const auto y = feature_map_of(
              p_.map_q, Real(q(a.at.batch, a.at.begin + t, query_head(a.n * outputs() + o), c)));
          const int64_t at = (o * x.tokens + t) * d_ + c;
          x.q[at] = y.value, a.q_slope[at] = y.slope;
        }
  }
  void keys(Head& a) const {
    GlaState<Real>& x = a.x;
    for (int64_t s = 0; s < x.keys; ++s) {
      const int64_t at = a.key_begin + s;
      const Real factor = select ? Real(select(a.at.batch, at, a.n)) : Real{1};
      for (int64_t c = 0; c < d_; ++c) {
        const auto y = feature_map_of(p_.map_k, Real(k(a.at.batch, at, key_head(a.n), c)));
        x.k.push_back(factor * y.value);
        a.k_plain.push_back(y.value), a.k_slope.push_back(y.slope);
      }
      for (int64_t j = 0; j < e_; ++j) x.v.push_back(Real(v(a.at.batch, at, value_head(a.n), j)));
      if (p_.normalise) x.v.push_back(1);
    }
  }
  void gates(Head& a) const {
    GlaState<Real>& x = a.x;
    for (int64_t t = 0; t < x.tokens && (gate_head || gate_key); ++t) {
      const Real head = gate_head ? head_gate(a, t).value : Real{0};
      for (int64_t c = 0; c < d_; ++c)
        x.decays.push_back(std::exp(head + (gate_key ? key_gate(a, t, c).value : Real{0})));
    }
    for (int64_t t = 0; t < x.tokens && gate_value; ++t)
      for (int64_t j = 0; j < e_; ++j)
        x.value_decays.push_back(std::exp(value_gate(a, t, j).value));
  }
  static typename GlaState<Real>::Outputs run(const GlaState<Real>& x, Mode mode,
                                              const std::vector<int64_t>& times) {
    if (mode == Mode::rounded && x.swaps) return x.swapped_forward(times);
    return mode == Mode::rounded && x.chunks() ? x.chunk_forward(times) : x.forward(times);
  }

  static double size(Real x) { return std::abs(static_cast<double>(x)); }
  static void put(Out& out, const fovea_tensor& x, Mode mode, int64_t at, Real value) {
    const auto y = static_cast<double>(value);
    out.set(at, mode == Mode::rounded ? round_to(x.dtype, y) : y);
  }

  // A dot of its own: scale q . (bonus . k), and the sum of its absolute terms.
  struct Dot {
    Real value;
    double terms;
  };
  Dot own(const Head& a, int64_t o, int64_t t) const {
    Dot dot{0, 0};
    for (int64_t c = 0; c < d_; ++c) {
      const Real x =
          scale_ * a.x.q[(o * a.x.tokens + t) * d_ + c] * (Real(bonus(a.n, c)) * a.x.k[t * d_ + c]);
      dot.value += x, dot.terms += size(x);
    }
    return dot;
  }

  // ---- forward

  void forward_of(const Head& a, Mode mode, Forward& out) const {
    std::vector<int64_t> times, from;  // of states, and the rows that take them
    int64_t kept = 0;
    if constexpr (!kBackward) {
      if (p_.snapshot.data)
        for (int64_t n = 0; n < run_.snapshot_row.shape[1]; ++n) {
          const int64_t row = run_.snapshot_row.integer(a.i, n);
          if ((n + 1) * run_.every > a.at.count || row < 0 || row >= p_.snapshot.shape[0]) continue;
          times.push_back((n + 1) * run_.every), from.push_back(row), ++kept;
        }
      if (const int64_t row = p_.state_out.data ? run_.out_row(a.i, p_.state_out.shape[0]) : -1;
          row >= 0)
        times.push_back(a.at.count), from.push_back(row);
      const auto y = run(a.x, mode, times);
      typename GlaState<Real>::Outputs terms;
      if (mode == Mode::exact) terms = a.x.absolute().forward(times);
      for (size_t n = 0; n < times.size(); ++n) {
        const bool snapshot = static_cast<int64_t>(n) < kept;
        put_state(a, from[n], y.states[n], mode == Mode::exact ? &terms.states[n] : nullptr, mode,
                  snapshot ? p_.snapshot : p_.state_out, snapshot ? out.snapshot : out.state_out,
                  snapshot ? p_.z_snapshot : p_.z_out, snapshot ? out.z_snapshot : out.z_out);
      }
      for (int64_t o = 0; o < a.x.outputs; ++o)
        for (int64_t t = a.at.from; t < a.at.count; ++t)
          put_row(a, o, t, y.y, terms.y, mode, out.o);
    }
  }
  void put_state(const Head& a, int64_t row, const List& h, const List* terms, Mode mode,
                 const fovea_tensor& x, Out& out, const fovea_tensor& z, Out& z_out) const {
    double z_most = 0;
    for (int64_t c = 0; c < d_; ++c) {
      double most = 0;
      for (int64_t j = 0; j < a.x.e; ++j) {
        const int64_t at = (row * heads_ + a.n) * d_ + c;
        const Real value = h[c * a.x.e + j];
        if (j < e_)
          put(out, x, mode, at * e_ + j, value);
        else if (z.data)
          put(z_out, z, mode, at, value);
        if (terms)
          (j < e_ ? most : z_most) =
              std::max(j < e_ ? most : z_most, size((*terms)[c * a.x.e + j]));
      }
      if (terms) out.terms(most);
    }
    if (terms && z.data) z_out.terms(z_most);
  }
  void put_row(const Head& a, int64_t o, int64_t t, const List& y, const List& y_terms, Mode mode,
               Out& out) const {
    const bool exact = mode == Mode::exact;
    const Dot dot = bonus ? own(a, o, t) : Dot{0, 0};
    const int64_t at = (o * a.x.tokens + t) * a.x.e;
    double most = 0;
    for (int64_t j = 0; j < e_; ++j) {
      Real value = y[at + j];
      double terms = exact ? size(y_terms[at + j]) : 0;
      if (p_.normalise) {
        const Real den = y[at + e_] + eps_;
        value /= den;
        if (exact)
          terms = (terms + size(value) * (size(y_terms[at + e_]) + size(eps_))) / size(den);
      }
      const Real one = a.x.v.empty() || p_.full ? Real{0} : a.x.v[t * a.x.e + j];
      if (bonus) {
        const Real z = dot.value * one;
        value += p_.bonus_sigmoid ? sigmoid_of(z) : z;
        terms += p_.bonus_sigmoid ? 1 + dot.terms * size(one) / 4 : dot.terms * size(one);
      }
      if (skip) {
        const Real z = Real(skip(a.n, j)) * one;
        value += z, terms += size(z);
      }
      most = std::max(most, terms);
      if constexpr (!kBackward) {
        const int64_t row = a.at.batch * p_.o.shape[1] + a.at.begin + t;
        put(out, p_.o, mode, (row * heads_out_ + a.n * outputs() + o) * e_ + j, value);
      }
    }
    if (exact) out.terms(most);
  }

  // ---- backward

  // Gradients of one tensor, and for each of its rows the sum of absolute terms.
  struct Sum {
    List value;
    std::vector<double> terms;
    int64_t width = 1;
    Sum() = default;
    Sum(int64_t count, int64_t width_) : value(count * width_), terms(count), width(width_) {}
    void add(int64_t row, int64_t column, Real x) { value[row * width + column] += x; }
  };
  struct Sums {
    Sum dq, dk, dv, dgate_head, dgate_key, dgate_value, dgate_rate, dgate_bias, dselect, dbonus,
        dskip, dstate_in, dz_in;
    explicit Sums(const Gla& a) {
      const int64_t b = a.p_.q.shape[0], s = a.p_.q.shape[1], t = a.p_.k.shape[1], n = a.heads_;
      dq = Sum(b * s * a.h_, a.d_), dk = Sum(b * t * a.g_, a.d_), dv = Sum(b * t * a.x_, a.e_);
      dgate_head = Sum(b * s * n, 1), dgate_key = Sum(b * s * n, a.d_);
      dgate_value = Sum(b * s * n, a.e_), dgate_rate = Sum(n, 1), dgate_bias = Sum(n * a.d_, 1);
      dselect = Sum(b * t * n, 1), dbonus = Sum(n, a.d_), dskip = Sum(n, a.e_);
      dstate_in = Sum(a.run_.r * n * a.d_, a.e_), dz_in = Sum(a.run_.r * n, a.d_);
    }
  };

  // The gradients of y and of the last state, and how large the terms behind them are.
  struct Incoming {
    List dy, last, dy_terms, last_terms;
  };
  Incoming incoming(const Head& a, Mode mode) const {
    const GlaState<Real>& x = a.x;
    Incoming in{List(x.outputs * x.tokens * x.e), List(d_ * x.e), {}, {}};
    in.dy_terms = in.dy;
    typename GlaState<Real>::Outputs y, terms;
    if (p_.normalise) {
      y = run(x, mode, {});
      terms = mode == Mode::exact ? x.absolute().forward({}) : y;
    }
    for (int64_t o = 0; o < x.outputs; ++o)
      for (int64_t t = a.at.from; t < x.tokens; ++t) {
        const int64_t at = (o * x.tokens + t) * x.e;
        Real factor = 1, all = 0;
        double condition = 1, all_terms = 0;
        if (p_.normalise) {
          factor = 1 / (y.y[at + e_] + eps_);
          condition = size(factor) * (size(terms.y[at + e_]) + size(eps_));
        }
        for (int64_t j = 0; j < e_; ++j) {
          const Real g = grad_of(a, o, t, j);
          in.dy[at + j] = g * factor;
          in.dy_terms[at + j] = Real(size(g * factor) * condition);
          if (!p_.normalise) continue;
          all -= g * y.y[at + j] * factor * factor;
          all_terms += size(g * terms.y[at + j] * factor * factor) * condition;
        }
        if (p_.normalise) in.dy[at + e_] = all, in.dy_terms[at + e_] = Real(all_terms);
      }
    if constexpr (kBackward)
      for (int64_t c = 0; c < d_; ++c) {
        for (int64_t j = 0; dstate_out && j < e_; ++j)
          in.last[c * x.e + j] = Real(dstate_out(a.i, a.n, c, j));
        if (p_.normalise && dz_out) in.last[c * x.e + e_] = Real(dz_out(a.i, a.n, c));
      }
    for (Real g : in.last) in.last_terms.push_back(std::abs(g));
    return in;
  }
  Real grad_of(const Head& a, int64_t o, int64_t t, int64_t j) const {
    return Real(dout(a.at.batch, a.at.begin + t, a.n * outputs() + o, j));
  }

  void backward_of(const Head& a, Mode mode, Sums& sums) const {
    const Incoming in = incoming(a, mode);
    const GlaState<Real>& x = a.x;
    auto got = mode == Mode::rounded && x.swaps      ? x.swapped_backward(in.dy, in.last)
               : mode == Mode::rounded && x.chunks() ? x.chunk_backward(in.dy, in.last)
                                                     : x.backward(in.dy, in.last);
    auto terms = mode == Mode::exact ? x.absolute().backward(in.dy_terms, in.last_terms) : got;
    add_gates(a, got, terms, sums);
    for (int64_t o = 0; o < x.outputs; ++o)
      for (int64_t t = a.at.from; t < x.tokens; ++t) add_bonus_and_skip(a, o, t, got, terms, sums);
    for (int64_t o = 0; o < x.outputs; ++o)
      for (int64_t t = 0; t < x.tokens; ++t) {
        const int64_t row =
            (a.at.batch * p_.q.shape[1] + a.at.begin + t) * h_ + query_head(a.n * outputs() + o);
        add_row(sums.dq, row, got.dq, terms.dq, (o * x.tokens + t) * d_, d_, a.q_slope, 1);
      }
    for (int64_t s = 0; s < x.keys; ++s) {
      const int64_t at = a.at.batch * p_.k.shape[1] + a.key_begin + s;
      const Real factor = select ? Real(select(a.at.batch, a.key_begin + s, a.n)) : Real{1};
      add_row(sums.dk, at * g_ + key_head(a.n), got.dk, terms.dk, s * d_, d_, a.k_slope, factor);
      add_row(sums.dv, at * x_ + value_head(a.n), got.dv, terms.dv, s * x.e, e_, {}, 1);
      for (int64_t c = 0; c < d_; ++c) {
        sums.dselect.add(at * heads_ + a.n, 0, a.k_plain[s * d_ + c] * got.dk[s * d_ + c]);
        sums.dselect.terms[at * heads_ + a.n] += size(a.k_plain[s * d_ + c] * terms.dk[s * d_ + c]);
      }
    }
    const int64_t row = a.i * heads_ + a.n;
    for (int64_t c = 0; c < d_; ++c) {
      add_row(sums.dstate_in, row * d_ + c, got.dfirst, terms.dfirst, c * x.e, e_, {}, 1);
      if (!p_.normalise) continue;
      sums.dz_in.add(row, c, got.dfirst[c * x.e + e_]);
      sums.dz_in.terms[row] = std::max(sums.dz_in.terms[row], size(terms.dfirst[c * x.e + e_]));
    }
  }
  static void add_row(Sum& to, int64_t row, const List& x, const List& terms, int64_t at,
                      int64_t count, const List& slope, Real factor) {
    double most = 0;
    for (int64_t c = 0; c < count; ++c) {
      const Real f = slope.empty() ? factor : factor * slope[at + c];
      to.add(row, c, x[at + c] * f);
      most = std::max(most, size(terms[at + c] * f));
    }
    to.terms[row] += most;
  }

  template <class Gradients>
  void add_bonus_and_skip(const Head& a, int64_t o, int64_t t, Gradients& got, Gradients& terms,
                          Sums& sums) const {
    if (!bonus && !skip) return;
    const GlaState<Real>& x = a.x;
    const Dot dot = bonus ? own(a, o, t) : Dot{0, 0};
    Real de = 0, de_terms = 0;
    double skip_most = 0;
    for (int64_t j = 0; j < e_; ++j) {
      const int64_t at = t * x.e + j;
      const Real g = grad_of(a, o, t, j), one = x.v[at];
      if (bonus) {
        const Real part = sigmoid_of(dot.value * one);
        const Real slope = p_.bonus_sigmoid ? part * (1 - part) : Real{1};
        const Real rough = p_.bonus_sigmoid ? slope + Real(dot.terms) * std::abs(one) / 8 : slope;
        de += g * slope * one, de_terms += std::abs(g * rough * one);
        got.dv[at] += dot.value * g * slope;
        terms.dv[at] += Real(dot.terms) * std::abs(g * rough);
      }
      if (skip) {
        const Real factor = Real(skip(a.n, j));
        got.dv[at] += factor * g, terms.dv[at] += std::abs(factor * g);
        sums.dskip.add(a.n, j, g * one);
        skip_most = std::max(skip_most, size(g * one));
      }
    }
    sums.dskip.terms[a.n] += skip_most;
    double bonus_most = 0;
    for (int64_t c = 0; bonus && c < d_; ++c) {
      const int64_t row = (o * x.tokens + t) * d_ + c, key = t * d_ + c;
      const Real factor = scale_ * Real(bonus(a.n, c));
      got.dq[row] += de * factor * x.k[key];
      terms.dq[row] += de_terms * std::abs(factor * x.k[key]);
      got.dk[key] += de * factor * x.q[row];
      terms.dk[key] += de_terms * std::abs(factor * x.q[row]);
      sums.dbonus.add(a.n, c, de * scale_ * x.q[row] * x.k[key]);
      bonus_most = std::max(bonus_most, size(de_terms * scale_ * x.q[row] * x.k[key]));
    }
    sums.dbonus.terms[a.n] += bonus_most;
  }

  // `sum`: the gradient of a log of a decay.  One that rests gives nothing, whatever the sum.
  struct Raw {
    Real raw, rate;
  };
  static Raw raw_of(const Mapped<Real>& gate, Real sum) {
    return {gate.slope == 0 ? Real{0} : gate.slope * sum,
            gate.by_rate == 0 ? Real{0} : gate.by_rate * sum};
  }
  template <class Gradients>
  void add_gates(const Head& a, const Gradients& got, const Gradients& terms, Sums& sums) const {
    for (int64_t t = 0; t < a.x.tokens; ++t) {
      const int64_t at = (a.at.batch * p_.q.shape[1] + a.at.begin + t) * heads_ + a.n;
      // One gate: its gradient, where the raw one goes, and the bias that it has.
      const auto add = [&](const Mapped<Real>& gate, Real sum, Real sum_terms, Sum& to,
                           int64_t column, int64_t bias) {
        const Raw x = raw_of(gate, sum), most = raw_of(gate, sum_terms);
        to.add(at, column, x.raw);
        to.terms[at] = std::max(to.terms[at], size(most.raw));
        sums.dgate_rate.add(a.n, 0, x.rate);
        sums.dgate_rate.terms[a.n] += size(most.rate);
        if (bias < 0) return;
        sums.dgate_bias.add(a.n * d_ + bias, 0, x.raw);
        sums.dgate_bias.terms[a.n * d_ + bias] += size(most.raw);
      };
      Real all = 0, all_terms = 0;
      for (int64_t c = 0; c < d_; ++c)
        all += got.dgate[t * d_ + c], all_terms += std::abs(terms.dgate[t * d_ + c]);
      if (gate_head) add(head_gate(a, t), all, all_terms, sums.dgate_head, 0, gate_key ? -1 : 0);
      for (int64_t c = 0; gate_key && c < d_; ++c)
        add(key_gate(a, t, c), got.dgate[t * d_ + c], terms.dgate[t * d_ + c], sums.dgate_key, c,
            c);
      for (int64_t j = 0; gate_value && j < e_; ++j)
        add(value_gate(a, t, j), got.dgate_value[t * a.x.e + j], terms.dgate_value[t * a.x.e + j],
            sums.dgate_value, j, -1);
    }
  }

  const P& p_;
  const RunOracle run_;
  const GateMap log_gate_;
  const Dense key_start_, key_len_;
  const int64_t h_, g_, x_, d_, e_, heads_, heads_out_;
  const Real scale_, eps_;
};

}  // namespace oracle
