// SPDX-License-Identifier: Apache-2.0
#include "random/fill.h"

namespace random_calls {
namespace {

void parts(Draw& d) {
  if (d.one_in(3)) d.drop("o"), d.drop("edge_value"), d.drop("v");
  if (d.has("o") || d.has("edge_value")) d.give("v");
  if (d.has("edge") || d.has("edge_weight")) d.give("edge_count");
  if (!d.has("edge_count")) d.drop("edge_offset");
}

void letters(Draw& d) {
  d.x("cap") = d.one_of({0, 1, 5, 40, 300});
  if (d.one_in(20)) d.drop("v"), d.x("t") = 0;  // no keys, so no values either
}

void blocks(Draw& d) {
  const int64_t rows = d.one_of({0, 16, 32, 64, 128}), keys = d.one_of({0, 16, 32, 64, 64, 128});
  d.set("block_rows", static_cast<int32_t>(rows));
  d.set("block_keys", static_cast<int32_t>(keys));
  d.x("n") = ceil_div(d.x("s"), rows ? rows : 64);
  d.x("page") = keys ? keys : 64;
  d.x("keep") = d.one_of({1, 1, 2, 3, 4, 8, 17});
  d.set("keep", d.x("keep"));
}

bool kept(Filler& f, const Tensor& x) {
  if (x.field->name != "keep_row") return false;
  f.places(x, 0, 5);
  return true;
}

// The choice of blocks may follow from a rounding.
bool chosen(const Call& call) {
  const Field* exact = call.op->find("exact");
  return !*reinterpret_cast<const int32_t*>(call.params() + exact->offset);
}

const Rules kTrace(
    {"trace_forward"},
    {.tensors = parts, .letters = letters, .extents = blocks, .integers = kept, .rough = chosen});

}  // namespace
}  // namespace random_calls
