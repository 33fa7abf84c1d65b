// SPDX-License-Identifier: Apache-2.0
// The recurrences of x_gla and x_delta on the CPU: every valid call.  64 tokens and more go in
// chunks where goes_in_chunks (host/recur_chunk.h) says so, all else goes token by token.
#pragma once
#include "core/plan.h"
#include "core/recur_gradients.h"

namespace fovea::host {

void plan_recur(const Context& ctx, const Recur& a, Plan& plan);
void plan_recur_backward(const Context& ctx, const RecurBackward& b, Plan& plan);

}  // namespace fovea::host
