// SPDX-License-Identifier: Apache-2.0
// x_delta: the kernels plan() chooses from.  A call is a Recur of the corrected form, or low_rank.
#pragma once
#include "core/plan.h"
#include "core/recur_gradients.h"

namespace fovea {

extern const Kernel<Recur> delta_forward_host;
extern const Kernel<RecurBackward> delta_backward_host;

// CUDA builds only.
extern const Kernel<Recur> delta_forward_sm90;
extern const Kernel<Recur> delta_drafts_sm90;
extern const Kernel<Recur> delta_forward_simt;
extern const Kernel<RecurBackward> delta_backward_sm90;
extern const Kernel<RecurBackward> delta_backward_simt;

}  // namespace fovea
