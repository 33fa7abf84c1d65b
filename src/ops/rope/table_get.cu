// SPDX-License-Identifier: Apache-2.0
// A thread owns one column pair at kRows positions, and computes its power once.
#include "cuda/launch.h"
#include "ops/rope/table.h"

namespace fovea {
namespace {

constexpr int kThreads = 128;
constexpr int64_t kRows = 16;

__global__ void __launch_bounds__(kThreads) rope_table_get_kernel(RopeTable a) {
  const int64_t work = (a.positions + kRows - 1) / kRows * a.half;
  for (int64_t w = blockIdx.x * int64_t{kThreads} + threadIdx.x; w < work;
       w += int64_t{gridDim.x} * kThreads) {
    const int64_t i = w % a.half, begin = w / a.half * kRows;
    const int64_t end = begin + kRows < a.positions ? begin + kRows : a.positions;
    const double frequency = frequency_of(a, i);
    for (int64_t row = begin; row < end; ++row) fill_entry(a, frequency, row, i);
  }
}

Text offer(const Context&, const RopeTable& a, Plan& plan) {
  plan.launch = [a](Context& ctx, void*) {
    const int64_t work = cuda::ceil_div(a.positions, kRows) * a.half;
    cuda::launch<rope_table_get_kernel>(ctx, "rope_table_get",
                                        cuda::ceil_div(work, int64_t{kThreads}), kThreads, 0, a);
  };
  return "";
}

}  // namespace

extern const Kernel<RopeTable> rope_table_get_cuda = {"", offer};

}  // namespace fovea
