// SPDX-License-Identifier: Apache-2.0
// Budgets of heads: a thread owns a head of a batch.
#include "cuda/launch.h"
#include "ops/flex/budget.h"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "x_flex_forward";
constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    budget_kernel(const __grid_constant__ FlexBudget a, int64_t work) {
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t i = w * kThreads + threadIdx.x;
    if (i < a.b * a.h) a.run(i / a.h, i % a.h);
  }
}

}  // namespace
}  // namespace cuda

extern const Kernel<FlexBudget> flex_budget_simt = {
    "simt", [](const Context&, const FlexBudget& a, Plan& plan) {
      plan.launch = [a](Context& ctx, void*) {
        const int64_t work = (a.b * a.h + cuda::kThreads - 1) / cuda::kThreads;
        cuda::launch<cuda::budget_kernel>(ctx, cuda::kOp, work, cuda::kThreads, 0, a, work);
      };
      return Text();
    }};

}  // namespace fovea
