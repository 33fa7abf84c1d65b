// SPDX-License-Identifier: Apache-2.0
// x_quantised_forward as parts of another program.  All parts of a program are planned before any
// runs, which those of a program within a program would not be.
#pragma once
#include "core/program.h"
#include "fovea/experimental/quantised.h"

namespace fovea {

void run_quantised_forward(Program& program, const fovea_x_quantised_forward_params& p);

}  // namespace fovea
