// SPDX-License-Identifier: Apache-2.0
// RetrievalAttention as its paper defines it: attention over the keys that a search of the graph
// finds for each query head.  The keys on the device are another call's.
#pragma once
#include <map>

#include "graph.h"
#include "recipes.h"

namespace oracle::recipes {

// Section 3: of the `ef` best keys that a best-first search has met, the `count` best.
inline Attention retrievalattention(const Attention& a, const GraphCall& graph, int64_t count,
                                    int64_t ef) {
  std::map<std::array<int64_t, 3>, std::set<int64_t>> rows;
  return seen_by(a, [&](int64_t b, int64_t head, int64_t i, int64_t j) {
    const Sequence at = sequence(a.at, b);
    const int64_t row = i - at.keys + at.rows;
    const auto [keys, fresh] = rows.try_emplace({b, head, row});
    if (fresh)
      for (const int64_t found : find_in_graph(graph, b, row, head, count, ef).keys)
        keys->second.insert(found);
    return keys->second.count(j) != 0;
  });
}

}  // namespace oracle::recipes
