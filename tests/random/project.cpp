// SPDX-License-Identifier: Apache-2.0
#include "random/fill.h"

namespace random_calls {
namespace {

constexpr const char* kTails[] = {"", "2", "3"};

// Layers without a gap, and what each of them has.
void tensors(Draw& d) {
  if (!d.has("weight2")) d.drop("weight3");
  for (const char* tail : kTails) {
    const std::string weight = std::string("weight") + tail, bias = std::string("bias") + tail;
    if (*tail && !d.has(weight.c_str())) d.drop(bias), d.drop("d" + weight);
    if (!d.has(bias.c_str())) d.drop("d" + bias);
  }
  if (!d.has("norm_weight")) d.drop("dnorm_weight");
  if (d.has("cos") != d.has("sin")) d.give("cos"), d.give("sin");
  if (!d.has("cos")) d.drop("position");
}

void extents(Draw& d) {
  const char* last = d.has("weight3") ? "inner3" : d.has("weight2") ? "inner2" : "inner";
  for (const char* width : {"inner", "inner2", "inner3"}) d.x(width) = d.width();
  const int64_t bits = d.has("code") ? d.one_of({0, 0, 1, 5, 10, 31}) : 0;
  d.set("bits", static_cast<int32_t>(bits));
  if (bits) d.x(last) = bits * d.one_of({0, 1, 3, 7});
  const int64_t f = d.x("f") = d.x(last);
  d.x("words") = bits ? f / bits : ceil_div(f, 32);
  d.x("half") = std::min(d.x("half"), f / 2);
  d.x("left") = f - 2 * d.x("half");

  const int64_t products = d.one_of({1, 2, 3, 4, 6, 8}), shared = d.one_of({1, 1, 2, 3, 4});
  const int64_t less = products % shared ? products : products / shared;
  const bool sums = d.one_in(3);
  d.x("g") = sums ? products : less, d.x("h") = sums ? less : products;
  const int64_t maps = d.one_of({1, 2, 3, 4});
  d.x("maps") = products % maps ? products : maps;
}

void scalars(Draw& d) {
  d.set("act", static_cast<int32_t>(d.has("weight2") ? d.below(3) : 0));
  d.set("norm_eps", d.has("norm_weight") && d.one_in(2) ? 1e-3f : 0.0f);
  const bool turns = d.has("cos");
  d.set("rope_begin", static_cast<int32_t>(turns ? d.below(d.x("left") + 1) : 0));
  d.set("rope_interleaved", static_cast<int32_t>(turns && d.one_in(2)));
}

// The sign of a sum may be told by a rounding.
bool signs(const Call& call) {
  for (const Tensor& x : call.tensors)
    if (x.field->name == "code") return true;
  return false;
}

const Rules kProject({"x_project_"},
                     {.tensors = tensors, .extents = extents, .scalars = scalars, .rough = signs});

}  // namespace
}  // namespace random_calls
