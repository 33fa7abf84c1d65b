// SPDX-License-Identifier: Apache-2.0
// attention_backward on the Hopper gradient loops.
#pragma once
#include <algorithm>

#include "cuda/launch.h"
#include "cuda/loop/attend_bwd_dkdv_sm90.cuh"
#include "cuda/loop/attend_bwd_dq_sm90.cuh"
#include "cuda/loop/attend_bwd_sm90.cuh"
#include "ops/attention/backward.cuh"

namespace fovea::cuda {

inline constexpr char kBackward90[] = "attention_backward";

template <BackwardConfig90 C>
BackwardInstance90 backward_sm90_instance() {
  if constexpr (C.sums == Sums90::fused) {
    using Shape = BackwardShape90<GradientConfig90{.dtype = C.dtype,
                                                   .d = C.d,
                                                   .e = C.e,
                                                   .rows = C.tile,
                                                   .stages_q = C.stages1,
                                                   .stages_dout = C.stages2},
                                  AttentionDscores>;
    constexpr auto launcher = [](Context& ctx, const AttendBackward& call, const BackwardMaps& maps,
                                 const BackwardWork& work, const BackwardGrid90& grid) {
      launch<attend_bwd_sm90<Shape>>(ctx, kBackward90, grid.total(), Shape::threads,
                                     Shape::shared_bytes, call, maps, work, grid,
                                     AttentionDscores::Args{work.shares});
    };
    return {C.dtype, C.d, C.e, C.sums, C.tile, Shape::BN, Shape::TileQ::panels, launcher};
  } else {
    using Keys = BackwardDkDvShape<C.dtype, C.d, C.e>;
    using Rows = BackwardDqShape<C.dtype, C.d, C.e, C.tile, C.stages1, C.stages2>;
    static_assert(Keys::BN == Rows::BN && Keys::BM == Rows::box, "one box of the maps for both");
    constexpr auto launcher = [](Context& ctx, const AttendBackward& call, const BackwardMaps& maps,
                                 const BackwardWork& work, const BackwardGrid90& grid) {
      const Attend& a = call.forward;
      if (call.dk || call.dv)
        launch<attend_bwd_dkdv_sm90<Keys>>(ctx, kBackward90, grid.total(), Keys::threads,
                                           Keys::shared_bytes, call, maps, work, grid);
      if (!call.dq) return;
      const int64_t heads = a.h * a.sequences.count, group = a.h / a.g;
      const TileOrder rows{static_cast<int32_t>(ceil_div(a.sequences.query_max, Rows::BM)),
                           static_cast<int32_t>(heads),
                           1,
                           static_cast<int32_t>(std::min(grid.first.size * group, heads)),
                           0,
                           a.mask.window.right > 0};
      AttendBackward whole = call;
      whole.forward.g /= work.shares;
      launch<attend_bwd_dq_sm90<Rows>>(ctx, kBackward90, rows.items(), Rows::threads,
                                       Rows::shared_bytes, whole, maps, work, rows);
    };
    return {C.dtype, C.d, C.e, C.sums, Keys::BM, Keys::BN, Keys::TileQ::panels, launcher};
  }
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(...)                                                           \
  namespace fovea::cuda {                                                             \
  template BackwardInstance90 backward_sm90_instance<BackwardConfig90 __VA_ARGS__>(); \
  }
