// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "core/plan.h"
#include "fovea/kl.h"

namespace fovea {

Plan plan(const Context& ctx, const fovea_kl_forward_params& params);

}  // namespace fovea
