// SPDX-License-Identifier: Apache-2.0
// Public params to kernels.h, with the checks dims cannot say.
#pragma once
#include "fovea/conv_attention.h"
#include "ops/conv_attention/kernels.h"

namespace fovea {

ConvAttend resolve(const fovea_conv_attention_forward_params& params);
ConvAttendBackward resolve(const fovea_conv_attention_backward_params& params);

}  // namespace fovea
