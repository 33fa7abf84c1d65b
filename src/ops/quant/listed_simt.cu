// SPDX-License-Identifier: Apache-2.0
// The portable kernel, for every valid quant_forward over lists.
#include "cuda/launch.h"
#include "cuda/loop/list_tile.cuh"
#include "ops/quant/listed.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "quant_forward";

Text offer(const Context&, const QuantListed& call, Plan& plan) {
  const ListGrid grid(call.lists());
  plan.launch = [=](Context& ctx, void*) {
    if (call.skipped) check(cudaMemsetAsync(call.skipped, 0, sizeof(int64_t), stream(ctx)), kOp);
    if (!grid.work) return;
    grid.few ? quant_list_simt<1>(ctx, call, grid) : quant_list_simt<4>(ctx, call, grid);
  };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<QuantListed> quant_listed_simt = {"simt.lists", cuda::offer};

}  // namespace fovea
