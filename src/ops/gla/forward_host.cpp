// SPDX-License-Identifier: Apache-2.0
// x_gla_forward on the CPU, by host/recur.h.
#include "host/recur.h"
#include "ops/gla/gla.h"

namespace fovea {

extern const Kernel<Recur> gla_forward_host = {
    "", [](const Context& ctx, const Recur& call, Plan& plan) {
      host::plan_recur(ctx, call, plan);
      return Text();
    }};

}  // namespace fovea
