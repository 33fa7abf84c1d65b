// SPDX-License-Identifier: Apache-2.0
#include "random/draw.h"

namespace random_calls {
namespace {

// Entries of a packed or batched row of blocks (quant.h).
int64_t entries(bool packed, int64_t tokens, int64_t r, int64_t block) {
  if (packed) return block ? tokens / block + r : r;
  return block ? ceil_div(tokens, block) : 1;
}

void codes(Draw& d) {
  if (!d.has("code") && !d.has("code_t")) d.give("code");
}

void values(Draw& d) {
  d.drop("v"), d.drop("v_t");
  d.give(d.one_in(3) ? "v" : "v_t");
}

void blocks(Draw& d) {
  const int64_t block = d.one_of({0, 64, 128});
  d.set("block", block);
  d.x("n") = entries(d.packed_rows(), d.x("s"), d.x("r"), block);
  d.x("padded") = 128 * entries(d.packed_rows(), d.x("s"), d.x("r"), 128);
}

void scales(Draw& d) {
  const int64_t q = d.has("q_scale") ? d.one_of({0, 64, 128}) : 0;
  const int64_t k = d.has("k_scale") ? d.one_of({0, 64, 128}) : 0;
  d.set("q_block", static_cast<int32_t>(q));
  d.set("k_block", static_cast<int32_t>(k));
  d.x("q_blocks") = entries(d.packed_rows(), d.x("s"), d.x("r"), q);
  d.x("k_blocks") = entries(d.packed_keys(), d.x("t"), d.x("r"), k);
  d.x("v_blocks") = entries(d.packed_keys(), d.x("t"), d.x("r"), 0);
  d.x("padded") = 128 * entries(d.packed_keys(), d.x("t"), d.x("r"), 128);
}

void order(Draw& d) {
  if (!d.has("code_t") && !d.has("v_t")) d.set("code_order", 0);
  if (d.knows("seed") && d.scalar<int32_t>("hadamard")) d.maybe<int64_t>("seed", 77);
}

const Rules kQuantize({"quant_quantize"}, {.tensors = codes, .extents = blocks, .scalars = order});
const Rules kForward({"quant_forward"}, {.tensors = values, .extents = scales, .scalars = order});

}  // namespace
}  // namespace random_calls
