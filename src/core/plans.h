// SPDX-License-Identifier: Apache-2.0
// The only decision of a call, made by each operation in src/ops: plan() of its params.  An
// operation that is made of others asks for their plans here, with params that it has filled and
// checked, and sees nothing else of them.
#pragma once
#include "core/headers.inc"
#include "core/plan.h"

namespace fovea {

#define FOVEA_OP(family, verb, first_size) \
  Plan plan(const Context&, const fovea_##family##_##verb##_params&);
#include "ops.inc"
#undef FOVEA_OP

}  // namespace fovea
