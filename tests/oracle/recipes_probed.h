// SPDX-License-Identifier: Apache-2.0
// The methods by name that choose by probed probabilities, as their papers define them: every
// probability in float64, sums of them, the best of these, attention over their keys.  Calls are
// batched; the last rows are the last keys.
#pragma once
#include "recipes_pooled.h"

namespace oracle::recipes {

// Sums of probabilities, in units of their mean.
using Mass = std::vector<double>;

inline Mass in_means(Mass mass) {
  double sum = 0;
  for (const double x : mass) sum += x;
  for (double& x : mass) x *= static_cast<double>(mass.size()) / sum;
  return mass;
}

inline void softmax(Mass& x) {
  const double most = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (double& one : x) sum += one = std::exp(one - most);
  for (double& one : x) one /= sum;
}

// All but those of `out`.
inline Rated others_of(const Mass& mass, const Keys64& out) {
  Rated others;
  for (size_t c = 0; c < mass.size(); ++c)
    if (!out.count(static_cast<int64_t>(c))) others.push_back({mass[c], static_cast<int64_t>(c)});
  return others;
}

// `count` entries: the first ones, and the best of the others.
inline Keys64 foremost(const Mass& sums, int64_t count, int64_t first, double& margin) {
  const Mass mass = in_means(sums);
  Keys64 out;
  for (int64_t c = 0; c < std::min<int64_t>(first, static_cast<int64_t>(mass.size())); ++c)
    out.insert(c);
  out.merge(best(others_of(mass, out), count - first, margin));
  return out;
}

// The fewest entries that hold a share of all; `out` is among them.
inline Keys64 reaching(const Mass& sums, double share, Keys64 out, double& margin) {
  const Mass mass = in_means(sums);
  const auto all = static_cast<double>(mass.size());
  const Rated others = others_of(mass, out);
  double held = 0;
  for (const int64_t c : out) held += mass[static_cast<size_t>(c)];
  Mass order;
  for (const auto& [score, c] : others) order.push_back(score);
  std::sort(order.rbegin(), order.rend());
  size_t taken = 0;
  const auto lacks = [&] {
    margin = std::min(margin, std::abs(held / all - share));
    return held < share * all;
  };
  while (lacks() && taken < order.size()) held += order[taken++];
  out.merge(best(others, static_cast<int64_t>(taken), margin));
  return out;
}

// XAttention, algorithm 1: sums along the antidiagonals of squares of `stride` tokens, a softmax
// over the squares of `stride` rows, sums of these over blocks.  Causal, the first block and the
// diagonal are among those that hold the share.
inline Chosen xattention(const Attention& a, const Blocks& of, int64_t stride, double share) {
  const int64_t t = a.at.extent, ahead = t - a.s;
  return over_blocks(
      a, of, [=, &a](int64_t b, int64_t head, int64_t block, int64_t last, double& margin) {
        const int64_t end = std::min(a.s, (block + 1) * of.rows);
        Mass mass((t + of.keys - 1) / of.keys);
        for (int64_t row = block * of.rows; row < end; row += stride) {
          Mass line;
          for (int64_t key = 0; key < t; key += stride) {
            if (of.causal && key / stride > row / stride + ahead / stride) break;
            double sum = 0;
            for (int64_t m = 0; m < stride; ++m) {
              const int64_t i = row + stride - 1 - m, j = key + m;
              if (i < a.s && j < t)
                sum += dot<double>(a.q.row(b, i, head), a.k.row(b, j, a.key_head(head)), a.d);
            }
            line.push_back(sum * a.scale / static_cast<double>(stride));
          }
          softmax(line);
          for (size_t n = 0; n < line.size(); ++n)
            mass[static_cast<int64_t>(n) * stride / of.keys] += line[n];
        }
        Keys64 always;
        if (of.causal) {
          mass.resize(last / of.keys + 1), always = {0};
          for (int64_t n = (block * of.rows + ahead) / of.keys; n <= last / of.keys; ++n)
            always.insert(n);
        }
        return reaching(mass, share, always, margin);
      });
}

// What rows of a head make of each key, and of each distance behind the row.
struct Probabilities {
  Mass column, diagonal;
};

// Of the rows from the last one on, `apart` rows from one to the next, `count` at most.
inline Probabilities probabilities(const Attention& a, int64_t b, int64_t head, int64_t apart,
                                   int64_t count) {
  const int64_t t = a.at.extent;
  Probabilities sums{Mass(t), Mass(t)};
  for (int64_t n = 0, row = a.s - 1; n < count && row >= 0; ++n, row -= apart) {
    const int64_t position = row + t - a.s;
    Mass line;
    for (int64_t j = 0; j <= position; ++j)
      line.push_back(a.scale *
                     dot<double>(a.q.row(b, row, head), a.k.row(b, j, a.key_head(head)), a.d));
    softmax(line);
    for (int64_t j = 0; j <= position; ++j)
      sums.column[j] += line[j], sums.diagonal[position - j] += line[j];
  }
  return sums;
}

// SampleAttention, section 4: the fewest keys that hold a share of what every `apart`-th row looks
// at, the last row among these, and the latest keys.
inline Chosen sampleattention(const Attention& a, int64_t apart, double share, int64_t window) {
  Chosen out;
  std::vector<Keys64> chosen;
  for (int64_t n = 0; n < a.b * a.h; ++n)
    chosen.push_back(
        reaching(probabilities(a, n / a.h, n % a.h, apart, a.s).column, share, {}, out.margin));
  out.seen = seen_by(a, [&](int64_t b, int64_t head, int64_t i, int64_t j) {
    return j <= i && (i - j < window || chosen[b * a.h + head].count(j) != 0);
  });
  return out;
}

// MInference's vertical-slash heads: columns and distances, the first ones among them, by what the
// last rows look at.
struct Lines {
  int64_t rows, columns, first_columns, distances, first_distances, block;
};

// What a block of rows that ends before position `end` sees of t keys.  A distance is a range of a
// block of keys; from the farthest on, one that meets the range before makes it a block longer.
inline std::vector<char> along_lines(const Keys64& columns, const Keys64& distances, int64_t block,
                                     int64_t end, int64_t t) {
  std::vector<char> seen(t);
  int64_t first = -1, last = -1;
  for (auto distance = distances.rbegin(); distance != distances.rend(); ++distance) {
    if (*distance >= end) continue;
    const int64_t to = std::max(end - *distance, block);
    if (first < 0 || to > last + block)
      first = to - block, last = to;
    else if (to > last)
      last += block;
    for (int64_t j = first; j < std::min(last, t); ++j) seen[j] = 1;
  }
  for (const int64_t j : columns) seen[j] = 1;
  return seen;
}

// Algorithm 2 of the paper.
inline Chosen minference(const Attention& a, const Lines& of) {
  Chosen out;
  const int64_t t = a.at.extent, ahead = t - a.s, blocks = (a.s + of.block - 1) / of.block;
  std::vector<std::vector<char>> seen;
  for (int64_t n = 0; n < a.b * a.h; ++n) {
    const Probabilities sums = probabilities(a, n / a.h, n % a.h, 1, of.rows);
    const Keys64 columns = foremost(sums.column, of.columns, of.first_columns, out.margin);
    const Keys64 distances = foremost(sums.diagonal, of.distances, of.first_distances, out.margin);
    for (int64_t block = 0; block < blocks; ++block)
      seen.push_back(along_lines(columns, distances, of.block, (block + 1) * of.block + ahead, t));
  }
  out.seen = seen_by(a, [&](int64_t b, int64_t head, int64_t i, int64_t j) {
    return j <= i && seen[(b * a.h + head) * blocks + (i - ahead) / of.block][j] != 0;
  });
  return out;
}

}  // namespace oracle::recipes
