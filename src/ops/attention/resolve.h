// SPDX-License-Identifier: Apache-2.0
// Public params to core/attend.h, with the checks dims cannot say.
#pragma once
#include "core/attend.h"
#include "fovea/attention.h"

namespace fovea {

Attend resolve(const fovea_attention_forward_params& params);
AttendBackward resolve(const fovea_attention_backward_params& params);

}  // namespace fovea
