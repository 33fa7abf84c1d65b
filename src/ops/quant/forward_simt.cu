// SPDX-License-Identifier: Apache-2.0
// The kernel of last resort: takes every valid quant_forward.
#include "cuda/loop/attend_simt.cuh"
#include "ops/quant/forward.cuh"

namespace fovea {
namespace cuda {
namespace {

Text offer(const Context&, const QuantAttend& a, Plan& plan) {
  plan.launch = [=](Context& ctx, void*) {
    with_chunks<2>(a.attend.e, [&]<int Chunks> { quant_simt<Chunks>(ctx, a); });
  };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<QuantAttend> quant_forward_simt = {"simt", cuda::offer};

}  // namespace fovea
