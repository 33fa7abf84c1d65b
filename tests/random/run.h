// SPDX-License-Identifier: Apache-2.0
// What the fields of a run ask of a drawn call (experimental/linear.h): the rows that it writes
// differ, and none is read by another sequence.
#pragma once
#include "random/fill.h"

namespace random_calls {

// With rows of its own for one kind of state every kind has them.  `out`: the output of tokens.
inline void run_tensors(Draw& d, const char* out) {
  if (d.knows("snapshot") && d.has("snapshot")) d.give("snapshot_row"), d.give("state_row");
  if (d.has("state_out_row")) d.give("state_row");
  if (d.knows(out) && !d.has(out) && !d.has("snapshot") && !d.one_in(20)) d.give("state_out");
}

inline void run_extents(Draw& d) {
  const int64_t r = d.x("r");
  d.x("n") = d.one_of({0, 1, 2, 5});
  d.x("slots") = d.has("state_row") ? d.one_of({0, 1, 3, 9, 30}) : r;
  d.x("slots_out") = d.has("state_row") || d.has("state_out_row")
                         ? d.one_in(2) ? d.x("slots") : d.one_of({0, 1, 3, 9, 30})
                         : r;
  d.x("snapshots") = d.one_in(2) ? d.x("slots_out") : d.one_of({0, 1, 3, 9, 30});
}

inline void run_scalars(Draw& d) {
  d.maybe<int64_t>("token_max", d.one_of({1, 2, 9, int64_t{1} << 40}));
  if (d.has("snapshot"))
    d.set<int64_t>("snapshot_every", d.one_of({1, 1, 2, 3, 16, int64_t{1} << 40}));
}

// Rows that are read, those of last states and those of snapshots lie in a third of the rows each.
inline bool run_integers(Filler& f, const Tensor& x) {
  const int64_t s = f.extent(f.given("q") ? "q" : "x", 1, 0);
  if (f.is(x, {"len"})) return f.places(x, 0, s + 1), true;
  if (f.is(x, {"output_from"})) return f.places(x, 0, std::min<int64_t>(9, s)), true;
  const int third = f.is(x, {"state_row"})       ? 0
                    : f.is(x, {"state_out_row"}) ? 1
                    : f.is(x, {"snapshot_row"})  ? 2
                                                 : -1;
  if (third < 0) return false;
  int64_t rows = INT64_MAX;
  for (const char* name : {"state_in", "state_out", "snapshot", "state_k_in", "state_v_in",
                           "state_k_out", "state_v_out"})
    if (f.given(name)) rows = std::min(rows, f.extent(name, 0, 0));
  if (rows == INT64_MAX) rows = 0;
  f.distinct_from(x, rows / 3 * third, rows / 3);
  return true;
}

}  // namespace random_calls
