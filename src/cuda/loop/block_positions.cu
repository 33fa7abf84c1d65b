// SPDX-License-Identifier: Apache-2.0
// Positions of rows among keys of blocks: a thread owns a row of a batch.
#include "core/block_positions.h"

#include "cuda/launch.h"

namespace fovea {
namespace cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    positions_kernel(const __grid_constant__ BlockPositions a, int64_t work) {
  const int64_t tiles = (a.s + kThreads - 1) / kThreads;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t batch = w / tiles, i = w % tiles * kThreads + threadIdx.x;
    if (i < a.s) *a.position.at<int32_t>(batch, i) = a.at(a.sequences[batch], i);
  }
}

}  // namespace
}  // namespace cuda

extern const Kernel<BlockPositions> block_positions_simt = {
    "simt", [](const Context&, const BlockPositions& a, Plan& plan) {
      plan.launch = [a](Context& ctx, void*) {
        const int64_t work = a.b * ((a.s + cuda::kThreads - 1) / cuda::kThreads);
        cuda::launch<cuda::positions_kernel>(ctx, a.op, work, cuda::kThreads, 0, a, work);
      };
      return Text();
    }};

}  // namespace fovea
