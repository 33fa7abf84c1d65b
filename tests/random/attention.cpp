// SPDX-License-Identifier: Apache-2.0
#include <numeric>

#include "random/draw.h"

namespace random_calls {
namespace {

void tensors(Draw& d) {
  if (d.has("query_position")) d.drop("context_len");
}

// Scales divide the rows of both k and v.
void groups(Draw& d) {
  const int64_t all = std::gcd(d.x("d"), d.x("e"));
  const int64_t wanted = d.one_of({1, 1, 2, 4, all});
  d.x("groups") = wanted && all % wanted == 0 ? wanted : 1;
}

void axis(Draw& d) {
  if (d.has("key_position")) return;
  d.maybe<int64_t>("key_step", d.one_of({1, 2, 4, 16}));
  d.maybe<int64_t>("key_shift", d.one_of({-9, 3, 15, 40}));
}

const Rules kForward({"attention_forward"},
                     {.tensors = tensors, .extents = groups, .scalars = axis});

}  // namespace
}  // namespace random_calls
