// SPDX-License-Identifier: Apache-2.0
#include "random/fill.h"

namespace random_calls {
namespace {

void parts(Draw& d) {
  d.x("n") = d.one_of({0, 1, 2, 2, 3, 4, 7});
}

bool rows(Filler& f, const Tensor& x) {
  if (x.field->name != "row") return false;
  f.places(x, -1, f.extent("o", 1, 1) - 1);
  return true;
}

const Rules kMerge({"merge_"}, {.letters = parts, .integers = rows});

}  // namespace
}  // namespace random_calls
