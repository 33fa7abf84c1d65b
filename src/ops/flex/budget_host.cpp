// SPDX-License-Identifier: Apache-2.0
// Budgets of heads on the CPU: an item is a batch.
#include "host/sweep.h"
#include "ops/flex/budget.h"

namespace fovea {
namespace {

class Run {
 public:
  Run(const FlexBudget& a, void*) : a_(a) {}
  void run(Context& ctx) const {
    const double cost = static_cast<double>(a_.b) * static_cast<double>(a_.h);
    host::pool(ctx).run(a_.b, cost, [&](int64_t batch, int32_t) {
      for (int64_t head = 0; head < a_.h; ++head) a_.run(batch, head);
    });
  }

 private:
  const FlexBudget& a_;
};

}  // namespace

extern const Kernel<FlexBudget> flex_budget_host = {
    "", [](const Context&, const FlexBudget& a, Plan& plan) {
      host::host_plan<Run>(plan, a, Text());
      return Text();
    }};

}  // namespace fovea
