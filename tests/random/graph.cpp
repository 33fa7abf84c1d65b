// SPDX-License-Identifier: Apache-2.0
#include "random/fill.h"

namespace random_calls {
namespace {

constexpr const char* kGraph[] = {"neighbour", "neighbour_count", "entry"};

bool appends(Draw& d) {
  return d.knows("old_len");
}

// With ef all of the graph, without it nothing; training queries with their lengths.
void tensors(Draw& d) {
  if (appends(d)) {
    if (!d.has("q")) d.drop("query_len");
    return;
  }
  d.x("searches") = d.one_in(3) ? 0 : 1;
  for (const char* field : kGraph) d.x("searches") ? d.give(field) : d.drop(field);
  if (!d.has("index")) d.drop("index_count");
}

void letters(Draw& d) {
  d.x("keep") = d.one_of({0, 1, 2, 5, 17, 40});
  d.x("degree") = d.one_of({0, 1, 3, 9, 40});
}

void extents(Draw& d) {
  if (!appends(d)) return;
  const int64_t kept = d.one_of({0, 1, 2, 5, 20}), added = d.one_of({0, 1, 2, 9});
  d.set<int64_t>("kept", kept), d.set<int64_t>("added", added);
  d.x("degree") = (kept ? kept : 16) + (added ? added : 4);
}

void scalars(Draw& d) {
  if (appends(d)) {
    d.set<int64_t>("nearest", d.has("q") ? d.one_of({0, 1, 4, 50, INT64_MAX}) : 0);
    d.set<int64_t>("width", d.one_of({0, 1, 5, 60, INT64_MAX}));
    return;
  }
  const int64_t count = d.one_of({0, 1, 2, 8, 40, INT64_MAX});
  d.set<int64_t>("count", count);
  d.set<int64_t>("ef", d.x("searches") ? std::max<int64_t>(count, d.one_of({1, 8, 100})) : 0);
}

bool integers(Filler& f, const Tensor& x) {
  const int64_t t = f.extent("k", 1, 0);
  if (f.is(x, {"old_len", "neighbour", "entry"})) {
    f.places(x, 0, t);
    return true;
  }
  if (!f.is(x, {"neighbour_count"})) return false;
  f.places(x, 0, f.extent("neighbour", 3, 0));
  return true;
}

const Rules kGraphs({"x_graph_", "x_select_graph"}, {.tensors = tensors,
                                                     .letters = letters,
                                                     .extents = extents,
                                                     .scalars = scalars,
                                                     .integers = integers});

}  // namespace
}  // namespace random_calls
