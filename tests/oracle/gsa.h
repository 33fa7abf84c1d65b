// SPDX-License-Identifier: Apache-2.0
// x_gsa of experimental/gsa.h: the recurrence of both memories token by token, and its adjoint.
// Rounded mode is float32, with 1 - a, p, and in the backward dp and each pass's d(1 - a) rounded
// to the dtype of q, and outputs rounded.  Calls that tensor cores serve are two passes in chunks
// (oracle/gla_state.h), and dY is rounded too.
#pragma once
#include "oracle/gla.h"

namespace oracle {

template <class Real, class P>
class Gsa {
 public:
  using List = std::vector<Real>;
  Tracked q, k, v, gate, state_k_in, state_v_in, dout, dstate_k_out, dstate_v_out;

  explicit Gsa(const P& p)
      : q(p.q),
        k(p.k),
        v(p.v),
        gate(p.gate),
        state_k_in(p.state_k_in),
        state_v_in(p.state_v_in),
        p_(p),
        run_{load(p.start), load(p.len), load(p.state_row), {}, load(p.output_from), {}},
        log_gate_(GateMap::of(p)),
        h_(p.q.shape[2]),
        g_(p.k.shape[2]),
        x_(p.v.shape[2]),
        d_(p.q.shape[3]),
        e_(p.v.shape[3]),
        m_(p.gate.shape[3]),
        heads_(std::max(g_, x_)),
        heads_out_(std::max(h_, heads_)),
        scale_(p.scale == 0 ? 1 / std::sqrt(static_cast<Real>(d_)) : static_cast<Real>(p.scale)) {
    run_.s = p.q.shape[1], run_.token_max = p.token_max;
    run_.r = run_.start ? run_.start.shape[0] - 1 : p.q.shape[0];
    if constexpr (kBackward)
      dout = Tracked(p.dout), dstate_k_out = Tracked(p.dstate_k_out),
      dstate_v_out = Tracked(p.dstate_v_out);
    else
      run_.state_out_row = load(p.state_out_row);
  }

  struct Forward {
    Out o, state_k_out, state_v_out;
  };
  Forward forward(Mode mode) const {
    Forward out{made(p_.o), made(p_.state_k_out), made(p_.state_v_out)};
    for (int64_t i = 0; i < run_.r; ++i)
      for (int64_t n = 0; n < heads_; ++n) {
        const Head a{i, n, run_[i]};
        mode == Mode::rounded&& in_chunks() ? forward_chunks(a, out) : forward_of(a, mode, out);
      }
    return out;
  }

  struct Backward {
    Out dq, dk, dv, dgate, dstate_k_in, dstate_v_in;
  };
  Backward backward(Mode mode) const {
    const int64_t tokens = p_.q.shape[0] * p_.q.shape[1], states = run_.r * heads_;
    Sums sums{{tokens * h_, d_},     {tokens * g_, d_}, {tokens * x_, e_},
              {tokens * heads_, m_}, {states * d_, m_}, {states * m_, e_}};
    for (int64_t i = 0; i < run_.r; ++i)
      for (int64_t n = 0; n < heads_; ++n) {
        const Head a{i, n, run_[i]};
        mode == Mode::rounded&& in_chunks() ? backward_chunks(a, sums) : backward_of(a, mode, sums);
      }
    const auto out = [&](const fovea_tensor& x, const Sum& sum) {
      return conv_output(x, sum.value, sum.terms, unit_of(p_.q.dtype), 0, mode);
    };
    return {out(p_.dq, sums.dq),
            out(p_.dk, sums.dk),
            out(p_.dv, sums.dv),
            out(p_.dgate, sums.dgate),
            out(p_.dstate_k_in, sums.dstate_k_in),
            out(p_.dstate_v_in, sums.dstate_v_in)};
  }

 private:
  static constexpr bool kBackward = requires(const P& p) { p.dout; };

  // A state head of a sequence.
  struct Head {
    int64_t i, n;
    RunOracle::Tokens at;
  };
  // Both memories, (m, d) and (m, e), and the sums of the absolute values behind each element.
  struct Memories {
    List k, v;
    std::vector<double> k_terms, v_terms;
  };
  struct Slot {
    Real decay, rest, slope;  // slope: of the log of the decay
  };
  // What a row reads; p_used: as the second pass has it.
  struct Row {
    List q, q_slope, p, p_used;
    std::vector<double> p_terms;
  };

  Out made(const fovea_tensor& x) const { return x.data ? Out(x, unit_of(p_.q.dtype)) : Out(); }
  int64_t outputs() const { return heads_out_ / heads_; }
  int64_t query_head(int64_t output) const { return output / (heads_out_ / h_); }
  int64_t key_head(int64_t n) const { return n / (heads_ / g_); }
  int64_t value_head(int64_t n) const { return n / (heads_ / x_); }
  static double size(Real x) { return std::abs(static_cast<double>(x)); }
  Real stored(Real x, Mode mode) const {
    return mode == Mode::rounded ? static_cast<Real>(round_to(p_.q.dtype, static_cast<double>(x)))
                                 : x;
  }

  Memories first(const Head& a) const {
    Memories x{List(m_ * d_), List(m_ * e_), std::vector<double>(m_ * d_),
               std::vector<double>(m_ * e_)};
    const auto row = [&](const Tracked& state, const fovea_tensor& of) {
      return state ? run_.in_row(a.i, of.shape[0]) : int64_t{-1};
    };
    const int64_t of_k = row(state_k_in, p_.state_k_in), of_v = row(state_v_in, p_.state_v_in);
    for (int64_t c = 0; c < m_; ++c) {
      for (int64_t u = 0; u < d_ && of_k >= 0; ++u)
        x.k[c * d_ + u] = Real(state_k_in(of_k, a.n, u, c));
      for (int64_t j = 0; j < e_ && of_v >= 0; ++j)
        x.v[c * e_ + j] = Real(state_v_in(of_v, a.n, c, j));
    }
    for (size_t n = 0; n < x.k.size(); ++n) x.k_terms[n] = size(x.k[n]);
    for (size_t n = 0; n < x.v.size(); ++n) x.v_terms[n] = size(x.v[n]);
    return x;
  }
  std::vector<Slot> slots(const Head& a, int64_t t, Mode mode) const {
    std::vector<Slot> all;
    for (int64_t c = 0; c < m_; ++c) {
      const auto g = log_gate_(Real(gate(a.at.batch, a.at.begin + t, a.n, c)), Real{0});
      all.push_back({std::exp(g.value), stored(-std::expm1(g.value), mode), g.slope});
    }
    return all;
  }
  Mapped<Real> key(const Head& a, int64_t t, int64_t u) const {
    return feature_map_of(p_.map_k, Real(k(a.at.batch, a.at.begin + t, key_head(a.n), u)));
  }
  Real value(const Head& a, int64_t t, int64_t j) const {
    return Real(v(a.at.batch, a.at.begin + t, value_head(a.n), j));
  }
  template <class Number>
  static Number kept(Real decay, Number x) {
    return decay == 0 ? Number{0} : static_cast<Number>(decay) * x;
  }
  void step(const Head& a, int64_t t, const std::vector<Slot>& slot, Memories& x) const {
    for (int64_t c = 0; c < m_; ++c) {
      const auto [decay, rest, slope] = slot[c];
      const auto add = [&, decay = decay, rest = rest](Real& to, double& terms, Real y) {
        to = kept(decay, to) + rest * y, terms = kept(decay, terms) + size(rest * y);
      };
      for (int64_t u = 0; u < d_; ++u)
        add(x.k[c * d_ + u], x.k_terms[c * d_ + u], key(a, t, u).value);
      for (int64_t j = 0; j < e_; ++j) add(x.v[c * e_ + j], x.v_terms[c * e_ + j], value(a, t, j));
    }
  }
  Row read(const Head& a, int64_t t, int64_t output, const Memories& x, Mode mode) const {
    Row row{List(d_), List(d_), List(m_), List(m_), std::vector<double>(m_)};
    for (int64_t u = 0; u < d_; ++u) {
      const auto y = feature_map_of(
          p_.map_q, Real(q(a.at.batch, a.at.begin + t, query_head(a.n * outputs() + output), u)));
      row.q[u] = y.value, row.q_slope[u] = y.slope;
    }
    Real most = -HUGE_VAL, sum = 0;
    for (int64_t c = 0; c < m_; ++c) {
      for (int64_t u = 0; u < d_; ++u) {
        row.p[c] += scale_ * row.q[u] * x.k[c * d_ + u];
        row.p_terms[c] += size(scale_ * row.q[u]) * x.k_terms[c * d_ + u];
      }
      most = std::max(most, row.p[c]);
    }
    for (Real& y : row.p) sum += y = std::exp(y - most);
    double mean = 0;
    for (int64_t c = 0; c < m_; ++c) {
      row.p[c] /= sum, row.p_used[c] = stored(row.p[c], mode);
      mean += size(row.p[c]) * row.p_terms[c];
    }
    // A score that is off by x moves p by x (1 - p) of it.
    for (int64_t c = 0; c < m_; ++c) row.p_terms[c] = size(row.p[c]) * (1 + row.p_terms[c] + mean);
    return row;
  }

  // ---- both passes in chunks, as tensor cores compute them

  bool in_chunks() const {
    const auto takes = [](int64_t width) { return width == 64 || width == 128; };
    bool states = state_k_in || state_v_in;
    if constexpr (kBackward)
      states = states || dstate_k_out || dstate_v_out || p_.dstate_k_in.data || p_.dstate_v_in.data;
    else
      states = states || p_.state_k_out.data || p_.state_v_out.data;
    if (kBackward && p_.output_from.data) return false;
    return p_.q.dtype == FOVEA_BF16 && takes(d_) && takes(e_) && h_ == heads_ && !p_.map_q &&
           !p_.map_k && m_ <= 128 && (takes(m_) || !states) && p_.q.shape[1] >= 64 &&
           (p_.token_max == 0 || p_.token_max >= 64);
  }

  struct Passes {
    GlaState<Real> keys, values;  // (d, m) and (m, e)
    List p;                       // f32
    std::vector<Slot> slots;      // (tokens, m)
    List scores_state;            // the state of the first pass after the last token
  };
  // The first pass and the softmax; the second is ready to run.
  Passes passes_of(const Head& a) const {
    Passes x;
    const int64_t tokens = a.at.count;
    const Memories memories = first(a);
    for (GlaState<Real>* pass : {&x.keys, &x.values})
      pass->tokens = pass->keys = tokens, pass->outputs = 1, pass->operand = p_.q.dtype;
    x.keys.d = d_, x.keys.e = m_, x.keys.scale = scale_, x.keys.swaps = true;
    x.values.d = m_, x.values.e = e_;
    for (int64_t t = 0; t < tokens; ++t) {
      for (const Slot& slot : slots(a, t, Mode::rounded)) {
        x.slots.push_back(slot);
        x.keys.value_decays.push_back(slot.decay), x.values.decays.push_back(slot.decay);
        x.keys.v.push_back(slot.rest), x.values.k.push_back(slot.rest);
      }
      for (int64_t u = 0; u < d_; ++u) {
        x.keys.q.push_back(Real(q(a.at.batch, a.at.begin + t, query_head(a.n), u)));
        x.keys.k.push_back(key(a, t, u).value);
      }
      for (int64_t j = 0; j < e_; ++j) x.values.v.push_back(value(a, t, j));
    }
    x.keys.first.resize(d_ * m_), x.values.first = memories.v;
    for (int64_t c = 0; c < m_; ++c)
      for (int64_t u = 0; u < d_; ++u) x.keys.first[u * m_ + c] = memories.k[c * d_ + u];
    const auto got = x.keys.swapped_forward({tokens});
    x.p = got.y, x.scores_state = got.states[0];
    for (int64_t t = 0; t < tokens; ++t) {
      Real* row = x.p.data() + t * m_;
      const Real most = *std::max_element(row, row + m_);
      Real sum = 0;
      for (int64_t c = 0; c < m_; ++c) sum += row[c] = std::exp(row[c] - most);
      for (int64_t c = 0; c < m_; ++c) row[c] = t < a.at.from ? 0 : row[c] / sum;
    }
    for (const Real y : x.p) x.values.q.push_back(stored(y, Mode::rounded));
    return x;
  }

  void forward_chunks(const Head& a, Forward& out) const {
    if constexpr (!kBackward) {
      const Passes x = passes_of(a);
      const auto got = x.values.chunk_forward({a.at.count});
      for (int64_t t = a.at.from; t < a.at.count && p_.o.data; ++t)
        for (int64_t j = 0; j < e_; ++j)
          put(out.o, p_.o, Mode::rounded,
              ((a.at.batch * run_.s + a.at.begin + t) * heads_out_ + a.n) * e_ + j,
              got.y[t * e_ + j]);
      const auto keep = [&](const fovea_tensor& to, Out& into, const List& state) {
        const int64_t row = to.data ? run_.out_row(a.i, to.shape[0]) : -1;
        const auto size = static_cast<int64_t>(state.size());
        for (int64_t n = 0; row >= 0 && n < size; ++n)
          put(into, to, Mode::rounded, (row * heads_ + a.n) * size + n, state[n]);
      };
      keep(p_.state_k_out, out.state_k_out, x.scores_state);
      keep(p_.state_v_out, out.state_v_out, got.states[0]);
    }
  }

  // ---- forward

  static void put(Out& out, const fovea_tensor& x, Mode mode, int64_t at, Real value) {
    const auto y = static_cast<double>(value);
    out.set(at, mode == Mode::rounded ? round_to(x.dtype, y) : y);
  }
  void forward_of(const Head& a, Mode mode, Forward& out) const {
    if constexpr (!kBackward) {
      Memories x = first(a);
      for (int64_t t = 0; t < a.at.count; ++t) {
        step(a, t, slots(a, t, mode), x);
        for (int64_t output = 0; output < outputs() && p_.o.data && t >= a.at.from; ++output) {
          const Row row = read(a, t, output, x, mode);
          const int64_t at =
              (a.at.batch * run_.s + a.at.begin + t) * heads_out_ + a.n * outputs() + output;
          double most = 0;
          for (int64_t j = 0; j < e_; ++j) {
            Real y = 0;
            double terms = 0;
            for (int64_t c = 0; c < m_; ++c) {
              y += row.p_used[c] * x.v[c * e_ + j];
              terms += row.p_terms[c] * x.v_terms[c * e_ + j];
            }
            put(out.o, p_.o, mode, at * e_ + j, y), most = std::max(most, terms);
          }
          out.o.terms(most);
        }
      }
      const auto keep = [&](const fovea_tensor& to, Out& into, auto visit) {
        const int64_t row = to.data ? run_.out_row(a.i, to.shape[0]) : -1;
        if (row >= 0) visit(to, into, row * heads_ + a.n);
      };
      keep(p_.state_k_out, out.state_k_out, [&](const fovea_tensor& to, Out& into, int64_t at) {
        for (int64_t u = 0; u < d_; ++u) {
          double most = 0;
          for (int64_t c = 0; c < m_; ++c) {
            put(into, to, mode, (at * d_ + u) * m_ + c, x.k[c * d_ + u]);
            most = std::max(most, x.k_terms[c * d_ + u]);
          }
          into.terms(most);
        }
      });
      keep(p_.state_v_out, out.state_v_out, [&](const fovea_tensor& to, Out& into, int64_t at) {
        for (int64_t c = 0; c < m_; ++c) {
          double most = 0;
          for (int64_t j = 0; j < e_; ++j) {
            put(into, to, mode, (at * m_ + c) * e_ + j, x.v[c * e_ + j]);
            most = std::max(most, x.v_terms[c * e_ + j]);
          }
          into.terms(most);
        }
      });
    }
  }

  // ---- backward

  // Gradients of one tensor, and for each of its rows the sum of absolute terms.
  struct Sum {
    List value;
    std::vector<double> terms;
    int64_t width;
    Sum(int64_t count, int64_t width_) : value(count * width_), terms(count), width(width_) {}
    // One more part of a row.
    void add(int64_t row, const List& x, const std::vector<double>& x_terms) {
      double most = 0;
      for (int64_t c = 0; c < width; ++c)
        value[row * width + c] += x[c], most = std::max(most, x_terms[c]);
      terms[row] += most;
    }
  };
  struct Sums {
    Sum dq, dk, dv, dgate, dstate_k_in, dstate_v_in;
  };
  // Gradients of the memories after a token, as Memories.
  void last(const Head& a, Memories& w) const {
    for (int64_t c = 0; c < m_; ++c) {
      for (int64_t u = 0; u < d_ && dstate_k_out; ++u)
        w.k[c * d_ + u] = Real(dstate_k_out(a.i, a.n, u, c));
      for (int64_t j = 0; j < e_ && dstate_v_out; ++j)
        w.v[c * e_ + j] = Real(dstate_v_out(a.i, a.n, c, j));
    }
    for (size_t n = 0; n < w.k.size(); ++n) w.k_terms[n] = size(w.k[n]);
    for (size_t n = 0; n < w.v.size(); ++n) w.v_terms[n] = size(w.v[n]);
  }

  // From one output row to q and to the memories that it read.
  void row_backward(const Head& a, int64_t t, int64_t output, const Memories& x, Mode mode,
                    Memories& w, Sums& sums) const {
    const Row row = read(a, t, output, x, mode);
    const int64_t at = a.at.batch * run_.s + a.at.begin + t;
    List dp(m_), dq(d_);
    std::vector<double> dp_terms(m_), dq_terms(d_);
    Real mean = 0;
    double mean_terms = 0;
    for (int64_t c = 0; c < m_; ++c) {
      for (int64_t j = 0; j < e_; ++j) {
        const Real g = Real(dout(a.at.batch, a.at.begin + t, a.n * outputs() + output, j));
        dp[c] += g * x.v[c * e_ + j], dp_terms[c] += size(g) * x.v_terms[c * e_ + j];
        w.v[c * e_ + j] += row.p_used[c] * g;
        w.v_terms[c * e_ + j] += row.p_terms[c] * size(g);
      }
      dp[c] = stored(dp[c], mode);
      mean += row.p[c] * dp[c], mean_terms += row.p_terms[c] * dp_terms[c];
    }
    for (int64_t c = 0; c < m_; ++c) {
      const Real g = scale_ * row.p[c] * (dp[c] - mean);
      const double terms =
          size(scale_) * (row.p_terms[c] * dp_terms[c] + size(row.p[c]) * mean_terms);
      for (int64_t u = 0; u < d_; ++u) {
        w.k[c * d_ + u] += g * row.q[u], w.k_terms[c * d_ + u] += terms * size(row.q[u]);
        dq[u] += g * x.k[c * d_ + u] * row.q_slope[u];
        dq_terms[u] += terms * x.k_terms[c * d_ + u] * size(row.q_slope[u]);
      }
    }
    sums.dq.add(at * h_ + query_head(a.n * outputs() + output), dq, dq_terms);
  }

  // From the memories after token t to those before it.
  void step_backward(const Head& a, int64_t t, const std::vector<Slot>& slot,
                     const Memories& before, Mode mode, Memories& w, Sums& sums) const {
    const int64_t at = a.at.batch * run_.s + a.at.begin + t;
    List dk(d_), dv(e_), dgate(m_);
    std::vector<double> dk_terms(d_), dv_terms(e_), dgate_terms(m_);
    for (int64_t c = 0; c < m_; ++c) {
      const Slot& one = slot[c];
      Real by_decay = 0;
      double terms = 0;
      // One memory: its share of dgate, the gradient of what was added, and the step back.
      const auto pass = [&](const List& h, const std::vector<double>& h_terms, List& g,
                            std::vector<double>& g_terms, int64_t width, auto added, List& to,
                            std::vector<double>& to_terms) {
        Real by_rest = 0;
        for (int64_t u = 0; u < width; ++u) {
          const int64_t n = c * width + u;
          const auto y = added(u);
          by_rest += g[n] * y.value, terms += size(one.decay) * g_terms[n] * size(y.value);
          by_decay += one.decay == 0 ? Real{0} : one.decay * h[n] * g[n];
          terms += kept(one.decay, h_terms[n] * g_terms[n]);
          to[u] += one.rest * g[n] * y.slope;
          to_terms[u] += size(one.rest * y.slope) * g_terms[n];
          g[n] = kept(one.decay, g[n]), g_terms[n] = kept(one.decay, g_terms[n]);
        }
        return stored(by_rest, mode);
      };
      const Real of_k = pass(
          before.k, before.k_terms, w.k, w.k_terms, d_, [&](int64_t u) { return key(a, t, u); }, dk,
          dk_terms);
      const Real of_v = pass(
          before.v, before.v_terms, w.v, w.v_terms, e_,
          [&](int64_t j) {
            return Mapped<Real>{value(a, t, j), 1, 0};
          },
          dv, dv_terms);
      if (one.slope == 0) continue;
      dgate[c] = one.slope * (by_decay - one.decay * (of_k + of_v));
      dgate_terms[c] = size(one.slope) * terms;
    }
    sums.dk.add(at * g_ + key_head(a.n), dk, dk_terms);
    sums.dv.add(at * x_ + value_head(a.n), dv, dv_terms);
    sums.dgate.add(at * heads_ + a.n, dgate, dgate_terms);
  }

  void backward_chunks(const Head& a, Sums& sums) const {
    if constexpr (kBackward) {
      const Passes x = passes_of(a);
      List dy(a.at.count * e_), last_v(m_ * e_), last_k(d_ * m_);
      for (int64_t t = a.at.from; t < a.at.count; ++t)
        for (int64_t j = 0; j < e_; ++j)
          dy[t * e_ + j] = Real(dout(a.at.batch, a.at.begin + t, a.n, j));
      for (int64_t c = 0; c < m_; ++c) {
        for (int64_t u = 0; u < d_ && dstate_k_out; ++u)
          last_k[u * m_ + c] = Real(dstate_k_out(a.i, a.n, u, c));
        for (int64_t j = 0; j < e_ && dstate_v_out; ++j)
          last_v[c * e_ + j] = Real(dstate_v_out(a.i, a.n, c, j));
      }
      const auto v = x.values.chunk_backward(dy, last_v);
      List dscores(x.p.size());
      for (int64_t t = 0; t < a.at.count; ++t) {
        Real mean = 0;
        for (int64_t c = t * m_; c < (t + 1) * m_; ++c)
          mean += x.p[c] * stored(v.dq[c], Mode::rounded);
        for (int64_t c = t * m_; c < (t + 1) * m_; ++c)
          dscores[c] = stored(x.p[c] * (stored(v.dq[c], Mode::rounded) - mean), Mode::rounded);
      }
      const auto k = x.keys.swapped_backward(dscores, last_k);
      List dgate(x.p.size());
      for (size_t c = 0; c < dgate.size(); ++c) {
        const Slot& slot = x.slots[c];
        const Real rest = stored(k.dv[c], Mode::rounded) + stored(v.dk[c], Mode::rounded);
        if (slot.slope != 0)
          dgate[c] = slot.slope * (k.dgate_value[c] + v.dgate[c] - slot.decay * rest);
      }
      const auto rows = [&](Sum& to, const List& from, int64_t heads, int64_t head) {
        for (int64_t t = 0; t < a.at.count; ++t)
          for (int64_t c = 0; c < to.width; ++c)
            to.value[((a.at.batch * run_.s + a.at.begin + t) * heads + head) * to.width + c] +=
                from[t * to.width + c];
      };
      rows(sums.dq, k.dq, h_, query_head(a.n)), rows(sums.dk, k.dk, g_, key_head(a.n));
      rows(sums.dv, v.dv, x_, value_head(a.n)), rows(sums.dgate, dgate, heads_, a.n);
      const int64_t at = a.i * heads_ + a.n;
      std::copy(k.dfirst.begin(), k.dfirst.end(), sums.dstate_k_in.value.begin() + at * d_ * m_);
      std::copy(v.dfirst.begin(), v.dfirst.end(), sums.dstate_v_in.value.begin() + at * m_ * e_);
    }
  }
  void backward_of(const Head& a, Mode mode, Sums& sums) const {
    if constexpr (kBackward) {
      std::vector<Memories> x = {first(a)};  // before each token, and after the last
      std::vector<std::vector<Slot>> slot;
      for (int64_t t = 0; t < a.at.count; ++t) {
        slot.push_back(slots(a, t, mode));
        Memories next = x.back();
        step(a, t, slot.back(), next);
        x.push_back(std::move(next));
      }
      Memories w{List(m_ * d_), List(m_ * e_), std::vector<double>(m_ * d_),
                 std::vector<double>(m_ * e_)};
      last(a, w);
      for (int64_t t = a.at.count - 1; t >= 0; --t) {
        for (int64_t output = 0; output < outputs() && t >= a.at.from; ++output)
          row_backward(a, t, output, x[t + 1], mode, w, sums);
        step_backward(a, t, slot[t], x[t], mode, w, sums);
      }
      const int64_t at = a.i * heads_ + a.n;
      const auto put = [](Sum& to, int64_t row, int64_t column, Real y, double terms) {
        to.value[row * to.width + column] = y;
        to.terms[row] = std::max(to.terms[row], terms);
      };
      for (int64_t c = 0; c < m_; ++c) {
        for (int64_t u = 0; u < d_; ++u)
          put(sums.dstate_k_in, at * d_ + u, c, w.k[c * d_ + u], w.k_terms[c * d_ + u]);
        for (int64_t j = 0; j < e_; ++j)
          put(sums.dstate_v_in, at * m_ + c, j, w.v[c * e_ + j], w.v_terms[c * e_ + j]);
      }
    }
  }

  const P& p_;
  RunOracle run_;
  const GateMap log_gate_;
  const int64_t h_, g_, x_, d_, e_, m_, heads_, heads_out_;
  const Real scale_;
};

}  // namespace oracle
