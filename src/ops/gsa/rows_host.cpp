// SPDX-License-Identifier: Apache-2.0
// Rows between the passes on the CPU: an item is a token with its heads.
#include "host/sweep.h"
#include "ops/gsa/rows.h"

namespace fovea {
namespace {

constexpr double kSlotCost = 10;  // nanoseconds

// One thread has all slots.
struct Alone {
  static int64_t lane() { return 0; }
  static int64_t lanes() { return 1; }
  static float max(float x) { return x; }
  static float sum(float x) { return x; }
};

class Rows {
 public:
  Rows(const GsaRows& a, void*) : a_(a) {}
  void run(Context& ctx) const {
    const double cost = static_cast<double>(a_.rows()) * static_cast<double>(a_.m);
    host::pool(ctx).run(a_.heads ? a_.b * a_.s : 0, kSlotCost * cost, [&](int64_t token, int32_t) {
      for (int64_t n = 0; n < a_.heads; ++n) a_(Alone(), token * a_.heads + n);
    });
  }

 private:
  const GsaRows& a_;
};

}  // namespace

extern const Kernel<GsaRows> gsa_rows_host = {"", [](const Context&, const GsaRows& a, Plan& plan) {
                                                host::host_plan<Rows>(plan, a, Text());
                                                return Text();
                                              }};

}  // namespace fovea
