// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "core/plan.h"
#include "fovea/experimental/multi_token.h"

namespace fovea {

Plan plan(const Context& ctx, const fovea_x_multi_token_forward_params& params);
Plan plan(const Context& ctx, const fovea_x_multi_token_backward_params& params);

}  // namespace fovea
