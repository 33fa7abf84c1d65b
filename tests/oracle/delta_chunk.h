// SPDX-License-Identifier: Apache-2.0
// The delta rule in chunks of 64 tokens, float32.  With P, E, S the decays of the rows up to and
// with t, before t and after t, D_ts those of s + 1 .. t, and D'_ts those of s + 1 .. t - 1:
//   M = stril(p k D),  A = tril(q k D),  T = (I + M)^-1,  U = T (beta V - (p P) H)
//   O = scale ((q P) H + A U),  H <- decay . H + (k S)' U
//   low rank: T = (I - stril(a b D'))^-1,  U = T ((a E) H + stril(a k D') V)
//   O = scale ((q P) H + tril(q b D) U + tril(q k D) V),  H <- decay . H + (b S)' U + (k S)' V
// Decays are running products of the rows that they cover.  Between sub-chunks of 16 rows D is the
// product of three factors, of which the operands take two.  With q of 16 bits everything is
// rounded that a tensor core multiplies: scaled operands, C x C matrices, T beta, U, dY and copies
// of H and W.  Inside a sub-chunk D stays apart, in float32.
#pragma once
#include "oracle/delta_tokens.h"
#include "oracle/dtype.h"

namespace oracle {

constexpr int64_t kDeltaChunk = 64, kDeltaBlock = 16;

using Floats = std::vector<float>;

// round_to for 16-bit types, on the bits of a float32: operands are many.
inline float round_operand(int dtype, float x) {
  if (dtype == FOVEA_F32 || !std::isfinite(x)) return x;
  if (rounding_draw()) return static_cast<float>(round_to(dtype, x));
  if (dtype == FOVEA_F16 && std::abs(x) < 0x1p-14f) return x + 0.75f - 0.75f;
  const int cut = dtype == FOVEA_F16 ? 13 : 16;
  uint32_t bits = bits_at<uint32_t>(&x);
  bits += (1u << (cut - 1)) - 1 + (bits >> cut & 1);
  bits &= ~((1u << cut) - 1);
  const float y = bits_at<float>(&bits);
  return dtype == FOVEA_F16 && std::abs(y) > 65504 ? std::copysign(HUGE_VALF, x) : y;
}

// Tokens first .. first + n - 1 of a head: their decays, and products of their rows.
class DeltaChunk {
 public:
  DeltaChunk(const DeltaTokens<float>& tokens, int64_t first_, int64_t count)
      : n(count),
        d(tokens.d),
        e(tokens.e),
        first(first_),
        dtype_(tokens.dtype),
        decay_(&tokens.decay[first * d]) {
    upto.assign(n * d, 1), before = upto, after = upto, all.assign(d, 1);
    for (int64_t t = 0; t < n; ++t)
      for (int64_t c = 0; c < d; ++c) {
        before[t * d + c] = all[c];
        upto[t * d + c] = all[c] *= decay_[t * d + c];
      }
    for (int64_t t = n - 2; t >= 0; --t)
      for (int64_t c = 0; c < d; ++c)
        after[t * d + c] = after[(t + 1) * d + c] * decay_[(t + 1) * d + c];
  }

  const int64_t n, d, e, first;
  Floats upto, before, after, all;  // P, E, S, the decay of the chunk

  float rounded(float x) const { return round_operand(dtype_, x); }
  Floats rounded(Floats x) const {
    for (float& one : x) one = rounded(one);
    return x;
  }
  // Rows of the chunk out of those of the head, `width` numbers each.
  Floats rows(const Floats& x, int64_t width, int64_t head = 0, int64_t tokens = 0) const {
    const auto from = x.begin() + (head * tokens + first) * width;
    return Floats(from, from + n * width);
  }
  // As an operand: each row scaled and rounded.
  Floats scaled(const Floats& x, const Floats& by) const {
    Floats y(x.size());
    for (size_t i = 0; i < x.size(); ++i) y[i] = rounded(decayed(by[i], x[i]));
    return y;
  }

  // D of the pairs (t, s) of the chunk, for each t from late s on: near(t, s, D) of those inside a
  // block, then far(t, left, right) of all s before it, where right has a row for each s.
  template <class Near, class Far>
  void pairs(bool excluded, Near near, Far far) const {
    for (int64_t base = 0; base < n; base += kDeltaBlock) {
      const int64_t end = std::min(n, base + kDeltaBlock);
      Floats right(base * d, 1);
      for (int64_t s = base - 2; s >= 0; --s)
        for (int64_t c = 0; c < d; ++c)
          right[s * d + c] = right[(s + 1) * d + c] * decay_[(s + 1) * d + c];
      for (int64_t t = base; t < end; ++t) {
        Floats w(d, 1);
        for (int64_t s = excluded ? t - 1 : t; s >= base; --s) {
          near(t, s, w.data());
          for (int64_t c = 0; c < d; ++c) w[c] *= decay_[s * d + c];
        }
        far(t, w, right);
      }
    }
  }
  // Rows of x from `row` on as an operand: as many as `by` has.
  Floats scaled_rows(const Floats& x, const Floats& by, int64_t row = 0) const {
    const auto from = x.begin() + row * d;
    return scaled(Floats(from, from + static_cast<int64_t>(by.size())), by);
  }
  // sum_c x_t y_s D_ts, or D'_ts; 0 above the diagonal, and on it without `diagonal`.
  Floats matrix(const Floats& x, const Floats& y, bool excluded, bool diagonal) const {
    Floats made(n * n), far;
    const auto inside = [&](int64_t t, int64_t s, const float* decay) {
      if (s == t && !diagonal) return;
      float sum = 0;
      for (int64_t c = 0; c < d; ++c) sum += decayed(decay[c], x[t * d + c] * y[s * d + c]);
      made[t * n + s] = sum;
    };
    pairs(excluded, inside, [&](int64_t t, const Floats& left, const Floats& right) {
      if (far.size() != right.size()) far = scaled_rows(y, right);
      const Floats own = scaled_rows(x, left, t);
      for (int64_t at = 0; at < static_cast<int64_t>(far.size()); ++at)
        made[t * n + at / d] += own[at % d] * far[at];
    });
    return made;
  }
  // to_t += sum_s m_ts D_ts y_s
  void add_rows(Floats& to, const Floats& m, const Floats& y, bool excluded) const {
    Floats far;
    const auto inside = [&](int64_t t, int64_t s, const float* decay) {
      for (int64_t c = 0; c < d; ++c)
        to[t * d + c] += decayed(decay[c], m[t * n + s] * y[s * d + c]);
    };
    pairs(excluded, inside, [&](int64_t t, const Floats& left, const Floats& right) {
      if (far.size() != right.size()) far = scaled_rows(y, right);
      for (int64_t s = static_cast<int64_t>(far.size()) / d - 1; s >= 0; --s) {
        const float by = rounded(m[t * n + s]);
        for (int64_t c = 0; c < d; ++c) to[t * d + c] += decayed(left[c], by * far[s * d + c]);
      }
    });
  }
  // to_s += sum_t m_ts D_ts x_t
  void add_columns(Floats& to, const Floats& m, const Floats& x, bool excluded) const {
    const auto inside = [&](int64_t t, int64_t s, const float* decay) {
      for (int64_t c = 0; c < d; ++c)
        to[s * d + c] += m[t * n + s] * decayed(decay[c], x[t * d + c]);
    };
    pairs(excluded, inside, [&](int64_t t, const Floats& left, const Floats& right) {
      const Floats own = scaled_rows(x, left, t);
      for (int64_t s = static_cast<int64_t>(right.size()) / d - 1; s >= 0; --s) {
        const float by = rounded(m[t * n + s]);
        for (int64_t c = 0; c < d; ++c) to[s * d + c] += decayed(right[s * d + c], by * own[c]);
      }
    });
  }
  // (I + sign M)^-1 of a strictly lower M, by substitution.
  Floats inverse(const Floats& m, float sign) const {
    Floats t(n * n);
    for (int64_t i = 0; i < n; ++i) {
      t[i * n + i] = 1;
      for (int64_t s = 0; s < i; ++s)
        for (int64_t j = 0; j <= s; ++j) t[i * n + j] -= sign * m[i * n + s] * t[s * n + j];
    }
    return t;
  }

 private:
  const int dtype_;
  const float* const decay_;
};

// y (rows, columns) += by a b, of a (rows, inner) and b (inner, columns); a may be transposed.
inline void add_product(Floats& y, float by, const Floats& a, bool transposed, const Floats& b,
                        int64_t inner) {
  const int64_t rows = static_cast<int64_t>(a.size()) / std::max<int64_t>(inner, 1);
  const int64_t columns = static_cast<int64_t>(b.size()) / std::max<int64_t>(inner, 1);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t k = 0; k < inner; ++k) {
      const float x = by * (transposed ? a[k * rows + i] : a[i * inner + k]);
      if (x == 0) continue;
      for (int64_t j = 0; j < columns; ++j) y[i * columns + j] += x * b[k * columns + j];
    }
}
// (rows, columns) = a b' of a (rows, inner) and b (columns, inner).
inline Floats product_of_rows(const Floats& a, const Floats& b, int64_t rows, int64_t columns,
                              int64_t inner) {
  Floats y(rows * columns);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      for (int64_t k = 0; k < inner; ++k) y[i * columns + j] += a[i * inner + k] * b[j * inner + k];
  return y;
}

// A chunk with its incoming state: U, and what forward and backward share.
struct DeltaWork {
  DeltaWork(const DeltaTokens<float>& tokens, int64_t first, int64_t count, const Floats& state)
      : x(tokens), c(tokens, first, count), h(state), copy(c.rounded(state)) {
    k = c.rows(x.k, c.d), v = c.rows(x.v, c.e);
    Floats y(c.n * c.e);
    if (x.low) {
      a = c.rows(x.a, c.d), b = c.rows(x.b, c.d);
      add_product(y, 1, c.scaled(a, c.before), false, copy, c.d);
      add_product(y, 1, c.rounded(c.matrix(a, k, true, false)), false, v, c.n);
      inverse = c.rounded(c.inverse(c.matrix(a, b, true, false), -1));
    } else {
      p = c.rows(x.p, c.d);
      for (int64_t i = 0; i < c.n * c.e; ++i) y[i] = x.beta[first + i / c.e] * v[i];
      add_product(y, -1, c.scaled(p, c.upto), false, copy, c.d);
      inverse = c.inverse(c.matrix(p, k, false, false), 1);
      for (int64_t i = 0; i < c.n * c.n; ++i) {
        const float by = beta_of(first + i % c.n);
        inverse[i] = c.rounded(inverse[i] * by) / by;
      }
    }
    u.resize(c.n * c.e);
    add_product(u, 1, inverse, false, c.rounded(y), c.n);
    u = c.rounded(u);
  }

  // Column s of T is rounded times this: U = (T beta) (V - (k P) H).  A beta that stays for all
  // tokens has one rounding for all of them, on the diagonal.
  float beta_of(int64_t s) const { return x.erase || x.beta[s] == 0 ? 1 : x.beta[s]; }
  // Scores of an output head with what is written into the state, and with k of a low rank.
  Floats scores(const Floats& q, const Floats& y) const {
    return c.rounded(c.matrix(q, y, false, true));
  }
  const Floats& written() const { return x.low ? b : k; }
  Floats output(int64_t head) const {
    const Floats q = c.rows(x.q, c.d, head, x.n);
    Floats o(c.n * c.e);
    add_product(o, x.scale, c.scaled(q, c.upto), false, copy, c.d);
    add_product(o, x.scale, scores(q, written()), false, u, c.n);
    if (x.low) add_product(o, x.scale, scores(q, k), false, v, c.n);
    return o;
  }
  // After the last token of the chunk.
  Floats state() const {
    Floats out(h.size());
    for (int64_t i = 0; i < c.d * c.e; ++i) out[i] = decayed(c.all[i / c.e], h[i]);
    add_product(out, 1, c.scaled(written(), c.after), true, u, c.n);
    if (x.low) add_product(out, 1, c.scaled(k, c.after), true, v, c.n);
    return out;
  }

  const DeltaTokens<float>& x;
  const DeltaChunk c;
  const Floats h, copy;  // the incoming state, and as an operand
  Floats k, v, p, a, b, inverse, u;
};

inline DeltaForward<float> delta_rounded(const DeltaTokens<float>& x,
                                         const std::vector<int64_t>& times) {
  DeltaForward<float> out;
  out.o.resize(x.outs * x.n * x.e), out.o_size.resize(x.outs * x.n);
  Floats state = x.h0;
  for (int64_t first = 0; first < x.n || first == 0; first += kDeltaChunk) {
    const int64_t count = std::min(kDeltaChunk, x.n - first);
    for (const int64_t time : times)
      if (time >= first && (time < first + count || (time == x.n && time <= first + count)))
        out.states[time] = {DeltaWork(x, first, time - first, state).state(),
                            std::vector<double>(x.d)};
    if (x.n == 0) break;
    const DeltaWork work(x, first, count, state);
    for (int64_t head = 0; head < x.outs; ++head) {
      const Floats o = work.output(head);
      std::copy(o.begin(), o.end(), out.o.begin() + (head * x.n + first) * x.e);
    }
    state = work.state();
  }
  return out;
}

// The adjoint of a chunk; `w` is the gradient of its outgoing state, then of its incoming one.
class DeltaChunkAdjoint {
 public:
  DeltaChunkAdjoint(const DeltaWork& chunk, Floats& w, DeltaBackward<float>& out)
      : x(chunk.x), c(chunk.c), m_(chunk), w_(w), last_(c.rounded(w)), out_(out) {}

  void run() {
    Floats du(c.n * c.e), carried(w_.size());
    add_product(du, 1, c.scaled(m_.written(), c.after), false, last_, c.d);
    dk_.resize(c.n * c.d), db_ = dp_ = qdq_ = dk_, dv_.resize(c.n * c.e);
    for (int64_t i = 0; i < c.d * c.e; ++i) carried[i] = decayed(c.all[i / c.e], w_[i]);
    dots_ = Floats(c.d), given_ = dk_;
    for (int64_t i = 0; i < c.d * c.e; ++i) dots_[i / c.e] += m_.copy[i] * last_[i];
    if (x.low) add_product(dv_, 1, c.scaled(m_.k, c.after), false, last_, c.d);
    for (int64_t head = 0; head < x.outs; ++head) query(head, du, carried);
    Floats dy(c.n * c.e);
    add_product(dy, 1, m_.inverse, true, c.rounded(du), c.n);
    x.low ? low(c.rounded(dy), carried) : corrected(dy, carried);
    store();
    w_ = carried;
  }

 private:
  static void lower(Floats& m, int64_t n, bool diagonal) {
    for (int64_t t = 0; t < n; ++t)
      for (int64_t s = diagonal ? t + 1 : t; s < n; ++s) m[t * n + s] = 0;
  }
  Floats inside(const Floats& a, const Floats& b, bool diagonal, float by) const {
    Floats made = product_of_rows(a, b, c.n, c.n, c.e);
    for (float& one : made) one *= by;
    lower(made, c.n, diagonal);
    return made;
  }
  // Rows times the transposed state, scaled after.
  Floats from_state(const Floats& rows, const Floats& state, const Floats& by, float factor) const {
    Floats made = product_of_rows(rows, state, c.n, c.d, c.e);
    for (size_t i = 0; i < made.size(); ++i) made[i] = factor * decayed(by[i], made[i]);
    return made;
  }
  // Into the gradient of `rows`: what the outgoing state gave to them, written as they were by
  // `values`.
  void add_given(Floats& to, const Floats& rows, const Floats& values) {
    const Floats from = from_state(values, last_, c.after, 1);
    for (size_t i = 0; i < to.size(); ++i) to[i] += from[i], given_[i] += rows[i] * from[i];
  }

  void query(int64_t head, Floats& du, Floats& carried) {
    const Floats q = c.rows(x.q, c.d, head, x.n);
    const Floats dout = c.rounded(c.rows(x.dout, c.e, head, x.n));
    add_product(du, x.scale, m_.scores(q, m_.written()), true, dout, c.n);
    if (x.low) add_product(dv_, x.scale, m_.scores(q, m_.k), true, dout, c.n);
    add_product(carried, x.scale, c.scaled(q, c.upto), true, dout, c.n);
    Floats dq = from_state(dout, m_.copy, c.upto, x.scale);
    const Floats by_u = inside(dout, m_.u, true, x.scale);
    c.add_rows(dq, by_u, m_.written(), false);
    c.add_columns(x.low ? db_ : dk_, by_u, q, false);
    if (x.low) {
      const Floats by_v = inside(dout, m_.v, true, x.scale);
      c.add_rows(dq, by_v, m_.k, false), c.add_columns(dk_, by_v, q, false);
    }
    for (size_t i = 0; i < dq.size(); ++i) qdq_[i] += q[i] * dq[i];
    std::copy(dq.begin(), dq.end(), out_.dq.begin() + (head * x.n + c.first) * c.d);
  }

  void corrected(const Floats& dy_whole, Floats& carried) {
    const Floats dy = c.rounded(dy_whole);
    for (int64_t i = 0; i < c.n * c.e; ++i) {
      const int64_t t = c.first + i / c.e;
      dv_[i] = x.beta[t] * dy_whole[i], out_.dbeta[t] += dy_whole[i] * m_.v[i];
    }
    const Floats dm = inside(dy, m_.u, false, -1);
    dp_ = from_state(dy, m_.copy, c.upto, -1);
    c.add_rows(dp_, dm, m_.k, false), c.add_columns(dk_, dm, m_.p, false);
    add_given(dk_, m_.k, m_.u);
    add_product(carried, -1, c.scaled(m_.p, c.upto), true, dy, c.n);
  }

  void low(const Floats& dy, Floats& carried) {
    add_product(dv_, 1, c.rounded(c.matrix(m_.a, m_.k, true, false)), true, dy, c.n);
    const Floats by_u = inside(dy, m_.u, false, 1), by_v = inside(dy, m_.v, false, 1);
    dp_ = from_state(dy, m_.copy, c.before, 1);  // of a
    c.add_rows(dp_, by_u, m_.b, true), c.add_rows(dp_, by_v, m_.k, true);
    c.add_columns(db_, by_u, m_.a, true), c.add_columns(dk_, by_v, m_.a, true);
    add_given(db_, m_.b, m_.u), add_given(dk_, m_.k, m_.v);
    add_product(carried, 1, c.scaled(m_.a, c.before), true, dy, c.n);
  }

  // Gates from what crosses them: the states, what later states take of earlier rows, and sums from
  // the last row on.
  void store() {
    Floats sum(c.d), crosses(c.n * c.d);
    for (int64_t i = 0; i < c.d; ++i) {
      float before = decayed(c.all[i], dots_[i]);
      for (int64_t t = 0; t < c.n; ++t) {
        crosses[t * c.d + i] = before;
        before += given_[t * c.d + i];
      }
    }
    for (int64_t t = c.n - 1; t >= 0; --t)
      for (int64_t i = 0; i < c.d; ++i) {
        const int64_t at = t * c.d + i, to = (c.first + t) * c.d + i;
        sum[i] += qdq_[at] - m_.k[at] * dk_[at] + given_[at];
        if (x.low)
          sum[i] -= m_.b[at] * db_[at];
        else
          sum[i] += m_.p[at] * dp_[at];
        out_.dlog[to] = x.decay[to] == 0 ? 0 : crosses[at] + sum[i];
        if (x.low) sum[i] += m_.a[at] * dp_[at];
        out_.dk[to] = dk_[at], (x.low ? out_.da : out_.dp)[to] = dp_[at];
        out_.db[to] = db_[at];
      }
    std::copy(dv_.begin(), dv_.end(), out_.dv.begin() + c.first * c.e);
  }

  const DeltaTokens<float>& x;
  const DeltaChunk& c;
  const DeltaWork& m_;
  Floats& w_;
  const Floats last_;  // the gradient of the outgoing state as an operand
  DeltaBackward<float>& out_;
  // dots_: of both states' operands; given_: of written rows with what the outgoing state gave.
  Floats dk_, db_, dp_, dv_, qdq_, dots_, given_;
};

inline DeltaBackward<float> delta_rounded_backward(const DeltaTokens<float>& x) {
  DeltaBackward<float> out(x);
  std::vector<Floats> states = {x.h0};
  for (int64_t first = 0; first + kDeltaChunk < x.n; first += kDeltaChunk)
    states.push_back(DeltaWork(x, first, kDeltaChunk, states.back()).state());
  Floats w = x.dlast;
  if (x.n)
    for (int64_t i = static_cast<int64_t>(states.size()) - 1; i >= 0; --i) {
      const int64_t first = i * kDeltaChunk;
      const DeltaWork work(x, first, std::min(kDeltaChunk, x.n - first), states[i]);
      DeltaChunkAdjoint(work, w, out).run();
    }
  out.dh0 = w;
  return out;
}

}  // namespace oracle
