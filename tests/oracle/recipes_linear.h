// SPDX-License-Identifier: Apache-2.0
// Linear attention by name as its papers define it, token by token in float64.  A definition reads
// the paper's letters and makes of them what the caller prepares, rounded where it is stored.  No
// number of a call is read.
#pragma once
#include <cmath>
#include <functional>
#include <string>

#include "recipes.h"

namespace oracle::recipes {

// ---- vectors and matrices

using Vec = std::vector<double>;

struct Matrix {
  int64_t rows = 0, columns = 0;
  Vec x;

  Matrix() = default;
  Matrix(int64_t rows_, int64_t columns_)
      : rows(rows_), columns(columns_), x(static_cast<size_t>(rows_ * columns_)) {}
  double& operator()(int64_t i, int64_t j) { return x[static_cast<size_t>(i * columns + j)]; }
  double operator()(int64_t i, int64_t j) const { return x[static_cast<size_t>(i * columns + j)]; }
};

template <class Of>
Vec each_of(const Vec& a, Of of) {
  Vec y(a.size());
  for (size_t i = 0; i < a.size(); ++i) y[i] = of(a[i]);
  return y;
}
// Elementwise; vectors of one length.
inline Vec operator*(const Vec& a, const Vec& b) {
  Vec y = a;
  for (size_t i = 0; i < a.size(); ++i) y[i] *= b[i];
  return y;
}
inline Vec operator+(const Vec& a, const Vec& b) {
  Vec y = a;
  for (size_t i = 0; i < a.size(); ++i) y[i] += b[i];
  return y;
}
inline Vec operator*(double factor, const Vec& a) {
  return each_of(a, [=](double x) { return factor * x; });
}
inline Vec operator-(const Vec& a, const Vec& b) {
  return a + (-1.0) * b;
}
inline double inner(const Vec& a, const Vec& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}
inline double sum_of(const Vec& a) {
  return inner(a, Vec(a.size(), 1));
}

// a' b
inline Matrix outer(const Vec& a, const Vec& b) {
  Matrix y(static_cast<int64_t>(a.size()), static_cast<int64_t>(b.size()));
  for (int64_t i = 0; i < y.rows; ++i)
    for (int64_t j = 0; j < y.columns; ++j) y(i, j) = a[i] * b[j];
  return y;
}
inline Matrix diag(const Vec& a) {
  const auto n = static_cast<int64_t>(a.size());
  Matrix y(n, n);
  for (int64_t i = 0; i < n; ++i) y(i, i) = a[i];
  return y;
}
inline Matrix identity(int64_t n) {
  return diag(Vec(static_cast<size_t>(n), 1));
}
inline Matrix transposed(const Matrix& a) {
  Matrix y(a.columns, a.rows);
  for (int64_t i = 0; i < a.rows; ++i)
    for (int64_t j = 0; j < a.columns; ++j) y(j, i) = a(i, j);
  return y;
}
inline Matrix operator*(double factor, Matrix a) {
  a.x = factor * a.x;
  return a;
}
inline Matrix operator+(Matrix a, const Matrix& b) {
  a.x = a.x + b.x;
  return a;
}
inline Matrix operator-(Matrix a, const Matrix& b) {
  a.x = a.x - b.x;
  return a;
}
inline Matrix operator*(const Matrix& a, const Matrix& b) {
  Matrix y(a.rows, b.columns);
  for (int64_t i = 0; i < a.rows; ++i)
    for (int64_t c = 0; c < a.columns; ++c)
      for (int64_t j = 0; j < b.columns && a(i, c) != 0; ++j) y(i, j) += a(i, c) * b(c, j);
  return y;
}
// A row times a matrix, and a matrix times a column.
inline Vec operator*(const Vec& a, const Matrix& b) {
  Vec y(static_cast<size_t>(b.columns));
  for (int64_t c = 0; c < b.rows; ++c)
    for (int64_t j = 0; j < b.columns; ++j) y[j] += a[c] * b(c, j);
  return y;
}
inline Vec operator*(const Matrix& a, const Vec& b) {
  return b * transposed(a);
}

// ---- scalars

inline double logistic(double x) {
  return 1 / (1 + std::exp(-x));
}
inline double soft_plus(double x) {
  return std::log1p(std::exp(x));
}
inline double silu(double x) {
  return x * logistic(x);
}
inline double relu(double x) {
  return x > 0 ? x : 0;
}
inline double elu_plus_one(double x) {
  return x > 0 ? x + 1 : std::exp(x);
}
// Of unit length; 1e-6 is the authors'.
inline Vec l2(const Vec& x) {
  return 1 / std::sqrt(inner(x, x) + 1e-6) * x;
}

// ---- one head of one sequence

struct HeadLetters {
  int64_t tokens = 0, keys = 0, d = 0, e = 0;  // keys: of a sequence that every row reads
  int64_t head = 0, heads = 0;                 // states
  // A letter of a token, and one that all tokens of the head share.
  std::function<double(const std::string& name, int64_t t, int64_t c)> letter;
  std::function<double(const std::string& name, int64_t c)> constant;
  // What a number is once the caller has stored it in a tensor of the call.
  std::function<double(const std::string& field, double)> stored_in;
  Matrix first;  // the state before the first token, (d, e)
  Vec z_first;

  Vec row(const std::string& name, int64_t t, int64_t width) const {
    Vec y(static_cast<size_t>(width));
    for (int64_t c = 0; c < width; ++c) y[c] = letter(name, t, c);
    return y;
  }
  Vec weights(const std::string& name, int64_t width) const {
    Vec y(static_cast<size_t>(width));
    for (int64_t c = 0; c < width; ++c) y[c] = constant(name, c);
    return y;
  }
  Vec stored(const std::string& field, const Vec& x) const {
    return each_of(x, [&](double one) { return stored_in(field, one); });
  }
  Vec q(int64_t t) const { return row("q", t, d); }
  Vec k(int64_t t) const { return row("k", t, d); }
  Vec v(int64_t t) const { return row("v", t, e); }
  double beta(int64_t t) const { return logistic(letter("beta", t, 0)); }
  double scale() const { return 1 / std::sqrt(static_cast<double>(d)); }
};

// Rows of o, and what is carried on.
struct Linear {
  std::vector<Vec> o;
  Matrix state;  // (d, e)
  Vec z;
};

// Papers that write states as keys times values, and those that write values times keys.
template <class Step>
Linear by_rows(const HeadLetters& x, Step step) {
  Linear y{{}, x.first, {}};
  for (int64_t t = 0; t < x.tokens; ++t) y.o.push_back(step(y.state, t));
  return y;
}
template <class Step>
Linear by_columns(const HeadLetters& x, Step step) {
  Linear y{{}, {}, {}};
  Matrix s = transposed(x.first);
  for (int64_t t = 0; t < x.tokens; ++t) y.o.push_back(step(s, t));
  y.state = transposed(s);
  return y;
}

// ---- additive states

// Equations 10 to 12 and 18 to 20: phi is elu + 1.  1e-6 is that of the authors' code.
inline Linear linear_transformer(const HeadLetters& x) {
  Vec z = x.z_first;
  Linear y = by_rows(x, [&](Matrix& s, int64_t t) {
    const Vec k = each_of(x.k(t), elu_plus_one), q = each_of(x.q(t), elu_plus_one);
    s = s + outer(k, x.v(t)), z = z + k;
    return 1 / (inner(q, z) + 1e-6) * (q * s);
  });
  y.z = z;
  return y;
}

// Every row reads all keys, through `phi`.
template <class Phi>
Linear of_all_keys(const HeadLetters& x, Phi phi, double eps) {
  Matrix sum(x.d, x.e);
  Vec z(static_cast<size_t>(x.d));
  for (int64_t j = 0; j < x.keys; ++j) {
    const Vec k = phi("k", j);
    sum = sum + outer(k, x.v(j)), z = z + k;
  }
  Linear y{{}, sum, z};
  for (int64_t i = 0; i < x.tokens; ++i) {
    const Vec q = phi("q", i);
    y.o.push_back(1 / (inner(q, z) + eps) * (q * sum));
  }
  return y;
}

// Section 2.2: ReLU linear attention.
inline Linear sana(const HeadLetters& x) {
  return of_all_keys(
      x, [&](const char* name, int64_t t) { return each_of(x.row(name, t, x.d), relu); }, 1e-15);
}

// SLAB, section 3.3: simplified linear attention, without the depthwise convolution of V.
inline Linear sla(const HeadLetters& x) {
  return of_all_keys(
      x, [&](const char* name, int64_t t) { return each_of(x.row(name, t, x.d), relu); }, 1e-6);
}

// The quadratic Taylor map: squares, the numbers themselves by 2 / sqrt(width), and 1.
inline Vec taylor_map(const Vec& x) {
  Vec y;
  for (const double one : x) y.push_back(one * one);
  for (const double one : x) y.push_back(2 / std::sqrt(static_cast<double>(x.size())) * one);
  y.push_back(1);
  return y;
}
inline Linear qt_vit(const HeadLetters& x) {
  const auto phi = [&](const char* name, int64_t t) {
    return x.stored(name, taylor_map(x.row(name, t, (x.d - 1) / 2)));
  };
  return of_all_keys(x, phi, 1e-6);
}

// The linear attention behind the short and long convolutions.
inline Linear chela(const HeadLetters& x) {
  return by_rows(x, [&](Matrix& s, int64_t t) {
    s = s + outer(x.k(t), x.v(t));
    return x.q(t) * s;
  });
}

// Algorithm 1 with a decay of the head, that of TransNormerLLM: exp(-8 h / H (1 - l / L)); here of
// a layer a quarter of the way up.
inline double lightning_rate(int64_t head, int64_t heads) {
  return 8.0 * static_cast<double>(head) / static_cast<double>(heads) * 0.75;
}
inline Linear lightning(const HeadLetters& x) {
  const double lambda = std::exp(x.stored_in("gate_head", -lightning_rate(x.head, x.heads)));
  return by_rows(x, [&](Matrix& kv, int64_t t) {
    kv = lambda * kv + outer(each_of(x.k(t), silu), x.v(t));
    return each_of(x.q(t), silu) * kv;
  });
}

// Equations 6 and 8: gamma = 1 - 2^(-5 - head).
inline Linear retnet(const HeadLetters& x) {
  const double gamma = 1 - std::exp2(-5.0 - static_cast<double>(x.head));
  return by_rows(x, [&](Matrix& s, int64_t t) {
    s = gamma * s + outer(x.k(t), x.v(t));
    return x.scale() * (x.q(t) * s);
  });
}

// Gated retention: gamma_t = sigmoid(x)^(1 / 16) of the head.
inline Linear simple_gla(const HeadLetters& x) {
  return by_rows(x, [&](Matrix& s, int64_t t) {
    const double gamma = std::pow(logistic(x.letter("gate_head", t, 0)), 1. / 16);
    s = gamma * s + outer(x.k(t), x.v(t));
    return x.scale() * (x.q(t) * s);
  });
}

// Section 4.2: alpha_t = sigmoid(x)^(1 / 16) of each channel of the key.
inline Vec alpha_16(const HeadLetters& x, int64_t t) {
  return each_of(x.row("gate_key", t, x.d),
                 [](double raw) { return std::pow(logistic(raw), 1. / 16); });
}
inline Linear gla(const HeadLetters& x) {
  return by_rows(x, [&](Matrix& s, int64_t t) {
    s = diag(alpha_16(x, t)) * s + outer(x.k(t), x.v(t));
    return x.scale() * (x.q(t) * s);
  });
}

// No key: 1 - alpha.  Self-augmentation sees the token itself.
inline Linear metala(const HeadLetters& x) {
  const Vec w_aug = x.scale() * x.stored("bonus", 1 / x.scale() * x.weights("w_aug", x.d));
  return by_rows(x, [&](Matrix& s, int64_t t) {
    const Vec alpha = alpha_16(x, t), v = x.v(t), q = x.q(t);
    const Vec k = x.stored("k", each_of(alpha, [](double a) { return 1 - a; }));
    s = diag(alpha) * s + outer(k, v);
    return x.scale() * (q * s) + each_of(inner(q, w_aug * k) * v, logistic);
  });
}

// alpha_t = gamma + (1 - gamma) sigmoid(x), no key: 1 - alpha.
inline Vec hgrn2_alpha(const HeadLetters& x, int64_t t) {
  const double gamma = logistic(x.constant("gamma", 0));
  return each_of(x.row("f", t, x.d), [&](double f) { return gamma + (1 - gamma) * logistic(f); });
}
inline Linear hgrn2(const HeadLetters& x) {
  return by_rows(x, [&](Matrix& h, int64_t t) {
    const Vec alpha = hgrn2_alpha(x, t);
    const Vec log_alpha = each_of(alpha, [](double a) { return std::log(a); });
    const Vec decay =
        each_of(x.stored("gate_key", log_alpha), [](double g) { return std::exp(g); });
    const Vec k = x.stored("k", each_of(alpha, [](double a) { return 1 - a; }));
    h = diag(decay) * h + outer(k, x.v(t));
    return x.q(t) * h;
  });
}

// Eagle: w = exp(-exp(omega)) of the channel, and a bonus u for the token itself.
inline Linear rwkv5(const HeadLetters& x) {
  const Vec u = x.weights("bonus", x.d);
  const Vec w = each_of(x.weights("omega", x.d), [&](double omega) {
    return std::exp(-std::exp(x.stored_in("gate_key", omega)));
  });
  return by_rows(x, [&](Matrix& s, int64_t t) {
    const Matrix own = outer(x.k(t), x.v(t));
    const Vec o = x.q(t) * (diag(u) * own + s);
    s = diag(w) * s + own;
    return o;
  });
}

// Finch: w_t of each token.
inline Linear rwkv6(const HeadLetters& x) {
  const Vec u = x.weights("bonus", x.d);
  return by_rows(x, [&](Matrix& s, int64_t t) {
    const Matrix own = outer(x.k(t), x.v(t));
    const Vec o = x.q(t) * (diag(u) * own + s);
    const Vec w =
        each_of(x.row("gate_key", t, x.d), [](double omega) { return std::exp(-std::exp(omega)); });
    s = diag(w) * s + own;
    return o;
  });
}

// alpha_t = exp(-g . tau), and the input gate g^tau in place of 1 - alpha.
struct RodimusGates {
  Vec log_alpha, select;
};
inline RodimusGates rodimus_gates(const HeadLetters& x, int64_t t) {
  const Vec g = each_of(x.row("g", t, x.d), soft_plus);
  const Vec tau = each_of(x.row("tau", t, x.d), logistic);
  RodimusGates y{(-1.0) * (g * tau), g};
  for (size_t c = 0; c < g.size(); ++c) y.select[c] = std::pow(g[c], tau[c]);
  return y;
}
inline Linear rodimus(const HeadLetters& x) {
  return by_rows(x, [&](Matrix& s, int64_t t) {
    const RodimusGates gates = rodimus_gates(x, t);
    const Vec alpha =
        each_of(x.stored("gate_key", gates.log_alpha), [](double g) { return std::exp(g); });
    s = diag(alpha) * s + outer(x.stored("k", gates.select * l2(x.row("key", t, x.d))), x.v(t));
    return x.scale() * (x.q(t) * s);
  });
}

// exp(A) of the head and softplus of its step.
inline double step_of(const HeadLetters& x, int64_t t) {
  return soft_plus(x.letter("gate_head", t, 0) + x.constant("gate_bias", 0));
}
inline double decay_of_head(const HeadLetters& x, int64_t t) {
  return std::exp(-std::exp(x.constant("gate_rate", 0)) * step_of(x, t));
}

// SSD: h_t = exp(delta A) h_(t-1) + delta B x, y = C h + D x.
inline Linear mamba2(const HeadLetters& x) {
  const Vec skip = x.weights("skip", x.e);
  return by_rows(x, [&](Matrix& h, int64_t t) {
    const double delta = x.stored_in("select", step_of(x, t));
    h = decay_of_head(x, t) * h + delta * outer(x.k(t), x.v(t));
    return x.q(t) * h + skip * x.v(t);
  });
}

// ---- corrected states

// W_t = W + beta (v - W phi(k)) phi(k)', with DPFP-1 and sums of 1.
inline Vec dpfp(const Vec& x) {
  Vec r;
  for (const double one : x) r.push_back(relu(one));
  for (const double one : x) r.push_back(relu(-one));
  Vec y(r.size());
  for (size_t i = 0; i < r.size(); ++i) y[i] = r[i] * r[(i + r.size() - 1) % r.size()];
  const double sum = sum_of(y);
  return sum > 0 ? 1 / sum * y : y;
}
inline Linear deltanet(const HeadLetters& x) {
  return by_columns(x, [&](Matrix& w, int64_t t) {
    const Vec k = x.stored("k", dpfp(x.row("key", t, x.d / 2)));
    w = w + outer(x.beta(t) * (x.v(t) - w * k), k);
    return w * x.stored("q", dpfp(x.row("query", t, x.d / 2)));
  });
}

// S_t = S (I - beta k k') + beta v k', keys and queries of unit length.
inline Linear deltanet2(const HeadLetters& x) {
  return by_columns(x, [&](Matrix& s, int64_t t) {
    const Vec k = l2(x.k(t));
    const double beta = x.beta(t);
    s = s * (identity(x.d) - beta * outer(k, k)) + beta * outer(x.v(t), k);
    return x.scale() * (s * l2(x.q(t)));
  });
}

// S_t = S (alpha (I - beta k k')) + beta v k'
inline Linear gated_deltanet(const HeadLetters& x) {
  return by_columns(x, [&](Matrix& s, int64_t t) {
    const Vec k = l2(x.k(t));
    const double beta = x.beta(t), alpha = decay_of_head(x, t);
    s = s * (alpha * (identity(x.d) - beta * outer(k, k))) + beta * outer(x.v(t), k);
    return x.scale() * (s * l2(x.q(t)));
  });
}

// Several writes a token, each with its key, value and beta in (0, 2); one decay before them.
inline double log_forget_of(const HeadLetters& x, int64_t token) {
  return -soft_plus(x.letter("forget", token, 0));
}
inline Linear gated_deltaproduct(const HeadLetters& x, int64_t writes) {
  return by_columns(x, [&](Matrix& s, int64_t t) {
    const Vec k = l2(x.k(t));
    const double beta = 2 * x.beta(t);
    if (t % writes == 0) s = std::exp(x.stored_in("gate_head", log_forget_of(x, t / writes))) * s;
    s = s * (identity(x.d) - beta * outer(k, k)) + beta * outer(x.v(t), k);
    if (t % writes != writes - 1) return Vec(static_cast<size_t>(x.e));
    return x.scale() * (s * l2(x.row("query", t / writes, x.d)));
  });
}

// S_t = (I - beta k k') Diag(alpha) S + beta k v'
inline Linear kda_of(const HeadLetters& x,
                     const std::function<double(double raw, double rate)>& log) {
  const double rate = std::exp(x.constant("gate_rate", 0));
  const Vec bias = x.weights("gate_bias", x.d);
  return by_rows(x, [&](Matrix& s, int64_t t) {
    const Vec k = l2(x.k(t));
    const double beta = x.beta(t);
    const Vec alpha = each_of(x.row("gate_key", t, x.d) + bias,
                              [&](double raw) { return std::exp(log(raw, rate)); });
    s = (identity(x.d) - beta * outer(k, k)) * (diag(alpha) * s) + beta * outer(k, x.v(t));
    return x.scale() * (l2(x.q(t)) * s);
  });
}
inline Linear kda(const HeadLetters& x) {
  return kda_of(x, [](double raw, double rate) { return -rate * soft_plus(raw); });
}
// The gate of the released kernels that has a lower bound.
inline Linear kda_bounded(const HeadLetters& x) {
  return kda_of(x, [](double raw, double rate) { return -5 * logistic(rate * raw); });
}

// Erasing and writing have gates of their own: b of each channel of the key, w of each of the
// value.
inline Vec gate_of(const HeadLetters& x, const char* name, int64_t t, int64_t width) {
  return each_of(x.row(name, t, width), logistic);
}
inline Linear gdn2(const HeadLetters& x) {
  const double rate = std::exp(x.constant("gate_rate", 0));
  return by_rows(x, [&](Matrix& s, int64_t t) {
    const Vec unit = l2(x.row("key", t, x.d)), k = x.stored("k", unit);
    const Vec alpha = each_of(x.row("gate_key", t, x.d) + x.weights("gate_bias", x.d),
                              [&](double raw) { return std::exp(-rate * soft_plus(raw)); });
    const Vec erase = x.stored("erase", gate_of(x, "b", t, x.d) * unit);
    const Vec value = x.stored("v", gate_of(x, "w", t, x.e) * x.row("value", t, x.e));
    s = (identity(x.d) - outer(k, erase)) * (diag(alpha) * s) + outer(k, value);
    return x.scale() * (x.stored("q", l2(x.row("query", t, x.d))) * s);
  });
}

// S_t = S (alpha - beta~ k k') + beta v k', o = S (q - d k): beta~ = b beta, and the correction
// reads the state before its decay.
inline Linear comba(const HeadLetters& x) {
  const double b = logistic(x.constant("b", 0)), d = x.constant("d", 0);
  return by_columns(x, [&](Matrix& s, int64_t t) {
    const Vec unit = l2(x.row("key", t, x.d)), query = l2(x.row("query", t, x.d));
    const Vec write = x.stored("k", x.beta(t) * unit), read = x.stored("low_a", (-b) * unit);
    s = s * (decay_of_head(x, t) * identity(x.d) + outer(read, write)) + outer(x.v(t), write);
    return x.scale() * (s * x.stored("q", query - d * unit));
  });
}

// wkv_t = wkv (diag(w) - kappa' (a . kappa)) + v' k~: the removal key kappa has unit length, a is
// the learning rate in context, k~ the replacement key.
struct Rwkv7Keys {
  Vec kappa, a, k;
};
inline Rwkv7Keys rwkv7_keys(const HeadLetters& x, int64_t t) {
  const Vec key = x.row("key", t, x.d), removal = key * x.weights("xi", x.d);
  const Vec a = each_of(x.row("a", t, x.d), logistic), one(static_cast<size_t>(x.d), 1);
  return {1 / std::sqrt(inner(removal, removal)) * removal, a,
          key * (one + (a - one) * x.weights("alpha", x.d))};
}
inline Linear rwkv7(const HeadLetters& x) {
  return by_columns(x, [&](Matrix& wkv, int64_t t) {
    const Rwkv7Keys keys = rwkv7_keys(x, t);
    const Vec w = each_of(x.row("gate_key", t, x.d),
                          [](double d) { return std::exp(-std::exp(-0.5) * logistic(d)); });
    const Vec kappa = x.stored("low_a", keys.kappa);
    wkv = wkv * (diag(w) - outer(kappa, x.stored("low_b", keys.a * keys.kappa))) +
          outer(x.v(t), x.stored("k", keys.k));
    return wkv * x.q(t);
  });
}

// ---- attention that forgets

// Softmax of q k' / sqrt(d) + D with D_ij the sum of the logs of the forget gates of tokens
// j + 1 .. i.
inline Attention fox(const Attention& a,
                     const std::function<double(int64_t b, int64_t head, int64_t t)>& log_forget) {
  Attention y = seen_by(a, [](int64_t, int64_t, int64_t i, int64_t j) { return j <= i; });
  y.bias = Dense{true, FOVEA_F32, {a.b, a.h, a.s, a.at.extent, 1}, {}};
  for (int64_t b = 0; b < a.b; ++b)
    for (int64_t head = 0; head < a.h; ++head)
      for (int64_t row = 0; row < a.s; ++row)
        for (int64_t j = 0; j < a.at.extent; ++j) {
          double sum = 0;
          for (int64_t t = j + 1; t <= row + a.at.extent - a.s; ++t) sum += log_forget(b, head, t);
          y.bias.value.push_back(sum);
        }
  return y;
}

}  // namespace oracle::recipes
