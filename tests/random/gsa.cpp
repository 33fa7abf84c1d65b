// SPDX-License-Identifier: Apache-2.0
#include "random/run.h"

namespace random_calls {
namespace {

void tensors(Draw& d) {
  if (d.has("state_out_row")) d.give("state_row");
  if (d.knows("o") && !d.has("o") && !d.one_in(20)) d.give("state_k_out");
}

void letters(Draw& d) {
  d.x("m") = d.one_of({1, 2, 5, 16, 40});
  if (d.one_in(30)) return;  // as it is drawn: most ratios of heads are refused
  const int64_t n = d.one_of({1, 1, 2, 3, 4}), more = n * d.one_of({1, 1, 2, 4});
  const bool of_v = d.one_in(2);
  d.x("g") = of_v ? n : more, d.x("x") = of_v ? more : n;
  d.x("h") = d.one_in(3) ? n : more * d.one_of({1, 2, 3});
}

void extents(Draw& d) {
  d.x("heads") = std::max(d.x("g"), d.x("x"));
  d.x("heads_out") = std::max(d.x("h"), d.x("heads"));
  run_extents(d);
}

void scalars(Draw& d) {
  run_scalars(d);
  const auto map = static_cast<int32_t>(d.one_of({0, 1, 2, 3, 4}));
  d.set<int32_t>("gate_map", map);
  d.set<float>("gate_bound",
               map == 2 || d.one_in(4) ? 0.5f * static_cast<float>(1 + d.below(9)) : 0.f);
  d.set<float>("gate_tau", map == 3 && d.one_in(2) ? 8.f : 0.f);
}

bool integers(Filler& f, const Tensor& x) {
  return run_integers(f, x);
}

const Rules kGsa({"x_gsa_"}, {.tensors = tensors,
                              .letters = letters,
                              .extents = extents,
                              .scalars = scalars,
                              .integers = integers});

}  // namespace
}  // namespace random_calls
