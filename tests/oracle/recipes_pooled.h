// SPDX-License-Identifier: Apache-2.0
// The methods by name that choose key blocks by summaries, as their papers define them: scores of
// every block in float64, the best of them, attention over their keys.  Calls are batched; the last
// rows are the last keys.
#pragma once
#include "recipes_indexed.h"

namespace oracle::recipes {

// Blocks of rows and of keys.
struct Blocks {
  int64_t rows, keys;
  bool causal;
};

// The blocks of keys that a head's block of rows attends to; `last`: position of its last row.
using ChooseBlocks =
    std::function<Keys64(int64_t b, int64_t head, int64_t block, int64_t last, double&)>;

inline Chosen over_blocks(const Attention& a, const Blocks& of, const ChooseBlocks& choose) {
  Chosen out;
  std::map<std::array<int64_t, 3>, Keys64> chosen;
  const int64_t ahead = a.at.extent - a.s;
  out.seen = seen_by(a, [&](int64_t b, int64_t head, int64_t i, int64_t j) {
    const int64_t block = (i - ahead) / of.rows;
    const auto [at, fresh] = chosen.try_emplace({b, head, block});
    const int64_t last = std::min(a.s, (block + 1) * of.rows) - 1 + ahead;
    if (fresh) at->second = choose(b, head, block, last, out.margin);
    return at->second.count(j / of.keys) != 0 && (!of.causal || j <= i);
  });
  return out;
}

// The mean of rows [begin, end) of a head, as far as there are such rows.
inline std::vector<double> mean_of(const Dense& x, int64_t b, int64_t head, int64_t begin,
                                   int64_t end) {
  std::vector<double> mean(x.shape[3]);
  end = std::min(end, x.shape[1]);
  for (int64_t i = begin; i < end; ++i)
    for (size_t c = 0; c < mean.size(); ++c)
      mean[c] += x.row(b, i, head)[c] / static_cast<double>(end - begin);
  return mean;
}

// Quest, algorithm 1: the bound of a page is the sum over columns of max(q most, q least); the last
// page is one of `pages`.
inline Chosen quest(const Attention& a, int64_t pages, int64_t page) {
  return over_blocks(a, {1, page, true},
                     [=, &a](int64_t b, int64_t head, int64_t row, int64_t, double& margin) {
                       const int64_t count = (a.at.extent + page - 1) / page;
                       Rated rated;
                       for (int64_t n = 0; n + 1 < count; ++n) {
                         double bound = 0;
                         for (int64_t c = 0; c < a.d; ++c) {
                           double most = -HUGE_VAL, least = HUGE_VAL;
                           for (int64_t j = n * page; j < (n + 1) * page; ++j) {
                             const double k = a.k(b, j, a.key_head(head), c);
                             most = std::max(most, k), least = std::min(least, k);
                           }
                           const double q = a.q(b, row, head, c);
                           bound += std::max(q * most, q * least);
                         }
                         rated.push_back({bound, n});
                       }
                       Keys64 out = best(rated, pages - 1, margin);
                       out.insert(count - 1);
                       return out;
                     });
}

inline void to_softmax(Rated& rated) {
  double sum = 0;
  for (auto& [score, block] : rated) sum += score = std::exp(score);
  for (auto& [score, block] : rated) score /= sum;
}

// RocketKV, section 3.4, hybrid sparse attention of a token: the `r` columns of the largest |q|,
// summed over the query heads of a key head; of a page's largest and smallest key in a column the
// one that the sign of their sum asks for; a softmax over the pages for each head at temperature
// sqrt(d |q_R| / |q|); the `pages` best by the sum of the heads'.
inline Chosen rocketkv(const Attention& a, int64_t pages, int64_t page, int64_t r) {
  return over_blocks(
      a, {1, page, true}, [=, &a](int64_t b, int64_t head, int64_t row, int64_t, double& margin) {
        const int64_t group = a.h / a.g, key_head = head / group;
        Rated sizes;
        std::vector<double> sums;
        for (int64_t c = 0; c < a.d; ++c) {
          double size = 0, sum = 0;
          for (int64_t n = 0; n < group; ++n) {
            const double q = a.q(b, row, key_head * group + n, c);
            size += std::abs(q), sum += q;
          }
          sizes.push_back({size, c}), sums.push_back(sum);
          margin = std::min(margin, std::abs(sum));
        }
        const Keys64 columns = best(sizes, r, margin);
        Rated all;
        for (int64_t n = 0; n * page < a.at.extent; ++n) all.push_back({0, n});
        for (int64_t n = 0; n < group; ++n) {
          const auto q = [&](int64_t c) { return a.q(b, row, key_head * group + n, c); };
          double some = 0, whole = 0;
          for (int64_t c = 0; c < a.d; ++c) whole += std::abs(q(c));
          for (const int64_t c : columns) some += std::abs(q(c));
          Rated scores;
          for (const auto& [none, at] : all) {
            double score = 0;
            for (const int64_t c : columns) {
              double most = -HUGE_VAL, least = HUGE_VAL;
              for (int64_t j = at * page; j < std::min(a.at.extent, (at + 1) * page); ++j) {
                most = std::max(most, a.k(b, j, key_head, c));
                least = std::min(least, a.k(b, j, key_head, c));
              }
              score += q(c) * (sums[c] > 0 ? most : least);
            }
            scores.push_back({score / std::sqrt(static_cast<double>(a.d) * some / whole), at});
          }
          to_softmax(scores);
          for (const auto& [score, at] : scores) all[at].first += score;
        }
        double gap = HUGE_VAL;
        const Keys64 out = best(all, pages, gap);
        // A gap between small probabilities counts by their size.
        if (gap < HUGE_VAL) {
          double least = HUGE_VAL;
          for (const int64_t at : out) least = std::min(least, all[at].first);
          margin = std::min(margin, gap / least);
        }
        return out;
      });
}

// MoBA, section 2.2: blocks before the row's own by <q, mean of the block's keys>; its own is one
// of `blocks`.
inline Chosen moba(const Attention& a, int64_t blocks, int64_t size) {
  return over_blocks(a, {1, size, true},
                     [=, &a](int64_t b, int64_t head, int64_t row, int64_t last, double& margin) {
                       const int64_t own = last / size;
                       Rated rated;
                       for (int64_t n = 0; n < own; ++n) {
                         const auto mean =
                             mean_of(a.k, b, a.key_head(head), n * size, (n + 1) * size);
                         rated.push_back({dot<double>(a.q.row(b, row, head), mean.data(), a.d), n});
                       }
                       Keys64 out = best(rated, blocks - 1, margin);
                       out.insert(own);
                       return out;
                     });
}

// SeerAttention, section 3: blocks whose gate, a softmax over those that have begun, is above the
// threshold, and the diagonal: those that hold a position of the block of rows.
inline Chosen seerattention(const Attention& a, const Dense& row, const Dense& column,
                            const Blocks& of, double threshold) {
  const int64_t width = row.shape[3], group = row.shape[2] / column.shape[2];
  return over_blocks(
      a, of,
      [=, &row, &column](int64_t b, int64_t head, int64_t block, int64_t last, double& margin) {
        Rated rated;
        for (int64_t n = 0; n * of.keys <= last; ++n)
          rated.push_back(
              {dot<double>(row.row(b, block, head), column.row(b, n, head / group), width) /
                   std::sqrt(static_cast<double>(width)),
               n});
        to_softmax(rated);
        Keys64 out;
        const int64_t first = block * of.rows + a.at.extent - a.s;
        for (int64_t n = first / of.keys; n <= last / of.keys; ++n) out.insert(n);
        for (const auto& [gate, n] : rated) {
          margin = std::min(margin, std::abs(gate - threshold) / threshold);
          if (gate > threshold) out.insert(n);
        }
        return out;
      });
}

// SpargeAttention, section 3.3, without its test of alikeness, which its threshold of -0.1 passes
// always: the best share of the blocks by the softmax of pooled scores, at least one.
inline Chosen spargeattn(const Attention& a, const Blocks& of, double share) {
  return over_blocks(
      a, of, [=, &a](int64_t b, int64_t head, int64_t block, int64_t last, double& margin) {
        const auto q = mean_of(a.q, b, head, block * of.rows, (block + 1) * of.rows);
        const int64_t blocks = (a.at.extent + of.keys - 1) / of.keys;
        Rated rated;
        for (int64_t n = 0; n < blocks && (!of.causal || n * of.keys <= last); ++n) {
          const auto k = mean_of(a.k, b, a.key_head(head), n * of.keys, (n + 1) * of.keys);
          rated.push_back({a.scale * dot<double>(q.data(), k.data(), a.d), n});
        }
        to_softmax(rated);
        const auto most = static_cast<int64_t>(share * static_cast<double>(blocks));
        return best(rated, std::max<int64_t>(1, most), margin);
      });
}

// FlashPrefill, as its released code has it: a row sees the mean of a block
// that ends at its position or before.  The sums of a block of rows are taken of exp(scores) under
// one denominator, which the test against `share` of the largest does not see.  Beside what passes
// it: the first blocks, a window of blocks that ends with the own ones, all for the last blocks of
// rows.  The mean has the keys' dtype.
struct FlashPrefill {
  int64_t size, first, window, full;
  double share;
};

inline Chosen flashprefill(const Attention& a, const FlashPrefill& of) {
  const int64_t ahead = a.at.extent - a.s, size = of.size;
  return over_blocks(
      a, {size, size, true},
      [=, &a](int64_t b, int64_t head, int64_t block, int64_t last, double& margin) {
        const int64_t begin = block * size, end = std::min(a.s, begin + size);
        const int64_t own = (begin + ahead) / size;
        const bool all = block >= (a.s + size - 1) / size - of.full;
        Keys64 out;
        std::vector<double> sums;
        for (int64_t n = 0; n <= last / size; ++n) {
          if (all || n < of.first || n > own - of.window) out.insert(n);
          auto mean = mean_of(a.k, b, a.key_head(head), n * size, (n + 1) * size);
          for (double& x : mean) x = round_to(a.k.dtype, x);
          double sum = 0;
          for (int64_t i = begin; i < end; ++i)
            if (i + ahead >= (n + 1) * size - 1)
              sum += std::exp(a.scale * dot<double>(a.q.row(b, i, head), mean.data(), a.d));
          sums.push_back(sum);
        }
        const double least = of.share * *std::max_element(sums.begin(), sums.end());
        for (int64_t n = 0; n <= last / size && !all && least > 0; ++n) {
          margin = std::min(margin, std::abs(sums[n] - least) / least);
          if (sums[n] >= least) out.insert(n);
        }
        return out;
      });
}

}  // namespace oracle::recipes
