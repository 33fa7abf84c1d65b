// SPDX-License-Identifier: Apache-2.0
// Instances of attention_forward over caches of 8-bit codes (forward.inc, sm89).
#pragma once
#include "ops/attention/forward.cuh"

namespace fovea::cuda {

// Keys of a step.
constexpr int codes_step(int d) {
  return d <= 128 ? 128 : 64;
}

template <ForwardConfig80 C>
ForwardInstance forward_sm89_instance();

}  // namespace fovea::cuda
