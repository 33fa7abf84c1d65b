// SPDX-License-Identifier: Apache-2.0
// attention_backward on the Hopper gradient loop.
#pragma once
#include "cuda/launch.h"
#include "cuda/loop/attend_bwd_sm90.cuh"
#include "ops/attention/backward.cuh"

namespace fovea::cuda {

template <int Dtype, int D, int E, int BM, int Stages>
BackwardInstance90 backward_sm90_instance() {
  using Shape = BackwardShape90<Dtype, D, E, BM, Stages>;
  constexpr auto launcher = [](Context& ctx, const AttendBackward& call, const BackwardMaps& maps,
                               const BackwardWork& work, const BackwardGrid90& grid) {
    launch<attend_bwd_sm90<Shape>>(
        ctx, "attention_backward", grid.blocks * call.forward.g * call.forward.sequences.count,
        Shape::threads, Shape::shared_bytes, call, maps, work, grid);
  };
  return {Dtype, D, E, BM, Shape::BN, Shape::TileQ::panels, launcher};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(dtype, d, e, rows, stages) \
  template fovea::cuda::BackwardInstance90        \
  fovea::cuda::backward_sm90_instance<dtype, d, e, rows, stages>();
