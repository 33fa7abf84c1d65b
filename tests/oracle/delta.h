// SPDX-License-Identifier: Apache-2.0
// x_delta of experimental/linear.h: inputs of each sequence and state head made ready, the
// recurrence over them (delta_tokens.h exact, delta_chunk.h rounded), and what it gives, summed
// over the heads that share an input and carried back through norms and maps.
#pragma once
#include "oracle/conv_attention_backward.h"
#include "oracle/delta_chunk.h"
#include "oracle/gate_map.h"
#include "oracle/run.h"

namespace oracle {

// Sums of an output in its logical order, and their absolute terms by rows.
template <class Real>
struct DeltaSums {
  std::vector<Real> value;
  std::vector<double> size;
  int64_t width = 1;

  void shape(const fovea_tensor& x, int64_t width_) {
    if (!x.data) return;
    width = width_;
    value.resize(count_of(x)), size.resize(value.size() / std::max<int64_t>(width, 1));
  }
  explicit operator bool() const { return !value.empty(); }
  void add(int64_t at, Real x, double terms) {
    if (value.empty()) return;
    value[at] += x, size[at / width] += terms;
  }
};

template <class P>
class Delta {
 public:
  Dense q, k, v, beta, erase, gate_head, gate_key, rate, bias, low_a, low_b, state;

  explicit Delta(const P& p)
      : q(load(p.q)),
        k(load(p.k)),
        v(load(p.v)),
        beta(load(p.beta)),
        erase(load(p.erase)),
        gate_head(load(p.gate_head)),
        gate_key(load(p.gate_key)),
        rate(load(p.gate_rate)),
        bias(load(p.gate_bias)),
        low_a(load(p.low_a)),
        low_b(load(p.low_b)),
        state(load(p.state_in)),
        p_(p),
        run_(load_run(p)),
        gate_(GateMap::of(p)),
        d_(p.q.shape[3]),
        e_(p.v.shape[3]),
        heads_(std::max(p.k.shape[2], p.v.shape[2])),
        heads_out_(std::max(p.q.shape[2], heads_)),
        scale_(p.scale > 0 ? p.scale : 1 / std::sqrt(static_cast<double>(d_))),
        eps_(p.eps > 0 ? p.eps : 1e-6f) {}

  struct Forward {
    Out o, state_out, snapshot;
  };
  Forward forward(Mode mode) const {
    return mode == Mode::exact ? forward_of<double>(delta_exact) : forward_of<float>(delta_rounded);
  }

  struct Backward {
    Out dq, dk, dv, dbeta, derase, dgate_head, dgate_key, dgate_rate, dgate_bias, dlow_a, dlow_b,
        dstate_in;
  };
  Backward backward(Mode mode) const {
    if (mode == Mode::exact)
      return backward_of<double>([](const auto& x) { return DeltaAdjoint(x).run(); });
    return backward_of<float>(delta_rounded_backward);
  }

 private:
  template <class Real>
  static constexpr Mode mode_of() {
    return std::is_same_v<Real, float> ? Mode::rounded : Mode::exact;
  }
  double unit() const { return q.dtype == FOVEA_F32 ? 0 : unit_of(q.dtype); }
  int64_t query_head(int64_t output) const { return output / (heads_out_ / q.shape[2]); }
  int64_t key_head(int64_t head) const { return head / (heads_ / k.shape[2]); }
  int64_t value_head(int64_t head) const { return head / (heads_ / v.shape[2]); }

  template <class Real>
  Mapped<Real> head_gate(int64_t batch, int64_t at, int64_t head) const {
    Real raw = static_cast<Real>(gate_head(batch, at, head));
    if (bias && !gate_key) raw += static_cast<Real>(bias(head, 0));
    return gate_(raw, static_cast<Real>(rate ? rate(head) : 0));
  }
  template <class Real>
  Mapped<Real> key_gate(int64_t batch, int64_t at, int64_t head, int64_t c) const {
    Real raw = static_cast<Real>(gate_key(batch, at, head, c));
    if (bias) raw += static_cast<Real>(bias(head, c));
    return gate_(raw, static_cast<Real>(rate ? rate(head) : 0));
  }
  template <class Real>
  Mapped<Real> beta_at(int64_t batch, int64_t at, int64_t head) const {
    if (!beta) return {1, 0, 0};
    return beta_map_of(p_.beta_map, static_cast<Real>(beta(batch, at, head)));
  }
  // q^ and k^ as products take them.  One value everywhere, or gradients of gates, which are
  // differences of q^ . dq^ and k^ . dk^, would have the roundings of both.
  double operand(double x) const { return x; }
  float operand(float x) const { return round_operand(q.dtype, x); }
  // 1 / sqrt(sum x^2 + eps) with l2_norm
  template <class Real>
  Real norm(const double* row) const {
    if (p_.l2_norm == 0) return 1;
    Real sum = static_cast<Real>(eps_);
    for (int64_t c = 0; c < d_; ++c) sum += static_cast<Real>(row[c]) * static_cast<Real>(row[c]);
    return 1 / std::sqrt(sum);
  }

  template <class Real>
  DeltaTokens<Real> tokens(int64_t i, int64_t head) const {
    const auto run = run_[i];
    DeltaTokens<Real> x;
    x.n = run.count, x.d = d_, x.e = e_, x.outs = heads_out_ / heads_, x.low = low_a.given;
    x.erase = erase.given, x.dtype = q.dtype, x.scale = static_cast<Real>(scale_);
    x.q.resize(x.outs * x.n * d_), x.k.resize(x.n * d_), x.decay.assign(x.n * d_, 1);
    x.p = x.a = x.b = x.k, x.v.resize(x.n * e_), x.beta.resize(x.n);
    for (int64_t t = 0; t < x.n; ++t) {
      const int64_t batch = run.batch, at = run.begin + t;
      x.beta[t] = beta_at<Real>(batch, at, head).value;
      for (int64_t j = 0; j < e_; ++j)
        x.v[t * e_ + j] = static_cast<Real>(v(batch, at, value_head(head), j));
      const Real size = norm<Real>(k.row(batch, at, key_head(head)));
      const Real whole = gate_head ? head_gate<Real>(batch, at, head).value : Real{0};
      for (int64_t c = 0; c < d_; ++c) {
        const int64_t to = t * d_ + c;
        x.k[to] = operand(size * static_cast<Real>(k(batch, at, key_head(head), c)));
        x.p[to] = erase ? static_cast<Real>(erase(batch, at, head, c)) : x.beta[t] * x.k[to];
        if (low_a) x.a[to] = static_cast<Real>(low_a(batch, at, head, c));
        if (low_b) x.b[to] = static_cast<Real>(low_b(batch, at, head, c));
        const Real own = gate_key ? key_gate<Real>(batch, at, head, c).value : Real{0};
        x.decay[to] = std::exp(whole + own);
      }
      for (int64_t n = 0; n < x.outs; ++n) {
        const int64_t from = query_head(head * x.outs + n);
        const Real length = norm<Real>(q.row(batch, at, from));
        for (int64_t c = 0; c < d_; ++c)
          x.q[(n * x.n + t) * d_ + c] = operand(length * static_cast<Real>(q(batch, at, from, c)));
      }
    }
    x.h0.resize(d_ * e_);
    const int64_t row = state ? run_.in_row(i, state.shape[0]) : -1;
    for (int64_t at = 0; row >= 0 && at < d_ * e_; ++at)
      x.h0[at] = static_cast<Real>(state(row, head, at / e_, at % e_));
    return x;
  }

  // ---- forward

  Out made(const fovea_tensor& x) const {
    Out out = x.data ? Out(x, unit()) : Out();
    out.condition = 1;
    return out;
  }
  static void put(Out& out, const fovea_tensor& x, Mode mode, int64_t at, double value) {
    out.set(at, mode == Mode::rounded ? round_to(x.dtype, value) : value);
  }
  template <class Real>
  void put_state(Out& out, const fovea_tensor& x, int64_t row, int64_t head,
                 const DeltaState<Real>& from) const {
    if (!x.data || row < 0 || row >= x.shape[0]) return;
    for (int64_t c = 0; c < d_; ++c) {
      for (int64_t j = 0; j < e_; ++j)
        put(out, x, mode_of<Real>(), ((row * heads_ + head) * d_ + c) * e_ + j,
            static_cast<double>(from.value[c * e_ + j]));
      out.terms(from.size[c]);
    }
  }

  template <class Real, class Walk>
  Forward forward_of(Walk walk) const {
    Forward out{made(p_.o), made(p_.state_out), made(p_.snapshot)};
    for (int64_t i = 0; i < run_.r; ++i)
      for (int64_t head = 0; head < heads_; ++head) {
        const auto run = run_[i];
        const int64_t kept =
            p_.snapshot.data ? std::min(run_.snapshot_row.shape[1], run.count / run_.every) : 0;
        std::vector<int64_t> times = {run.count};
        for (int64_t n = 0; n < kept; ++n)
          if ((n + 1) * run_.every < run.count) times.push_back((n + 1) * run_.every);
        const DeltaTokens<Real> x = tokens<Real>(i, head);
        const DeltaForward<Real> made = walk(x, times);
        for (int64_t t = run.from; t < run.count && p_.o.data; ++t)
          for (int64_t n = 0; n < x.outs; ++n) {
            const int64_t from = n * x.n + t;
            const int64_t to =
                (run.batch * run_.s + run.begin + t) * heads_out_ + head * x.outs + n;
            for (int64_t j = 0; j < e_; ++j)
              put(out.o, p_.o, mode_of<Real>(), to * e_ + j,
                  static_cast<double>(made.o[from * e_ + j]));
            out.o.terms(made.o_size[from]);
          }
        if (p_.state_out.data)
          put_state(out.state_out, p_.state_out, run_.out_row(i, p_.state_out.shape[0]), head,
                    made.states.at(run.count));
        for (int64_t n = 0; n < kept; ++n)
          put_state(out.snapshot, p_.snapshot, run_.snapshot_row.integer(i, n), head,
                    made.states.at((n + 1) * run_.every));
      }
    return out;
  }

  // ---- backward

  template <class Real>
  struct Sums {
    DeltaSums<Real> dq, dk, dv, dbeta, derase, dgate_head, dgate_key, dgate_rate, dgate_bias,
        dlow_a, dlow_b, dstate_in;
  };

  template <class Real, class Walk>
  Backward backward_of(Walk walk) const {
    const Dense dout = load(p_.dout), dlast = load(p_.dstate_out);
    Sums<Real> sums;
    sums.dq.shape(p_.dq, d_), sums.dk.shape(p_.dk, d_), sums.dv.shape(p_.dv, e_);
    sums.dbeta.shape(p_.dbeta, 1), sums.derase.shape(p_.derase, d_);
    sums.dgate_head.shape(p_.dgate_head, 1), sums.dgate_key.shape(p_.dgate_key, 1);
    sums.dgate_rate.shape(p_.dgate_rate, 1), sums.dgate_bias.shape(p_.dgate_bias, 1);
    sums.dlow_a.shape(p_.dlow_a, d_), sums.dlow_b.shape(p_.dlow_b, d_);
    sums.dstate_in.shape(p_.dstate_in, e_);
    for (int64_t i = 0; i < run_.r; ++i)
      for (int64_t head = 0; head < heads_; ++head) {
        const auto run = run_[i];
        DeltaTokens<Real> x = tokens<Real>(i, head);
        x.dout.resize(x.outs * x.n * e_), x.dlast.resize(d_ * e_);
        for (int64_t n = 0; n < x.outs; ++n)
          for (int64_t at = run.from * e_; at < x.n * e_; ++at)
            x.dout[n * x.n * e_ + at] =
                static_cast<Real>(dout(run.batch, run.begin + at / e_, head * x.outs + n, at % e_));
        for (int64_t at = 0; dlast && at < d_ * e_; ++at)
          x.dlast[at] = static_cast<Real>(dlast(i, head, at / e_, at % e_));
        DeltaBackward<Real> made = walk(x);
        for (int64_t at = 0; at < d_ * e_; ++at)
          sums.dstate_in.add((i * heads_ + head) * d_ * e_ + at, made.dh0[at],
                             at % e_ ? 0 : made.dh0_size[at / e_]);
        for (int64_t t = 0; t < x.n; ++t) collect(sums, x, made, head, run.batch, run.begin + t, t);
      }
    const auto out = [&](const fovea_tensor& x, const DeltaSums<Real>& from) {
      return conv_output(x, from.value, from.size, unit(), 1, mode_of<Real>());
    };
    return {out(p_.dq, sums.dq),
            out(p_.dk, sums.dk),
            out(p_.dv, sums.dv),
            out(p_.dbeta, sums.dbeta),
            out(p_.derase, sums.derase),
            out(p_.dgate_head, sums.dgate_head),
            out(p_.dgate_key, sums.dgate_key),
            out(p_.dgate_rate, sums.dgate_rate),
            out(p_.dgate_bias, sums.dgate_bias),
            out(p_.dlow_a, sums.dlow_a),
            out(p_.dlow_b, sums.dlow_b),
            out(p_.dstate_in, sums.dstate_in)};
  }

  // The gradients of one token.
  template <class Real>
  void collect(Sums<Real>& sums, const DeltaTokens<Real>& x, DeltaBackward<Real>& made,
               int64_t head, int64_t batch, int64_t at, int64_t t) const {
    const int64_t row = batch * run_.s + at, head_row = row * heads_ + head;
    const auto strength = beta_at<Real>(batch, at, head);
    Real dbeta = made.dbeta[t];
    double dbeta_size = made.dbeta_size[t], dk_size = made.dk_size[t];
    if (!x.low && !erase) {
      for (int64_t c = 0; c < d_; ++c) {
        dbeta += made.dp[t * d_ + c] * x.k[t * d_ + c];
        dbeta_size += made.dp_size[t] * std::abs(x.k[t * d_ + c]);
        made.dk[t * d_ + c] += x.beta[t] * made.dp[t * d_ + c];
      }
      dk_size += std::abs(x.beta[t]) * made.dp_size[t];
    }
    sums.dbeta.add(head_row, dbeta * strength.slope, dbeta_size * std::abs(strength.slope));
    for (int64_t n = 0; n < x.outs; ++n) {
      const int64_t from = query_head(head * x.outs + n), of = (n * x.n + t) * d_;
      normed(sums.dq, (row * q.shape[2] + from) * d_, &made.dq[of], &x.q[of],
             norm<Real>(q.row(batch, at, from)), made.dq_size[n * x.n + t]);
    }
    normed(sums.dk, (row * k.shape[2] + key_head(head)) * d_, &made.dk[t * d_], &x.k[t * d_],
           norm<Real>(k.row(batch, at, key_head(head))), dk_size);
    for (int64_t j = 0; j < e_; ++j)
      sums.dv.add((row * v.shape[2] + value_head(head)) * e_ + j, made.dv[t * e_ + j],
                  j ? 0 : made.dv_size[t]);
    const auto plain = [&](DeltaSums<Real>& to, const std::vector<Real>& from, double size) {
      for (int64_t c = 0; c < d_; ++c) to.add(head_row * d_ + c, from[t * d_ + c], c ? 0 : size);
    };
    plain(sums.derase, made.dp, made.dp_size[t]);
    plain(sums.dlow_a, made.da, made.da_size[t]), plain(sums.dlow_b, made.db, made.db_size[t]);
    gates(sums, made, head, batch, at, t);
  }

  // Through x / sqrt(sum x^2 + eps), whose value is `unit`.
  template <class Real>
  void normed(DeltaSums<Real>& to, int64_t row, const Real* gradient, const Real* unit, Real size,
              double terms) const {
    Real dot = 0;
    double dot_size = 0;
    for (int64_t c = 0; c < d_ && p_.l2_norm; ++c)
      dot += gradient[c] * unit[c], dot_size += terms * std::abs(static_cast<double>(unit[c]));
    double largest = 0;
    for (int64_t c = 0; c < d_; ++c)
      largest = std::max(largest, terms + std::abs(static_cast<double>(unit[c])) * dot_size);
    for (int64_t c = 0; c < d_; ++c)
      to.add(row + c, size * (gradient[c] - unit[c] * dot), c ? 0 : size * largest);
  }

  template <class Real>
  void gates(Sums<Real>& sums, const DeltaBackward<Real>& made, int64_t head, int64_t batch,
             int64_t at, int64_t t) const {
    const int64_t head_row = (batch * run_.s + at) * heads_ + head;
    const auto add = [&](DeltaSums<Real>& to, int64_t where, Real by, Real gradient, double size) {
      to.add(where, by == 0 ? 0 : by * gradient,
             by == 0 ? 0 : std::abs(static_cast<double>(by)) * size);
    };
    Real all = 0;
    double all_size = 0;
    for (int64_t c = 0; c < d_; ++c) {
      const Real gradient = made.dlog[t * d_ + c];
      const double size = made.dlog_size[t * d_ + c];
      all += gradient, all_size += size;
      if (!gate_key) continue;
      const auto g = key_gate<Real>(batch, at, head, c);
      add(sums.dgate_key, head_row * d_ + c, g.slope, gradient, size);
      add(sums.dgate_rate, head, g.by_rate, gradient, size);
      add(sums.dgate_bias, head * d_ + c, g.slope, gradient, size);
    }
    if (!gate_head) return;
    const auto g = head_gate<Real>(batch, at, head);
    add(sums.dgate_head, head_row, g.slope, all, all_size);
    add(sums.dgate_rate, head, g.by_rate, all, all_size);
    if (!gate_key) add(sums.dgate_bias, head * d_, g.slope, all, all_size);
  }

  const P& p_;
  const RunOracle run_;
  const GateMap gate_;
  const int64_t d_, e_, heads_, heads_out_;
  const double scale_, eps_;
};

}  // namespace oracle
