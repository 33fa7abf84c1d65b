// SPDX-License-Identifier: Apache-2.0
#include "random/fill.h"

namespace random_calls {
namespace {

// An index or none.
void tensors(Draw& d) {
  if (d.knows("dq")) {
    if (!d.has("sink_logit")) d.drop("dsink_logit");
  } else if (d.one_in(2)) {
    d.give("index_q"), d.give("index_k");
  } else {
    for (const char* field : {"index_q", "index_k", "weight", "index"}) d.drop(field);
  }
  if (!d.has("index")) d.drop("index_count");
  d.has("key_len") ? d.give("compressed_len") : d.drop("compressed_len");
}

void letters(Draw& d) {
  d.x("keep") = d.one_of({0, 1, 2, 5, 17});
  d.x("index_width") = d.one_of({1, 8, 13, 64});
  d.x("index_keys") = d.one_of({1, 1, 2});
  d.x("index_heads") = d.x("index_keys") * d.one_of({1, 2, 8});
}

// The keys that key_max leaves decide how many compressed ones there are.
void scalars(Draw& d) {
  const bool back = d.knows("dq");
  const int64_t step = d.one_of({0, 1, 2, 4, 16, 128});
  d.set<int64_t>("compress_step", step);
  d.set<int64_t>("window", d.one_in(2) ? d.one_of({1, 2, 3, 8, 40, INT64_MAX}) : 0);
  if (!back) d.set<int64_t>("count", d.one_in(2) ? d.one_of({1, 2, 3, 8, 40, INT64_MAX}) : 0);
  const int64_t all = d.has("page_table") ? d.x("pages") * d.x("page") : d.x("t");
  const int64_t most = back ? 0 : d.scalar<int64_t>("key_max");
  const int64_t there = (most ? std::min(all, most) : all) / (step ? step : 4);
  d.x("u") = d.has("key_len") ? d.below(there + 3) : there + (back ? 0 : d.one_of({0, 0, 0, 2}));
}

bool lengths(Filler& f, const Tensor& x) {
  if (!f.is(x, {"compressed_len"})) return false;
  f.places(x, 0, f.extent("k_compressed", 1, 0) + 1);
  return true;
}

const Rules kCompressed({"x_compressed_"}, {.tensors = tensors,
                                            .letters = letters,
                                            .scalars = scalars,
                                            .integers = lengths,
                                            .rough = always});

}  // namespace
}  // namespace random_calls
