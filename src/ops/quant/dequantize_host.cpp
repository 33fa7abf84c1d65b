// SPDX-License-Identifier: Apache-2.0
// Codes to numbers: one item is one head of a unit of 128 tokens.
#include "core/dtype.h"
#include "host/device.h"
#include "ops/quant/dequantize.h"

namespace fovea {
namespace {

Text offer(const Context& ctx, const Dequantize& a, Plan& plan) {
  const int64_t items = unit_count(a) * a.h;
  const Slot<float> rows = plan.workspace.add<float>(
      host::workers_for(ctx, static_cast<double>(items)), a.run && a.s ? a.d : 0);
  plan.kernel += Text(".") + dtype_name(a.y_dtype);
  plan.launch = [=](Context& ctx, void* base) {
    const double cost = 4.0 * static_cast<double>(items * kCodeRun * a.d);
    with_fp(a.y_dtype, [&](auto y) {
      host::pool(ctx).run(items, cost, [&](int64_t item, int32_t worker) {
        const CodeUnit unit = unit_at(a, item / a.h);
        if (unit.sequence < 0) return;
        float* row = rows.at(base) + worker * a.d;
        for (int64_t i = 0; i < unit.tokens; ++i)
          restore_token<decltype(y), 1>(a, unit, item % a.h, i, 0, row);
      });
    });
  };
  return "";
}

}  // namespace

extern const Kernel<Dequantize> quant_dequantize_host = {"", offer};

}  // namespace fovea
