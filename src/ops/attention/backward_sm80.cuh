// SPDX-License-Identifier: Apache-2.0
// attention_backward on the sm_80 gradient loop: shapes, policies and grids of an instance.
#pragma once
#include "cuda/launch.h"
#include "cuda/loop/attend_bwd_sm80.cuh"
#include "ops/attention/backward.cuh"

namespace fovea::cuda {

template <BackwardConfig80 C>
BackwardInstance backward_sm80_instance() {
  using Shape =
      BackwardShape<GradientConfig80{.dtype = C.dtype,
                                     .d = C.d,
                                     .e = C.e,
                                     .keys_own = C.owner != Own::rows,
                                     .sum1 = C.owner != Own::keys_dv,
                                     .sum2 = C.owner == Own::keys || C.owner == Own::keys_dv,
                                     .m = C.m,
                                     .n = C.n,
                                     .warps = C.warps,
                                     .blocks = C.blocks}>;
  using Pairs = std::conditional_t<C.kind == BackwardKind::plain, PlainPairs, RichPairs>;
  constexpr auto launcher = [](Context& ctx, const AttendBackward& call, const float* delta) {
    const Attend& a = call.forward;
    const bool keys = Shape::keys_own;
    const int64_t tiles = ceil_div(keys ? a.sequences.key_max : a.sequences.query_max, Shape::own);
    const BackwardGrid grid{tiles, keys ? a.g : a.h, !keys && a.mask.window.right > 0};
    launch<attend_bwd_sm80<Shape, Pairs>>(ctx, "attention_backward",
                                          a.sequences.count * grid.heads * tiles, Shape::threads,
                                          Shape::shared_bytes, BackwardCall{call, delta, grid});
  };
  return {C.dtype, C.d, C.e, C.owner, C.kind, Shape::own, Shape::shared_bytes, launcher};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(...)                                                         \
  namespace fovea::cuda {                                                           \
  template BackwardInstance backward_sm80_instance<BackwardConfig80 __VA_ARGS__>(); \
  }
