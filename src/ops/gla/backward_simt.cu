// SPDX-License-Identifier: Apache-2.0
// x_gla_backward on CUDA, by cuda/loop/recur.h.
#include "cuda/loop/recur.h"
#include "ops/gla/gla.h"

namespace fovea {

extern const Kernel<RecurBackward> gla_backward_simt = {
    "simt", [](const Context& ctx, const RecurBackward& call, Plan& plan) {
      cuda::plan_recur_backward(
          ctx, "x_gla_backward", call,
          {cuda::recur_forward<Recurrence::additive>, cuda::recur_backward<Recurrence::additive>},
          plan);
      return Text();
    }};

}  // namespace fovea
