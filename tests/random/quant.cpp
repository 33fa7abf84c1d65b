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

// Rows of the table of methods: q and k, groups of their scales, v, its scales, p_format.
struct Method {
  int codes, code_format, q_group, k_group, v_dtype, v_format, v_group, p_format;
};
constexpr int kBlock = FOVEA_SCALE_GROUP_BLOCK, kToken = FOVEA_SCALE_GROUP_TOKEN;
constexpr int kRows = FOVEA_SCALE_GROUP_THREAD_Q, kKeys = FOVEA_SCALE_GROUP_THREAD_K;
constexpr int kChannel = FOVEA_SCALE_GROUP_CHANNEL;
constexpr Method kMethods[] = {
    {FOVEA_E4M3, 0, kBlock, kBlock, FOVEA_E4M3, 0, kBlock, FOVEA_P_FORMAT_E4M3_256},
    {FOVEA_E4M3, 0, kToken, kKeys, FOVEA_BF16, 0, kBlock, FOVEA_P_FORMAT_HALF},
    {FOVEA_I8, 0, kBlock, kBlock, FOVEA_F16, 0, kBlock, FOVEA_P_FORMAT_HALF},
    {FOVEA_I8, 0, kRows, kKeys, FOVEA_E4M3, 0, kChannel, FOVEA_P_FORMAT_E4M3_448},
    {FOVEA_I8, 0, kBlock, kToken, FOVEA_I8, 0, kChannel, FOVEA_P_FORMAT_I8},
    {FOVEA_U8, FOVEA_CODE_FORMAT_I4, kRows, kKeys, FOVEA_E4M3, 0, kBlock, FOVEA_P_FORMAT_E4M3_448},
    {FOVEA_U8, FOVEA_CODE_FORMAT_E2M1, FOVEA_SCALE_GROUP_MICRO16, FOVEA_SCALE_GROUP_MICRO16,
     FOVEA_U8, FOVEA_CODE_FORMAT_E2M1, FOVEA_SCALE_GROUP_MICRO16_T, FOVEA_P_FORMAT_E2M1_TWO},
    {FOVEA_U8, FOVEA_CODE_FORMAT_E2M1, FOVEA_SCALE_GROUP_MICRO32, FOVEA_SCALE_GROUP_MICRO32,
     FOVEA_U8, FOVEA_CODE_FORMAT_E2M1, FOVEA_SCALE_GROUP_MICRO32_T, FOVEA_P_FORMAT_E2M1_ONE},
};
const Method& method(Draw& d) {
  return kMethods[d.x("method")];
}

int scale_dtype(int group) {
  if (group == FOVEA_SCALE_GROUP_MICRO16 || group == FOVEA_SCALE_GROUP_MICRO16_T) return FOVEA_E4M3;
  return group >= FOVEA_SCALE_GROUP_MICRO16 ? FOVEA_U8 : FOVEA_F32;
}

void values(Draw& d) {
  // FlashAttention-3 and SageAttention2 have kernels of their own.
  d.x("method") = d.one_in(2) ? d.one_of({0, 3}) : d.below(8);
  const Method& m = method(d);
  d.type("q", m.codes), d.type("v", m.v_dtype), d.type("v_t", m.v_dtype);
  d.drop("v"), d.drop("v_t");
  const bool floats = m.v_dtype == FOVEA_BF16 || m.v_dtype == FOVEA_F16;
  d.give(floats || (m.v_dtype != FOVEA_U8 && d.one_in(3)) ? "v" : "v_t");
  if (m.q_group) d.give("q_scale");
  if (m.k_group) d.give("k_scale");
  if (m.v_group) d.give("v_scale");
  d.type("q_scale", scale_dtype(m.q_group)), d.type("k_scale", scale_dtype(m.k_group));
  d.type("v_scale", scale_dtype(m.v_group));
  if (!d.has("k_mean")) d.drop("q_plain");
  if (d.has("k_mean") && d.has("delta")) d.give("q_plain");
}

void blocks(Draw& d) {
  const int64_t block = d.one_of({0, 64, 128});
  d.set("block", block);
  d.x("n") = entries(d.packed_rows(), d.x("s"), d.x("r"), block);
  d.x("padded") = 128 * entries(d.packed_rows(), d.x("s"), d.x("r"), 128);
}

// Scales of a row of tokens.
int64_t scales_of(int group, bool packed, int64_t tokens, int64_t r, int64_t block,
                  int64_t columns) {
  switch (group) {
    case FOVEA_SCALE_GROUP_THREAD_Q:
      return 8 * entries(packed, tokens, r, block);
    case FOVEA_SCALE_GROUP_THREAD_K:
      return 4 * entries(packed, tokens, r, block);
    case FOVEA_SCALE_GROUP_TOKEN:
      return tokens;
    case FOVEA_SCALE_GROUP_CHANNEL:
      return packed ? r * columns : columns;
    case FOVEA_SCALE_GROUP_MICRO16:
      return tokens * ceil_div(columns, 16);
    case FOVEA_SCALE_GROUP_MICRO32:
      return tokens * ceil_div(columns, 32);
    case FOVEA_SCALE_GROUP_MICRO16_T:
      return columns * entries(packed, tokens, r, 128) * 8;
    case FOVEA_SCALE_GROUP_MICRO32_T:
      return columns * entries(packed, tokens, r, 128) * 4;
    default:
      return entries(packed, tokens, r, block);
  }
}

void scales(Draw& d) {
  const Method& m = method(d);
  const auto block = [&](const char* scale, int group) -> int64_t {
    if (group == kRows) return d.one_of({16, 32, 64, 128, 192});
    if (group == kKeys) return d.one_of({64, 128, 256});
    return d.has(scale) && group == kBlock ? d.one_of({0, 64, 128, 32}) : 0;
  };
  const int64_t q = block("q_scale", m.q_group), k = block("k_scale", m.k_group);
  const int64_t v = m.v_dtype == FOVEA_I8 ? 0 : block("v_scale", m.v_group) % 128;
  const bool v_blocks = m.v_group == kBlock && m.p_format == FOVEA_P_FORMAT_E4M3_448;
  d.set("q_block", static_cast<int32_t>(q));
  d.set("k_block", static_cast<int32_t>(k));
  d.set("v_block", static_cast<int32_t>(v_blocks ? v : 0));
  const int64_t pack = m.code_format ? 2 : 1, v_pack = m.v_format ? 2 : 1;
  const bool rows = d.packed_rows(), keys = d.packed_keys();
  const int64_t s = d.x("s"), t = d.x("t"), r = d.x("r");
  d.x("wide") = d.x("d") * pack;
  d.x("q_blocks") = scales_of(m.q_group, rows, s, r, q, d.x("wide"));
  d.x("k_blocks") = scales_of(m.k_group, keys, t, r, k, d.x("wide"));
  d.x("v_blocks") = scales_of(m.v_group, keys, t, r, v_blocks ? v : 0, d.x("e"));
  d.x("padded") = 128 / v_pack * entries(keys, t, r, 128);
  d.x("means") = d.x("v_means") = keys ? r : 1;
  d.x("deltas") = entries(rows, s, r, 128);
}

void recipe(Draw& d) {
  const Method& m = method(d);
  d.set("code_format", static_cast<int32_t>(m.code_format));
  d.set("v_format", static_cast<int32_t>(m.v_format));
  d.set("p_format", static_cast<int32_t>(m.p_format));
  d.set("q_group", static_cast<int32_t>(m.q_group));
  d.set("k_group", static_cast<int32_t>(m.k_group));
  d.set("v_group", static_cast<int32_t>(m.v_group));
  const bool half = m.p_format == FOVEA_P_FORMAT_E4M3_448 || m.p_format == FOVEA_P_FORMAT_HALF;
  d.set("accumulate", static_cast<int32_t>(d.below(half ? 3 : 2)));
  if (!d.has("v_t")) d.set("code_order", 0);
}

void order(Draw& d) {
  if (!d.has("code_t") && !d.has("v_t")) d.set("code_order", 0);
  if (d.knows("seed") && d.scalar<int32_t>("hadamard")) d.maybe<int64_t>("seed", 77);
}

const Rules kQuantize({"quant_quantize"}, {.tensors = codes, .extents = blocks, .scalars = order});
const Rules kForward({"quant_forward"}, {.tensors = values, .extents = scales, .scalars = recipe});

}  // namespace
}  // namespace random_calls
