// SPDX-License-Identifier: Apache-2.0
// The kernel of last resort: takes every valid conv_attention_backward.
#include <string>

#include "core/dtype.h"
#include "ops/conv_attention/backward.cuh"
#include "ops/conv_attention/strip_simt.cuh"

namespace fovea {
namespace cuda {
namespace {

template <ConvOwner Owner>
void run(Context& ctx, const ConvBackwardSimt& call, int64_t width) {
  with_chunks(width, [&]<int Chunks> { conv_gradient_simt<Owner, Chunks>(ctx, call); });
}

void enqueue(Context& ctx, const ConvBackwardSimt& call) {
  const ConvAttendBackward& b = call.b;
  const Attend& a = b.forward.attend;
  conv_clear(ctx, b);
  if (!a.h) return;
  conv_delta(ctx, b, call.delta);
  if (b.dq || b.dweight) run<ConvOwner::rows>(ctx, call, b.dq ? a.d : 1);
  if (b.dk) run<ConvOwner::dk>(ctx, call, a.d);
  if (b.dv) run<ConvOwner::dv>(ctx, call, a.e);
  conv_add_dweight(ctx, b, {call.dweight, call.row_tiles});
}

std::string offer(const Context&, const ConvAttendBackward& b, Plan& plan) {
  const ConvAttend& c = b.forward;
  const Attend& a = c.attend;
  plan.kernel += std::string(".") + dtype_name(a.dtype);
  const ConvBackwardSimt call(b);
  const auto delta = plan.workspace.add<float>(a.b * a.h * c.rows_out);
  const auto dweight = plan.workspace.add<double>(
      b.dweight ? a.sequences.count * a.h * call.row_tiles * c.taps() : 0);
  plan.launch = [=](Context& ctx, void* base) {
    ConvBackwardSimt now = call;
    now.delta = delta.at(base), now.dweight = dweight.at(base);
    enqueue(ctx, now);
  };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<ConvAttendBackward> conv_attention_backward_simt = {"simt", cuda::offer};

}  // namespace fovea
