// SPDX-License-Identifier: Apache-2.0
// CSA and HCA as DeepSeek-V4's report defines their core attention.  Queries have many heads,
// entries one, and are values too; there is a sink.  Calls are batched; the last rows are the last
// keys.
#pragma once
#include "recipes_indexed.h"

namespace oracle::recipes {

// Tokens of a compressed entry, entries of a row, tokens of the window.
struct CompressedNumbers {
  int64_t tokens, entries, window;
};

// Entries of the window and compressed ones side by side: all that a row attends to, and either
// alone.
struct Compressed {
  Attention all, window, entries;
  double margin = HUGE_VAL;
};

// Whether a token attends to a compressed entry.
using Takes = std::function<bool(int64_t b, int64_t row, int64_t position, int64_t entry)>;

inline Compressed over_entries(Attention a, const Dense& entries, const Dense& sink,
                               const CompressedNumbers& n, const Takes& takes) {
  const int64_t tokens = a.at.extent, more = entries.shape[1];
  const Dense k = a.k;
  a.k.shape[1] = a.at.extent = a.columns = tokens + more, a.k.value.clear();
  a.at.key_len = {}, a.sink_logit = sink;
  for (int64_t b = 0; b < a.b; ++b) {
    a.k.value.insert(a.k.value.end(), k.row(b, 0, 0), k.row(b, 0, 0) + tokens * a.d);
    a.k.value.insert(a.k.value.end(), entries.row(b, 0, 0), entries.row(b, 0, 0) + more * a.d);
  }
  a.v = a.k;
  const auto seen = [&](bool window, bool coarse) {
    return seen_by(a, [=, &takes](int64_t b, int64_t, int64_t i, int64_t j) {
      const int64_t position = i - more;
      if (j < tokens) return window && j <= position && position - j < n.window;
      return coarse && takes(b, position - tokens + a.s, position, j - tokens);
    });
  };
  Compressed out{seen(true, true), seen(true, false), seen(false, true)};
  out.entries.sink_logit = {};
  return out;
}

// An entry is there for a token once its last token is not behind it.
inline bool complete(int64_t entry, int64_t position, const CompressedNumbers& n) {
  return entry * n.tokens + n.tokens - 1 <= position;
}

// Section 2.3.2: every entry.
inline Compressed hca(const Attention& a, const Dense& entries, const Dense& sink,
                      const CompressedNumbers& n) {
  return over_entries(a, entries, sink, n, [=](int64_t, int64_t, int64_t position, int64_t entry) {
    return complete(entry, position, n);
  });
}

// Section 2.3.1, equations 13 to 17: the entries with the largest sums over the indexer's heads of
// weight * relu(<q, k>).
inline Compressed csa(const Attention& a, const Dense& entries, const Dense& sink, const Index& x,
                      const CompressedNumbers& n) {
  std::map<std::array<int64_t, 2>, Keys64> rows;
  double margin = HUGE_VAL;
  const auto takes = [&](int64_t b, int64_t row, int64_t position, int64_t entry) {
    const auto [at, fresh] = rows.try_emplace({b, row});
    if (fresh) {
      Rated rated;
      for (int64_t c = 0; complete(c, position, n); ++c) {
        double sum = 0;
        for (int64_t head = 0; head < x.q.shape[2]; ++head)
          sum += x.weight(b, row, head) * std::max(0.0, product(x, b, row, head, c));
        rated.push_back({sum, c});
      }
      at->second = best(rated, n.entries, margin);
    }
    return at->second.count(entry) != 0;
  };
  Compressed out = over_entries(a, entries, sink, n, takes);
  out.margin = margin;
  return out;
}

}  // namespace oracle::recipes
