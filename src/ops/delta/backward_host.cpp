// SPDX-License-Identifier: Apache-2.0
// x_delta_backward on the CPU, by host/recur.h.
#include "host/recur.h"
#include "ops/delta/delta.h"

namespace fovea {

extern const Kernel<RecurBackward> delta_backward_host = {
    "", [](const Context& ctx, const RecurBackward& call, Plan& plan) {
      host::plan_recur_backward(ctx, call, plan);
      return Text();
    }};

}  // namespace fovea
