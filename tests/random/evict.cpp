// SPDX-License-Identifier: Apache-2.0
#include "random/fill.h"

namespace random_calls {
namespace {

void tensors(Draw& d) {
  if (!d.has("index")) d.drop("index_count");
}

void letters(Draw& d) {
  d.x("keep") = d.one_of({0, 1, 2, 5, 17, 40, 300});
}

void scalars(Draw& d) {
  const int64_t keep = d.x("keep");
  d.set<int64_t>("window", d.one_in(2) ? 0 : d.below(keep + 1));
  d.set<int64_t>("width", d.one_of({0, 1, 3, 63, INT64_MAX}));
}

const Rules kEvict({"x_evict_"},
                   {.tensors = tensors, .letters = letters, .scalars = scalars, .rough = always});

}  // namespace
}  // namespace random_calls
