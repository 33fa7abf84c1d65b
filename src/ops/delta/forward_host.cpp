// SPDX-License-Identifier: Apache-2.0
// x_delta_forward on the CPU, by host/recur.h.
#include "host/recur.h"
#include "ops/delta/delta.h"

namespace fovea {

extern const Kernel<Recur> delta_forward_host = {
    "", [](const Context& ctx, const Recur& call, Plan& plan) {
      host::plan_recur(ctx, call, plan);
      return Text();
    }};

}  // namespace fovea
