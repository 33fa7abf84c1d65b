// SPDX-License-Identifier: Apache-2.0
#include <initializer_list>
#include <utility>

#include "core/dtype.h"
#include "core/list_fields.h"
#include "core/plan.h"
#include "fovea/quant.h"
#include "ops/quant/kernels.h"
#include "ops/quant/scale_fields.h"

namespace fovea {
namespace {

constexpr char kForward[] = "quant_forward";

void check_width(const char* field, int32_t block) {
  if (block != 0 && block != 16 && block != 32 && (block < 0 || block % 64))
    refuse("%s: %s is %d, wanted 0, 16, 32 or a multiple of 64", kForward, field, block);
}

void check_enum(const char* field, int32_t value, int32_t last, const char* type) {
  if (value < 0 || value > last) refuse("%s: %s is %d, wanted a %s", kForward, field, value, type);
}

ValueKind kind_of(const char* name, int32_t dtype, const char* field, int32_t format) {
  const bool bytes = dtype == FOVEA_U8;
  if (bytes != (format != FOVEA_CODE_FORMAT_DTYPE))
    refuse("%s: %s is %s with %s = %d, wanted u8 for i4 and e2m1, and %s = 0 for others", kForward,
           name, dtype_name(dtype), field, format, field);
  if (bytes) return format == FOVEA_CODE_FORMAT_I4 ? ValueKind::i4 : ValueKind::e2m1;
  return dtype == FOVEA_E4M3  ? ValueKind::e4m3
         : dtype == FOVEA_I8  ? ValueKind::i8
         : dtype == FOVEA_F16 ? ValueKind::f16
                              : ValueKind::bf16;
}

// p_format and the values it goes with.
void check_weights(const QuantAttend& a) {
  const ValueKind v = a.v_kind;
  const bool half = v == ValueKind::f16 || v == ValueKind::bf16;
  bool runs = false;
  switch (a.p_format) {
    case FOVEA_P_FORMAT_HALF:
      runs = half;
      break;
    case FOVEA_P_FORMAT_I8:
      runs = v == ValueKind::i8;
      break;
    case FOVEA_P_FORMAT_E2M1_TWO:
    case FOVEA_P_FORMAT_E2M1_ONE:
      runs = v == ValueKind::e2m1;
      break;
    default:
      runs = v == ValueKind::e4m3;
  }
  if (!runs)
    refuse(
        "%s: p_format is %d with these values, wanted e4m3_256 or e4m3_448 with e4m3, half with "
        "f16 or bf16, i8 with i8, e2m1_two or e2m1_one with e2m1",
        kForward, a.p_format);
  if (a.accumulate == FOVEA_ACCUMULATE_HALF_64 && a.p_format != FOVEA_P_FORMAT_E4M3_448 &&
      a.p_format != FOVEA_P_FORMAT_HALF)
    refuse("%s: accumulate is half_64 with p_format = %d, wanted half or e4m3_448", kForward,
           a.p_format);
}

struct GroupRule {
  const char *name, *scale_name, *extent, *block_name;
  const fovea_tensor* scale;
  int32_t group, block;
  std::initializer_list<int32_t> allowed;
  const char* words;
};

ScaleAxis read_axis(const GroupRule& rule, int64_t columns) {
  bool known = false;
  for (int32_t group : rule.allowed) known = known || group == rule.group;
  if (!known) refuse("%s: %s is %d, wanted %s", kForward, rule.name, rule.group, rule.words);
  check_width(rule.block_name, rule.block);
  if (!rule.scale->data && (rule.block || rule.group))
    refuse("%s: %s is %d without %s, wanted 0", kForward, rule.block ? rule.block_name : rule.name,
           rule.block ? rule.block : rule.group, rule.scale_name);
  const bool threads =
      rule.group == FOVEA_SCALE_GROUP_THREAD_Q || rule.group == FOVEA_SCALE_GROUP_THREAD_K;
  if (threads && !rule.block)
    refuse("%s: %s is 0 with %s = %d, wanted the run: 16, 32 or a multiple of 64", kForward,
           rule.block_name, rule.name, rule.group);
  if (!threads && rule.group != FOVEA_SCALE_GROUP_BLOCK && rule.block)
    refuse("%s: %s is %d with %s = %d, wanted 0", kForward, rule.block_name, rule.block, rule.name,
           rule.group);
  ScaleAxis axis{view_of<3>(*rule.scale), rule.scale->dtype, rule.group, rule.block, 0};
  if (axis.micro()) axis.runs = (columns + axis.run() - 1) / axis.run();
  if (!rule.scale->data) {
    axis.dtype = FOVEA_F32;
    return axis;
  }
  const bool micro = axis.micro() || axis.micro_t();
  const int32_t wanted = !micro ? FOVEA_F32 : axis.run() == 16 ? FOVEA_E4M3 : FOVEA_U8;
  if (axis.dtype != wanted)
    refuse("%s: %s is %s with %s = %d, wanted %s", kForward, rule.scale_name,
           dtype_name(axis.dtype), rule.name, rule.group, dtype_name(wanted));
  return axis;
}

ScaleGroup group_of(const ScaleAxis& axis) {
  return {axis.group, axis.block};
}

Attend attend_of(const fovea_quant_forward_params& p, int32_t pack) {
  Attend a{};
  read_operands(a, kForward, p, p.o, "o");
  a.d *= pack;
  if (a.d > kWidthMax)
    fail(FOVEA_UNSUPPORTED, "%s: widths d = %lld and e = %lld, wanted at most %lld", kForward,
         lld(a.d), lld(a.e), lld(kWidthMax));
  read_sequences(a, kForward, p);
  a.sequences.cache_row = int_vector(p.cache_row);
  for (const auto& [x, name] :
       {std::pair{&p.page_table, "page_table"}, std::pair{&p.cache_row, "cache_row"}})
    if (x->data && p.key_start.data)
      refuse("%s: key_start is given with %s, wanted one of them", kForward, name);
  place_keys(a.sequences, kForward, "k", p.k, p.page_table, p.key_max);
  a.columns = a.sequences.capacity;
  a.mask.window = read_window(kForward, p);
  read_score(a, kForward, p);
  return a;
}

void read_values(QuantAttend& a, const fovea_quant_forward_params& p) {
  if (!p.v.data == !p.v_t.data && a.attend.t)
    refuse("%s: v.data and v_t.data are %s, wanted one of them", kForward,
           p.v.data ? "both given" : "both NULL");
  check_order(kForward, p.code_order);
  if (p.code_order && !p.v_t.data)
    refuse("%s: code_order is %d without v_t, wanted 0", kForward, p.code_order);
  check_enum("v_format", p.v_format, FOVEA_CODE_FORMAT_E2M1, "fovea_code_format");
  a.v_t = view_of<4>(p.v_t), a.permuted = p.code_order == FOVEA_CODE_ORDER_V_PERM16;
  const bool given = p.v.data || p.v_t.data;
  if (!given) return;
  a.v_kind = p.v_t.data ? kind_of("v_t", p.v_t.dtype, "v_format", p.v_format)
                        : kind_of("v", p.v.dtype, "v_format", p.v_format);
  check_weights(a);
  if (p.v_t.data) {
    const int64_t pack = is_packed(a.v_kind) ? 2 : 1;
    check_entries(kForward, "v_t", 3, "padded", p.v_t.shape[3], a.padded / pack, p.key_start,
                  "key_start");
  }
}

void read_scales(QuantAttend& a, const fovea_quant_forward_params& p) {
  constexpr auto block = FOVEA_SCALE_GROUP_BLOCK, token = FOVEA_SCALE_GROUP_TOKEN;
  constexpr auto micro16 = FOVEA_SCALE_GROUP_MICRO16, micro32 = FOVEA_SCALE_GROUP_MICRO32;
  const Sequences& q = a.attend.sequences;
  const int64_t s = a.attend.s, t = a.attend.t, d = a.attend.d, e = a.attend.e;
  a.q_axis = read_axis({"q_group",
                        "q_scale",
                        "q_blocks",
                        "q_block",
                        &p.q_scale,
                        p.q_group,
                        p.q_block,
                        {block, FOVEA_SCALE_GROUP_THREAD_Q, token, micro16, micro32},
                        "block, thread_q, token, micro16 or micro32"},
                       d);
  a.k_axis = read_axis({"k_group",
                        "k_scale",
                        "k_blocks",
                        "k_block",
                        &p.k_scale,
                        p.k_group,
                        p.k_block,
                        {block, FOVEA_SCALE_GROUP_THREAD_K, token, micro16, micro32},
                        "block, thread_k, token, micro16 or micro32"},
                       d);
  a.v_axis = read_axis(
      {"v_group",
       "v_scale",
       "v_blocks",
       "v_block",
       &p.v_scale,
       p.v_group,
       p.v_block,
       {block, FOVEA_SCALE_GROUP_CHANNEL, FOVEA_SCALE_GROUP_MICRO16_T, FOVEA_SCALE_GROUP_MICRO32_T},
       "block, channel, micro16_t or micro32_t"},
      e);
  if (a.v_axis.micro_t()) {
    if (!p.v_t.data)
      refuse("%s: v_group is %d without v_t, wanted block or channel", kForward, p.v_group);
    a.v_axis.runs = a.padded / a.v_axis.run();
  }
  if (p.q_scale.data)
    check_entries(kForward, "q_scale", 2, "q_blocks", p.q_scale.shape[2],
                  CodeRows{q.query_start, s, q.count, d}.scales(group_of(a.q_axis)), p.query_start,
                  "query_start");
  if (p.k_scale.data)
    check_entries(kForward, "k_scale", 2, "k_blocks", p.k_scale.shape[2],
                  CodeRows{q.key_start, t, q.count, d}.scales(group_of(a.k_axis)), p.key_start,
                  "key_start");
  if (p.v_scale.data)
    check_entries(kForward, "v_scale", 2, "v_blocks", p.v_scale.shape[2],
                  CodeRows{q.key_start, t, q.count, e}.scales(group_of(a.v_axis)), p.key_start,
                  "key_start");
}

void read_means(QuantAttend& a, const fovea_quant_forward_params& p) {
  const Sequences& q = a.attend.sequences;
  a.k_mean = view_of<4>(p.k_mean), a.q_plain = view_of<4>(p.q_plain);
  a.delta = view_of<4>(p.delta), a.v_mean = view_of<4>(p.v_mean);
  a.q_plain_dtype = p.q_plain.dtype;
  const int64_t means = q.key_start ? q.count : 1;
  if (p.k_mean.data) {
    check_entries(kForward, "k_mean", 2, "means", p.k_mean.shape[2], means, p.key_start,
                  "key_start");
    check_entries(kForward, "k_mean", 3, "wide", p.k_mean.shape[3], a.attend.d, {}, "");
  }
  if (p.q_plain.data && !p.k_mean.data)
    refuse("%s: q_plain is given without k_mean, wanted both or neither", kForward);
  if (p.k_mean.data && p.delta.data && !p.q_plain.data)
    refuse("%s: k_mean is given with delta and without q_plain, wanted q_plain too", kForward);
  if (p.v_mean.data)
    check_entries(kForward, "v_mean", 2, "v_means", p.v_mean.shape[2], means, p.key_start,
                  "key_start");
  if (p.delta.data)
    check_entries(kForward, "delta", 2, "deltas", p.delta.shape[2],
                  entries(q.query_start, a.attend.s, q.count, kCodeRun), p.query_start,
                  "query_start");
}

// What would have a column for each key, or a constant of a row, where pages have their own.
void check_pages(const fovea_quant_forward_params& p) {
  if (!p.page_table.data) return;
  for (const auto& [x, name] : {std::pair{&p.q_plain, "q_plain"}, std::pair{&p.delta, "delta"},
                                std::pair{&p.index, "index"}})
    if (x->data) refuse("%s: %s is given with page_table, wanted one of them", kForward, name);
}

QuantAttend resolve(const fovea_quant_forward_params& p) {
  QuantAttend a{};
  check_pages(p);
  check_enum("code_format", p.code_format, FOVEA_CODE_FORMAT_E2M1, "fovea_code_format");
  check_enum("p_format", p.p_format, FOVEA_P_FORMAT_E2M1_ONE, "fovea_p_format");
  check_enum("accumulate", p.accumulate, FOVEA_ACCUMULATE_HALF_64, "fovea_accumulate");
  a.kind = kind_of("q", p.q.dtype, "code_format", p.code_format);
  a.p_format = p.p_format, a.accumulate = p.accumulate;
  a.attend = attend_of(p, is_packed(a.kind) ? 2 : 1);
  const Sequences& q = a.attend.sequences;
  a.padded = code_columns(entries(q.key_start, a.attend.t, q.count, kCodeRun));
  read_values(a, p);
  read_scales(a, p);
  read_means(a, p);
  return a;
}

void check_multiple(const char* field, int32_t value) {
  if (value % kListTile)
    refuse("%s: %s is %d, wanted a multiple of %lld", kForward, field, value, lld(kListTile));
}

QuantListed read_listed(const QuantAttend& codes, const fovea_quant_forward_params& p) {
  QuantListed call{};
  call.codes = codes;
  call.list = read_list(kForward, p, codes.attend, p.index.data ? &p.index : nullptr);
  check_multiple("block_keys", p.block_keys), check_multiple("entry_keys", p.entry_keys);
  check_number(kForward, "skip_margin", p.skip_margin, "nothing skipped");
  call.skipped = static_cast<int64_t*>(p.skipped.data), call.skip_margin = p.skip_margin;
  if (p.index.data) return call;
  if (p.skipped.data) refuse("%s: skipped is given without index, wanted both", kForward);
  if (p.skip_margin > 0)
    refuse("%s: skip_margin is %g without index, wanted 0", kForward, p.skip_margin);
  return call;
}

}  // namespace

Plan plan(const Context& ctx, const fovea_quant_forward_params& params) {
  const QuantListed listed = read_listed(resolve(params), params);
  if (params.index.data)
    return choose(kForward, ctx, listed, quant_listed_host,
                  FOVEA_CUDA_KERNELS(quant_listed_sm90_i8, quant_listed_simt));
  return choose(kForward, ctx, listed.codes, quant_forward_host,
                FOVEA_CUDA_KERNELS(quant_forward_sm90, quant_forward_sm90_i8, quant_forward_sm90_i4,
                                   quant_forward_sm90_integer, quant_forward_sm90_half,
                                   quant_forward_sm80_i8, quant_forward_simt));
}

}  // namespace fovea
