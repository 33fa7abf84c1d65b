// SPDX-License-Identifier: Apache-2.0
#include "random/draw.h"

namespace random_calls {
namespace {

// Entries of a packed or batched row of blocks (quant.h).
int64_t entries(bool packed, int64_t tokens, int64_t r, int64_t block) {
  if (packed) return block ? tokens / block + r : r;
  return block ? ceil_div(tokens, block) : 1;
}

bool micro(int64_t group) {
  return group >= FOVEA_SCALE_GROUP_MICRO16;
}

// What goes together: the group, the format, and which codes there are.  Kept beside the extents,
// as numbers are drawn after these.
void codes(Draw& d) {
  const bool reads = d.knows("y");
  const int64_t group = d.below(2) ? d.below(9) : FOVEA_SCALE_GROUP_BLOCK;
  d.x("group") = group;
  d.x("format") = micro(group) ? FOVEA_CODE_FORMAT_E2M1 : d.one_of({0, 0, 0, 1});
  d.x("smooth") = d.one_of({0, 0, 1, 2});
  if (group >= FOVEA_SCALE_GROUP_MICRO16_T || (reads && d.one_in(2)))
    d.drop("code"), d.give("code_t");
  else if (reads)
    d.drop("code_t"), d.give("code");
  else if (!d.has("code") && !d.has("code_t"))
    d.give("code");
  d.drop("mean");
  if (d.x("smooth")) d.give("mean");
  if (!d.knows("delta")) return;
  for (const char* name : {"delta", "k", "k_mean", "key_start"})
    if (d.x("smooth") != FOVEA_SMOOTH_BLOCK || d.one_in(2)) d.drop(name);
  if (!d.has("k") || !d.has("delta"))
    for (const char* name : {"delta", "k", "k_mean", "key_start"}) d.drop(name);
}

void values(Draw& d) {
  d.drop("v"), d.drop("v_t");
  d.give(d.one_in(3) ? "v" : "v_t");
}

int64_t block_of(Draw& d) {
  switch (d.x("group")) {
    case FOVEA_SCALE_GROUP_BLOCK:
      return d.one_of({0, 0, 16, 32, 64, 128, 192, 640});
    case FOVEA_SCALE_GROUP_THREAD_Q:
      return d.one_of({16, 32, 64, 128});
    case FOVEA_SCALE_GROUP_THREAD_K:
      return d.one_of({64, 128});
    default:
      return 0;
  }
}

void blocks(Draw& d) {
  const int64_t group = d.x("group"), format = d.x("format"), per = format ? 2 : 1;
  const int64_t run = group % 2 ? 16 : 32, block = block_of(d), s = d.x("s"), r = d.x("r");
  const bool packed = d.packed_rows();
  if (format) d.x("d") += d.x("d") % 2;
  d.set("block", block);
  const int64_t padded = 128 * entries(packed, s, r, 128), width = d.x("d");
  d.x("padded") = padded / per, d.x("code_d") = width / per;
  const int64_t parts = group == FOVEA_SCALE_GROUP_THREAD_Q   ? 8
                        : group == FOVEA_SCALE_GROUP_THREAD_K ? 4
                                                              : 1;
  d.x("n") = group >= FOVEA_SCALE_GROUP_MICRO16_T ? width * (padded / run)
             : micro(group)                       ? s * ceil_div(width, run)
             : group == FOVEA_SCALE_GROUP_CHANNEL ? width * (packed ? r : 1)
             : group == FOVEA_SCALE_GROUP_TOKEN   ? s
                                                  : parts * entries(packed, s, r, block);
  d.x("means") = entries(packed, s, r, d.x("smooth") == FOVEA_SMOOTH_BLOCK ? 128 : 0);
  d.x("deltas") = entries(packed, s, r, 128);
  d.x("k_means") = entries(d.packed_keys(), d.x("t"), r, 0);
  const int code = format ? FOVEA_U8 : static_cast<int>(d.one_of({FOVEA_E4M3, FOVEA_I8}));
  d.wants("code", code), d.wants("code_t", code);
  d.wants("scale", !micro(group) ? FOVEA_F32 : run == 16 ? FOVEA_E4M3 : FOVEA_U8);
  d.x("e4m3") = code == FOVEA_E4M3;
}

// As they were chosen with the tensors.
void numbers(Draw& d) {
  d.set("group", static_cast<int32_t>(d.x("group")));
  d.set("code_format", static_cast<int32_t>(d.x("format")));
  d.set("smooth", static_cast<int32_t>(d.x("smooth")));
  d.set("scale_max", d.x("e4m3") && d.one_in(4) ? 2.25f : 0.0f);
  if (d.has("delta")) d.set("hadamard", 0);
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

void coded(Draw& d) {
  numbers(d), order(d);
}

const Rules kQuantize({"quant_quantize", "quant_dequantize"},
                      {.tensors = codes, .extents = blocks, .scalars = coded});
const Rules kForward({"quant_forward"}, {.tensors = values, .extents = scales, .scalars = order});

}  // namespace
}  // namespace random_calls
