// SPDX-License-Identifier: Apache-2.0
// The portable kernel, for every valid x_quant_backward.
#include "core/dtype.h"
#include "ops/quantised/backward.cuh"

namespace fovea {
namespace cuda {
namespace {

Text offer(const Context&, const QuantBackward& b, Plan& plan) {
  const Attend& a = b.call.forward;
  plan.kernel += Text(".") + dtype_name(a.dtype);
  const QuantGradientSlots slots(plan.workspace, b, false);
  plan.launch = [=](Context& ctx, void* base) {
    const Attend& a = b.call.forward;
    const QuantSimt call{slots.at(base, b), operand_of(a.v, a.dtype, a.e),
                         operand_of(b.call.dout, a.o_dtype, a.e)};
    quant_backward_rows(ctx, call.x);
    const auto sum = [&]<Owner owner>(int64_t width) {
      with_chunks(width, [&]<int Chunks> { quant_backward_simt<owner, Chunks>(ctx, call); });
    };
    if (b.call.dq) sum.template operator()<Owner::dq>(a.d);
    if (b.call.dk) sum.template operator()<Owner::dk>(a.d);
    if (b.call.dv) sum.template operator()<Owner::dv>(a.e);
  };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<QuantBackward> x_quant_backward_simt = {"simt", cuda::offer};

}  // namespace fovea
