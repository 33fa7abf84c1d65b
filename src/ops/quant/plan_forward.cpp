// SPDX-License-Identifier: Apache-2.0
#include "core/fields.h"
#include "core/plan.h"
#include "fovea/quant.h"
#include "ops/quant/kernels.h"
#include "ops/quant/scale_fields.h"

namespace fovea {
namespace {

constexpr char kForward[] = "quant_forward";

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

Plan plan(const Context& ctx, const fovea_quant_forward_params& params) {
  return choose(kForward, ctx, resolve(params), quant_forward_host,
                FOVEA_CUDA_KERNELS(quant_forward_sm90, quant_forward_simt));
}

}  // namespace fovea
