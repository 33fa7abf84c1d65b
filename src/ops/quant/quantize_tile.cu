// SPDX-License-Identifier: Apache-2.0
// Which calls of quant_quantize take the kernels for aligned rows (quantize_sm89.cuh).
#include "core/chunk.h"
#include "core/dtype.h"
#include "core/reasons.h"
#include "ops/quant/quantize.cuh"

namespace fovea {
namespace cuda {
namespace {

struct Instance {
  int32_t dtype;
  int64_t d;
  void (*run)(Context& ctx, const Quantize& a, const Partials& partials);
};

// nullptr: no row of quantize.inc in this build.
const Instance* instance_of(const Quantize& a) {
  static constexpr Instance rows[] = {
#define FOVEA_INSTANCE(dtype, d) {dtype, d, quantize_tile<dtype, d>},
#include "instances/quant_quantize_sm89.inc"
#undef FOVEA_INSTANCE
    {}
  };
  for (const Instance& row : rows)
    if (row.run && row.dtype == a.x_dtype && row.d == a.d) return &row;
  return nullptr;
}

Text offer(const Context&, const Quantize& a, Plan& plan) {
  if (a.d != 64 && a.d != 128 && a.d != 256) return reason("d", a.d, "64, 128 or 256");
  if (a.per_byte() == 2 && a.code_t) return "code_t is given with code_format";
  if (a.per_byte() == 2 && a.x_dtype == FOVEA_F32) return "x is f32 with code_format";
  if (a.permutes && a.smooth == FOVEA_SMOOTH_BLOCK) return "smooth is 2 with v_perm16";
  const size_t bytes = static_cast<size_t>(dtype_bytes(a.x_dtype));
  if (!chunked(a.x, bytes, kTileColumns)) return reason_rows("x");
  if (a.code && !chunked(a.code, 1, kTileColumns / a.per_byte())) return reason_rows("code");
  if (a.code_t && !chunked(a.code_t, 1, kTileColumns)) return reason_rows("code_t");
  if (unit_count(a) * a.h > INT32_MAX) return "more than 2^31 units of work";
  const Instance* const tile = instance_of(a);
  if (!tile) return reason("d", a.d, "a width that this build has for x.dtype");
  const PartialSlots slots(a, plan);
  plan.kernel += Text(".") + dtype_name(a.x_dtype) + ".d" + Text::number(a.d);
  plan.launch = [a, slots, run = tile->run](Context& ctx, void* base) {
    run(ctx, a, slots.at(base));
    launch_delta(ctx, a);
  };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<Quantize> quant_quantize_tile = {"tile", cuda::offer};

}  // namespace fovea
