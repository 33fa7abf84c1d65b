// SPDX-License-Identifier: Apache-2.0
// Positions of rows among compressed keys: a thread owns a row of a batch.
#include "cuda/launch.h"
#include "ops/nsa/positions.h"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "x_nsa_backward";
constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    positions_kernel(const __grid_constant__ NsaPositions a, int64_t work) {
  const int64_t tiles = (a.s + kThreads - 1) / kThreads;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t batch = w / tiles, i = w % tiles * kThreads + threadIdx.x;
    if (i < a.s) *a.position.at<int32_t>(batch, i) = a.at(a.sequences[batch], i);
  }
}

}  // namespace
}  // namespace cuda

extern const Kernel<NsaPositions> nsa_positions_simt = {
    "simt", [](const Context&, const NsaPositions& a, Plan& plan) {
      plan.launch = [a](Context& ctx, void*) {
        const int64_t work = a.b * ((a.s + cuda::kThreads - 1) / cuda::kThreads);
        cuda::launch<cuda::positions_kernel>(ctx, cuda::kOp, work, cuda::kThreads, 0, a, work);
      };
      return Text();
    }};

}  // namespace fovea
