// SPDX-License-Identifier: Apache-2.0
// Rows between the passes of x_gsa: a warp owns a row, its lanes the slots c = lane mod 32.  A
// maximum and sums go through shuffles in a fixed order.  No shared memory, no barrier.
#include "cuda/launch.h"
#include "ops/gsa/rows.h"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "x_gsa";
constexpr int kWarp = 32, kWarps = 8;

struct Lanes {
  __device__ static int64_t lane() { return threadIdx.x % kWarp; }
  __device__ static int64_t lanes() { return kWarp; }
  __device__ static float max(float x) {
    for (int step = kWarp / 2; step; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
    return x;
  }
  __device__ static float sum(float x) {
    for (int step = kWarp / 2; step; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    return x;
  }
};

__global__ void __launch_bounds__(kWarp* kWarps)
    rows_kernel(const __grid_constant__ GsaRows a, int64_t work) {
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t row = w * kWarps + threadIdx.x / kWarp;  // the same in all lanes of a warp
    if (row < a.rows()) a(Lanes(), row);
  }
}

}  // namespace
}  // namespace cuda

bool gsa_on_hopper(const Context& ctx) {
  return cuda::device_info(ctx).arch == 90;
}

extern const Kernel<GsaRows> gsa_rows_simt = {
    "simt", [](const Context&, const GsaRows& a, Plan& plan) {
      plan.launch = [a](Context& ctx, void*) {
        const int64_t work = cuda::ceil_div(a.rows(), cuda::kWarps);
        cuda::launch<cuda::rows_kernel>(ctx, cuda::kOp, work, cuda::kWarp * cuda::kWarps, 0, a,
                                        work);
      };
      return Text();
    }};

}  // namespace fovea
