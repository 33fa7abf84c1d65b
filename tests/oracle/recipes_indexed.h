// SPDX-License-Identifier: Apache-2.0
// The methods by name that choose keys by an index, as their papers define them: scores of every
// key in float64, the best of them, attention over those.  Calls are batched; the last rows are the
// last keys.
#pragma once
#include <algorithm>
#include <bit>
#include <map>
#include <set>

#include "recipes.h"

namespace oracle::recipes {

struct Index {
  Dense q, k, weight, code_q, code;
};

// What a definition chose, and how far its closest choice was from another one, relative.
struct Chosen {
  Attention seen;
  double margin = HUGE_VAL;
};

using Keys64 = std::set<int64_t>;
using Rated = std::vector<std::pair<double, int64_t>>;  // score, key or block

// The `count` best of those rated, of equals the first.
inline Keys64 best(Rated rated, int64_t count, double& margin) {
  std::sort(rated.begin(), rated.end(), [](const auto& x, const auto& y) {
    return x.first > y.first || (x.first == y.first && x.second < y.second);
  });
  const size_t n = std::min<size_t>(rated.size(), static_cast<size_t>(std::max<int64_t>(count, 0)));
  if (n > 0 && n < rated.size() && rated[n].first != rated[n - 1].first)
    margin = std::min(margin, (rated[n - 1].first - rated[n].first) /
                                  std::max(1.0, std::abs(rated[n - 1].first)));
  Keys64 out;
  for (size_t m = 0; m < n; ++m) out.insert(rated[m].second);
  return out;
}

// Attention over keys that are chosen once for each row of each of `lists` groups of heads.
using Choose = std::function<Keys64(int64_t b, int64_t list, int64_t row, int64_t keys, double&)>;

inline Chosen over_chosen(const Attention& a, int64_t lists, const Choose& choose) {
  Chosen out;
  std::map<std::array<int64_t, 3>, Keys64> rows;
  out.seen = seen_by(a, [&](int64_t b, int64_t head, int64_t i, int64_t j) {
    const int64_t list = head / (a.h / lists), row = i - a.at.extent + a.s;
    const auto [at, fresh] = rows.try_emplace({b, list, row});
    if (fresh) at->second = choose(b, list, row, i + 1, out.margin);
    return at->second.count(j) != 0;
  });
  return out;
}

inline double product(const Index& x, int64_t b, int64_t row, int64_t head, int64_t j) {
  return dot<double>(x.q.row(b, row, head), x.k.row(b, j, head / (x.q.shape[2] / x.k.shape[2])),
                     x.q.shape[3]);
}

// DSA, equations 1 and 2: the sum over the indexer's heads of weight * relu(<q, k>).
inline Chosen dsa(const Attention& a, const Index& x, int64_t count) {
  return over_chosen(a, 1, [&](int64_t b, int64_t, int64_t row, int64_t keys, double& margin) {
    Rated rated;
    for (int64_t j = 0; j < keys; ++j) {
      double sum = 0;
      for (int64_t head = 0; head < x.q.shape[2]; ++head)
        sum += x.weight(b, row, head) * std::max(0.0, product(x, b, row, head, j));
      rated.push_back({sum, j});
    }
    return best(rated, count, margin);
  });
}

// QSA: of the blocks of `size` keys that lie before the token or end with it, those with the
// largest sums over the indexer's heads of relu(<q, k>), k the block's own key.  The keys behind
// the last complete block are always seen.
inline Chosen qsa(const Attention& a, const Index& x, int64_t blocks, int64_t size) {
  return over_chosen(a, 1, [=, &x](int64_t b, int64_t, int64_t row, int64_t keys, double& margin) {
    Rated rated;
    for (int64_t block = 0; (block + 1) * size <= keys; ++block) {
      double sum = 0;
      for (int64_t head = 0; head < x.q.shape[2]; ++head)
        sum += std::max(0.0, product(x, b, row, head, block));
      rated.push_back({sum, block});
    }
    Keys64 out;
    for (const int64_t block : best(rated, blocks, margin))
      for (int64_t j = block * size; j < (block + 1) * size; ++j) out.insert(j);
    for (int64_t j = keys / size * size; j < keys; ++j) out.insert(j);
    return out;
  });
}

// MSA: a block counts as its best key, whose score is the sum over the group's heads; the row's own
// block is one of `blocks`.
inline Chosen msa(const Attention& a, const Index& x, int64_t lists, int64_t blocks, int64_t size) {
  const int64_t heads = x.q.shape[2] / lists;
  return over_chosen(a, lists,
                     [=, &x](int64_t b, int64_t list, int64_t row, int64_t keys, double& margin) {
                       const int64_t own = (keys - 1) / size;
                       Rated rated;
                       for (int64_t block = 0; block < own; ++block) {
                         double most = -HUGE_VAL;
                         for (int64_t j = block * size; j < (block + 1) * size; ++j) {
                           double sum = 0;
                           for (int64_t n = 0; n < heads; ++n)
                             sum += product(x, b, row, list * heads + n, j);
                           most = std::max(most, sum);
                         }
                         rated.push_back({most, block});
                       }
                       Keys64 chosen = best(rated, blocks - 1, margin), out;
                       chosen.insert(own);
                       for (const int64_t block : chosen)
                         for (int64_t j = block * size; j < std::min(keys, (block + 1) * size); ++j)
                           out.insert(j);
                       return out;
                     });
}

// SparQ, algorithm 1.  share: what the chosen keys hold of each head's approximate softmax.
struct Sparq : Chosen {
  std::map<std::array<int64_t, 3>, double> share;  // (b, head, row)
};

inline Sparq sparq(const Attention& a, int64_t lists, int64_t columns, int64_t count,
                   int64_t latest) {
  Sparq out;
  const int64_t heads = a.h / lists;
  const auto choose = [&](int64_t b, int64_t list, int64_t row, int64_t keys, double& margin) {
    Rated widths;
    for (int64_t c = 0; c < a.d; ++c) {
      double sum = 0;
      for (int64_t n = list * heads; n < (list + 1) * heads; ++n)
        sum += std::abs(a.q(b, row, n, c));
      widths.push_back({sum, c});
    }
    const Keys64 largest = best(widths, columns, margin);
    std::vector<double> total(keys);
    std::vector<std::vector<double>> scores(heads, std::vector<double>(keys));
    for (int64_t n = 0; n < heads; ++n) {
      const int64_t head = list * heads + n;
      double part = 0, all = 0;
      for (int64_t c = 0; c < a.d; ++c) all += std::abs(a.q(b, row, head, c));
      for (const int64_t c : largest) part += std::abs(a.q(b, row, head, c));
      for (int64_t j = 0; j < keys; ++j) {
        for (const int64_t c : largest)
          scores[n][j] += a.q(b, row, head, c) * a.k(b, j, a.key_head(head), c);
        scores[n][j] /= std::sqrt(static_cast<double>(a.d) * part / all);
        total[j] += scores[n][j];
      }
    }
    Rated rated;
    for (int64_t j = 0; j < keys - latest; ++j) rated.push_back({total[j], j});
    Keys64 chosen = best(rated, count - latest, margin);
    for (int64_t j = std::max<int64_t>(0, keys - latest); j < keys; ++j) chosen.insert(j);
    for (int64_t n = 0; n < heads; ++n) {
      const double most = *std::max_element(scores[n].begin(), scores[n].end());
      double held = 0, sum = 0;
      for (int64_t j = 0; j < keys; ++j) {
        const double p = std::exp(scores[n][j] - most);
        sum += p, held += chosen.count(j) ? p : 0;
      }
      out.share[{b, list * heads + n, row}] = held / sum;
    }
    return chosen;
  };
  static_cast<Chosen&>(out) = over_chosen(a, lists, choose);
  return out;
}

// share * o + (1 - share) * v_mean; the terms of o are kept beside those of the mean.
inline void with_mean(const Sparq& paper, const Attention& a, const Dense& v_mean, int o_dtype,
                      Mode mode, Out& o) {
  for (const auto& [at, share] : paper.share) {
    const auto [b, head, row] = at;
    for (int64_t c = 0; c < a.e; ++c) {
      const int64_t n = ((b * a.s + row) * a.h + head) * a.e + c;
      const bool rounds = mode == Mode::rounded;
      const double own = rounds ? round_to(a.q.dtype, o.value[n]) : o.value[n];
      const double y = share * own + (1 - share) * v_mean(b, head, c);
      o.terms(std::abs(share * own) + std::abs((1 - share) * v_mean(b, head, c)));
      o.set(n, rounds ? round_to(o_dtype, y) : y);
    }
  }
}

// Loki: the best share of the keys by the first principal columns, at least one.
inline Chosen loki(const Attention& a, const Index& x, double share) {
  return over_chosen(a, a.h,
                     [&](int64_t b, int64_t head, int64_t row, int64_t keys, double& margin) {
                       Rated rated;
                       for (int64_t j = 0; j < keys; ++j)
                         rated.push_back({product(x, b, row, head, j), j});
                       const auto most = static_cast<int64_t>(share * static_cast<double>(keys));
                       return best(rated, std::max<int64_t>(1, most), margin);
                     });
}

// HashAttention: the first and the latest keys, and of the others the share whose codes differ in
// the fewest bits.
inline Chosen hashattention(const Attention& a, const Index& x, int64_t first, int64_t latest,
                            double share) {
  const auto bits = [](double word) { return static_cast<uint32_t>(static_cast<int64_t>(word)); };
  return over_chosen(
      a, a.h, [=, &x](int64_t b, int64_t head, int64_t row, int64_t keys, double& margin) {
        const int64_t g = head / (x.code_q.shape[2] / x.code.shape[2]);
        Rated rated;
        for (int64_t j = first; j < keys - latest; ++j) {
          int differ = 0;
          for (int64_t n = 0; n < x.code.shape[3]; ++n)
            differ += std::popcount(bits(x.code_q(b, row, head, n)) ^ bits(x.code(b, j, g, n)));
          rated.push_back({-differ, j});
        }
        Keys64 out = best(rated, static_cast<int64_t>(share * static_cast<double>(keys)), margin);
        for (int64_t j = 0; j < keys; ++j)
          if (j < first || j >= keys - latest) out.insert(j);
        return out;
      });
}

}  // namespace oracle::recipes
