// SPDX-License-Identifier: Apache-2.0
#include "ops/quant/forward.h"

#include <cmath>

#include "ops/quant/check.h"
#include "ops/quant/kernels.h"

namespace fovea {
namespace {

constexpr char kOp[] = "quant_forward";
constexpr int64_t kWidthMost = 576;  // as attention_forward

void check_not_negative(const char* field, int64_t value) {
  if (value < 0)
    fail(FOVEA_INVALID_ARGUMENT, "%s: %s is %lld, wanted >= 0", kOp, field,
         static_cast<long long>(value));
}

void check_number(const char* field, float value) {
  if (!(value >= 0) || std::isinf(value))
    fail(FOVEA_INVALID_ARGUMENT, "%s: %s is %g, wanted > 0, or 0 for the default", kOp, field,
         value);
}

Sequences sequences_of(const fovea_quant_forward_params& p) {
  Sequences q{};
  q.query_start = int_vector(p.query_start), q.key_start = int_vector(p.key_start);
  q.query_len = int_vector(p.query_len), q.key_len = int_vector(p.key_len);
  q.s = p.q.shape[1];
  q.count = p.query_start.data ? p.query_start.shape[0] - 1
            : p.key_start.data ? p.key_start.shape[0] - 1
                               : p.q.shape[0];
  check_not_negative("query_max", p.query_max);
  check_not_negative("key_max", p.key_max);
  place_keys(q, kOp, "k", p.k, {}, p.key_max);
  q.query_max = p.query_max && p.query_max < q.s ? p.query_max : q.s;
  return q;
}

Window window_of(const fovea_quant_forward_params& p) {
  check_not_negative("window_left", p.window_left);
  check_not_negative("window_right", p.window_right);
  check_flag(kOp, "causal", p.causal);
  if (p.causal && p.window_right > 1)
    fail(FOVEA_INVALID_ARGUMENT, "%s: window_right is %lld with causal = 1, wanted 0 or 1", kOp,
         static_cast<long long>(p.window_right));
  return {p.window_left, p.causal ? 1 : p.window_right, 0, 0};
}

Attend attend_of(const fovea_quant_forward_params& p) {
  Attend a{};
  a.q = view_of<4>(p.q), a.k = view_of<4>(p.k), a.v = view_of<4>(p.v);
  a.o = view_of<4>(p.o), a.lse = view_of<3>(p.lse);
  a.dtype = p.q.dtype, a.o_dtype = p.o.dtype;
  a.b = p.q.shape[0], a.s = p.q.shape[1], a.h = p.q.shape[2], a.d = p.q.shape[3];
  a.t = p.k.shape[1], a.g = p.k.shape[2], a.e = p.o.shape[3];
  if (a.h && (!a.g || a.h % a.g))
    fail(FOVEA_INVALID_ARGUMENT, "%s: k.shape[2] (g) is %lld, wanted a divisor of q's %lld heads",
         kOp, static_cast<long long>(a.g), static_cast<long long>(a.h));
  if (a.d < 1 || a.e < 1)
    fail(FOVEA_INVALID_ARGUMENT, "%s: q.shape[3] (d) is %lld and o.shape[3] (e) %lld, wanted >= 1",
         kOp, static_cast<long long>(a.d), static_cast<long long>(a.e));
  if (a.d > kWidthMost || a.e > kWidthMost)
    fail(FOVEA_UNSUPPORTED, "%s: widths d = %lld and e = %lld, wanted at most %lld", kOp,
         static_cast<long long>(a.d), static_cast<long long>(a.e),
         static_cast<long long>(kWidthMost));
  a.sequences = sequences_of(p);
  a.columns = a.sequences.capacity;
  a.mask.window = window_of(p);
  check_number("scale", p.scale);
  check_number("softcap", p.softcap);
  a.score.scale =
      p.scale > 0 ? p.scale : static_cast<float>(1 / std::sqrt(static_cast<double>(a.d)));
  a.score.softcap = p.softcap;
  a.score.sink_logit = view_of<1>(p.sink_logit);
  return a;
}

QuantAttend resolve(const fovea_quant_forward_params& p) {
  QuantAttend a{};
  a.attend = attend_of(p);
  a.v_t = view_of<4>(p.v_t);
  a.q_scale = view_of<3>(p.q_scale), a.k_scale = view_of<3>(p.k_scale);
  a.v_scale = view_of<3>(p.v_scale);
  a.q_block = p.q_block, a.k_block = p.k_block;
  check_block(kOp, "q_block", p.q_block);
  check_block(kOp, "k_block", p.k_block);
  check_order(kOp, p.code_order);
  if (!p.v.data == !p.v_t.data && a.attend.t)
    fail(FOVEA_INVALID_ARGUMENT, "%s: v.data and v_t.data are %s, wanted one of them", kOp,
         p.v.data ? "both given" : "both NULL");
  if (p.code_order && !p.v_t.data)
    fail(FOVEA_INVALID_ARGUMENT, "%s: code_order is %d without v_t, wanted 0", kOp, p.code_order);
  const auto needs = [](const char* block, int32_t value, const char* scale,
                        const fovea_tensor& x) {
    if (value && !x.data)
      fail(FOVEA_INVALID_ARGUMENT, "%s: %s is %d without %s, wanted 0", kOp, block, value, scale);
  };
  needs("q_block", p.q_block, "q_scale", p.q_scale);
  needs("k_block", p.k_block, "k_scale", p.k_scale);
  const Sequences& q = a.attend.sequences;
  const int64_t s = a.attend.s, t = a.attend.t;
  a.padded = entries(q.key_start, t, q.count, kCodeRun) * kCodeRun;
  if (p.v_t.data)
    check_entries(kOp, "v_t", 3, "padded", p.v_t.shape[3], a.padded, p.key_start, "key_start");
  if (p.q_scale.data)
    check_entries(kOp, "q_scale", 2, "q_blocks", p.q_scale.shape[2],
                  entries(q.query_start, s, q.count, p.q_block), p.query_start, "query_start");
  if (p.k_scale.data)
    check_entries(kOp, "k_scale", 2, "k_blocks", p.k_scale.shape[2],
                  entries(q.key_start, t, q.count, p.k_block), p.key_start, "key_start");
  if (p.v_scale.data)
    check_entries(kOp, "v_scale", 2, "v_blocks", p.v_scale.shape[2],
                  entries(q.key_start, t, q.count, 0), p.key_start, "key_start");
  a.permuted = p.code_order == FOVEA_CODE_ORDER_V_PERM16;
  return a;
}

}  // namespace

Plan plan(const Context& ctx, const fovea_quant_forward_params& params) {
  const QuantAttend request = resolve(params);
  if (ctx.backend == FOVEA_HOST) return choose(kOp, ctx, request, {quant_forward_host});
#if FOVEA_WITH_CUDA
  return choose(kOp, ctx, request, {quant_forward_sm90, quant_forward_simt});
#else
  return choose<QuantAttend>(kOp, ctx, request, {});
#endif
}

}  // namespace fovea
