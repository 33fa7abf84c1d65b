// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "core/plan.h"
#include "fovea/cache.h"

namespace fovea {

Plan plan(const Context& ctx, const fovea_cache_append_params& params);

}  // namespace fovea
