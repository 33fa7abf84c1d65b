// SPDX-License-Identifier: Apache-2.0
#include "core/plan.h"
#include "core/fields.h"
#include "fovea/quant.h"
#include "ops/quant/kernels.h"

namespace fovea {
namespace {

constexpr char kQuantize[] = "quant_quantize";
constexpr char kForward[] = "quant_forward";

void check_block(const char* op, const char* field, int64_t block) {
  if (block != 0 && block != 64 && block != 128)
    refuse("%s: %s is %lld, wanted 0, 64 or 128", op, field, lld(block));
}

void check_order(const char* op, int32_t order) {
  if (order != FOVEA_CODE_ORDER_PLAIN && order != FOVEA_CODE_ORDER_V_PERM16)
    refuse("%s: code_order is %d, wanted a fovea_code_order", op, order);
}

void check_entries(const char* op, const char* field, int axis, const char* name, int64_t got,
                   int64_t wanted, const fovea_tensor& start, const char* start_name) {
  if (got != wanted)
    refuse("%s: %s.shape[%d] (%s) is %lld, wanted %lld%s%s", op, field, axis, name, lld(got),
           lld(wanted), start.data ? " with " : "", start.data ? start_name : "");
}

Quantize resolve(const fovea_quant_quantize_params& p) {
  Quantize a{};
  a.x = view_of<4>(p.x), a.code = view_of<4>(p.code), a.code_t = view_of<4>(p.code_t);
  a.scale = view_of<3>(p.scale), a.x_dtype = p.x.dtype, a.start = int_vector(p.start);
  a.b = p.x.shape[0], a.s = p.x.shape[1], a.h = p.x.shape[2], a.d = p.x.shape[3];
  a.sequences = a.start ? p.start.shape[0] - 1 : a.b;
  a.block = p.block, a.seed = p.seed;
  check_block(kQuantize, "block", p.block);
  check_flag(kQuantize, "hadamard", p.hadamard);
  check_order(kQuantize, p.code_order);
  if (p.seed && !p.hadamard)
    refuse("%s: seed is %lld without hadamard, wanted 0", kQuantize, lld(p.seed));
  if (!p.code.data && !p.code_t.data && a.b && a.s && a.h)
    refuse("%s: code.data and code_t.data are NULL, wanted one of them or both", kQuantize);
  if (p.code_order && !p.code_t.data)
    refuse("%s: code_order is %d without code_t, wanted 0", kQuantize, p.code_order);
  if (a.d < 1) refuse("%s: x.shape[3] (d) is 0, wanted >= 1", kQuantize);
  if (a.s > INT32_MAX && a.start)
    refuse("%s: x.shape[1] (s) is %lld with start, wanted at most 2^31 - 1", kQuantize, lld(a.s));
  a.scales = entries(a.start, a.s, a.sequences, a.block);
  a.units = entries(a.start, a.s, a.sequences, kCodeRun);
  a.padded = code_columns(a.units);
  check_entries(kQuantize, "scale", 2, "n", p.scale.shape[2], a.scales, p.start, "start");
  if (p.code_t.data)
    check_entries(kQuantize, "code_t", 3, "padded", p.code_t.shape[3], a.padded, p.start, "start");
  if (!a.units && !a.start) a.units = 1;  // the scale of no tokens is written too
  if (p.hadamard) a.run = a.d & -a.d;
  a.permutes = p.code_order == FOVEA_CODE_ORDER_V_PERM16;
  return a;
}

Attend attend_of(const fovea_quant_forward_params& p) {
  Attend a{};
  read_operands(a, kForward, p, p.o, "o");
  read_sequences(a, kForward, p);
  place_keys(a.sequences, kForward, "k", p.k, {}, p.key_max);
  a.columns = a.sequences.capacity;
  a.mask.window = read_window(kForward, p);
  read_score(a, kForward, p);
  return a;
}

QuantAttend resolve(const fovea_quant_forward_params& p) {
  QuantAttend a{};
  a.attend = attend_of(p);
  a.v_t = view_of<4>(p.v_t);
  a.q_scale = view_of<3>(p.q_scale), a.k_scale = view_of<3>(p.k_scale);
  a.v_scale = view_of<3>(p.v_scale);
  a.q_block = p.q_block, a.k_block = p.k_block;
  check_block(kForward, "q_block", p.q_block);
  check_block(kForward, "k_block", p.k_block);
  check_order(kForward, p.code_order);
  if (!p.v.data == !p.v_t.data && a.attend.t)
    refuse("%s: v.data and v_t.data are %s, wanted one of them", kForward,
           p.v.data ? "both given" : "both NULL");
  if (p.code_order && !p.v_t.data)
    refuse("%s: code_order is %d without v_t, wanted 0", kForward, p.code_order);
  const auto needs = [](const char* block, int32_t value, const char* scale,
                        const fovea_tensor& x) {
    if (value && !x.data)
      refuse("%s: %s is %d without %s, wanted 0", kForward, block, value, scale);
  };
  needs("q_block", p.q_block, "q_scale", p.q_scale);
  needs("k_block", p.k_block, "k_scale", p.k_scale);
  const Sequences& q = a.attend.sequences;
  const int64_t s = a.attend.s, t = a.attend.t;
  a.padded = code_columns(entries(q.key_start, t, q.count, kCodeRun));
  if (p.v_t.data)
    check_entries(kForward, "v_t", 3, "padded", p.v_t.shape[3], a.padded, p.key_start, "key_start");
  if (p.q_scale.data)
    check_entries(kForward, "q_scale", 2, "q_blocks", p.q_scale.shape[2],
                  entries(q.query_start, s, q.count, p.q_block), p.query_start, "query_start");
  if (p.k_scale.data)
    check_entries(kForward, "k_scale", 2, "k_blocks", p.k_scale.shape[2],
                  entries(q.key_start, t, q.count, p.k_block), p.key_start, "key_start");
  if (p.v_scale.data)
    check_entries(kForward, "v_scale", 2, "v_blocks", p.v_scale.shape[2],
                  entries(q.key_start, t, q.count, 0), p.key_start, "key_start");
  a.permuted = p.code_order == FOVEA_CODE_ORDER_V_PERM16;
  return a;
}

}  // namespace

Plan plan(const Context& ctx, const fovea_quant_quantize_params& params) {
  return choose(kQuantize, ctx, resolve(params), quant_quantize_host,
                FOVEA_CUDA_KERNELS(quant_quantize_tile, quant_quantize_any));
}

Plan plan(const Context& ctx, const fovea_quant_forward_params& params) {
  return choose(kForward, ctx, resolve(params), quant_forward_host,
                FOVEA_CUDA_KERNELS(quant_forward_sm90, quant_forward_simt));
}

}  // namespace fovea
