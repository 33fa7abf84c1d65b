// SPDX-License-Identifier: Apache-2.0
#include "random/fill.h"

namespace random_calls {
namespace {

void tensors(Draw& d) {
  if (!d.has("index")) d.drop("index_count");
}

void letters(Draw& d) {
  d.x("keep") = d.one_of({0, 1, 2, 5, 17}), d.x("u") = d.one_of({0, 1, 2, 5, 17, 40});
}

void extents(Draw& d) {
  d.x("representative_heads") = d.one_in(2) ? d.x("h") : d.x("g");
}

void scalars(Draw& d) {
  const int64_t block = d.one_of({1, 4, 16, 128, 300});
  const bool usual = d.one_in(4);
  d.set("block_keys", static_cast<int32_t>(usual ? 0 : block));
  d.set<int64_t>("init_keys", (usual ? 128 : block) * d.one_of({0, 0, 1, 2, 1000}));
  d.set<int64_t>("count", d.one_in(2) ? d.one_of({1, 2, 8, 40, INT64_MAX}) : 0);
  d.set<int64_t>("window", d.one_in(4) ? 0 : d.one_of({1, 2, 16, 17, 64, 200, INT32_MAX}));
}

bool lengths(Filler& f, const Tensor& x) {
  if (!f.is(x, {"block_len"})) return false;
  f.places(x, 0, f.extent("local_score", 2, 400) + 1);
  return true;
}

const Rules kInfllm({"x_infllm_"}, {.tensors = tensors,
                                    .letters = letters,
                                    .extents = extents,
                                    .scalars = scalars,
                                    .integers = lengths,
                                    .rough = always});

}  // namespace
}  // namespace random_calls
