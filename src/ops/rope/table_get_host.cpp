// SPDX-License-Identifier: Apache-2.0
// One item is one column pair at every position.
#include "host/device.h"
#include "ops/rope/table.h"

namespace fovea {
namespace {

Text offer(const Context&, const RopeTable& a, Plan& plan) {
  plan.launch = [a](Context& ctx, void*) {
    host::pool(ctx).run(a.half, 40.0 * static_cast<double>(a.half * a.positions),
                        [&](int64_t i, int32_t) {
                          const double frequency = frequency_of(a, i);
                          for (int64_t row = 0; row < a.positions; ++row)
                            fill_entry(a, frequency, row, i);
                        });
  };
  return "";
}

}  // namespace

extern const Kernel<RopeTable> rope_table_get_host = {"", offer};

}  // namespace fovea
