// SPDX-License-Identifier: Apache-2.0
#include "random/draw.h"

namespace random_calls {
namespace {

void tensors(Draw& d) {
  const bool dense = d.one_in(3);
  dense ? d.give("q") : d.drop("q");
  for (const char* field : {"a_q", "b_q"}) dense ? d.drop(field) : d.give(field);
  if (!dense) d.drop("dq");
  if (dense) d.drop("da_q"), d.drop("db_q");
}

void letters(Draw& d) {
  for (const char* rank : {"rank_q", "rank_k", "rank_v"})
    d.x(rank) = d.one_in(40) ? 0 : d.one_of({1, 1, 2, 2, 2, 3, 4, 6, 16, 17});
  if (d.one_in(3)) d.x("h") = d.one_of({5, 22, 32, 33, 47, 70, 130});
}

void scalars(Draw& d) {
  if (d.has("q")) d.set<float>("scale_q", 0);
}

const Rules kTpa({"x_tpa_"}, {.tensors = tensors, .letters = letters, .scalars = scalars});

}  // namespace
}  // namespace random_calls
