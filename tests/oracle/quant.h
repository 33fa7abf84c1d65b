// SPDX-License-Identifier: Apache-2.0
// quant_forward from the comments of quant.h, one row at a time.
//   exact: softmax attention of the numbers the codes stand for, in float64.  Rounded:
//   the recipe in float32, p rounded to e4m3 of 256 p under the maximum of the tiles seen so far,
//   sums of products as tensor cores make them: 32 at a time, each cut 13 bits below the largest's
//   power of two (measured on Hopper: 14 bits would err half as much)
#pragma once
#include <algorithm>

#include "sequence.h"

namespace oracle {

// Where a head's row of scales, or of units of 128 tokens, has the first entry of sequence r.
inline int64_t scale_base(const Dense& start, int64_t r, int64_t block) {
  if (!start) return 0;
  return block ? start.integer(r) / block + r : r;
}

inline int64_t value_column(const Dense& start, int64_t r, int64_t i, bool permuted) {
  static constexpr int place[16] = {0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15};
  const int64_t token = permuted ? i / 16 * 16 + place[i % 16] : i;
  return (start ? (start.integer(r) / 128 + r) * 128 : 0) + token;
}

struct QuantAttention {
  Dense q, k, v, v_t, q_scale, k_scale, v_scale, sink_logit;
  Layout at;
  int64_t b = 0, s = 0, h = 0, g = 0, d = 0, e = 0;
  int64_t left = 0, right = 0, q_block = 0, k_block = 0;
  double scale = 0, softcap = 0;
  bool permuted = false;
};

inline QuantAttention load_quant(const fovea_quant_forward_params& p) {
  QuantAttention a;
  a.q = load(p.q), a.k = load(p.k), a.v = load(p.v), a.v_t = load(p.v_t);
  a.q_scale = load(p.q_scale), a.k_scale = load(p.k_scale), a.v_scale = load(p.v_scale);
  a.sink_logit = load(p.sink_logit);
  a.b = p.q.shape[0], a.s = p.q.shape[1], a.h = p.q.shape[2], a.d = p.q.shape[3];
  a.g = p.k.shape[2], a.e = p.o.shape[3];
  a.at.query_start = load(p.query_start), a.at.key_start = load(p.key_start);
  a.at.query_len = load(p.query_len), a.at.key_len = load(p.key_len);
  a.at.s = a.s, a.at.extent = p.k.shape[1];
  a.at.query_max = p.query_max, a.at.key_max = p.key_max;
  a.at.sequences = p.query_start.data ? p.query_start.shape[0] - 1
                   : p.key_start.data ? p.key_start.shape[0] - 1
                                      : a.b;
  a.left = p.window_left, a.right = p.causal ? 1 : p.window_right;
  a.q_block = p.q_block, a.k_block = p.k_block;
  a.scale = p.scale > 0 ? p.scale : 1 / std::sqrt(static_cast<double>(a.d));
  a.softcap = p.softcap;
  a.permuted = p.code_order == FOVEA_CODE_ORDER_V_PERM16;
  return a;
}

inline double scale_at(const Dense& scale, const Dense& start, int64_t row, int64_t head, int64_t r,
                       int64_t block, int64_t i) {
  if (!scale) return 1;
  return scale(row, head, scale_base(start, r, block) + (block ? i / block : 0));
}

inline double value_at(const QuantAttention& a, const Sequence& q, int64_t g, int64_t j,
                       int64_t c) {
  if (a.v) return a.v(q.cache, q.store + j, g, c);
  return a.v_t(q.cache, g, c, value_column(a.at.key_start, q.r, j, a.permuted));
}

// sum + x_0 y_0 + ..., 32 products at a time.
template <class X, class Y>
double cut_sum(double sum, int64_t n, X x, Y y) {
  for (int64_t begin = 0; begin < n; begin += 32) {
    double term[33] = {sum}, largest = std::abs(sum);
    int count = 1;
    for (int64_t i = begin; i < std::min(begin + 32, n); ++i) {
      term[count] = x(i) * y(i);
      largest = std::max(largest, std::abs(term[count++]));
    }
    int exponent = 0;
    std::frexp(largest, &exponent);
    const double step = std::ldexp(1.0, exponent - 13), inverse = std::ldexp(1.0, 13 - exponent);
    sum = 0;
    for (int i = 0; i < count; ++i) sum += std::trunc(term[i] * inverse) * step;
  }
  return sum;
}

struct QuantForwardResult {
  Out o, lse;
};

inline QuantForwardResult quant_forward(const fovea_quant_forward_params& p, Mode mode) {
  constexpr int64_t kTile = 128;
  const QuantAttention a = load_quant(p);
  const bool exact = mode == Mode::exact;
  QuantForwardResult out{Out(p.o, unit_of(FOVEA_E4M3)), Out()};
  if (p.lse.data) out.lse = Out(p.lse, 0);
  const auto real = [&](double x) {
    return exact ? x : static_cast<double>(static_cast<float>(x));
  };
  for (int64_t r = 0; r < a.at.sequences; ++r) {
    const Sequence q = sequence(a.at, r);
    for (int64_t head = 0; head < a.h; ++head) {
      const int64_t g = head / (a.h / a.g);
      const double sink = a.sink_logit ? a.sink_logit(head) : -HUGE_VAL;
      const double v_scale = scale_at(a.v_scale, a.at.key_start, q.cache, g, r, 0, 0);
      for (int64_t i = 0; i < q.rows; ++i) {
        const int64_t row = q.row + i, position = i + q.keys - q.rows;
        const double* query = a.q.row(q.batch, row, head);
        const double scale =
            a.scale * scale_at(a.q_scale, a.at.query_start, q.batch, head, r, a.q_block, i);
        double m = -HUGE_VAL, l = 0, condition = 0, terms = 0;
        std::vector<double> o(a.e), x(q.keys, -HUGE_VAL);
        for (int64_t j = 0; j < q.keys; ++j) {
          if ((a.right > 0 && j >= position + a.right) || (a.left > 0 && j <= position - a.left))
            continue;
          const double* key = a.k.row(q.cache, q.store + j, g);
          const double factor =
              scale * scale_at(a.k_scale, a.at.key_start, q.cache, g, r, a.k_block, j);
          double dot = 0, q_norm = 0, k_norm = 0;
          for (int64_t c = 0; c < a.d; ++c)
            dot += query[c] * key[c], q_norm += query[c] * query[c], k_norm += key[c] * key[c];
          if (!exact)
            dot = cut_sum(
                0, a.d, [&](int64_t c) { return query[c]; }, [&](int64_t c) { return key[c]; });
          x[j] = real(dot * factor);
          if (a.softcap > 0) x[j] = real(a.softcap * std::tanh(x[j] / a.softcap));
          condition = std::max(condition, std::abs(factor) * std::sqrt(q_norm * k_norm));
        }
        for (int64_t end = (q.keys + kTile - 1) / kTile * kTile; end > 0; end -= kTile) {
          const int64_t begin = end - kTile, last = std::min(end, q.keys);
          double top = m;
          for (int64_t j = begin; j < last; ++j)
            if (x[j] > top || std::isnan(x[j])) top = x[j];
          if (top == -HUGE_VAL) continue;
          const double shrink = real(std::exp(m - top));
          m = top, l = real(l * shrink), terms *= shrink;
          for (int64_t j = begin; j < last; ++j) {
            x[j] = real(std::exp(x[j] - m)), l = real(l + x[j]);
            double most = 0;
            for (int64_t c = 0; x[j] != 0 && c < a.e; ++c)
              most = std::max(most, std::abs(value_at(a, q, g, j, c)));
            terms += x[j] * most;
            if (!exact) x[j] = round_to(FOVEA_E4M3, 256 * x[j]) / 256;
          }
          for (int64_t c = 0; c < a.e; ++c) {
            const auto weight = [&](int64_t j) { return x[begin + j]; };
            const auto value = [&](int64_t j) {
              return x[begin + j] == 0 ? 0 : value_at(a, q, g, begin + j, c);
            };
            double sum = 0;
            if (exact)
              for (int64_t j = 0; j < last - begin; ++j) sum += weight(j) * value(j);
            else
              sum = cut_sum(0, last - begin, weight, value);
            o[c] = real(o[c] * shrink + sum);
          }
        }
        const double high = std::max(m, sink);
        const double less = m == -HUGE_VAL ? 0 : std::exp(m - high);
        l = high == -HUGE_VAL ? 0 : real(l * less + std::exp(sink - high));
        if (std::isnan(m)) l = m;
        out.o.terms(l == 0 ? 0 : terms * less * std::abs(v_scale) / l);
        out.o.condition = std::max(out.o.condition, condition);
        for (int64_t c = 0; c < a.e; ++c) {
          const double y = l == 0 || less == 0 ? 0 : real(o[c] * less * v_scale / l);
          out.o.set(((q.batch * a.s + row) * a.h + head) * a.e + c,
                    exact ? y : round_to(p.o.dtype, y));
        }
        if (!p.lse.data) continue;
        const double lse = l == 0 ? -HUGE_VAL : high + std::log(l);
        out.lse.set((q.batch * a.h + head) * a.s + row, real(lse));
        out.lse.terms(1 + std::abs(lse) + condition);
      }
    }
  }
  return out;
}

}  // namespace oracle
