// SPDX-License-Identifier: Apache-2.0
// x to e4m3 codes: one item is one head of a unit of 128 tokens.  One scale a sequence: a first
// pass leaves every item's largest magnitude, which the second gathers.
#include <algorithm>
#include <cmath>

#include "core/convert.h"
#include "core/dtype.h"
#include "host/device.h"
#include "ops/quant/kernels.h"

namespace fovea {
namespace {

struct Room {
  Slot<float> most;  // (units, h), with one scale a sequence
  Slot<float> rows;  // (workers, 128 or s, d)
};

// y, row on row, and its largest magnitude.
template <class X>
void load_rows(const Quantize& a, const CodeUnit& unit, int64_t head, float* y) {
  const float root = a.run ? static_cast<float>(1 / std::sqrt(static_cast<double>(a.run))) : 1.0f;
  for (int64_t i = 0; i < unit.tokens; ++i, y += a.d) {
    const X* x = a.x.as<X>() + token_at(a.x, unit, head, i);
    for (int64_t c = 0; c < a.d; ++c) y[c] = to_float(x[c * a.x.stride[3]]);
    if (!a.run) continue;
    for (int64_t c = 0; c < a.d; ++c) y[c] = flips(a.seed, c) ? -y[c] : y[c];
    for (int64_t step = 1; step < a.run; step *= 2)
      for (int64_t c = 0; c < a.d; ++c) {
        if (c & step) continue;
        const float low = y[c], high = y[c + step];
        y[c] = low + high, y[c + step] = low - high;
      }
    for (int64_t c = 0; c < a.d; ++c) y[c] *= root;
  }
}

float largest(const float* y, int64_t count) {
  float most = 0;
  for (int64_t i = 0; i < count; ++i) most = greatest(most, std::abs(y[i]));
  return most;
}

void store_codes(const Quantize& a, const CodeUnit& unit, int64_t head, const float* y,
                 const CodePart& part, float factor) {
  const auto store = [&](E4m3* to, int64_t stride, int64_t i) {
    const bool zero = factor == 0 || i >= unit.tokens;
    for (int64_t c = 0; c < a.d; ++c)
      to[c * stride] = zero ? E4m3{0} : from_float<E4m3>(y[i * a.d + c] * factor);
  };
  for (int64_t i = part.begin; a.code && i < part.begin + part.tokens; ++i)
    store(a.code.as<E4m3>() + token_at(a.code, unit, head, i), a.code.stride[3], i);
  for (int64_t i = part.begin; a.code_t && unit.column < a.padded && i < part.end; ++i)
    store(a.code_t.as<E4m3>() + column_at(a.code_t, unit, head) +
              (a.permutes ? permuted(i) : i) * a.code_t.stride[3],
          a.code_t.stride[2], i);
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
    store_codes(a, unit, head, y, part, group.factor);
  }
}

std::string offer(const Context& ctx, const Quantize& a, Plan& plan) {
  const int64_t items = unit_count(a) * a.h;
  Room room;
  room.most = plan.workspace.add<float>(a.block ? 0 : items);
  room.rows = plan.workspace.add<float>(host::workers_for(ctx, static_cast<double>(items)),
                                        std::min(kCodeRun, a.s), a.d);
  plan.kernel += std::string(".") + dtype_name(a.x_dtype);
  plan.launch = [a, room, items](Context& ctx, void* base) {
    float* most = room.most.at(base);
    const double cost = 3.0 * static_cast<double>(items * kCodeRun * a.d);
    with_fp(a.x_dtype, [&](auto x) {
      const auto walk = [&](auto&& visit) {
        host::pool(ctx).run(items, cost, [&](int64_t item, int32_t worker) {
          const int64_t slot = item / a.h, head = item % a.h;
          const CodeUnit unit = unit_at(a, slot);
          if (unit.sequence < 0) return;
          float* y = room.rows.at(base) + worker * std::min(kCodeRun, a.s) * a.d;
          load_rows<decltype(x)>(a, unit, head, y);
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
