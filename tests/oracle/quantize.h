// SPDX-License-Identifier: Apache-2.0
// quant_quantize and quant_dequantize from the comments of quant.h, one head of a sequence at a
// time, in f32 as the header says: codes, scales and means are compared bit for bit, delta is in
// float64 or float32.
#pragma once
#include "oracle/quant.h"

namespace oracle {

struct QuantizeResult {
  Out code, code_t, scale, mean, delta;
};

inline bool sign_of_column(int64_t seed, int64_t c) {
  uint64_t z = static_cast<uint64_t>(seed) + static_cast<uint64_t>(c + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return (z ^ (z >> 31)) >> 63;
}

inline void mix_columns(std::vector<float>& y) {
  const auto d = static_cast<int64_t>(y.size());
  int64_t run = 1;
  while (d % (2 * run) == 0) run *= 2;
  for (int64_t step = 1; step < run; step *= 2)
    for (int64_t begin = 0; begin < d; begin += 2 * step)
      for (int64_t c = begin; c < begin + step; ++c) {
        const float low = y[c], high = y[c + step];
        y[c] = low + high;
        y[c + step] = low - high;
      }
  const auto root = static_cast<float>(1 / std::sqrt(static_cast<double>(run)));
  for (float& value : y) value *= root;
}

// The code of e2m1 nearest to x, an even one of two.
inline int e2m1_code(float x) {
  static constexpr double value[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  int best = 0;
  for (int i = 1; i < 8; ++i) {
    const double better = std::abs(std::abs(static_cast<double>(x)) - value[best]) -
                          std::abs(std::abs(static_cast<double>(x)) - value[i]);
    if (better > 0 || (better == 0 && i % 2 == 0)) best = i;
  }
  return best + (std::signbit(x) ? 8 : 0);
}

// What the fields of either call say of codes.
struct CodeCall {
  Dense start;
  int64_t sequences = 0, s = 0, h = 0, d = 0, block = 0, columns = 0;
  int group = 0, format = 0, smooth = 0, dtype = 0;
  bool permuted = false;

  bool pairs() const { return format != FOVEA_CODE_FORMAT_DTYPE; }
  int64_t micro() const { return group < 5 ? 0 : group % 2 ? 16 : 32; }
  // Entry of column c of token i of sequence r.
  int64_t entry(int64_t r, int64_t i, int64_t c) const {
    const int64_t begin = start ? start.integer(r) : 0, runs = micro() ? (d - 1) / micro() + 1 : 0;
    const int64_t base = scale_base(start, r, block), of = block ? i / block : 0;
    switch (group) {
      case FOVEA_SCALE_GROUP_BLOCK:
        return base + of;
      case FOVEA_SCALE_GROUP_THREAD_Q:
        return 8 * (base + of) + i % 8;
      case FOVEA_SCALE_GROUP_THREAD_K:
        return 4 * (base + of) + i % 8 / 2;
      case FOVEA_SCALE_GROUP_TOKEN:
        return begin + i;
      case FOVEA_SCALE_GROUP_CHANNEL:
        return (start ? r * d : 0) + c;
      case FOVEA_SCALE_GROUP_MICRO16:
      case FOVEA_SCALE_GROUP_MICRO32:
        return (begin + i) * runs + c / micro();
      default:
        return (c * columns + value_column(start, r, i, permuted)) / micro();
    }
  }
  int64_t mean_entry(int64_t r, int64_t i) const {
    if (smooth == FOVEA_SMOOTH_SEQUENCE) return start ? r : 0;
    return scale_base(start, r, 128) + i / 128;
  }
  int64_t mean_block() const { return smooth == FOVEA_SMOOTH_BLOCK ? 128 : INT64_MAX; }
};

template <class P>
CodeCall code_call(const P& p, const fovea_tensor& x) {
  CodeCall a;
  a.start = load(p.start);
  a.sequences = a.start ? p.start.shape[0] - 1 : x.shape[0];
  a.s = x.shape[1], a.h = x.shape[2], a.d = x.shape[3], a.block = p.block;
  a.group = p.group, a.format = p.code_format, a.smooth = p.smooth;
  a.dtype = p.code.data ? p.code.dtype : p.code_t.dtype;
  a.columns = p.code_t.data ? p.code_t.shape[3] * (a.pairs() ? 2 : 1) : 0;
  a.permuted = p.code_order == 1;
  return a;
}

inline float tree(const std::vector<std::vector<float>>& y, int64_t begin, int64_t end, int64_t c,
                  int64_t size) {
  if (begin >= end) return 0;
  if (size == 1) return y[begin][c];
  return tree(y, begin, end, c, size / 2) + tree(y, begin + size / 2, end, c, size / 2);
}

// One head of one sequence: its tokens, and means off them.
inline std::vector<std::vector<float>> centred(const CodeCall& a,
                                               const fovea_quant_quantize_params& p, const Dense& x,
                                               int64_t r, int64_t head, Out* mean) {
  const int64_t batch = a.start ? 0 : r, begin = a.start ? a.start.integer(r) : 0;
  const int64_t tokens = a.start ? a.start.integer(r + 1) - begin : a.s;
  std::vector<std::vector<float>> y;
  for (int64_t i = 0; i < tokens; ++i) {
    const double* row = x.row(batch, begin + i, head);
    y.emplace_back(row, row + a.d);
    for (int64_t c = 0; p.hadamard && c < a.d; ++c)
      if (sign_of_column(p.seed, c)) y.back()[c] = -y.back()[c];
    if (p.hadamard) mix_columns(y.back());
  }
  if (!a.smooth) return y;
  const int64_t size = a.smooth == FOVEA_SMOOTH_BLOCK ? 128 : std::max<int64_t>(tokens, 1);
  int64_t power = 1;
  while (power < size) power *= 2;
  for (int64_t first = 0; first < tokens; first += size)
    for (int64_t c = 0; c < a.d; ++c) {
      const int64_t last = std::min(first + size, tokens);
      float one = (tree(y, first, last, c, power) + 0.0f) / static_cast<float>(last - first);
      if (a.smooth == FOVEA_SMOOTH_BLOCK) one = static_cast<float>(nearest(FOVEA_BF16, one));
      for (int64_t i = first; i < last; ++i) y[i][c] -= one;
      mean->set(((batch * a.h + head) * p.mean.shape[2] + a.mean_entry(r, first)) * a.d + c, one);
    }
  return y;
}

// The scale and the factor of a group whose largest magnitude is `top`.
struct GroupScale {
  double scale = 0;  // as the tensor's dtype holds it: a byte of u8
  float factor = 0;
  GroupScale(const CodeCall& a, float scale_max, float top) {
    const bool finite = std::isfinite(top);
    if (a.micro() == 16) {
      scale = finite ? round_to(FOVEA_E4M3, top / 6) : NAN;
      factor = finite && scale > 0 ? 1 / static_cast<float>(scale) : 0;
    } else if (a.micro() == 32) {
      const int power = finite && top > 0 ? std::max(std::ilogb(top) - 2, -127) : -127;
      scale = finite ? power + 127 : 255;
      factor = finite && top > 0 ? static_cast<float>(std::ldexp(1.0, -power)) : 0;
    } else {
      const float most = a.format ? 7 : a.dtype == FOVEA_I8 ? 127 : scale_max > 0 ? scale_max : 448;
      top = top < 1e-7f ? 1e-7f : top;
      scale = top / most, factor = finite ? most / top : 0;
    }
  }
};

// A code as a number, or with pairs its four bits.
inline double code_number(const CodeCall& a, float y, float factor) {
  if (factor == 0) return 0;
  const float x = y * factor;
  if (a.format == FOVEA_CODE_FORMAT_E2M1) return e2m1_code(x);
  if (a.format == FOVEA_CODE_FORMAT_I4)
    return static_cast<int>(std::min(std::max(std::nearbyint(x), -7.0f), 7.0f)) & 15;
  if (a.dtype == FOVEA_I8) return std::min(std::max(std::nearbyint(x), -127.0f), 127.0f);
  return round_to(FOVEA_E4M3, x);
}

inline void put_code(const CodeCall& a, Out& out, int64_t i, double code) {
  if (a.pairs())
    out.set(i / 2, out.value[i / 2] + (i % 2 ? 16 * code : code));
  else
    out.set(i, code);
}

// Rows that the header gives 0 where no token is.
inline void clear(const CodeCall& a, QuantizeResult& out) {
  const auto all = [](Out& x) {
    for (size_t i = 0; i < x.value.size(); ++i) x.set(i, 0);
  };
  const bool own = a.group == FOVEA_SCALE_GROUP_TOKEN || a.group == FOVEA_SCALE_GROUP_MICRO16 ||
                   a.group == FOVEA_SCALE_GROUP_MICRO32;
  if (!own) all(out.scale);
  all(out.code_t), all(out.mean);
}

inline void put_delta(const CodeCall& a, const fovea_quant_quantize_params& p, const Dense& mean,
                      Mode mode, Out& out) {
  const Dense k = load(p.k), k_mean = load(p.k_mean), key_start = load(p.key_start);
  const int64_t t = p.k.shape[1], heads = a.h / p.k.shape[2];
  for (int64_t r = 0; r < a.sequences; ++r) {
    const int64_t tokens = a.start ? a.start.integer(r + 1) - a.start.integer(r) : a.s;
    const int64_t batch = a.start ? 0 : r, key_batch = key_start ? 0 : r;
    const int64_t begin = key_start ? key_start.integer(r) : 0;
    const int64_t end = key_start ? key_start.integer(r + 1) : t;
    for (int64_t head = 0; head < a.h; ++head)
      for (int64_t first = 0; first < tokens; first += 128)
        for (int64_t j = begin; j < end; ++j) {
          double sum = 0, terms = 0;
          for (int64_t c = 0; c < a.d; ++c) {
            double less = k(key_batch, j, head / heads, c);
            if (k_mean) less -= k_mean(key_batch, head / heads, key_start ? r : 0, c);
            if (mode == Mode::rounded) less = static_cast<float>(less);
            const double term = mean(batch, head, a.mean_entry(r, first), c) * less;
            sum += mode == Mode::rounded ? static_cast<float>(term) : term;
            if (mode == Mode::rounded) sum = static_cast<float>(sum);
            terms += std::abs(term);
          }
          out.set(((batch * a.h + head) * p.delta.shape[2] + a.mean_entry(r, first)) * t + j, sum);
          out.terms(terms);
        }
  }
}

inline QuantizeResult quantize(const fovea_quant_quantize_params& p, Mode mode = Mode::exact) {
  const Dense x = load(p.x);
  const CodeCall a = code_call(p, p.x);
  QuantizeResult out;
  if (p.code.data) out.code = Out(p.code, 0);
  if (p.code_t.data) out.code_t = Out(p.code_t, 0);
  if (p.mean.data) out.mean = Out(p.mean, 0);
  out.scale = Out(p.scale, 0);
  clear(a, out);
  const int64_t n = p.scale.shape[2];
  for (int64_t r = 0; r < a.sequences; ++r)
    for (int64_t head = 0; head < a.h; ++head) {
      const auto y = centred(a, p, x, r, head, &out.mean);
      const auto tokens = static_cast<int64_t>(y.size());
      const int64_t batch = a.start ? 0 : r, begin = a.start ? a.start.integer(r) : 0;
      std::vector<float> top(n, -1);
      for (int64_t i = 0; i < tokens; ++i)
        for (int64_t c = 0; c < a.d; ++c) {
          float& most = top[a.entry(r, i, c)];
          const float one = std::abs(y[i][c]);
          if (!std::isnan(most) && (std::isnan(one) || one > most)) most = one;
        }
      for (int64_t e = 0; e < n; ++e)
        if (!(top[e] < 0))
          out.scale.set((batch * a.h + head) * n + e, GroupScale(a, p.scale_max, top[e]).scale);
      for (int64_t i = 0; i < tokens; ++i)
        for (int64_t c = 0; c < a.d; ++c) {
          const GroupScale scale(a, p.scale_max, top[a.entry(r, i, c)]);
          const double code = code_number(a, y[i][c], scale.factor);
          if (p.code.data)
            put_code(a, out.code, ((batch * a.s + begin + i) * a.h + head) * a.d + c, code);
          if (p.code_t.data)
            put_code(a, out.code_t,
                     ((batch * a.h + head) * a.d + c) * a.columns +
                         value_column(a.start, r, i, a.permuted),
                     code);
        }
    }
  if (p.delta.data) {
    Dense mean;
    mean.given = true, mean.value = out.mean.value;
    for (int i = 0; i < 4; ++i) mean.shape[i] = p.mean.shape[i];
    out.delta = Out(p.delta, 0);
    put_delta(a, p, mean, mode, out.delta);
  }
  return out;
}

inline double code_meaning(const CodeCall& a, double code, bool high) {
  if (!a.pairs()) return code;
  const int bits = static_cast<int>(code) >> (high ? 4 : 0) & 15;
  if (a.format == FOVEA_CODE_FORMAT_I4) return bits < 8 ? bits : bits - 16;
  static constexpr double value[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return bits < 8 ? value[bits] : -value[bits - 8];
}

inline Out dequantize(const fovea_quant_dequantize_params& p) {
  const CodeCall a = code_call(p, p.y);
  const Dense code = load(p.code), code_t = load(p.code_t), scale = load(p.scale),
              mean = load(p.mean);
  Out out(p.y, 0);
  for (int64_t r = 0; r < a.sequences; ++r) {
    const int64_t batch = a.start ? 0 : r, begin = a.start ? a.start.integer(r) : 0;
    const int64_t tokens = a.start ? a.start.integer(r + 1) - begin : a.s;
    for (int64_t head = 0; head < a.h; ++head)
      for (int64_t i = 0; i < tokens; ++i) {
        std::vector<float> y(a.d);
        for (int64_t c = 0; c < a.d; ++c) {
          const int64_t z = value_column(a.start, r, i, a.permuted), per = a.pairs() ? 2 : 1;
          const double one = code ? code_meaning(a, code(batch, begin + i, head, c / per), c % 2)
                                  : code_meaning(a, code_t(batch, head, c, z / per), z % 2);
          double factor = scale(batch, head, a.entry(r, i, c));
          if (a.micro() == 32)
            factor = factor == 255 ? NAN : std::ldexp(1.0, static_cast<int>(factor) - 127);
          y[c] = static_cast<float>(one) * static_cast<float>(factor);
          if (a.smooth) y[c] += static_cast<float>(mean(batch, head, a.mean_entry(r, i), c));
        }
        if (p.hadamard) mix_columns(y);
        for (int64_t c = 0; c < a.d; ++c) {
          const float one = p.hadamard && sign_of_column(p.seed, c) ? -y[c] : y[c];
          out.set(((batch * a.s + begin + i) * a.h + head) * a.d + c, round_to(p.y.dtype, one));
        }
      }
  }
  return out;
}

}  // namespace oracle
