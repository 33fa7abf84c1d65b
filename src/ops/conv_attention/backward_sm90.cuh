// SPDX-License-Identifier: Apache-2.0
// conv_attention_backward's instances of the Hopper sweep.
#pragma once
#include <algorithm>

#include "cuda/launch.h"
#include "ops/conv_attention/gradient_sm90.cuh"

namespace fovea::cuda {

template <ConvGradientConfig90 C>
ConvGradientInstance90 conv_gradient_sm90_instance() {
  using Shape = ConvGradient90<C>;
  constexpr auto launcher = [](Context& ctx, const ConvAttendBackward& b,
                               const ConvGradientWork& work) {
    const int blocks = std::min(work.schedule.items, device_info(ctx).multiprocessors);
    launch_pdl<conv_gradient_sm90<Shape>>(ctx, "conv_attention_backward", blocks, Shape::threads,
                                          Shape::shared_bytes, b, work);
  };
  return {C.dtype, C.d, C.e, 2 * C.pairs, 8 * C.ahead - 7, C.lines, Shape::Groups, launcher};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(...)                                                                        \
  namespace fovea::cuda {                                                                          \
  template ConvGradientInstance90 conv_gradient_sm90_instance<ConvGradientConfig90 __VA_ARGS__>(); \
  }
