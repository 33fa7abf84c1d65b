// SPDX-License-Identifier: Apache-2.0
// The arithmetic of x_delta_backward's Hopper kernels under a key gate, on the CPU: the same
// chunks, operands rounded to bf16 at the same places, sums in f32 (their order is not that of a
// tensor core).  -DFOVEA_MODEL_DELTAKEYS puts it in the place of the host kernel, so that the cases
// of tests/cases/delta.cpp judge it by tests/harness/compare.h.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/recur_gradients.h"

namespace fovea::model {

using Values = std::vector<float>;
constexpr int kT = 64, kB = 16;

inline float bf(float x) {
  if (!std::isfinite(x)) return x;
  uint32_t b;
  std::memcpy(&b, &x, 4);
  b += 0x7fff + (b >> 16 & 1), b &= 0xffff0000u;
  std::memcpy(&x, &b, 4);
  return x;
}

struct Chunk {
  int n, from;
  Values q, k, v, dout, g, nq, nk, beta;        // k, q raw; g decays
  Values up, down, P, S, all;                   // per block, per chunk
  Values T, A, Kt, Km, Qt, U, H, W, dv, along;  // operands rounded
  Values a, b, G, B, At, Bm, dy;                // of a low rank
};

class Model {
 public:
  explicit Model(const RecurBackward& b) : b_(b), a_(b.forward), d(a_.d), e(a_.e) {}
  void run() {
    for (int64_t r = 0; r < a_.run.count; ++r)
      for (int64_t head = 0; head < a_.heads; ++head) walk(a_.run[r], head);
  }
  static bool fits(const RecurBackward& b) {
    const Recur& a = b.forward;
    return a.form != Recurrence::additive && a.gate_key && !a.erase && a.q.dtype == FOVEA_BF16 &&
           (a.d == 64 || a.d == 128) && a.e % 64 == 0 && a.e && a.outputs() == 1 &&
           a.run.token_max >= 64 && !a.full && !a.normalise;
  }

 private:
  void walk(const RunTokens& run, int64_t head) {
    const int chunks = static_cast<int>((run.count + kT - 1) / kT);
    std::vector<Chunk> all(chunks);
    Values H(d * e), W(d * e);
    for (int64_t i = 0; i < d * e; ++i) {
      if (a_.state_in && run.state >= 0) H[i] = a_.state_in(run.state, head, i / e, i % e);
      if (b_.dstate_out) W[i] = *b_.dstate_out.at(run.sequence, head, i / e, i % e) / a_.scale;
    }
    const bool low = static_cast<bool>(a_.low_a);
    for (int c = 0; c < chunks; ++c) {
      load(all[c], run, head, c), prepare(all[c]);
      if (low) prepare_low(all[c]);
      low ? forward_low(all[c], H) : forward(all[c], H);
    }
    for (int c = chunks - 1; c >= 0; --c) low ? reverse_low(all[c], W) : reverse(all[c], W);
    if (b_.dstate_in)
      for (int64_t i = 0; i < d * e; ++i)
        *b_.dstate_in.at(run.sequence, head, i / e, i % e) = W[i] * a_.scale;
    for (int c = 0; c < chunks; ++c)
      low ? gradient_low(all[c], run, head, c) : gradient(all[c], run, head, c);
  }

  void load(Chunk& x, const RunTokens& run, int64_t head, int c) {
    const int64_t first = int64_t{c} * kT;
    x.n = static_cast<int>(std::min<int64_t>(kT, run.count - first));
    x.from = static_cast<int>(std::clamp<int64_t>(run.from - first, 0, kT));
    x.q.resize(kT * d), x.k = x.a = x.b = x.q, x.g.assign(kT * d, 1), x.v.resize(kT * e),
                        x.dout = x.v;
    x.nq.resize(kT), x.nk.resize(kT), x.beta.resize(kT);
    for (int t = 0; t < x.n; ++t) {
      const int64_t at = run.begin + first + t, batch = run.batch;
      float qq = a_.eps, kk = a_.eps;
      const float whole = a_.gate_head ? a_.head_gate(batch, at, head).value : 0;
      for (int64_t i = 0; i < d; ++i) {
        const float q = x.q[t * d + i] = a_.q(batch, at, a_.query_head(head), i);
        const float k = x.k[t * d + i] = a_.k(batch, at, a_.key_head(head), i);
        qq += q * q, kk += k * k;
        if (a_.low_a) x.a[t * d + i] = a_.low_a(batch, at, head, i);
        if (a_.low_b) x.b[t * d + i] = a_.low_b(batch, at, head, i);
        x.g[t * d + i] = std::exp(whole + a_.key_gate(batch, at, head, i).value);
      }
      x.nq[t] = a_.l2_norm ? 1 / std::sqrt(qq) : 1, x.nk[t] = a_.l2_norm ? 1 / std::sqrt(kk) : 1;
      x.beta[t] = a_.beta_at(batch, at, head).value;
      if (std::abs(x.beta[t]) < 0x1p-40f) x.beta[t] = std::copysign(0x1p-40f, x.beta[t]);
      for (int64_t j = 0; j < e; ++j) {
        x.v[t * e + j] = a_.value_of(batch, at, head, j);
        if (t >= x.from) x.dout[t * e + j] = a_.o(batch, at, head, j);
      }
    }
  }

  void prepare(Chunk& x) {
    x.up = x.down = x.P = x.S = x.g, x.all.assign(d, 1);
    for (int64_t i = 0; i < d; ++i) {
      float p = 1, whole = 1;
      for (int t = 0; t < kT; ++t) {
        if (t % kB == 0) p = 1;
        x.up[t * d + i] = p *= x.g[t * d + i], x.P[t * d + i] = whole *= x.g[t * d + i];
      }
      x.all[i] = whole, p = whole = 1;
      for (int t = kT - 1; t >= 0; --t) {
        if (t % kB == kB - 1) p = 1;
        x.down[t * d + i] = p, x.S[t * d + i] = whole;
        p *= x.g[t * d + i], whole *= x.g[t * d + i];
      }
    }
    x.Kt.resize(kT * d), x.Km = x.Qt = x.Kt;
    for (int64_t i = 0; i < kT * d; ++i)
      x.Kt[i] = bf(x.k[i] * x.P[i]), x.Km[i] = bf(x.k[i] * x.S[i]),
      x.Qt[i] = bf(x.nq[i / d] * x.q[i] * x.P[i]);
    Values M(kT * kT);
    x.A = M, x.T = M;
    for (int t = 0; t < x.n; ++t)
      for (int s = 0; s <= t; ++s) {
        float qk = 0, kk = 0;
        for (int64_t i = 0; i < d; ++i) {
          const float row = x.up[t * d + i], up = x.up[s * d + i];
          float rq = bf(x.q[t * d + i] * row), rk = bf(x.k[t * d + i] * row), col;
          if (t / kB == s / kB && up > 0x1p-100f) {
            col = bf(x.k[s * d + i] / up);
          } else if (t / kB == s / kB) {
            float by = 1;
            for (int l = s + 1; l <= t; ++l) by *= x.g[l * d + i];
            rq = x.q[t * d + i], rk = x.k[t * d + i], col = bf(x.k[s * d + i] * by);
          } else {
            float by = 1;
            for (int l = s / kB + 1; l < t / kB; ++l) by *= x.up[(l * kB + kB - 1) * d + i];
            col = bf(bf(x.k[s * d + i] * x.down[s * d + i]) * by);
          }
          qk += rq * col, kk += rk * col;
        }
        x.A[t * kT + s] = bf(x.nq[t] * x.nk[s] * qk);
        if (s < t) M[t * kT + s] = x.beta[t] * x.nk[t] * x.nk[s] * kk;
      }
    for (int s = 0; s < kT; ++s)
      for (int t = s; t < kT; ++t) {
        float sum = s == t;
        for (int l = s; l < t; ++l) sum -= M[t * kT + l] * x.T[l * kT + s];
        x.T[t * kT + s] = sum;
      }
    for (int t = 0; t < kT; ++t)
      for (int s = 0; s < kT; ++s) x.T[t * kT + s] = bf(x.T[t * kT + s] * x.beta[s]);
  }

  // Rows [i][k] times columns [k][j].
  static Values product(const Values& x, const Values& y, int64_t m, int64_t k, int64_t n) {
    Values z(m * n);
    for (int64_t i = 0; i < m; ++i)
      for (int64_t l = 0; l < k; ++l) {
        const float by = x[i * k + l];
        if (by == 0) continue;
        for (int64_t j = 0; j < n; ++j) z[i * n + j] += by * y[l * n + j];
      }
    return z;
  }
  static Values turned(const Values& x, int64_t m, int64_t n) {
    Values y(x.size());
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) y[j * m + i] = x[i * n + j];
    return y;
  }
  static Values rounded(Values x) {
    for (float& one : x) one = bf(one);
    return x;
  }

  void forward(Chunk& x, Values& H) {
    for (int64_t i = 0; i < d; ++i)  // channels that the first token resets
      for (int64_t j = 0; j < e && x.g[i] == 0; ++j) H[i * e + j] = 0;
    x.H = rounded(H);
    Values y = product(x.Kt, x.H, kT, d, e);
    for (int t = 0; t < kT; ++t)
      for (int64_t j = 0; j < e; ++j)
        y[t * e + j] = t < x.n ? bf(x.v[t * e + j] - x.nk[t] * y[t * e + j]) : 0;
    Values u = product(x.T, y, kT, kT, e), us = u;
    x.U = rounded(u);
    for (int t = 0; t < kT; ++t)
      for (int64_t j = 0; j < e; ++j) us[t * e + j] = t < x.n ? bf(x.nk[t] * u[t * e + j]) : 0;
    const Values add = product(turned(x.Km, kT, d), us, d, kT, e);
    for (int64_t i = 0; i < d * e; ++i) H[i] = decayed(x.all[i / e], H[i]) + add[i];
  }

  void reverse(Chunk& x, Values& W) {
    x.W = rounded(W);
    Values du = product(x.Km, x.W, kT, d, e);
    const Values own = product(turned(x.A, kT, kT), x.dout, kT, kT, e);
    for (int t = 0; t < kT; ++t)
      for (int64_t j = 0; j < e; ++j) {
        float& one = du[t * e + j];
        one = x.nk[t] * one + own[t * e + j];
        const float high = bf(one);
        one = high + bf(one - high);
      }
    const Values dv = product(turned(x.T, kT, kT), du, kT, kT, e);
    Values packed(kT * e), dout(kT * e);
    x.dv.resize(kT * e), x.along.assign(kT, 0);
    for (int t = 0; t < kT; ++t)
      for (int64_t j = 0; j < e; ++j) {
        const int64_t i = t * e + j;
        x.dv[i] = a_.scale * dv[i], x.along[t] += x.dv[i] * x.v[i];
        packed[i] = bf(-x.nk[t] * dv[i]), dout[i] = x.dout[i];
      }
    const Values one = product(turned(x.Qt, kT, d), dout, d, kT, e);
    const Values two = product(turned(x.Kt, kT, d), packed, d, kT, e);
    for (int64_t i = 0; i < d * e; ++i) W[i] = decayed(x.all[i / e], W[i]) + one[i] + two[i];
  }

  // ---- low rank

  // sum over c of row_tc column_sc 2^D_ts; excluded: without t's own gate.
  Values scores(const Chunk& x, const Values& rows, const Values& columns, bool excluded) const {
    Values m(kT * kT);
    for (int t = 0; t < x.n; ++t)
      for (int s = 0; s <= t - excluded; ++s) {
        float sum = 0;
        for (int64_t i = 0; i < d; ++i) {
          const bool inside = t / kB == s / kB;
          const float up = excluded ? t % kB ? x.up[(t - 1) * d + i] : 1 : x.up[t * d + i];
          float row = bf(rows[t * d + i] * up), col;
          if (inside && x.up[s * d + i] > 0x1p-100f) {
            col = bf(columns[s * d + i] / x.up[s * d + i]);
          } else if (inside) {
            float by = 1;
            for (int l = s + 1; l <= t - excluded; ++l) by *= x.g[l * d + i];
            row = rows[t * d + i], col = bf(columns[s * d + i] * by);
          } else {
            float by = 1;
            for (int l = s / kB + 1; l < t / kB; ++l) by *= x.up[(l * kB + kB - 1) * d + i];
            col = bf(bf(columns[s * d + i] * x.down[s * d + i]) * by);
          }
          sum += row * col;
        }
        m[t * kT + s] = sum;
      }
    return m;
  }
  void prepare_low(Chunk& x) {
    x.At.resize(kT * d), x.Bm = x.At;
    for (int64_t i = 0; i < kT * d; ++i) {
      x.At[i] = bf(x.a[i] * (i < d ? 1 : x.P[i - d]));
      x.Bm[i] = bf(x.b[i] * x.S[i]);
    }
    Values M = scores(x, x.a, x.b, true);
    x.G = scores(x, x.a, x.k, true), x.B = scores(x, x.q, x.b, false);
    x.A = scores(x, x.q, x.k, false);
    for (int t = 0; t < kT; ++t)
      for (int s = 0; s < kT; ++s) {
        x.G[t * kT + s] = bf(x.nk[s] * x.G[t * kT + s]),
                     x.B[t * kT + s] = bf(x.nq[t] * x.B[t * kT + s]);
        x.A[t * kT + s] = bf(x.nq[t] * x.nk[s] * x.A[t * kT + s]);
      }
    std::fill(x.T.begin(), x.T.end(), 0.f);
    for (int s = 0; s < kT; ++s)
      for (int t = s; t < kT; ++t) {
        float sum = s == t;
        for (int l = s; l < t; ++l) sum += M[t * kT + l] * x.T[l * kT + s];
        x.T[t * kT + s] = sum;
      }
    x.T = rounded(x.T);
  }
  static void add(Values& x, const Values& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }
  void forward_low(Chunk& x, Values& H) {
    x.H = rounded(H);
    Values y = product(x.At, x.H, kT, d, e);
    add(y, product(x.G, x.v, kT, kT, e));
    x.U = rounded(product(x.T, rounded(y), kT, kT, e));
    Values v(kT * e);
    for (int64_t i = 0; i < kT * e; ++i) v[i] = bf(x.nk[i / e] * x.v[i]);
    const Values one = product(turned(x.Bm, kT, d), x.U, d, kT, e);
    const Values two = product(turned(x.Km, kT, d), v, d, kT, e);
    for (int64_t i = 0; i < d * e; ++i) H[i] = decayed(x.all[i / e], H[i]) + one[i] + two[i];
  }
  void reverse_low(Chunk& x, Values& W) {
    x.W = rounded(W);
    Values du = product(x.Bm, x.W, kT, d, e), dv = product(x.Km, x.W, kT, d, e);
    add(du, product(turned(x.B, kT, kT), x.dout, kT, kT, e));
    for (float& one : du) {
      const float high = bf(one);
      one = high + bf(one - high);
    }
    for (int64_t i = 0; i < kT * e; ++i) dv[i] *= x.nk[i / e];
    add(dv, product(turned(x.A, kT, kT), x.dout, kT, kT, e));
    Values dy = product(turned(x.T, kT, kT), du, kT, kT, e);
    const Values packed = rounded(dy);
    for (float& one : dy) one = bf(a_.scale * one);
    x.dy = dy;
    add(dv, product(turned(x.G, kT, kT), packed, kT, kT, e));
    const Values one = product(turned(x.Qt, kT, d), x.dout, d, kT, e);
    const Values two = product(turned(x.At, kT, d), packed, d, kT, e);
    for (int64_t i = 0; i < d * e; ++i) W[i] = decayed(x.all[i / e], W[i]) + one[i] + two[i];
    for (float& z : dv) z *= a_.scale;
    x.dv = dv;
  }
  // As backward_low_tile_sm90.cuh.
  void gradient_low(Chunk& x, const RunTokens& run, int64_t head, int c) {
    const RecurTerms& to = b_.terms;
    Values dq = product(x.dout, turned(x.H, d, e), kT, e, d);
    Values da = product(x.dy, turned(x.H, d, e), kT, e, d);
    Values ub = product(x.U, turned(x.W, d, e), kT, e, d);
    Values vk = product(x.v, turned(x.W, d, e), kT, e, d), db(kT * d), dk(kT * d);
    Values E = product(x.dout, turned(x.U, kT, e), kT, e, kT);
    Values F = product(x.dout, turned(x.v, kT, e), kT, e, kT);
    Values M = product(x.dy, turned(x.U, kT, e), kT, e, kT);
    Values N = product(x.dy, turned(x.v, kT, e), kT, e, kT);
    for (int t = 0; t < kT; ++t)
      for (int s = 0; s < kT; ++s) {
        const int i = t * kT + s;
        const bool upto = s <= t && t < x.n && t >= x.from, before = s < t && t < x.n;
        E[i] = upto ? a_.scale * x.nq[t] * E[i] : 0;
        F[i] = upto ? a_.scale * x.nq[t] * x.nk[s] * F[i] : 0;
        M[i] = before ? M[i] : 0, N[i] = before ? x.nk[s] * N[i] : 0;
      }
    const Values Eb = rounded(E), Fb = rounded(F), Mb = rounded(M), Nb = rounded(N);
    Values states(d);
    for (int64_t i = 0; i < d * e; ++i) states[i / e] += x.H[i] * x.W[i];
    const auto total = [&](int block, int64_t i) { return x.up[(block * kB + kB - 1) * d + i]; };
    for (int64_t i = 0; i < d; ++i) {
      const auto at = [&](int t) { return t * d + i; };
      const auto earlier = [&](int t) { return t % kB ? x.up[at(t - 1)] : 1.f; };
      Values own(kT), carry(kT);
      for (int t = 0; t < kT; ++t) {
        const int block = t / kB;
        float q = t < x.n && t >= x.from ? a_.scale * x.nq[t] * dq[at(t)] : 0;
        float a = t < x.n ? da[at(t)] : 0, u = t < x.n ? a_.scale * ub[at(t)] : 0;
        float v = t < x.n ? a_.scale * x.nk[t] * vk[at(t)] : 0, b = 0, k = 0;
        for (int n = 0; n < block; ++n) {
          q *= total(n, i), a *= total(n, i);
          for (int s = n * kB; s < n * kB + kB; ++s) {
            const float bs = bf(x.b[at(s)] * x.down[at(s)]), ks = bf(x.k[at(s)] * x.down[at(s)]);
            q += Eb[t * kT + s] * bs + Fb[t * kT + s] * ks;
            a += Mb[t * kT + s] * bs + Nb[t * kT + s] * ks;
          }
        }
        for (int n = 3; n > block; --n) {
          b *= total(n, i), k *= total(n, i), u *= total(n, i), v *= total(n, i);
          for (int s = n * kB; s < n * kB + kB; ++s) {
            const float qs = bf(x.q[at(s)] * x.up[at(s)]), as = bf(x.a[at(s)] * earlier(s));
            b += Eb[s * kT + t] * qs + Mb[s * kT + t] * as;
            k += Fb[s * kT + t] * qs + Nb[s * kT + t] * as;
          }
        }
        q *= x.up[at(t)], a *= earlier(t);
        b *= x.down[at(t)], k *= x.down[at(t)], u *= x.down[at(t)], v *= x.down[at(t)];
        float by = 1;
        for (int s = t; s >= block * kB; --s) {
          q += by * (E[t * kT + s] * x.b[at(s)] + F[t * kT + s] * x.k[at(s)]);
          by *= x.g[at(s)];
        }
        by = 1;
        for (int s = t - 1; s >= block * kB; --s) {
          a += by * (M[t * kT + s] * x.b[at(s)] + N[t * kT + s] * x.k[at(s)]);
          by *= x.g[at(s)];
        }
        by = 1;
        for (int s = t; s < block * kB + kB; ++s) {
          if (s > t) {
            b += by * M[s * kT + t] * x.a[at(s)], k += by * N[s * kT + t] * x.a[at(s)];
            by *= x.g[at(s)];
          }
          b += by * E[s * kT + t] * x.q[at(s)], k += by * F[s * kT + t] * x.q[at(s)];
        }
        own[t] = x.q[at(t)] * q - x.b[at(t)] * b - x.k[at(t)] * k;
        carry[t] = x.b[at(t)] * u + x.k[at(t)] * v;
        dq[at(t)] = q, da[at(t)] = a, db[at(t)] = b + u, dk[at(t)] = k + v;
      }
      float before = decayed(x.all[i], a_.scale * states[i]), after = 0;
      for (int t = 0; t < kT; ++t) {
        const float one = carry[t];
        carry[t] = before, before += one;
      }
      for (int t = kT - 1; t >= 0; --t) {
        after += own[t];
        const float log = after + carry[t];
        after += x.a[at(t)] * da[at(t)];
        if (t >= x.n) continue;
        const int64_t row = run.batch * a_.s + run.begin + int64_t{c} * kT + t;
        const int64_t k = (row * a_.heads + head) * d + i;
        to.dq[k] = dq[at(t)] / x.nq[t], to.dk[k] = dk[at(t)] / x.nk[t];
        to.dp[k] = da[at(t)], to.db[k] = db[at(t)], to.dg[k] = log;
      }
    }
    for (int t = 0; t < x.n; ++t) {
      const int64_t row = (run.batch * a_.s + run.begin + int64_t{c} * kT + t) * a_.heads + head;
      for (int64_t j = 0; j < e; ++j) to.dv[row * e + j] = x.dv[t * e + j];
    }
  }

  // ---- As backward_key_tile_sm90.cuh.
  void gradient(Chunk& x, const RunTokens& run, int64_t head, int c) {
    const RecurTerms& to = b_.terms;
    const Values dvb = rounded(x.dv);
    Values dq = product(x.dout, turned(x.H, d, e), kT, e, d);
    Values dk2 = product(dvb, turned(x.H, d, e), kT, e, d);
    Values state = product(x.U, turned(x.W, d, e), kT, e, d), dk(kT * d);
    Values F = product(x.dout, turned(x.U, kT, e), kT, e, kT);
    Values G = product(dvb, turned(x.U, kT, e), kT, e, kT), Fb(kT * kT), Gb(kT * kT);
    for (int t = 0; t < kT; ++t)
      for (int s = 0; s < kT; ++s) {
        const int i = t * kT + s;
        F[i] = s <= t && t < x.n && t >= x.from ? a_.scale * x.nq[t] * x.nk[s] * F[i] : 0;
        G[i] = s < t && t < x.n ? -x.nk[t] * x.nk[s] * G[i] : 0;
        Fb[i] = bf(F[i]), Gb[i] = bf(G[i]);
      }
    Values states(d);
    for (int64_t i = 0; i < d * e; ++i) states[i / e] += x.H[i] * x.W[i];
    std::vector<Values> rows(8);
    const auto total = [&](int block, int64_t i) { return x.up[(block * kB + kB - 1) * d + i]; };
    Values own(kT * d), carry(kT * d), sum(d);
    for (int64_t i = 0; i < d; ++i) {
      const auto at = [&](int t) { return t * d + i; };
      for (int t = 0; t < kT; ++t) {
        const int block = t / kB;
        float a = t < x.n && t >= x.from ? a_.scale * x.nq[t] * dq[at(t)] : 0;
        float b = t < x.n ? -x.nk[t] * dk2[at(t)] : 0;
        float z = t < x.n ? a_.scale * x.nk[t] * state[at(t)] : 0, y = 0;
        for (int n = 0; n < block; ++n) {
          a *= total(n, i), b *= total(n, i);
          for (int s = n * kB; s < n * kB + kB; ++s) {
            const float k = bf(x.k[at(s)] * x.down[at(s)]);
            a += Fb[t * kT + s] * k, b += Gb[t * kT + s] * k;
          }
        }
        for (int n = 3; n > block; --n) {
          y *= total(n, i), z *= total(n, i);
          for (int s = n * kB; s < n * kB + kB; ++s)
            y += Fb[s * kT + t] * bf(x.q[at(s)] * x.up[at(s)]) +
                 Gb[s * kT + t] * bf(x.k[at(s)] * x.up[at(s)]);
        }
        a *= x.up[at(t)], b *= x.up[at(t)], y *= x.down[at(t)], z *= x.down[at(t)];
        float by = 1;
        for (int s = t; s >= block * kB; --s) {
          a += F[t * kT + s] * by * x.k[at(s)], b += G[t * kT + s] * by * x.k[at(s)];
          by *= x.g[at(s)];
        }
        by = 1;
        for (int s = t; s < block * kB + kB; ++s) {
          if (s > t) by *= x.g[at(s)];
          y += by * (F[s * kT + t] * x.q[at(s)] + G[s * kT + t] * x.k[at(s)]);
        }
        own[at(t)] = x.q[at(t)] * a + x.k[at(t)] * b - x.k[at(t)] * y;
        carry[at(t)] = x.k[at(t)] * z;
        dq[at(t)] = a, dk2[at(t)] = b, dk[at(t)] = y + z + b;
      }
      float before = decayed(x.all[i], a_.scale * states[i]);
      for (int t = 0; t < kT; ++t) {
        const float one = carry[at(t)];
        carry[at(t)] = before, before += one;
      }
    }
    for (int t = kT - 1; t >= 0; --t) {
      float along = 0;
      for (int64_t i = 0; i < d; ++i) {
        sum[i] += own[t * d + i];
        along += x.k[t * d + i] * dk2[t * d + i];
        if (t >= x.n) continue;
        const int64_t row = run.batch * a_.s + run.begin + int64_t{c} * kT + t;
        const int64_t k = (row * a_.heads + head) * d + i;
        to.dq[k] = dq[t * d + i] / x.nq[t], to.dk[k] = dk[t * d + i] / x.nk[t];
        to.dg[k] = sum[i] + carry[t * d + i];
      }
      if (t >= x.n) continue;
      const int64_t row = (run.batch * a_.s + run.begin + int64_t{c} * kT + t) * a_.heads + head;
      to.dbeta[row] = (x.along[t] + along) / x.beta[t];
      for (int64_t j = 0; j < e; ++j) to.dv[row * e + j] = x.dv[t * e + j];
    }
  }

  const RecurBackward& b_;
  const Recur& a_;
  const int64_t d, e;
};

}  // namespace fovea::model
