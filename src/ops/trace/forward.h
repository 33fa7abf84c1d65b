// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "core/plan.h"
#include "fovea/trace.h"

namespace fovea {

Plan plan(const Context& ctx, const fovea_trace_forward_params& params);

}  // namespace fovea
