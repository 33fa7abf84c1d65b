// SPDX-License-Identifier: Apache-2.0
// conv_attention_backward's instances of the Hopper sweep.
#pragma once
#include <algorithm>

#include "cuda/launch.h"
#include "ops/conv_attention/gradient_sm90.cuh"

namespace fovea::cuda {

template <int Dtype, int D, int E, ConvLines Lines, int Pairs, int Ahead, int Stages>
ConvGradientInstance90 conv_gradient_sm90_instance() {
  using Shape = ConvGradient90<Dtype, D, E, Lines, Pairs, Ahead, Stages>;
  constexpr auto launcher = [](Context& ctx, const ConvAttendBackward& b,
                               const ConvGradientWork& work) {
    const int blocks = std::min(work.schedule.works, device_info(ctx).multiprocessors);
    launch_pdl<conv_gradient_sm90<Shape>>(ctx, "conv_attention_backward", blocks, Shape::threads,
                                          Shape::shared_bytes, b, work);
  };
  return {Dtype, D, E, 2 * Pairs, 8 * Ahead - 7, Lines, Shape::Groups, launcher};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(dtype, d, e, lines, pairs, ahead, stages)                         \
  template fovea::cuda::ConvGradientInstance90 fovea::cuda::conv_gradient_sm90_instance< \
      dtype, d, e, fovea::cuda::ConvLines::lines, pairs, ahead, stages>();
