// SPDX-License-Identifier: Apache-2.0
// x_gla: the kernels plan() chooses from.  A call is a Recur of the additive form.
#pragma once
#include "core/plan.h"
#include "core/recur_gradients.h"

namespace fovea {

extern const Kernel<Recur> gla_forward_host;
extern const Kernel<RecurBackward> gla_backward_host;

// CUDA builds only.
extern const Kernel<Recur> gla_forward_sm90;
extern const Kernel<Recur> gla_forward_simt;
extern const Kernel<RecurBackward> gla_backward_sm90;
extern const Kernel<RecurBackward> gla_backward_keys_sm90;
extern const Kernel<RecurBackward> gla_backward_simt;

}  // namespace fovea
