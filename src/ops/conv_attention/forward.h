// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "core/plan.h"
#include "fovea/conv_attention.h"

namespace fovea {

Plan plan(const Context& ctx, const fovea_conv_attention_forward_params& params);

}  // namespace fovea
