// SPDX-License-Identifier: Apache-2.0
// Low-bit caches from their papers, on whole keys and values.
//   KIVI (2402.02750): per-channel keys, per-token values, a residual of full precision.  Zero and
//   scale are rounded to f16, as they are stored.
//   KVQuant (2401.18079): keys before rotation, non-uniform levels, outliers of each token apart.
//   TurboQuant (2504.19874), for the mean squared error: rotated rows over their norms.
//   KVarN (2606.03458): tiles of rotated rows, whose deviations are levelled along both axes.
// What the cache stores in f32 or f16 is rounded so.
#pragma once
#include <functional>
#include <map>

#include "attention.h"

namespace oracle::recipes {

// (sequence, token, head, column)
using Letter = std::function<double(int64_t, int64_t, int64_t, int64_t)>;

struct Kivi {
  int64_t bits, group, residual;

  struct Group {
    double zero, scale;
    std::vector<int64_t> code;
    double operator[](int64_t n) const { return static_cast<double>(code[n]) * scale + zero; }
  };
  // Q(X) = round((X - z) / s), z = min X, s = (max X - min X) / (2^B - 1)
  Group quantised(const std::vector<double>& x) const {
    const double least = *std::min_element(x.begin(), x.end());
    const double most = *std::max_element(x.begin(), x.end()), codes = std::exp2(bits) - 1;
    Group to{nearest(FOVEA_F16, least), nearest(FOVEA_F16, (most - least) / codes), {}};
    for (const double one : x) {
      const double code = to.scale == 0 ? 0 : std::nearbyint((one - to.zero) / to.scale);
      to.code.push_back(static_cast<int64_t>(std::clamp(code, 0.0, codes)));
    }
    return to;
  }
  // Keys along tokens: the group of token j; values along channels.
  Group key(const Letter& k, int64_t b, int64_t j, int64_t head, int64_t c) const {
    std::vector<double> x;
    for (int64_t n = 0; n < group; ++n) x.push_back(k(b, j / group * group + n, head, c));
    return quantised(x);
  }
  Group value(const Letter& v, int64_t b, int64_t j, int64_t head, int64_t c) const {
    std::vector<double> x;
    for (int64_t n = 0; n < group; ++n) x.push_back(v(b, j, head, c / group * group + n));
    return quantised(x);
  }

  // Algorithm 1 after a prompt of one token and length - 1 steps: what is quantised when the last
  // token attends.  A step attends, then quantises a full residual of keys, and the oldest value.
  struct Count {
    int64_t keys = 0, values = 0;
  };
  Count count(int64_t length) const {
    Count n;
    for (int64_t j = 1; j < length; ++j) {
      if (j - n.keys == residual) n.keys = j;
      if (j - n.values > residual) ++n.values;
    }
    return n;
  }
  // Row j as attention reads it.
  double key_of(const Letter& k, int64_t length, int64_t b, int64_t j, int64_t head,
                int64_t c) const {
    return j < count(length).keys ? key(k, b, j, head, c)[j % group] : k(b, j, head, c);
  }
  double value_of(const Letter& v, int64_t length, int64_t b, int64_t j, int64_t head,
                  int64_t c) const {
    return j < count(length).values ? value(v, b, j, head, c)[c % group] : v(b, j, head, c);
  }
};

inline Kivi kivi2(int64_t residual) {
  return {2, 32, residual};
}
inline Kivi kivi4(int64_t residual) {
  return {4, 32, residual};
}

// The levels of Lloyd and Max for a normal number: the least mean squared error.
inline const std::vector<double>& normal_levels(int64_t bits) {
  static thread_local std::map<int64_t, std::vector<double>> found;
  if (found.count(bits)) return found[bits];
  const int64_t n = int64_t{1} << bits;
  std::vector<double> level;
  for (int64_t i = 0; i < n; ++i)
    level.push_back(4 * (static_cast<double>(i) + 0.5) / static_cast<double>(n) - 2);
  const auto below = [](double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); };
  const auto density = [](double x) { return std::exp(-x * x / 2) / std::sqrt(2 * M_PI); };
  for (int step = 0; step < 400; ++step) {
    const std::vector<double> old = level;
    for (int64_t i = 0; i < n; ++i) {
      const double from = i ? (old[i - 1] + old[i]) / 2 : -40;
      const double to = i + 1 < n ? (old[i] + old[i + 1]) / 2 : 40;
      level[i] = (density(from) - density(to)) / (below(to) - below(from));
    }
  }
  return found[bits] = level;
}

// A token over all heads: levels, what the cache stores of it, and outliers by column.
struct Levels {
  std::vector<double> level;  // as f32

  Levels(int64_t bits, double scale) {
    for (const double x : normal_levels(bits)) level.push_back(static_cast<float>(x * scale));
  }
  int64_t nearest_to(double y) const {
    int64_t best = 0;
    for (size_t i = 1; i < level.size(); ++i)
      if (std::abs(y - level[i]) < std::abs(y - level[best])) best = static_cast<int64_t>(i);
    return best;
  }
};

struct Coded {
  std::vector<int64_t> code;
  std::vector<double> back;           // x', with outliers
  std::map<int64_t, double> outlier;  // f16 of what the level lacks
  double offset = 0, range = 1;       // of a value
};

struct Kvquant {
  Levels levels;
  int64_t half;  // outliers from each end

  // y = x / range about the offset of a column; outliers: from each end, where |y| > least.
  Coded coded(const std::vector<double>& x, const std::vector<double>& offset,
              const std::vector<double>& range, double least) const {
    Coded to;
    std::vector<std::pair<double, int64_t>> y;
    for (size_t c = 0; c < x.size(); ++c) {
      y.emplace_back((x[c] - offset[c]) / range[c], static_cast<int64_t>(c));
      to.code.push_back(levels.nearest_to(y[c].first));
      to.back.push_back(levels.level[to.code[c]] * range[c] + offset[c]);
    }
    std::sort(y.begin(), y.end());
    for (int64_t n = 0; n < half; ++n)
      for (const auto& [number, c] : {y[n], y[y.size() - 1 - static_cast<size_t>(n)]}) {
        if (std::abs(number) <= least) continue;
        to.outlier[c] = nearest(FOVEA_F16, x[c] - to.back[c]);
        to.back[c] += to.outlier[c];
      }
    return to;
  }
  // A value: its range is that of what is left without outliers.
  Coded value(const std::vector<double>& x) const {
    std::vector<double> by_size = x;
    std::sort(by_size.begin(), by_size.end());
    const double low = by_size[half],
                 high = by_size[by_size.size() - 1 - static_cast<size_t>(half)];
    const double offset = static_cast<float>((low + high) / 2);
    const double range = static_cast<float>((high - low) / 2);
    Coded to =
        coded(x, std::vector<double>(x.size(), offset), std::vector<double>(x.size(), range), 0);
    to.offset = offset, to.range = range;
    return to;
  }
};

// Levels for keys and values within `limit` deviations of their mean; outliers from each end.
inline Kvquant kvquant(int64_t bits, double limit, int64_t half) {
  return {Levels(bits, 1 / limit), half};
}
inline Kvquant kvquant2(double limit, int64_t half) {
  return kvquant(2, limit, half);
}
inline Kvquant kvquant3(double limit, int64_t half) {
  return kvquant(3, limit, half);
}
inline Kvquant kvquant4(double limit, int64_t half) {
  return kvquant(4, limit, half);
}

// A row of one head.
inline Coded turboquant(const Levels& levels, const std::vector<double>& x) {
  Coded to;
  double sum = 0;
  for (const double one : x) sum += one * one;
  to.range = static_cast<float>(std::sqrt(sum));
  for (const double one : x) {
    to.code.push_back(levels.nearest_to(one / to.range));
    to.back.push_back(levels.level[to.code.back()] * to.range);
  }
  return to;
}

struct Kvarn {
  int64_t key_bits, value_bits, group, residual;

  // Lines are quantised; columns keep their factor.  Keys: lines are channels; values: tokens.
  struct Tile {
    std::vector<double> scale, zero, factor;
    std::vector<std::vector<int64_t>> code;  // [line][column]
    double operator()(int64_t line, int64_t column) const {
      return (static_cast<double>(code[line][column]) * scale[line] + zero[line]) * factor[column];
    }
  };
  using Matrix = std::vector<std::vector<double>>;  // [line][column]

  static double deviation(const std::vector<double>& x) {
    double mean = 0, sum = 0;
    for (const double one : x) mean += one / static_cast<double>(x.size());
    for (const double one : x) sum += (one - mean) * (one - mean);
    return std::sqrt(sum / static_cast<double>(x.size() - 1));
  }
  // The authors' loop over logarithms: columns first, and the least imbalance that was seen.
  static std::vector<double> factors(const Matrix& x) {
    const size_t lines = x.size(), columns = x[0].size();
    std::vector<double> log_column(columns), log_line(lines);
    const auto column = [&](size_t m) {
      std::vector<double> y;
      for (size_t n = 0; n < lines; ++n)
        y.push_back(x[n][m] / std::exp(log_column[m]) / std::exp(log_line[n]));
      return deviation(y);
    };
    const auto line = [&](size_t n) {
      std::vector<double> y;
      for (size_t m = 0; m < columns; ++m)
        y.push_back(x[n][m] / std::exp(log_column[m]) / std::exp(log_line[n]));
      return deviation(y);
    };
    const auto imbalance = [&] {
      double most[2] = {0, 0}, least[2] = {HUGE_VAL, HUGE_VAL};
      for (size_t m = 0; m < columns; ++m)
        most[0] = std::max(most[0], column(m)), least[0] = std::min(least[0], column(m));
      for (size_t n = 0; n < lines; ++n)
        most[1] = std::max(most[1], line(n)), least[1] = std::min(least[1], line(n));
      return most[0] / std::max(least[0], 1e-8) + most[1] / std::max(least[1], 1e-8);
    };
    const auto next = [](double log, double deviation) {
      return std::clamp(log + std::log(std::clamp(deviation, 1e-3, 1e3)), -0.3, 10.0);
    };
    std::vector<double> best = log_column;
    double least = imbalance();
    for (int step = 0; step < 16; ++step) {
      std::vector<double> now;
      for (size_t m = 0; m < columns; ++m) now.push_back(next(log_column[m], column(m)));
      log_column = now, now.clear();
      for (size_t n = 0; n < lines; ++n) now.push_back(next(log_line[n], line(n)));
      log_line = now;
      if (const double found = imbalance(); found <= least) least = found, best = log_column;
    }
    for (double& one : best) one = nearest(FOVEA_F16, std::exp(one));
    return best;
  }
  // Round to nearest of each line over the factors.
  static Tile quantised(const Matrix& x, int64_t bits) {
    Tile to;
    to.factor = factors(x);
    for (std::vector<double> line : x) {
      for (size_t m = 0; m < line.size(); ++m) line[m] /= to.factor[m];
      const Kivi::Group of = Kivi{bits, 0, 0}.quantised(line);
      to.scale.push_back(of.scale), to.zero.push_back(of.zero), to.code.push_back(of.code);
    }
    return to;
  }
  // Of `width` channels, the tile that token j is in.
  Tile tile(bool keys, const Letter& x, int64_t width, int64_t b, int64_t j, int64_t head) const {
    const int64_t first = j / group * group, lines = keys ? width : group;
    Matrix all(lines, std::vector<double>(keys ? group : width));
    for (int64_t n = 0; n < group; ++n)
      for (int64_t c = 0; c < width; ++c) (keys ? all[c][n] : all[n][c]) = x(b, first + n, head, c);
    return quantised(all, keys ? key_bits : value_bits);
  }
  // Tokens in no tail when the last of `length` attends; the first `firsts` are never in codes.
  int64_t count(int64_t length, int64_t firsts) const {
    if (length <= firsts) return length;
    return firsts + (length - firsts - 1) / residual * residual;
  }
};

inline Kvarn kvarn(int64_t residual) {
  return {4, 2, 128, residual};
}

}  // namespace oracle::recipes
