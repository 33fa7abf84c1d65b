// SPDX-License-Identifier: Apache-2.0
// conv_attention_backward on the CPU: the strips of each head (strip_gradient_host.h) in the sweep
// of backward_sweep_host.h, where a bundle is one key head.
#include "ops/conv_attention/backward_sweep_host.h"

namespace fovea {
namespace {

using namespace conv_host;

struct BackwardPlan {
  GradientRoom room;
  SweepPlan sweep;
};

struct Backward {
  const BackwardPlan& plan;
  void* base;

  void run(Context& ctx) const {
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
};

Text offer(const Context& ctx, const ConvAttendBackward& b, Plan& plan) {
  const Call call(b.forward);
  BackwardPlan p;
  Layout worker;
  p.room = GradientRoom(call, b, worker);
  p.sweep = SweepPlan(ctx, call, b, call.group, 0, worker, plan.workspace);
  host::host_plan<Backward>(plan, p, host::shape_name(call.a.dtype, call.a.d));
  return "";
}

}  // namespace

extern const Kernel<ConvAttendBackward> conv_attention_backward_host = {"", offer};

}  // namespace fovea
