// SPDX-License-Identifier: Apache-2.0
#include "random/draw.h"

namespace random_calls {
namespace {

void forward(Draw& d) {
  if (!d.has("total")) d.drop("row_weight");
  if (!d.has("total") && !d.has("lse_teacher") && !d.has("lse_student")) d.give("kl");
}

void backward(Draw& d) {
  if (!d.has("dtotal")) d.drop("row_weight"), d.give("dkl");
}

void mean(Draw& d) {
  if (d.knows("total") ? d.has("total") : d.has("dtotal")) d.maybe("mean", 1);
}

void divergence(Draw& d) {
  if (!d.has("lse_teacher") && !d.has("lse_student")) d.give("kl");
}

void jensen_shannon(Draw& d) {
  d.give("js");
}

void share(Draw& d) {
  d.maybe("weight", 0.2f);
}

void indexer_heads(Draw& d) {
  d.x("x") = d.one_of({1, 2, 3, 4, 8});
}

void list(Draw& d) {
  d.x("n") = d.one_in(30) ? 0 : d.one_of({1, 2, 3, 8, 16, 17, 32, 64, 100});
}

void blocks(Draw& d) {
  const int64_t block = d.one_of({0, 1, 4, 16, 17, 32, 64, 64, 100, 128});
  d.set("block_keys", block);
  const int64_t keys = block ? block : 64;
  d.x("u") = (d.packed_keys() ? d.x("t") / keys + d.x("r") : ceil_div(d.x("t"), keys)) +
             d.one_of({0, 0, 1});
}

const Rules kForward({"kl_forward"}, {.tensors = forward, .scalars = mean});
const Rules kBackward({"kl_backward"}, {.tensors = backward, .scalars = mean});
const Rules kExperimental({"x_kl_indexer_forward", "x_kl_gather_forward", "x_kl_pool_forward"},
                          {.tensors = divergence});
const Rules kJensenShannonForward({"x_kl_jensen_shannon_forward"}, {.tensors = jensen_shannon});
const Rules kJensenShannon({"x_kl_jensen_shannon"}, {.scalars = share});
const Rules kIndexer({"x_kl_indexer"}, {.letters = indexer_heads});
const Rules kGather({"x_kl_gather"}, {.letters = list});
const Rules kPool({"x_kl_pool"}, {.extents = blocks});

}  // namespace
}  // namespace random_calls
