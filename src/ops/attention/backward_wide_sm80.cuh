// SPDX-License-Identifier: Apache-2.0
// attention_backward on the gradient loop of wide heads: shape, policy and grid of an instance.
#pragma once
#include "cuda/launch.h"
#include "cuda/loop/attend_bwd_wide_sm80.cuh"
#include "ops/attention/backward_wide.cuh"

namespace fovea::cuda {

template <WideBackwardConfig80 C>
WideBackwardInstance backward_wide_sm80_instance() {
  using Shape = WideGradientShape<C.dtype, C.owner != Own::rows, C.owner != Own::keys_dv, C.d>;
  static_assert(C.owner != Own::keys, "dk and dv do not fit in the registers of a block");
  using Pairs = std::conditional_t<C.kind == BackwardKind::plain, PlainPairs, RichPairs>;
  constexpr auto launcher = [](Context& ctx, const AttendBackward& call, const float* delta,
                               int64_t shares, float* terms) {
    const Attend& a = call.forward;
    const bool keys = Shape::keys_own;
    const int64_t tiles = ceil_div(keys ? a.sequences.key_max : a.sequences.query_max, Shape::own);
    const BackwardGrid grid{tiles, keys ? a.g * shares : a.h, !keys && a.mask.window.right > 0};
    const WideGradientCall given{{call, delta, grid}, static_cast<int32_t>(shares), terms};
    launch<attend_bwd_wide_sm80<Shape, Pairs>>(ctx, "attention_backward",
                                               a.sequences.count * grid.heads * tiles,
                                               Shape::threads, Shape::shared_bytes(a), given);
  };
  return {C, Shape::own, Shape::inner, Shape::shared_bytes, launcher};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(...)                                                                      \
  namespace fovea::cuda {                                                                        \
  template WideBackwardInstance backward_wide_sm80_instance<WideBackwardConfig80 __VA_ARGS__>(); \
  }
