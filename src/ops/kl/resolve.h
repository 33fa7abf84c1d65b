// SPDX-License-Identifier: Apache-2.0
// Public params to kernels.h, with the checks dims cannot say.
#pragma once
#include "fovea/kl.h"
#include "ops/kl/kernels.h"

namespace fovea {

Kl resolve(const fovea_kl_forward_params& params);
KlBackward resolve(const fovea_kl_backward_params& params);

}  // namespace fovea
