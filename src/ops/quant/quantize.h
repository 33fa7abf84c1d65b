// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "core/plan.h"
#include "fovea/quant.h"

namespace fovea {

Plan plan(const Context& ctx, const fovea_quant_quantize_params& params);

}  // namespace fovea
