// SPDX-License-Identifier: Apache-2.0
#include <numeric>

#include "random/fill.h"

namespace random_calls {
namespace {

void append(Draw& d) {
  for (const std::string part : {"k", "v"}) {
    if (d.one_in(3)) {
      for (const char* of : {"", "_new", "_scale", "_scale_out"}) d.drop(part + of);
    } else {
      d.give(part), d.give(part + "_new");
    }
  }
  if (!d.has("k") && !d.has("v")) d.give("k"), d.give("k_new");
  for (const std::string part : {"k", "v"})
    if (d.has((part + "_scale").c_str())) d.drop(part + "_scale_out");
  if (!d.has("k"))
    for (const char* name : {"cos", "sin", "norm_weight", "position"}) d.drop(name);
}

// The heads of v.
void heads(Draw& d) {
  d.x("f") = d.one_of({1, 2, 3});
}

void norm(Draw& d) {
  if (!d.has("norm_weight")) d.set("norm_eps", 0.0f);
  if (!d.has("k_scale_out") && !d.has("v_scale_out")) d.scalar<int32_t>("scale_power_of_two") = 0;
}

// Scales that divide the rows of k and of v.
void groups(Draw& d) {
  const int64_t all = std::gcd(d.has("k") ? d.x("d") : 0, d.has("v") ? d.x("e") : 0);
  const int64_t wanted = d.one_of({1, 1, 2, 4, all});
  d.x("groups") = wanted && all % wanted == 0 ? wanted : 1;
}

void count(Draw& d) {
  d.x("n") = d.one_of({0, 1, 2, 3, 5});
}

// Sources from one half of the pools, targets from the other, each once.
bool pairs(Filler& f, const Tensor& x) {
  if (x.field->name != "pair") return false;
  const int64_t pool = f.extent("source", 0, 0), pool2 = f.extent("target", 0, 0);
  std::vector<int32_t> targets;
  for (int64_t i = pool2 / 2; i < pool2; ++i) targets.push_back(static_cast<int32_t>(i));
  bool source = false;
  f.put<int32_t>(x, [&] {
    source = !source;
    if (source)
      return static_cast<int32_t>(
          f.random(-1, std::max<int64_t>(0, pool2 / 2 - 1) % std::max<int64_t>(1, pool)));
    if (targets.empty()) return -1;
    const int32_t target = targets.back();
    targets.pop_back();
    return target;
  });
  return true;
}

const Rules kAppend({"cache_append"},
                    {.tensors = append, .letters = heads, .extents = groups, .scalars = norm});
const Rules kCopy({"cache_copy"}, {.letters = count, .integers = pairs});

}  // namespace
}  // namespace random_calls
