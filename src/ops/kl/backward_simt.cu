// SPDX-License-Identifier: Apache-2.0
// The kernel of last resort: takes every valid kl_backward.
#include "core/dtype.h"
#include "ops/kl/backward_simt.cuh"

namespace fovea {
namespace cuda {
namespace {

void enqueue(Context& ctx, const KlBackward& b, KlOwn own, const float* gain) {
  const KlGradient gradient = gradient_of(b, own, gain);
  const AttendBackward& call = gradient.call;
  if (!call.dq && !call.dk) return;
  const KlSide& other = own == KlOwn::first ? b.forward.second : b.forward.first;
  const KlGradientSimt simt(gradient, other.dtype);
  if (call.dq) gradient_simt<Owner::dq>(ctx, gradient.op, simt);
  if (call.dk) gradient_simt<Owner::dk>(ctx, gradient.op, simt);
}

Text offer(const Context&, const KlBackward& b, Plan& plan) {
  plan.kernel += Text(".") + dtype_name(b.forward.first.dtype);
  const GainSlots slots(plan.workspace, b);
  plan.launch = [=](Context& ctx, void* base) {
    const float* gain = slots.fill(ctx, b, base);
    for (KlOwn own : {KlOwn::first, KlOwn::second}) enqueue(ctx, b, own, gain);
  };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<KlBackward> kl_backward_simt = {"simt", cuda::offer};
extern const Kernel<KlBackward> kl_jensen_shannon_backward_simt = {"simt", cuda::offer};

}  // namespace fovea
