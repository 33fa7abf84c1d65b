// SPDX-License-Identifier: Apache-2.0
// attention_forward on the Hopper sweep.
#pragma once
#include "cuda/launch.h"
#include "cuda/loop/attend_sm90.cuh"
#include "ops/attention/forward.cuh"

namespace fovea::cuda {

template <int Dtype, int D, int E, int Groups, int BN, int Stages>
ForwardInstance90 forward_sm90_instance() {
  using Shape = AttendShape90<Dtype, D, E, Groups, BN, Stages>;
  constexpr auto launcher = [](Context& ctx, const Attend& a, const AttendGrid& grid,
                               const AttendMaps& maps, int64_t section) {
    launch<attend_sm90<Shape, PlainScore, WindowMask, DirectSink>>(
        ctx, "attention_forward", a.sequences.count * grid.heads * grid.row_tiles, Shape::threads,
        Shape::shared_bytes, a, grid, maps, section, DirectSink());
  };
  return {Dtype, D, E, Shape::BM, BN, Shape::shared_bytes, launcher};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(dtype, d, e, groups, keys, stages) \
  template fovea::cuda::ForwardInstance90                 \
  fovea::cuda::forward_sm90_instance<dtype, d, e, groups, keys, stages>();
