// SPDX-License-Identifier: Apache-2.0
// The delta rule of experimental/linear.h over the tokens of one sequence and one state head, token
// by token, and its adjoint:
//   H~ = decay . H,  u = beta v - p H~,  H <- H~ + k' u          o = scale q H
//   low rank: z = a H,  H <- H~ + b' z + k' v
//   W += scale q' do,  du = k W,  dv = beta du,  dp = -du H~',  dk = W u',  X = W - p' du
//   low rank: dz = b W,  db = W z',  da = dz H',  dk = W v',  W <- decay . W + a' dz
// `size` of a number is the sum of the absolute terms of its own line, with H and W as they are.
#pragma once
#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

namespace oracle {

// What one head reads; rows of d or e numbers.  Output heads stand one behind the other.
template <class Real>
struct DeltaTokens {
  int64_t n = 0, d = 0, e = 0, outs = 1;
  bool low = false, erase = false;  // erase: p is given, not beta k
  int dtype = 0;                    // of q
  Real scale = 1;
  std::vector<Real> q, k, v, p, a, b, beta, decay, dout;
  std::vector<Real> h0, dlast;  // (d, e)
};

// A state, and the size of each row of it.
template <class Real>
struct DeltaState {
  std::vector<Real> value;
  std::vector<double> size;
};

template <class Real>
struct DeltaForward {
  std::vector<Real> o;
  std::vector<double> o_size;                  // of each row
  std::map<int64_t, DeltaState<Real>> states;  // after so many tokens
};

// Gradients: dp with erase is derase; without, what p = beta k hands on is not in dk and dbeta yet.
// dlog: of the sum of both gates.
template <class Real>
struct DeltaBackward {
  std::vector<Real> dq, dk, dv, dp, da, db, dbeta, dlog, dh0;
  std::vector<double> dq_size, dk_size, dv_size, dp_size, da_size, db_size, dbeta_size;
  std::vector<double> dlog_size, dh0_size;  // of each element; of each row

  explicit DeltaBackward(const DeltaTokens<Real>& x)
      : dq(x.outs * x.n * x.d),
        dk(x.n * x.d),
        dv(x.n * x.e),
        dp(x.n * x.d),
        da(x.n * x.d),
        db(x.n * x.d),
        dbeta(x.n),
        dlog(x.n * x.d),
        dh0(x.d * x.e),
        dq_size(x.outs * x.n),
        dk_size(x.n),
        dv_size(x.n),
        dp_size(x.n),
        da_size(x.n),
        db_size(x.n),
        dbeta_size(x.n),
        dlog_size(x.n * x.d),
        dh0_size(x.d) {}
};

// Nothing is left of what a decay of 0 meets, NaN too.
template <class Real>
Real decayed(Real decay, Real x) {
  return decay == 0 ? Real{0} : decay * x;
}

// The state, and its sizes, from token to token.
struct DeltaWalk {
  explicit DeltaWalk(const DeltaTokens<double>& tokens)
      : x(tokens), state(x.h0), size(x.h0), kept(x.d * x.e), u(x.e) {
    for (double& one : size) one = std::abs(one);
    u_size = z = z_size = u;
  }

  const DeltaTokens<double>& x;
  std::vector<double> state, size, kept;  // H, H~: (d, e)
  std::vector<double> u, u_size, z, z_size;

  // u is v of a low rank, so that k' u is added in every form.
  void step(int64_t t) {
    const double* decay = &x.decay[t * x.d];
    for (int64_t j = 0; j < x.e; ++j) {
      u[j] = x.low ? x.v[t * x.e + j] : x.beta[t] * x.v[t * x.e + j];
      u_size[j] = std::abs(u[j]), z[j] = z_size[j] = 0;
    }
    for (int64_t c = 0; c < x.d; ++c)
      for (int64_t j = 0; j < x.e; ++j) {
        const int64_t at = c * x.e + j;
        if (x.low) {
          const double term = x.a[t * x.d + c] * state[at];
          z[j] += term, z_size[j] += std::abs(term);
        }
        kept[at] = decayed(decay[c], state[at]);
        if (!x.low) {
          const double term = x.p[t * x.d + c] * kept[at];
          u[j] -= term, u_size[j] += std::abs(term);
        }
      }
    for (int64_t c = 0; c < x.d; ++c)
      for (int64_t j = 0; j < x.e; ++j) {
        const int64_t at = c * x.e + j;
        const double key = x.k[t * x.d + c], b = x.low ? x.b[t * x.d + c] : 0;
        state[at] = kept[at] + key * u[j];
        size[at] = std::abs(kept[at]) + std::abs(key) * u_size[j];
        if (x.low) state[at] += b * z[j], size[at] += std::abs(b) * z_size[j];
      }
  }
};

inline DeltaState<double> state_of(const DeltaWalk& walk) {
  DeltaState<double> made{walk.state, std::vector<double>(walk.x.d)};
  for (int64_t c = 0; c < walk.x.d; ++c)
    for (int64_t j = 0; j < walk.x.e; ++j)
      made.size[c] = std::max(made.size[c], walk.size[c * walk.x.e + j]);
  return made;
}

// `times`: after how many tokens states are wanted.
inline DeltaForward<double> delta_exact(const DeltaTokens<double>& x,
                                        const std::vector<int64_t>& times) {
  DeltaForward<double> out;
  out.o.resize(x.outs * x.n * x.e), out.o_size.resize(x.outs * x.n);
  DeltaWalk walk(x);
  const auto keep = [&](int64_t t) {
    for (const int64_t time : times)
      if (time == t) out.states[t] = state_of(walk);
  };
  keep(0);
  for (int64_t t = 0; t < x.n; ++t) {
    walk.step(t), keep(t + 1);
    for (int64_t head = 0; head < x.outs; ++head) {
      const int64_t row = head * x.n + t;
      std::vector<double> size(x.e);
      for (int64_t c = 0; c < x.d; ++c)
        for (int64_t j = 0; j < x.e; ++j) {
          const double q = x.scale * x.q[row * x.d + c];
          out.o[row * x.e + j] += q * walk.state[c * x.e + j];
          size[j] += std::abs(q * walk.state[c * x.e + j]);
        }
      for (const double one : size) out.o_size[row] = std::max(out.o_size[row], one);
    }
  }
  return out;
}

class DeltaAdjoint {
 public:
  explicit DeltaAdjoint(const DeltaTokens<double>& tokens)
      : x(tokens), out(tokens), w_(x.dlast), w_size_(x.dlast) {
    for (double& one : w_size_) one = std::abs(one);
  }

  DeltaBackward<double> run() {
    std::vector<DeltaWalk> walks(1, DeltaWalk(x));
    walks.reserve(x.n + 1);
    for (int64_t t = 0; t < x.n; ++t) walks.push_back(walks.back()), walks.back().step(t);
    for (int64_t t = x.n - 1; t >= 0; --t) {
      query(t, walks[t + 1]);
      x.low ? low(t, walks[t], walks[t + 1]) : corrected(t, walks[t + 1]);
      walks.pop_back();
    }
    out.dh0 = w_;
    for (int64_t c = 0; c < x.d; ++c)
      for (int64_t j = 0; j < x.e; ++j)
        out.dh0_size[c] = std::max(out.dh0_size[c], w_size_[c * x.e + j]);
    return std::move(out);
  }

 private:
  static void raise(double& size, double to) { size = std::max(size, to); }

  void query(int64_t t, const DeltaWalk& after) {
    for (int64_t head = 0; head < x.outs; ++head)
      for (int64_t c = 0; c < x.d; ++c) {
        const int64_t row = head * x.n + t, at = row * x.d + c;
        double size = 0;
        for (int64_t j = 0; j < x.e; ++j) {
          const double g = x.scale * x.dout[row * x.e + j];
          out.dq[at] += g * after.state[c * x.e + j];
          size += std::abs(g * after.state[c * x.e + j]);
          w_[c * x.e + j] += x.q[at] * g;
        }
        raise(out.dq_size[row], size);
      }
  }

  // y_j = sum_c row_c W_cj with its size.
  struct Sum {
    std::vector<double> y, size;
  };
  Sum of_rows(const double* row) const {
    Sum sum{std::vector<double>(x.e), std::vector<double>(x.e)};
    for (int64_t c = 0; c < x.d; ++c)
      for (int64_t j = 0; j < x.e; ++j) {
        const int64_t at = c * x.e + j;
        sum.y[j] += row[c] * w_[at], sum.size[j] += std::abs(row[c] * w_[at]);
      }
    return sum;
  }

  void corrected(int64_t t, const DeltaWalk& after) {
    const Sum du = of_rows(&x.k[t * x.d]);
    for (int64_t j = 0; j < x.e; ++j) {
      const double v = x.v[t * x.e + j];
      out.dv[t * x.e + j] = x.beta[t] * du.y[j];
      raise(out.dv_size[t], std::abs(x.beta[t]) * du.size[j]);
      out.dbeta[t] += du.y[j] * v, out.dbeta_size[t] += du.size[j] * std::abs(v);
    }
    for (int64_t c = 0; c < x.d; ++c) {
      const int64_t row = t * x.d + c;
      const double p = x.p[row];
      double dk_size = 0, dp_size = 0;
      for (int64_t j = 0; j < x.e; ++j) {
        const int64_t at = c * x.e + j;
        const double kept = after.kept[at];
        out.dk[row] += w_[at] * after.u[j];
        dk_size += std::abs(w_[at]) * after.u_size[j];
        out.dp[row] -= du.y[j] * kept;
        dp_size += du.size[j] * std::abs(kept);
        const double size = std::abs(w_[at]) + std::abs(p) * du.size[j];
        const double left = w_[at] - p * du.y[j];
        gate(row, kept, size, left);
        w_[at] = decayed(x.decay[row], left), w_size_[at] = decayed(x.decay[row], size);
      }
      raise(out.dk_size[t], dk_size), raise(out.dp_size[t], dp_size);
    }
  }

  void low(int64_t t, const DeltaWalk& before, const DeltaWalk& after) {
    const Sum dv = of_rows(&x.k[t * x.d]), dz = of_rows(&x.b[t * x.d]);
    for (int64_t j = 0; j < x.e; ++j)
      out.dv[t * x.e + j] = dv.y[j], raise(out.dv_size[t], dv.size[j]);
    for (int64_t c = 0; c < x.d; ++c) {
      const int64_t row = t * x.d + c;
      double dk_size = 0, da_size = 0, db_size = 0;
      for (int64_t j = 0; j < x.e; ++j) {
        const int64_t at = c * x.e + j;
        const double v = x.v[t * x.e + j];
        out.dk[row] += w_[at] * v, dk_size += std::abs(w_[at] * v);
        out.db[row] += w_[at] * after.z[j];
        db_size += std::abs(w_[at]) * after.z_size[j];
        out.da[row] += dz.y[j] * before.state[at];
        da_size += dz.size[j] * std::abs(before.state[at]);
        gate(row, after.kept[at], std::abs(w_[at]), w_[at]);
        w_[at] = decayed(x.decay[row], w_[at]);
        w_size_[at] = std::abs(w_[at]) + std::abs(x.a[row]) * dz.size[j];
        w_[at] += x.a[row] * dz.y[j];
      }
      raise(out.dk_size[t], dk_size), raise(out.da_size[t], da_size);
      raise(out.db_size[t], db_size);
    }
  }

  void gate(int64_t row, double kept, double size, double gradient) {
    if (x.decay[row] == 0) return;
    out.dlog[row] += kept * gradient, out.dlog_size[row] += std::abs(kept) * size;
  }

  const DeltaTokens<double>& x;
  DeltaBackward<double> out;
  std::vector<double> w_, w_size_;  // W, and the size of what a token left of it: (d, e)
};

}  // namespace oracle
