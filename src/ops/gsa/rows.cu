// SPDX-License-Identifier: Apache-2.0
// Rows between the passes of x_gsa: eight lanes own a row, each the slots c = lane mod 8.  What a
// row costs beside its slots is so shared by four rows of a warp.  A maximum and sums go through
// shuffles in a fixed order.  No shared memory, no barrier.
#include "cuda/launch.h"
#include "ops/gsa/rows.h"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "x_gsa";
constexpr int kThreads = 256, kLanes = 8, kRows = kThreads / kLanes;

// Rows of a warp may take different branches: a shuffle is of the row's own lanes.
struct Lanes {
  __device__ static int64_t lane() { return threadIdx.x % kLanes; }
  __device__ static int64_t lanes() { return kLanes; }
  __device__ static unsigned own() {
    return ((1u << kLanes) - 1) << (threadIdx.x % 32 / kLanes * kLanes);
  }
  __device__ static float max(float x) {
    for (int step = kLanes / 2; step; step /= 2) x = fmaxf(x, __shfl_xor_sync(own(), x, step));
    return x;
  }
  __device__ static float sum(float x) {
    for (int step = kLanes / 2; step; step /= 2) x += __shfl_xor_sync(own(), x, step);
    return x;
  }
};

__global__ void __launch_bounds__(kThreads)
    rows_kernel(const __grid_constant__ GsaRows a, int64_t work) {
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t row = w * kRows + threadIdx.x / kLanes;
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
        const int64_t work = cuda::ceil_div(a.rows(), cuda::kRows);
        cuda::launch<cuda::rows_kernel>(ctx, cuda::kOp, work, cuda::kThreads, 0, a, work);
      };
      return Text();
    }};

}  // namespace fovea
