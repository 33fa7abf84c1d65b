// SPDX-License-Identifier: Apache-2.0
// x_select_line on the CPU: an item is a list row of a list head.
#include "host/sweep.h"
#include "ops/select/line.h"

namespace fovea {

extern const Kernel<SelectLine> x_select_line_host = {
    "", [](const Context&, const SelectLine& a, Plan& plan) {
      plan.kernel += a.bits ? ".bits" : a.in_blocks ? ".blocks" : ".lines";
      plan.launch = [a](Context& ctx, void*) {
        const int64_t items = a.rows.b * a.rows.x * a.rows.n;
        const double lines = static_cast<double>(a.verticals + a.slashes + 8 * a.bytes);
        host::pool(ctx).run(items, static_cast<double>(items) * lines, [&](int64_t item, int32_t) {
          a.run<LoneThread>(item / a.rows.n / a.rows.x, item % a.rows.n,
                            item / a.rows.n % a.rows.x);
        });
      };
      return Text();
    }};

}  // namespace fovea
