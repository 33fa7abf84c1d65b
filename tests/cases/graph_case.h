// SPDX-License-Identifier: Apache-2.0
// What the cases of experimental/graph.h share: keys and queries of small integers, whose scores no
// rounding changes, and graphs of any numbers, some of which name no key.
#pragma once
#include "cases/table.h"
#include "oracle/graph.h"
#include "oracle/recipes.h"
#include "oracle/sparse.h"

namespace cases {

inline int64_t graph_letter(const TableCall& made, const char* name) {
  return made.letters.count(name) ? made.letters.at(name) : 0;
}

// nan=1: some keys hold what is no number, or an infinity.
inline double graph_contents(const TableCall& made, const std::string& field, const int64_t* i,
                             double normal) {
  const Letters& x = made.letters;
  const auto any = [&](int64_t below) {
    const auto bits = static_cast<uint64_t>(static_cast<int64_t>(normal * 1e9));
    return static_cast<int64_t>((bits * 0x9e3779b97f4a7c15u >> 33) % static_cast<uint64_t>(below));
  };
  const auto share = [&](int64_t of) { return i[0] == 0 ? of : i[0] == 1 ? of / 2 : 0; };
  if (field == "query_len") return static_cast<double>(share(x.at("s")));
  if (field == "key_len") return static_cast<double>(share(x.at("t") - x.at("t") / 8));
  if (field == "old_len") return static_cast<double>(graph_letter(made, "old") - 2 * i[0]);
  if (field == "neighbour") return static_cast<double>(any(x.at("t") + 3) - 1);
  if (field == "neighbour_count") return static_cast<double>(any(x.at("degree") + 3) - 1);
  if (field == "entry") return static_cast<double>(any(x.at("t") + 2) - 1);
  if (field == "v") return normal;
  const bool odd = graph_letter(made, "nan") && (field == "k" ? i[1] % 7 == 3 : i[1] % 3 == 1);
  if (odd && any(4) == 0) return i[1] % 2 ? NAN : HUGE_VAL;
  return std::clamp(std::round(1.2 * normal), -2.0, 2.0);
}

// Only what the oracle read counts.
inline void count_graph_read(TableCall& made, const oracle::GraphCall& call) {
  const std::pair<const char*, const oracle::Tracked*> parts[] = {{"k", &call.k},
                                                                  {"q", &call.q},
                                                                  {"neighbour", &call.neighbour},
                                                                  {"neighbour_count", &call.count},
                                                                  {"entry", &call.entry}};
  for (const auto& [field, x] : parts) {
    if (!made.has(field)) continue;
    const size_t at = made.call.field(field);
    const int64_t rank = made.call.fields[at].tensor.ndim;
    made.call.account(at, [&, x = x](const int64_t* i) { return x->was_read(i, rank); });
  }
}

// o and lse over the lists that a search of the call finds.
template <class P>
std::vector<Expected> attend_found(TableCall& made) {
  using oracle::Mode;
  const P& p = made.params<P>();
  const oracle::SelectGraphOracle found(p);
  count_graph_read(made, found);
  fovea_x_sparse_forward_params operands{};
  operands.q = p.q, operands.k = p.k, operands.v = p.v, operands.query_len = p.query_len;
  operands.key_len = p.key_len, operands.scale = p.scale, operands.softcap = p.softcap;
  const oracle::Attention a = oracle::load_sparse(operands).a;
  const oracle::Attention seen =
      oracle::recipes::seen_by(a, [&](int64_t b, int64_t head, int64_t i, int64_t j) {
        const oracle::Sequence at = oracle::sequence(a.at, b);
        return found.holds(b, head, i - at.keys + at.rows, j);
      });
  const auto exact = oracle::forward(seen, p.o, p.lse, Mode::exact);
  const auto rounded = oracle::forward(seen, p.o, p.lse, Mode::rounded);
  return {{"o", exact.o, rounded.o},
          {"lse", exact.lse, rounded.lse},
          {"index", found.index, found.index, true},
          {"index_count", found.index_count, found.index_count, true},
          {"scanned", found.scanned, found.scanned, true}};
}

}  // namespace cases
