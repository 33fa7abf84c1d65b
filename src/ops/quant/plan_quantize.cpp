// SPDX-License-Identifier: Apache-2.0
#include "core/fields.h"
#include "core/plan.h"
#include "fovea/quant.h"
#include "ops/quant/kernels.h"
#include "ops/quant/scale_fields.h"

namespace fovea {
namespace {

constexpr char kQuantize[] = "quant_quantize";

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

}  // namespace

Plan plan(const Context& ctx, const fovea_quant_quantize_params& params) {
  return choose(kQuantize, ctx, resolve(params), quant_quantize_host,
                FOVEA_CUDA_KERNELS(quant_quantize_tile, quant_quantize_any));
}

}  // namespace fovea
