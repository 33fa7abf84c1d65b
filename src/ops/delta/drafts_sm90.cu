// SPDX-License-Identifier: Apache-2.0
// x_delta_forward for drafts of many heads on Hopper, by cuda/loop/recur.h.
#include "cuda/loop/recur.h"
#include "ops/delta/delta.h"

namespace fovea {
namespace {

constexpr cuda::DraftInstance kInstances[] = {
#define FOVEA_INSTANCE(dtype, columns, form) \
  {Recurrence::form, cuda::recur_drafts<Recurrence::form>},
#include "instances/delta_drafts_sm90.inc"
#undef FOVEA_INSTANCE
    {}};

}  // namespace

extern const Kernel<Recur> delta_drafts_sm90 = {
    "sm90", [](const Context& ctx, const Recur& call, Plan& plan) {
      return cuda::plan_drafts(ctx, "x_delta_forward", call, kInstances, plan);
    }};

}  // namespace fovea
