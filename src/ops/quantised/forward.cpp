// SPDX-License-Identifier: Apache-2.0
#include "core/fields.h"
#include "core/program.h"
#include "core/scale_group.h"
#include "ops/quantised/parts.h"

namespace fovea {
namespace {

constexpr char kOp[] = "x_quantised_forward";
using Params = fovea_x_quantised_forward_params;

void check(const Params& p) {
  if (p.code < FOVEA_X_CODE_E4M3 || p.code > FOVEA_X_CODE_E2M1)
    refuse("%s: code is %d, wanted E4M3, I8, I4 or E2M1 of fovea_x_code", kOp, p.code);
  if (p.v_code < FOVEA_X_CODE_E4M3 || p.v_code > FOVEA_X_CODE_PLAIN || p.v_code == FOVEA_X_CODE_I4)
    refuse("%s: v_code is %d, wanted E4M3, I8, E2M1 or PLAIN of fovea_x_code", kOp, p.v_code);
  if (p.q_smooth != FOVEA_SMOOTH_NONE && p.q_smooth != FOVEA_SMOOTH_BLOCK)
    refuse("%s: q_smooth is %d, wanted NONE or BLOCK of fovea_smooth", kOp, p.q_smooth);
  if (p.k_smooth != FOVEA_SMOOTH_NONE && p.k_smooth != FOVEA_SMOOTH_SEQUENCE)
    refuse("%s: k_smooth is %d, wanted NONE or SEQUENCE of fovea_smooth", kOp, p.k_smooth);
  if (p.v_code != FOVEA_X_CODE_PLAIN) return;
  for (const auto& [field, value] : {std::pair{"v_group", p.v_group}, {"v_block", p.v_block}})
    if (value) refuse("%s: %s is %d with v_code PLAIN, wanted 0", kOp, field, value);
  if (p.v_scale_max > 0)
    refuse("%s: v_scale_max is %g with v_code PLAIN, wanted 0", kOp, p.v_scale_max);
}

fovea_dtype code_dtype(int32_t code) {
  return code == FOVEA_X_CODE_E4M3 ? FOVEA_E4M3 : code == FOVEA_X_CODE_I8 ? FOVEA_I8 : FOVEA_U8;
}
int32_t code_format(int32_t code) {
  return code == FOVEA_X_CODE_I4     ? FOVEA_CODE_FORMAT_I4
         : code == FOVEA_X_CODE_E2M1 ? FOVEA_CODE_FORMAT_E2M1
                                     : FOVEA_CODE_FORMAT_DTYPE;
}
int64_t in_bytes(int32_t code, int64_t codes) {
  return code == FOVEA_X_CODE_I4 || code == FOVEA_X_CODE_E2M1 ? codes / 2 : codes;
}
fovea_dtype scale_dtype(int32_t group) {
  switch (group) {
    case FOVEA_SCALE_GROUP_MICRO16:
    case FOVEA_SCALE_GROUP_MICRO16_T:
      return FOVEA_E4M3;
    case FOVEA_SCALE_GROUP_MICRO32:
    case FOVEA_SCALE_GROUP_MICRO32_T:
      return FOVEA_U8;
    default:
      return FOVEA_F32;
  }
}

// What quantising an operand writes.
struct Coded {
  fovea_tensor code, scale, mean, delta;
};

// How an operand is quantised.
struct Rule {
  int32_t code, group, block, smooth;
};

fovea_quant_quantize_params quantising(const Params& p, const fovea_tensor& x,
                                       const fovea_tensor& start, const Rule& rule) {
  fovea_quant_quantize_params part{};
  part.x = x, part.start = start;
  part.block = rule.block, part.group = rule.group, part.smooth = rule.smooth;
  part.code_format = code_format(rule.code);
  part.hadamard = p.hadamard, part.seed = p.seed;
  return part;
}

// Entries of a row of scales or of means, which refusals of quant_quantize are about.
CodeRows rows_of(const fovea_tensor& x, const fovea_tensor& start) {
  return {int_vector(start), x.shape[1], start.data ? start.shape[0] - 1 : x.shape[0], x.shape[3]};
}

// There are no rows, though tiles that they skip are counted: codes are not read, and none are
// made.
bool idle(const Params& p) {
  return !p.q.shape[0] || !p.q.shape[1] || !p.q.shape[2];
}

// Codes, scales or means that a part makes.
fovea_tensor made(Program& program, const Params& p, fovea_dtype dtype,
                  std::initializer_list<int64_t> shape) {
  return idle(p) ? Program::unread(dtype, shape) : program.array(dtype, shape);
}

Coded quantise(Program& program, const Params& p, const fovea_tensor& x, const fovea_tensor& start,
               const Rule& rule, fovea_quant_quantize_params& part) {
  const int64_t b = x.shape[0], s = x.shape[1], h = x.shape[2], d = x.shape[3];
  const CodeRows rows = rows_of(x, start);
  part = quantising(p, x, start, rule);
  Coded to{};
  to.code = made(program, p, code_dtype(rule.code), {b, s, h, in_bytes(rule.code, d)});
  to.scale =
      made(program, p, scale_dtype(rule.group), {b, h, rows.scales({rule.group, rule.block})});
  if (rule.smooth) to.mean = made(program, p, FOVEA_F32, {b, h, rows.means(rule.smooth), d});
  part.code = to.code, part.scale = to.scale, part.mean = to.mean;
  return to;
}

[[gnu::noinline]] Coded quantise_k(Program& program, const Params& p) {
  fovea_quant_quantize_params part;
  const Coded k =
      quantise(program, p, p.k, p.key_start, {p.code, p.k_group, p.k_block, p.k_smooth}, part);
  if (!idle(p)) program.run(part);
  return k;
}

[[gnu::noinline]] Coded quantise_q(Program& program, const Params& p, const Coded& k) {
  fovea_quant_quantize_params part;
  Coded q =
      quantise(program, p, p.q, p.query_start, {p.code, p.q_group, p.q_block, p.q_smooth}, part);
  if (p.q_smooth) {
    const int64_t blocks = rows_of(p.q, p.query_start).means(FOVEA_SMOOTH_BLOCK);
    q.delta = made(program, p, FOVEA_F32, {p.q.shape[0], p.q.shape[2], blocks, p.k.shape[1]});
    part.k = p.k, part.k_mean = k.mean, part.key_start = p.key_start, part.delta = q.delta;
  }
  if (!idle(p)) program.run(part);
  return q;
}

// Codes of v have tokens contiguous, in the order that tensor cores read.
[[gnu::noinline]] Coded quantise_v(Program& program, const Params& p) {
  fovea_tensor x = p.v;
  const int64_t b = x.shape[0], g = x.shape[2], e = x.shape[3];
  const CodeRows rows = rows_of(x, p.key_start);
  auto part = quantising(p, x, p.key_start, {p.v_code, p.v_group, p.v_block, FOVEA_SMOOTH_NONE});
  part.hadamard = 0, part.seed = 0;
  part.scale_max = p.v_scale_max, part.code_order = FOVEA_CODE_ORDER_V_PERM16;
  Coded v{};
  v.code = part.code_t =
      made(program, p, code_dtype(p.v_code), {b, g, e, in_bytes(p.v_code, rows.padded())});
  v.scale = part.scale =
      made(program, p, scale_dtype(p.v_group), {b, g, rows.scales({p.v_group, p.v_block})});
  if (!idle(p)) program.run(part);
  return v;
}

[[gnu::noinline]] void attend(Program& program, const Params& p, const Coded& q, const Coded& k,
                              const Coded& v) {
  fovea_quant_forward_params part{};
  part.q = q.code, part.q_scale = q.scale, part.delta = q.delta;
  part.k = k.code, part.k_scale = k.scale, part.k_mean = k.mean;
  if (k.mean.data && !p.hadamard) part.q_plain = p.q;
  if (p.v_code == FOVEA_X_CODE_PLAIN)
    part.v = p.v;
  else
    part.v_t = v.code, part.v_scale = v.scale, part.code_order = FOVEA_CODE_ORDER_V_PERM16;
  part.o = p.o, part.lse = p.lse, part.sink_logit = p.sink_logit;
  part.query_start = p.query_start, part.key_start = p.key_start;
  part.query_max = p.query_max, part.key_max = p.key_max;
  part.window_left = p.window_left, part.window_right = p.window_right, part.causal = p.causal;
  part.scale = p.scale, part.softcap = p.softcap;
  part.q_block = p.q_block, part.k_block = p.k_block, part.v_block = p.v_block;
  part.q_group = p.q_group, part.k_group = p.k_group, part.v_group = p.v_group;
  part.code_format = code_format(p.code), part.v_format = code_format(p.v_code);
  part.p_format = p.p_format, part.accumulate = p.accumulate;
  part.index = p.index, part.index_count = p.index_count, part.skipped = p.skipped;
  part.block_rows = p.block_rows, part.block_keys = p.block_keys, part.entry_keys = p.entry_keys;
  part.skip_margin = p.skip_margin;
  program.run(part);
}

void body(Program& program, const Params& p) {
  const Coded k = quantise_k(program, p), q = quantise_q(program, p, k);
  attend(program, p, q, k, p.v_code == FOVEA_X_CODE_PLAIN ? Coded{} : quantise_v(program, p));
}

}  // namespace

void run_quantised_forward(Program& program, const Params& p) {
  try {
    check(p);
  } catch (const Error& e) {
    fail(e.status, "%s: %s", program.op(), e.text);
  }
  body(program, p);
}

Plan plan(const Context& ctx, const Params& p) {
  check(p);
  return compose(kOp, ctx, p, body);
}

}  // namespace fovea
