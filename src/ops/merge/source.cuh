// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "cuda/launch.h"
#include "ops/merge/kernels.h"

namespace fovea {

// Fills a.source from a.row, where there is one.
void build_source(Context& ctx, const char* op, const Merge& a);

}  // namespace fovea
