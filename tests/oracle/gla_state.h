// SPDX-License-Identifier: Apache-2.0
// The state of gated linear attention (experimental/linear.h) for one sequence and one state head:
//   H_t = G_t . H_(t-1) + k_t' v_t,  y_t = q_t H_t, or q_t H_(t-1) with `before`
// token by token, and in chunks of 64 rows as tensor cores compute it:
//   A_ts = sum_c q_tc k_sc e^(decays of the rows s+1 .. t)
//   y = (q . e^P) H + A v,  H <- e^Gamma . H + (k . e^S)' v
// Decays are running products of the rows that they cover, never differences of prefix sums.
// Gradients: the adjoint of each form.  In chunks dgate = revcum(q dq - k dk) + rowsum(H' W'), or
// from H and W as operands, see chunk_gates().
// Value decays alone are key decays of the state with its axes swapped: of k' = v, v' = k.  There y
// is the dq of dy = q, and dq is the y of q' = dy.
#pragma once
#include <cmath>

#include "oracle/dense.h"

namespace oracle {

template <class Real>
struct GlaState {
  using List = std::vector<Real>;

  int64_t tokens = 0, keys = 0, d = 0, e = 0, outputs = 0;
  bool full = false;        // every row reads the sum over all keys
  bool before = false;      // read_before
  bool uniform = false;     // all channels of k have one decay
  bool swaps = false;       // tensor cores take value decays, with the axes swapped
  int operand = FOVEA_F32;  // what operands of tensor cores are rounded to; v is of that type
  Real scale = 1;
  List q;                     // (outputs, tokens, d)
  List k, v;                  // (keys, d), (keys, e)
  List decays, value_decays;  // (tokens, d), (tokens, e); empty: 1
  List first;                 // (d, e)

  struct Gradients {
    List dq, dk, dv, dgate, dgate_value, dfirst;
  };
  struct Outputs {
    List y;                    // (outputs, tokens, e)
    std::vector<List> states;  // after the numbers of tokens that were asked for
  };

  // The absolute values: what a run over them gives is the sum of the absolute terms.
  GlaState absolute() const {
    GlaState x = *this;
    for (List* list : {&x.q, &x.k, &x.v, &x.first})
      for (Real& y : *list) y = std::abs(y);
    return x;
  }

  // ---- token by token

  Outputs forward(const std::vector<int64_t>& times) const {
    Outputs out{List(outputs * tokens * e), std::vector<List>(times.size())};
    List h = first;
    const auto keep = [&](int64_t t) {
      for (size_t i = 0; i < times.size(); ++i)
        if (times[i] == t) out.states[i] = h;
    };
    if (full) {
      for (int64_t s = 0; s < keys; ++s) add(h, s);
      const List operands = parts(h);
      for (int64_t t = 0; t < tokens; ++t) read(out.y, t, operands);
      for (size_t i = 0; i < times.size(); ++i) out.states[i] = h;
      return out;
    }
    keep(0);
    for (int64_t t = 0; t < tokens; ++t) {
      if (before) read(out.y, t, h);
      decay(h, t), add(h, t);
      if (!before) read(out.y, t, h);
      keep(t + 1);
    }
    return out;
  }

  // dy: of y; dlast: of the last state.
  Gradients backward(const List& dy, const List& dlast) const {
    Gradients out = zeros();
    std::vector<List> h = {first};
    List w = dlast;
    if (full) {
      for (int64_t s = 0; s < keys; ++s) add(h[0], s);
      for (int64_t t = 0; t < tokens; ++t) read_back(out, dy, t, h[0], &w);
      for (int64_t s = 0; s < keys; ++s) add_back(out, s, w);
      out.dfirst = w;
      return out;
    }
    for (int64_t t = 0; t < tokens; ++t) h.push_back(h[t]), decay(h[t + 1], t), add(h[t + 1], t);
    for (int64_t t = tokens - 1; t >= 0; --t) {
      if (!before) read_back(out, dy, t, h[t + 1], &w);
      add_back(out, t, w);
      for (int64_t c = 0; c < d; ++c)
        for (int64_t j = 0; j < e; ++j) {
          const Real a = decay_of(t, c, j);
          if (a == 0) continue;
          const Real x = a * h[t][c * e + j] * w[c * e + j];
          out.dgate[t * d + c] += x, out.dgate_value[t * e + j] += x;
        }
      decay(w, t);
      if (before) read_back(out, dy, t, h[t], &w);
    }
    out.dfirst = w;
    return out;
  }

  // ---- in chunks, without value_decays

  static constexpr int64_t kChunk = 64, kPart = 16;

  bool chunks() const { return value_decays.empty() && !full; }

  Outputs chunk_forward(const std::vector<int64_t>& times) const {
    Outputs out{List(outputs * tokens * e), std::vector<List>(times.size())};
    List h = first;
    for (int64_t low = 0; low <= tokens; low += kChunk) {
      const int64_t high = std::min(low + kChunk, tokens);
      for (size_t i = 0; i < times.size(); ++i)
        if (times[i] >= low && times[i] <= high) out.states[i] = advanced(h, low, times[i]);
      if (high > low) chunk_read(out.y, low, high, h), h = advanced(h, low, high);
    }
    return out;
  }

  Gradients chunk_backward(const List& dy, const List& dlast) const {
    Gradients out = zeros();
    std::vector<List> h = {first};
    for (int64_t low = 0; low < tokens; low += kChunk)
      h.push_back(advanced(h.back(), low, std::min(low + kChunk, tokens)));
    List w = dlast;
    for (int64_t n = static_cast<int64_t>(h.size()) - 2; n >= 0; --n)
      chunk_back(out, n * kChunk, std::min((n + 1) * kChunk, tokens), h[n], h[n + 1], dy, w);
    out.dfirst = w;
    return out;
  }

  // ---- in chunks, of value_decays alone, one output a head

  Outputs swapped_forward(const std::vector<int64_t>& times) const {
    GlaState x = swapped(List(tokens * e));
    Outputs out;
    if (outputs) out.y = x.chunk_backward(q, List(d * e)).dq;
    x.outputs = 0;
    for (const List& state : x.chunk_forward(times).states)
      out.states.push_back(turned(state, e, d));
    return out;
  }
  Gradients swapped_backward(const List& dy, const List& dlast) const {
    const GlaState x = swapped(dy);
    const Gradients got = x.chunk_backward(q, turned(dlast, d, e));
    return {x.chunk_forward({}).y, got.dv,    got.dk,
            List(tokens * d),      got.dgate, turned(got.dfirst, e, d)};
  }

 private:
  static List turned(const List& x, int64_t rows, int64_t columns) {
    List y(x.size());
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j) y[j * rows + i] = x[i * columns + j];
    return y;
  }
  GlaState swapped(const List& rows) const {
    GlaState x = *this;
    x.d = e, x.e = d, x.q = rows, x.k = v, x.v = k, x.uniform = false, x.outputs = 1;
    x.decays = value_decays, x.value_decays = {}, x.first = turned(first, d, e);
    return x;
  }
  Real key_decay(int64_t t, int64_t c) const {
    return decays.empty() ? Real{1} : decays[t * d + c];
  }
  Real decay_of(int64_t t, int64_t c, int64_t j) const {
    return value_decays.empty() ? key_decay(t, c) : key_decay(t, c) * value_decays[t * e + j];
  }
  // What is decayed to 0 is 0, whatever it was.
  void decay(List& h, int64_t t) const {
    if (decays.empty() && value_decays.empty()) return;
    for (int64_t c = 0; c < d; ++c)
      for (int64_t j = 0; j < e; ++j) {
        const Real a = decay_of(t, c, j);
        h[c * e + j] = a == 0 ? 0 : a * h[c * e + j];
      }
  }
  void add(List& h, int64_t s) const {
    for (int64_t c = 0; c < d; ++c)
      for (int64_t j = 0; j < e; ++j) h[c * e + j] += k[s * d + c] * v[s * e + j];
  }
  const Real* row(const List& x, int64_t output, int64_t t, int64_t width) const {
    return x.data() + (output * tokens + t) * width;
  }
  void read(List& y, int64_t t, const List& h) const {
    for (int64_t o = 0; o < outputs; ++o)
      for (int64_t c = 0; c < d; ++c)
        for (int64_t j = 0; j < e; ++j)
          y[(o * tokens + t) * e + j] += scale * row(q, o, t, d)[c] * h[c * e + j];
  }
  void read_back(Gradients& out, const List& dy, int64_t t, const List& h, List* w) const {
    for (int64_t o = 0; o < outputs; ++o)
      for (int64_t c = 0; c < d; ++c)
        for (int64_t j = 0; j < e; ++j) {
          const Real g = scale * row(dy, o, t, e)[j];
          out.dq[(o * tokens + t) * d + c] += g * h[c * e + j];
          (*w)[c * e + j] += row(q, o, t, d)[c] * g;
        }
  }
  void add_back(Gradients& out, int64_t s, const List& w) const {
    for (int64_t c = 0; c < d; ++c)
      for (int64_t j = 0; j < e; ++j) {
        out.dk[s * d + c] += v[s * e + j] * w[c * e + j];
        out.dv[s * e + j] += k[s * d + c] * w[c * e + j];
      }
  }
  Gradients zeros() const {
    return {List(q.size()), List(k.size()), List(v.size()), List(tokens * d), List(tokens * e), {}};
  }

  // An operand of tensor cores.
  Real part(Real x) const {
    return operand == FOVEA_F32 ? x : static_cast<Real>(round_to(operand, static_cast<double>(x)));
  }
  List parts(const List& x) const {
    List y = x;
    for (Real& one : y) one = part(one);
    return y;
  }

  // The state after `t` tokens from that after `low`.
  List advanced(const List& h, int64_t low, int64_t t) const {
    List out(d * e), w(d, 1);
    for (int64_t s = t - 1; s >= low; --s) {
      for (int64_t c = 0; c < d; ++c) {
        const Real x = part(k[s * d + c] * w[c]);
        for (int64_t j = 0; j < e; ++j) out[c * e + j] += x * v[s * e + j];
        w[c] *= key_decay(s, c);
      }
    }
    for (int64_t c = 0; c < d; ++c)
      for (int64_t j = 0; w[c] != 0 && j < e; ++j) out[c * e + j] += w[c] * h[c * e + j];
    return out;
  }

  // Products of decays from the chunk's first row: up to and with t, without t where before.
  List prefixes(int64_t low, int64_t high) const {
    List p((high - low) * d), w(d, 1);
    for (int64_t t = low; t < high; ++t)
      for (int64_t c = 0; c < d; ++c) {
        if (before) p[(t - low) * d + c] = w[c];
        w[c] *= key_decay(t, c);
        if (!before) p[(t - low) * d + c] = w[c];
      }
    return p;
  }
  // q . e^P as an operand.
  Real read_factor(const List& p, int64_t low, int64_t o, int64_t t, int64_t c) const {
    const Real x = row(q, o, t, d)[c], w = p[(t - low) * d + c];
    return uniform ? part(x) * w : part(x * w);
  }

  // One entry of the chunk's matrix: A = sum_c left_c right_c, and with the gradient a of A
  // dq_c += a right_c left_factor_c, dk_c += a left_c right_factor_c.
  struct Entry {
    int64_t t, s;
    List right, left_factor, right_factor;
    bool crossed = false;
  };
  // visit(entry) for the rows t that read row s, s ascending.  Within 16 rows key decays are
  // products in f32, across them both operands are scaled and rounded.
  template <class Visit>
  void entries(int64_t low, int64_t high, Visit visit) const {
    for (int64_t s = low; s < high; ++s) {
      Entry x{s, s, List(d), List(d, 1), List(d, 1)};
      List w(d, 1);
      const auto multiply = [&] {
        for (int64_t c = 0; c < d; ++c) {
          const Real a = key_decay(x.t, c);
          w[c] *= a;
          if (x.crossed) x.left_factor[c] *= a;
        }
      };
      const auto take = [&] {
        for (int64_t c = 0; !x.crossed && c < d; ++c) {
          const Real key = k[s * d + c];
          x.right_factor[c] = w[c], x.right[c] = uniform ? part(key) * w[c] : key * w[c];
        }
        visit(x);
      };
      for (x.t = s; x.t < high; ++x.t) {
        if (x.t > s && (x.t - low) % kPart == 0 && !uniform && operand != FOVEA_F32) {
          x.crossed = true;
          for (int64_t c = 0; c < d; ++c)
            x.right[c] = part(k[s * d + c] * w[c]), x.right_factor[c] = w[c], x.left_factor[c] = 1;
        }
        if (!before && x.t > s) multiply();
        if (!before || x.t > s) take();
        if (before && x.t > s) multiply();
      }
    }
  }
  // The left operands of an output's rows: as they are within 16 rows, scaled across them.
  struct Lefts {
    List near, far;
  };
  Lefts lefts(int64_t low, int64_t high, int64_t o) const {
    Lefts x{List((high - low) * d), List((high - low) * d)};
    List w(d, 1);
    for (int64_t t = low; t < high; ++t)
      for (int64_t c = 0; c < d; ++c) {
        const Real y = row(q, o, t, d)[c];
        const int64_t at = (t - low) * d + c;
        x.near[at] = uniform ? part(y) : y;
        if ((t - low) % kPart == 0) w[c] = 1;
        if (before) x.far[at] = part(y * w[c]);
        w[c] *= key_decay(t, c);
        if (!before) x.far[at] = part(y * w[c]);
      }
    return x;
  }
  static const Real* left_of(const Lefts& x, const Entry& at, int64_t low, int64_t d) {
    return (at.crossed ? x.far : x.near).data() + (at.t - low) * d;
  }

  void chunk_read(List& y, int64_t low, int64_t high, const List& h) const {
    const List p = prefixes(low, high), state = parts(h);
    for (int64_t o = 0; o < outputs; ++o) {
      for (int64_t t = low; t < high; ++t)
        for (int64_t c = 0; c < d; ++c) {
          if (p[(t - low) * d + c] == 0) continue;
          const Real x = read_factor(p, low, o, t, c);
          for (int64_t j = 0; j < e; ++j)
            y[(o * tokens + t) * e + j] += scale * x * state[c * e + j];
        }
      const Lefts left = lefts(low, high, o);
      entries(low, high, [&](const Entry& x) {
        const Real* l = left_of(left, x, low, d);
        Real a = 0;
        for (int64_t c = 0; c < d; ++c) a += l[c] * x.right[c];
        a = part(a);
        for (int64_t j = 0; j < e; ++j) y[(o * tokens + x.t) * e + j] += scale * a * v[x.s * e + j];
      });
    }
  }

  // h, next: the states at both ends; w: the gradient of next, then of h.
  void chunk_back(Gradients& out, int64_t low, int64_t high, const List& h, const List& next,
                  const List& dy, List& w) const {
    const List p = prefixes(low, high), state = parts(h), grad = parts(w);
    List own(d * e), given((high - low) * d), d_y = parts(dy);
    for (Real& x : d_y) x *= scale;
    for (int64_t o = 0; o < outputs; ++o) {
      for (int64_t t = low; t < high; ++t)
        for (int64_t c = 0; c < d; ++c) {
          const Real factor = p[(t - low) * d + c], x = part(row(q, o, t, d)[c] * factor);
          Real sum = 0;
          for (int64_t j = 0; j < e; ++j) {
            sum += row(d_y, o, t, e)[j] * state[c * e + j];
            own[c * e + j] += x * row(d_y, o, t, e)[j];
          }
          if (factor != 0) out.dq[(o * tokens + t) * d + c] += factor * sum;
        }
      const Lefts left = lefts(low, high, o);
      entries(low, high, [&](const Entry& x) {
        const Real* l = left_of(left, x, low, d);
        Real a = 0, da = 0;
        for (int64_t c = 0; c < d; ++c) a += l[c] * x.right[c];
        for (int64_t j = 0; j < e; ++j) da += row(d_y, o, x.t, e)[j] * v[x.s * e + j];
        a = part(a), da = part(da);
        for (int64_t j = 0; j < e; ++j) out.dv[x.s * e + j] += a * row(d_y, o, x.t, e)[j];
        for (int64_t c = 0; c < d; ++c) {
          out.dq[(o * tokens + x.t) * d + c] += da * x.right[c] * x.left_factor[c];
          out.dk[x.s * d + c] += da * l[c] * x.right_factor[c];
        }
      });
    }
    List suffix(d, 1);
    for (int64_t s = high - 1; s >= low; --s)
      for (int64_t c = 0; c < d; ++c) {
        const Real x = part(k[s * d + c] * suffix[c]);
        Real sum = 0;
        for (int64_t j = 0; j < e; ++j) {
          sum += v[s * e + j] * grad[c * e + j];
          out.dv[s * e + j] += x * grad[c * e + j];
        }
        out.dk[s * d + c] += suffix[c] * sum;
        if (!uniform) given[(s - low) * d + c] = k[s * d + c] * suffix[c] * sum;
        suffix[c] *= key_decay(s, c);
      }
    List states(d);
    for (int64_t c = 0; c < d; ++c) {
      for (int64_t j = 0; j < e; ++j)
        states[c] += uniform ? next[c * e + j] * w[c * e + j] : state[c * e + j] * grad[c * e + j];
      if (!uniform) states[c] = suffix[c] == 0 ? 0 : suffix[c] * states[c];
    }
    chunk_gates(out, low, high, states, given);
    for (int64_t c = 0; c < d; ++c)
      for (int64_t j = 0; j < e; ++j) {
        Real& x = w[c * e + j];
        x = (suffix[c] == 0 ? 0 : suffix[c] * x) + own[c * e + j];
      }
  }
  // `states`: what crosses all gates of a chunk.  Of one decay for all channels H' W' in f32; else
  // H W of operands, and `given`, k dk of the rows that W takes, counts where it crosses.
  void chunk_gates(Gradients& out, int64_t low, int64_t high, List states,
                   const List& given) const {
    for (int64_t t = low; t < high; ++t)
      for (int64_t c = 0; c < d; ++c) {
        out.dgate[t * d + c] = states[c];
        states[c] += given[(t - low) * d + c];
      }
    List sum(d);
    for (int64_t t = high - 1; t >= low; --t)
      for (int64_t c = 0; c < d; ++c) {
        Real reads = 0;
        for (int64_t o = 0; o < outputs; ++o) reads += row(q, o, t, d)[c] * row(out.dq, o, t, d)[c];
        if (!before) sum[c] += reads;
        sum[c] += given[(t - low) * d + c] - k[t * d + c] * out.dk[t * d + c];
        out.dgate[t * d + c] += sum[c];
        if (before) sum[c] += reads;
      }
  }
};

}  // namespace oracle
