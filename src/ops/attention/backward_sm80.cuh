// SPDX-License-Identifier: Apache-2.0
// attention_backward on the sm_80 gradient loop: shapes, policies and grids of an instance.
#pragma once
#include "cuda/launch.h"
#include "cuda/loop/attend_bwd_sm80.cuh"
#include "ops/attention/backward.cuh"

namespace fovea::cuda {

template <int Dtype, int D, int E, Own Owner, BackwardKind Kind, int M, int N, int Warps,
          int Blocks>
BackwardInstance backward_sm80_instance() {
  using Shape = BackwardShape<Dtype, D, E, Owner != Own::rows, Owner != Own::keys_dv,
                              Owner == Own::keys || Owner == Own::keys_dv, M, N, Warps, Blocks>;
  using Pairs = std::conditional_t<Kind == BackwardKind::plain, PlainPairs, RichPairs>;
  constexpr auto launcher = [](Context& ctx, const AttendBackward& call, const float* delta) {
    const Attend& a = call.forward;
    const bool keys = Shape::keys_own;
    const int64_t tiles = ceil_div(keys ? a.sequences.key_max : a.sequences.query_max, Shape::own);
    const BackwardGrid grid{tiles, keys ? a.g : a.h, !keys && a.mask.window.right > 0};
    launch<attend_bwd_sm80<Shape, Pairs>>(ctx, "attention_backward",
                                          a.sequences.count * grid.heads * tiles, Shape::threads,
                                          Shape::shared_bytes, BackwardCall{call, delta, grid});
  };
  return {Dtype, D, E, Owner, Kind, Shape::own, Shape::shared_bytes, launcher};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(dtype, d, e, owner, kind, m, n, warps, blocks)       \
  template fovea::cuda::BackwardInstance                                    \
  fovea::cuda::backward_sm80_instance<dtype, d, e, fovea::cuda::Own::owner, \
                                      fovea::cuda::BackwardKind::kind, m, n, warps, blocks>();
