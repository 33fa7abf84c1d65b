// SPDX-License-Identifier: Apache-2.0
// The choice among the instances of attention_backward for wide heads, and the passes around them.
#include <algorithm>
#include <vector>

#include "core/dtype.h"
#include "core/reasons.h"
#include "cuda/loop/key_terms.cuh"
#include "ops/attention/backward_simt.cuh"
#include "ops/attention/backward_wide.cuh"
#include "ops/attention/kernels.h"

namespace fovea {
namespace {

using namespace cuda;

constexpr char kOp[] = "attention_backward";
constexpr int64_t kWidest = 576;
const WideBackwardInstance kNone{};

// Every row of backward_wide.inc in this build.
const std::vector<WideBackwardInstance>& instances() {
  static const std::vector<WideBackwardInstance> rows = {
#define FOVEA_INSTANCE(...) backward_wide_sm80_instance<WideBackwardConfig80 __VA_ARGS__>(),
#include "instances/attention_backward_wide_sm80.inc"
#undef FOVEA_INSTANCE
  };
  return rows;
}

const WideBackwardInstance& find(const Attend& a, Own owner) {
  const BackwardKind kind = a.plain() ? BackwardKind::plain : BackwardKind::rich;
  for (const WideBackwardInstance& row : instances())
    if (row.config.dtype == a.dtype && row.config.kind == kind && row.config.owner == owner)
      return row;
  return kNone;
}

struct Choice {
  const WideBackwardInstance *dq, *dk, *dv;

  explicit Choice(const Attend& a)
      : dq(&find(a, Own::rows)), dk(&find(a, Own::keys_dk)), dv(&find(a, Own::keys_dv)) {}
  bool complete() const { return dq->launch && dk->launch && dv->launch; }
  int32_t shared_bytes(const Attend& a) const {
    return std::max({dq->shared_bytes(a), dk->shared_bytes(a), dv->shared_bytes(a)});
  }
};

Text refuses(const Context& ctx, const AttendBackward& call) {
  const Attend& a = call.forward;
  if (Text why = backward_mma_refuses(call, kWidest); !why.empty()) return why;
  const Choice c(a);
  if (!c.complete()) return no_instance(a.dtype, "d", a.d, "e", a.e);
  if (c.shared_bytes(a) > device_info(ctx).shared_block_bytes)
    return reason_shared(c.shared_bytes(a), device_info(ctx).shared_block_bytes);
  return "";
}

Text offer(const Context& ctx, const AttendBackward& call, Plan& plan) {
  if (Text why = refuses(ctx, call); !why.empty()) return why;
  const Attend& a = call.forward;
  const Choice c(a);
  plan.kernel += Text(".") + dtype_name(a.dtype) + ".d" + Text::number(c.dq->config.d) +
                 (a.plain() ? ".plain" : ".rich");
  const BackwardSlots slots(plan.workspace, call);
  // The call as its sums see it: a key head for each share.  dk and dv have one room for terms.
  Attend cut = a;
  const int64_t shares = key_shares(a, c.dk->inner, c.dk->own, false, device_info(ctx));
  cut.g *= shares;
  const int64_t width = std::max(call.dk ? a.d : 0, call.dv ? a.e : 0),
                terms = shares > 1 ? a.sequences.caches * a.t * cut.g * width : 0;
  const auto room = plan.workspace.add<float>(terms);
  plan.launch = [=](Context& ctx, void* base) {
    const BackwardSimt simt = slots.at(base, call);
    float* const to = shares > 1 ? room.at(base) : nullptr;
    backward_preprocess(ctx, simt);
    if (call.dalibi) backward_row_alibi(ctx, simt);
    if (call.dq) c.dq->launch(ctx, call, simt.delta, 1, nullptr);
    const auto sum = [&](const WideBackwardInstance& instance, const GradientView& out,
                         int64_t width) {
      if (!out) return;
      instance.launch(ctx, call, simt.delta, shares, to);
      if (to) sum_key_terms(ctx, kOp, cut, out, to, call.forward.g, width);
    };
    sum(*c.dk, call.dk, call.forward.d), sum(*c.dv, call.dv, call.forward.e);
    backward_postprocess(ctx, simt);
  };
  return "";
}

}  // namespace

extern const Kernel<AttendBackward> attention_backward_wide_sm80 = {"sm80_wide", offer};

}  // namespace fovea
