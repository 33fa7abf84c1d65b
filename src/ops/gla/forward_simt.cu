// SPDX-License-Identifier: Apache-2.0
// x_gla_forward on CUDA, by cuda/loop/recur.h.
#include "cuda/loop/recur.h"
#include "ops/gla/gla.h"

namespace fovea {

extern const Kernel<Recur> gla_forward_simt = {
    "simt", [](const Context&, const Recur& call, Plan& plan) {
      cuda::plan_recur("x_gla_forward", call, cuda::recur_forward<Recurrence::additive>, plan);
      return Text();
    }};

}  // namespace fovea
