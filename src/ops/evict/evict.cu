// SPDX-License-Identifier: Apache-2.0
// x_evict_forward's parts: a thread owns the score of a key, a warp a row that stays.
#include "cuda/launch.h"
#include "ops/evict/evict.h"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "x_evict_forward";
constexpr int kThreads = 256, kRows = kThreads / 32;

__global__ void __launch_bounds__(kThreads)
    score_kernel(const __grid_constant__ EvictScore a, int64_t tiles, int64_t work) {
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t head = w / tiles, j = w % tiles * kThreads + threadIdx.x;
    if (j < a.t) a.run(head / a.g, head % a.g, j);
  }
}

__global__ void __launch_bounds__(kThreads)
    rows_kernel(const __grid_constant__ EvictRows a, int64_t work) {
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t row = w * kRows + threadIdx.x / 32;
    if (row < a.b * a.keep * a.g)
      a.run(row / a.g / a.keep, row / a.g % a.keep, row % a.g, threadIdx.x % 32, 32);
  }
}

}  // namespace
}  // namespace cuda

extern const Kernel<EvictScore> evict_score_simt = {
    "simt", [](const Context&, const EvictScore& a, Plan& plan) {
      plan.launch = [a](Context& ctx, void*) {
        const int64_t tiles = cuda::ceil_div(a.t, cuda::kThreads), work = a.b * a.g * tiles;
        cuda::launch<cuda::score_kernel>(ctx, cuda::kOp, work, cuda::kThreads, 0, a, tiles, work);
      };
      return Text();
    }};
extern const Kernel<EvictRows> evict_rows_simt = {
    "simt", [](const Context&, const EvictRows& a, Plan& plan) {
      plan.launch = [a](Context& ctx, void*) {
        const int64_t work = cuda::ceil_div(a.b * a.keep * a.g, cuda::kRows);
        cuda::launch<cuda::rows_kernel>(ctx, cuda::kOp, work, cuda::kThreads, 0, a, work);
      };
      return Text();
    }};

}  // namespace fovea
