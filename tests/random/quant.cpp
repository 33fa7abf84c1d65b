// SPDX-License-Identifier: Apache-2.0
#include "random/lists.h"

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
    {FOVEA_I8, 0, kBlock, kBlock, FOVEA_I8, 0, kBlock, FOVEA_P_FORMAT_I8},
    {FOVEA_I8, 0, kRows, kKeys, FOVEA_BF16, 0, kChannel, FOVEA_P_FORMAT_HALF},
};
const Method& method(Draw& d) {
  return kMethods[d.x("method")];
}

int scale_dtype(int group) {
  if (group == FOVEA_SCALE_GROUP_MICRO16 || group == FOVEA_SCALE_GROUP_MICRO16_T) return FOVEA_E4M3;
  return group >= FOVEA_SCALE_GROUP_MICRO16 ? FOVEA_U8 : FOVEA_F32;
}

void values(Draw& d) {
  // FlashAttention-3, SageAttention 1 and 2 and SageBwd have kernels of their own.
  d.x("method") = d.one_in(2) ? d.one_of({0, 2, 3, 5, 8, 9}) : d.below(10);
  const Method& m = method(d);
  d.wants("q", m.codes), d.wants("v", m.v_dtype), d.wants("v_t", m.v_dtype);
  d.drop("v"), d.drop("v_t");
  const bool floats = m.v_dtype == FOVEA_BF16 || m.v_dtype == FOVEA_F16;
  d.give(floats || (m.v_dtype != FOVEA_U8 && d.one_in(3)) ? "v" : "v_t");
  if (m.q_group) d.give("q_scale");
  if (m.k_group) d.give("k_scale");
  if (m.v_group) d.give("v_scale");
  d.wants("q_scale", scale_dtype(m.q_group)), d.wants("k_scale", scale_dtype(m.k_group));
  d.wants("v_scale", scale_dtype(m.v_group));
  draw_lists(d);
  if (d.has("page_table"))
    for (const char* name : {"q_plain", "delta", "index", "index_count", "skipped"}) d.drop(name);
  if (!d.has("k_mean")) d.drop("q_plain");
  if (d.has("k_mean") && d.has("delta")) d.give("q_plain");
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
  const int64_t padded = times(128, entries(packed, s, r, 128)), width = d.x("d");
  d.x("padded") = padded / per, d.x("code_d") = width / per;
  const int64_t parts = group == FOVEA_SCALE_GROUP_THREAD_Q   ? 8
                        : group == FOVEA_SCALE_GROUP_THREAD_K ? 4
                                                              : 1;
  d.x("n") = group >= FOVEA_SCALE_GROUP_MICRO16_T ? times(width, padded / run)
             : micro(group)                       ? times(s, ceil_div(width, run))
             : group == FOVEA_SCALE_GROUP_CHANNEL ? times(width, packed ? r : 1)
             : group == FOVEA_SCALE_GROUP_TOKEN   ? s
                                                  : times(parts, entries(packed, s, r, block));
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

// Scales of a row of tokens.
int64_t scales_of(int group, bool packed, int64_t tokens, int64_t r, int64_t block,
                  int64_t columns) {
  switch (group) {
    case FOVEA_SCALE_GROUP_THREAD_Q:
      return times(8, entries(packed, tokens, r, block));
    case FOVEA_SCALE_GROUP_THREAD_K:
      return times(4, entries(packed, tokens, r, block));
    case FOVEA_SCALE_GROUP_TOKEN:
      return tokens;
    case FOVEA_SCALE_GROUP_CHANNEL:
      return packed ? times(r, columns) : columns;
    case FOVEA_SCALE_GROUP_MICRO16:
      return times(tokens, ceil_div(columns, 16));
    case FOVEA_SCALE_GROUP_MICRO32:
      return times(tokens, ceil_div(columns, 32));
    case FOVEA_SCALE_GROUP_MICRO16_T:
      return times(columns, times(8, entries(packed, tokens, r, 128)));
    case FOVEA_SCALE_GROUP_MICRO32_T:
      return times(columns, times(4, entries(packed, tokens, r, 128)));
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
  const int64_t v = block("v_scale", m.v_group) % 128;
  const bool v_blocks = m.v_group == kBlock &&
                        (m.p_format == FOVEA_P_FORMAT_E4M3_448 || m.p_format == FOVEA_P_FORMAT_I8);
  d.set("q_block", static_cast<int32_t>(q));
  d.set("k_block", static_cast<int32_t>(k));
  d.set("v_block", static_cast<int32_t>(v_blocks ? v : 0));
  const int64_t pack = m.code_format ? 2 : 1, v_pack = m.v_format ? 2 : 1;
  const bool rows = d.packed_rows(), keys = d.packed_keys();
  if (d.has("page_table")) {
    d.x("page") = d.one_of({1, 5, 16, 16, 48, 64, 64, 128, 128, 256});
    if (d.one_in(4)) d.x("pool") = 1;  // its scales are one of all keys
  }
  const int64_t s = d.x("s"), t = d.has("page_table") ? d.x("page") : d.x("t"), r = d.x("r");
  d.x("wide") = times(d.x("d"), pack);
  d.x("q_blocks") = scales_of(m.q_group, rows, s, r, q, d.x("wide"));
  d.x("k_blocks") = scales_of(m.k_group, keys, t, r, k, d.x("wide"));
  d.x("v_blocks") = scales_of(m.v_group, keys, t, r, v_blocks ? v : 0, d.x("e"));
  d.x("padded") = times(128 / v_pack, entries(keys, t, r, 128));
  d.x("means") = d.x("v_means") = keys ? r : 1;
  d.x("deltas") = entries(rows, s, r, 128);
  draw_list_sizes(d);
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
  draw_margin(d);
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
const Rules kForward({"quant_forward"}, {.tensors = values,
                                         .letters = draw_list_letters,
                                         .extents = scales,
                                         .scalars = recipe,
                                         .integers = draw_list_places,
                                         .rough = skips});

}  // namespace
}  // namespace random_calls
