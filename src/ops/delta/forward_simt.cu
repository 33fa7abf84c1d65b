// SPDX-License-Identifier: Apache-2.0
// x_delta_forward on CUDA, by cuda/loop/recur.h.
#include "cuda/loop/recur.h"
#include "ops/delta/delta.h"

namespace fovea {

extern const Kernel<Recur> delta_forward_simt = {
    "simt", [](const Context&, const Recur& call, Plan& plan) {
      cuda::plan_recur("x_delta_forward", call,
                       call.form == Recurrence::low_rank
                           ? cuda::recur_forward<Recurrence::low_rank>
                           : cuda::recur_forward<Recurrence::corrected>,
                       plan);
      return Text();
    }};

}  // namespace fovea
