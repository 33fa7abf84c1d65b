// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "core/context.h"
#include "host/parallel.h"

namespace fovea::host {

// The pool of a FOVEA_HOST context.
Pool& pool(Context& ctx);

}  // namespace fovea::host
