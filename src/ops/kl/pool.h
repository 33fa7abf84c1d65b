// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "core/plan.h"
#include "fovea/experimental/kl.h"

namespace fovea {

Plan plan(const Context& ctx, const fovea_x_kl_pool_forward_params& params);
Plan plan(const Context& ctx, const fovea_x_kl_pool_backward_params& params);

}  // namespace fovea
