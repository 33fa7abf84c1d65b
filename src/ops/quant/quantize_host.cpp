// SPDX-License-Identifier: Apache-2.0
// x to e4m3 codes: one item is one head of a unit of 128 tokens.  One scale a sequence: a first
// pass leaves every item's largest magnitude, which the second gathers.
#include <algorithm>

#include "core/dtype.h"
#include "host/device.h"
#include "ops/quant/quantize.h"

namespace fovea {
namespace {

float largest(const float* y, int64_t count) {
  float most = 0;
  for (int64_t i = 0; i < count; ++i) most = greatest(most, std::abs(y[i]));
  return most;
}

void quantize_unit(const Quantize& a, const CodeUnit& unit, int64_t slot, int64_t head,
                   const float* y, const float* most) {
  const Interval units = a.block ? Interval{} : units_of(a, unit, slot);
  float whole = 0;
  for (int64_t i = units.begin; i < units.end; ++i) whole = greatest(whole, most[i * a.h + head]);
  for (int i = 0; i < CodePart::count(a); ++i) {
    const CodePart part(a, unit, i);
    const CodeScale group(a.block ? largest(y + part.begin * a.d, part.tokens * a.d) : whole);
    put_scale(a, unit, head, part, group.scale);
    for (int64_t i = part.begin; i < part.end; ++i)
      store_token<1>(a, unit, head, i, group.factor, 0, y + (i < unit.tokens ? i * a.d : 0));
  }
}

Text offer(const Context& ctx, const Quantize& a, Plan& plan) {
  const int64_t items = unit_count(a) * a.h;
  // (units, h), with one scale a sequence; (workers, 128 or s, d).
  const Slot<float> most_slot = plan.workspace.add<float>(a.block ? 0 : items);
  const Slot<float> rows = plan.workspace.add<float>(
      host::workers_for(ctx, static_cast<double>(items)), std::min(kCodeRun, a.s), a.d);
  plan.kernel += Text(".") + dtype_name(a.x_dtype);
  plan.launch = [=](Context& ctx, void* base) {
    float* most = most_slot.at(base);
    const double cost = 3.0 * static_cast<double>(items * kCodeRun * a.d);
    with_fp(a.x_dtype, [&](auto x) {
      const auto walk = [&](auto&& visit) {
        host::pool(ctx).run(items, cost, [&](int64_t item, int32_t worker) {
          const int64_t slot = item / a.h, head = item % a.h;
          const CodeUnit unit = unit_at(a, slot);
          if (unit.sequence < 0) return;
          float* y = rows.at(base) + worker * std::min(kCodeRun, a.s) * a.d;
          for (int64_t i = 0; i < unit.tokens; ++i)
            load_token<decltype(x), 1>(a, unit, head, i, 0, y + i * a.d);
          visit(unit, slot, head, y);
        });
      };
      if (!a.block)
        walk([&](const CodeUnit& unit, int64_t slot, int64_t head, const float* y) {
          most[slot * a.h + head] = largest(y, unit.tokens * a.d);
        });
      walk([&](const CodeUnit& unit, int64_t slot, int64_t head, const float* y) {
        quantize_unit(a, unit, slot, head, y, most);
      });
    });
  };
  return "";
}

}  // namespace

extern const Kernel<Quantize> quant_quantize_host = {"", offer};

}  // namespace fovea
