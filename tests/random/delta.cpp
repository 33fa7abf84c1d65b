// SPDX-License-Identifier: Apache-2.0
#include "random/run.h"

namespace random_calls {
namespace {

bool gated(Draw& d) {
  return d.has("gate_head") || d.has("gate_key");
}

// Forms exclude each other, and what belongs to gates needs one.
void tensors(Draw& d) {
  run_tensors(d, "o");
  const auto drop = [&](std::initializer_list<const char*> fields) {
    for (const char* field : fields) d.drop(field), d.drop(std::string("d") + field);
  };
  if (d.one_in(40)) return;
  if (d.one_in(4))
    d.give("low_a"), d.give("low_b"), drop({"beta", "erase"});
  else
    drop({"low_a", "low_b"});
  if (!gated(d)) drop({"gate_rate", "gate_bias"});
}

void letters(Draw& d) {
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
  const int64_t map = !gated(d)            ? 0
                      : d.has("gate_rate") ? d.one_of({1, 2})
                                           : d.one_of({0, 1, 2, 3, 4});
  const bool bounded = gated(d) && (map == 2 || d.one_in(4));
  d.set<int32_t>("gate_map", static_cast<int32_t>(map));
  d.set<float>("gate_bound", bounded ? 0.5f * static_cast<float>(1 + d.below(9)) : 0.f);
  d.set<float>("gate_tau", map == 3 && d.one_in(2) ? 16.f : 0.f);
  d.set<int32_t>("beta_map", d.has("beta") ? static_cast<int32_t>(d.below(3)) : 0);
  const bool unit = !d.one_in(3);
  d.set<int32_t>("l2_norm", unit);
  d.set<float>("eps", unit && d.one_in(3) ? 1e-3f : 0.f);
}

const Rules kDelta({"x_delta_"}, {.tensors = tensors,
                                  .letters = letters,
                                  .extents = extents,
                                  .scalars = scalars,
                                  .integers = run_integers});

}  // namespace
}  // namespace random_calls
