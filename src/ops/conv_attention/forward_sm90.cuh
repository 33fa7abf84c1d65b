// SPDX-License-Identifier: Apache-2.0
// conv_attention_forward's instances of the Hopper sweep.
#pragma once
#include <algorithm>

#include "cuda/launch.h"
#include "ops/conv_attention/sweep_sm90.cuh"

namespace fovea::cuda {

template <int Dtype, int D, int E, int Pairs, int Ahead, ConvKind Kind, int Groups, int Stages,
          int Blocks>
ConvInstance90 conv_sm90_instance() {
  using Shape = ConvShape90<Dtype, D, E, Pairs, Ahead, Kind, Groups, Stages, Blocks>;
  constexpr auto launcher = [](Context& ctx, const ConvAttend& c, const ConvWork90& work) {
    const int blocks =
        std::min(work.schedule.works, device_info(ctx).multiprocessors * Shape::Blocks);
    launch_pdl<conv_sm90<Shape>>(ctx, "conv_attention_forward", blocks, Shape::threads,
                                 Shape::shared_bytes, c, work);
  };
  return {Dtype, D, E, 2 * Pairs, 8 * Ahead - 7, Kind, Groups, Shape::BN, Blocks, launcher};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(dtype, d, e, pairs, ahead, kind, groups, stages, blocks) \
  template fovea::cuda::ConvInstance90 fovea::cuda::conv_sm90_instance<         \
      dtype, d, e, pairs, ahead, fovea::cuda::ConvKind::kind, groups, stages, blocks>();
