// SPDX-License-Identifier: Apache-2.0
#include "random/run.h"

namespace random_calls {
namespace {

bool gated(Draw& d) {
  return d.has("gate_head") || d.has("gate_key") || d.has("gate_value");
}

// Tensors that go together, and what `full` (where keys have a length) and `normalise` exclude.
void tensors(Draw& d) {
  const bool full = d.one_in(6), normalise = d.one_in(full ? 2 : 4);
  const auto drop = [&](std::initializer_list<const char*> fields) {
    for (const char* field : fields) d.drop(field), d.drop(std::string("d") + field);
  };
  d.set<int32_t>("full", full);
  run_tensors(d, "o");
  if (full) {
    drop({"gate_head", "gate_key", "gate_value", "bonus", "skip"});
    d.drop("snapshot");
    if (d.knows("o") && !d.has("o")) d.give("state_out");
  }
  d.drop("key_start");
  if (!full)
    d.drop("key_len");
  else if (d.has("start"))
    d.give("key_start");
  if (normalise) drop({"gate_value", "bonus"});
  for (const auto& [state, z] :
       {std::pair{"state_in", "z_in"}, {"state_out", "z_out"}, {"snapshot", "z_snapshot"}}) {
    d.drop(z);
    if (normalise && d.knows(z) && d.has(state)) d.give(z);
  }
  if (!normalise) d.drop("dz_in");
  if (!normalise || !d.has("dstate_out")) d.drop("dz_out");
  if (!gated(d)) drop({"gate_rate"});
  if (!d.has("gate_head") && !d.has("gate_key")) drop({"gate_bias"});
  d.set<int32_t>("normalise", normalise);
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
  if (!d.scalar<int32_t>("full") && !d.one_in(60)) d.x("t") = d.x("s");
  run_extents(d);
}

void scalars(Draw& d) {
  run_scalars(d);
  const bool z =
      d.has("z_in") || d.has("z_out") || d.has("z_snapshot") || d.has("dz_in") || d.has("dz_out");
  const bool states = d.has("state_in") || d.has("state_out") || d.has("snapshot");
  const bool can = !d.has("gate_value") && !d.has("bonus") && !states;
  const bool normalise = z || (can && d.one_in(3));
  d.set<int32_t>("normalise", normalise);
  if (normalise || d.scalar<int32_t>("full")) d.set<int32_t>("read_before", 0);
  d.set<int32_t>("bonus_sigmoid", d.has("bonus") && d.one_in(2));
  if (normalise) d.maybe<float>("eps", 0.1f);
  const int64_t map = !gated(d)            ? 0
                      : d.has("gate_rate") ? d.one_of({1, 2})
                                           : d.one_of({0, 1, 2, 3, 4});
  d.set<int32_t>("gate_map", static_cast<int32_t>(map));
  d.set<float>("gate_bound", !gated(d)                 ? 0.f
                             : map == 2 || d.one_in(4) ? 0.5f * static_cast<float>(1 + d.below(9))
                                                       : 0.f);
  d.set<float>("gate_tau", map == 3 && d.one_in(2) ? 16.f : 0.f);
}

bool integers(Filler& f, const Tensor& x) {
  if (f.is(x, {"key_start"})) return f.starts(x, f.extent("k", 1, 0), 0), true;
  if (f.is(x, {"key_len"})) return f.places(x, 0, f.extent("k", 1, 0) + 1), true;
  return run_integers(f, x);
}

const Rules kGla({"x_gla_"}, {.tensors = tensors,
                              .letters = letters,
                              .extents = extents,
                              .scalars = scalars,
                              .integers = integers});

}  // namespace
}  // namespace random_calls
