// SPDX-License-Identifier: Apache-2.0
// conv_attention_backward on the CPU: the strips of each head (strip_gradient_host.h) in the sweep
// of backward_sweep_host.h, where a bundle is one key head.
#include "core/dtype.h"
#include "ops/conv_attention/backward_sweep_host.h"

namespace fovea {
namespace {

using namespace conv_host;

struct BackwardPlan {
  GradientRoom room;
  SweepPlan sweep;
};

void launch(const BackwardPlan& plan, Context& ctx, void* base) {
  const ConvAttendBackward& b = plan.sweep.b;
  const Call call(b.forward);
  const Sweep sweep(plan.sweep, call, base);
  sweep.run(ctx, 1, [&](const Sweep::Visit& at) {
    StripGradient strip(call, b, plan.room, at.room, at.q, at.sequence, at.head, at.row);
    const float* dq = strip.run(at.begin, at.end, at.sums[0]);
    if (b.dq) sweep.save_dq(at, 0, strip.own(), dq);
    return strip.own().count;
  });
}

std::string offer(const Context& ctx, const ConvAttendBackward& b, Plan& plan) {
  const Call call(b.forward);
  BackwardPlan p;
  Layout worker;
  p.room = GradientRoom(call, b, worker);
  p.sweep = SweepPlan(ctx, call, b, call.group, 0, worker, plan.workspace);
  plan.kernel += std::string(".") + call.simd.name + "." + dtype_name(call.a.dtype) + ".d" +
                 std::to_string(call.a.d);
  plan.launch = [p](Context& context, void* base) { launch(p, context, base); };
  return "";
}

}  // namespace

extern const Kernel<ConvAttendBackward> conv_attention_backward_host = {"", offer};

}  // namespace fovea
