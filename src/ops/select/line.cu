// SPDX-License-Identifier: Apache-2.0
// x_select_line: a thread owns a list row of a list head (line.h).  The lines of a head are shared
// by its rows and come from the caches.
#include "cuda/launch.h"
#include "ops/select/line.h"

namespace fovea {
namespace cuda {
namespace {

constexpr int kThreads = 64;  // walks are long and rows few

__global__ void __launch_bounds__(kThreads)
    lines_kernel(const __grid_constant__ SelectLine a, int64_t work) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t w = int64_t{blockIdx.x} * kThreads + threadIdx.x; w < work; w += step)
    a.run(w / a.rows.n / a.rows.x, w % a.rows.n, w / a.rows.n % a.rows.x);
}

}  // namespace
}  // namespace cuda

extern const Kernel<SelectLine> x_select_line_simt = {
    "simt", [](const Context&, const SelectLine& a, Plan& plan) {
      plan.launch = [a](Context& ctx, void*) {
        const int64_t work = a.rows.b * a.rows.x * a.rows.n;
        cuda::launch<cuda::lines_kernel>(ctx, "x_select_line", cuda::ceil_div(work, cuda::kThreads),
                                         cuda::kThreads, 0, a, work);
      };
      return Text();
    }};

}  // namespace fovea
