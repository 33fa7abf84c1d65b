// SPDX-License-Identifier: Apache-2.0
#include "random/fill.h"

namespace random_calls {
namespace {

void tensors(Draw& d) {
  if (!d.has("index")) d.drop("index_count");
}

void letters(Draw& d) {
  d.x("keep") = d.one_of({0, 1, 2, 5, 17, 40});
}

void extents(Draw& d) {
  const int64_t block = d.one_of({0, 1, 2, 4, 16, 64, 128}), unit = block ? block : 128;
  d.set("block", static_cast<int32_t>(block));
  d.x("n") = ceil_div(d.x("s"), unit) + d.one_of({0, 0, 1});
}

void scalars(Draw& d) {
  const int64_t least = d.one_of({0, 0, 1, 9, 40, INT64_MAX});
  d.set<int64_t>("min_budget", least);
  d.set<int64_t>("max_budget", d.one_in(2) ? 0 : std::max(least, d.one_of({1, 9, 60, INT64_MAX})));
  d.set("cover", d.one_in(8) ? 0.0f : d.one_in(2) ? 0.5f : 0.9f);
  d.set("threshold", d.one_in(3) ? 0.0f : d.one_in(3) ? 9.0f : 0.1f);
}

const Rules kFlex({"x_flex_"}, {.tensors = tensors,
                                .letters = letters,
                                .extents = extents,
                                .scalars = scalars,
                                .rough = always});

}  // namespace
}  // namespace random_calls
