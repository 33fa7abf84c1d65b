// SPDX-License-Identifier: Apache-2.0
// attention_backward on the Hopper gradient loops.
#pragma once
#include <algorithm>

#include "cuda/launch.h"
#include "cuda/loop/attend_bwd_keys_sm90.cuh"
#include "cuda/loop/attend_bwd_rows_sm90.cuh"
#include "cuda/loop/attend_bwd_sm90.cuh"
#include "ops/attention/backward.cuh"

namespace fovea::cuda {

inline constexpr char kBackward90[] = "attention_backward";

template <int Dtype, int D, int E, Sums90 Sums, int Tile, int Stages1, int Stages2>
BackwardInstance90 backward_sm90_instance() {
  if constexpr (Sums == Sums90::fused) {
    using Shape = BackwardShape90<Dtype, D, E, Tile, Stages1, Stages2, AttentionSlopes>;
    constexpr auto launcher = [](Context& ctx, const AttendBackward& call, const BackwardMaps& maps,
                                 const BackwardWork& work, const BackwardGrid90& grid) {
      launch<attend_bwd_sm90<Shape>>(ctx, kBackward90, grid.total(), Shape::threads,
                                     Shape::shared_bytes, call, maps, work, grid,
                                     AttentionSlopes::Args{});
    };
    return {Dtype, D, E, Sums, Tile, Shape::BN, Shape::TileQ::panels, launcher};
  } else {
    using Keys = BackwardKeysShape<Dtype, D, E>;
    using Rows = BackwardRowsShape<Dtype, D, E, Tile, Stages1, Stages2>;
    static_assert(Keys::BN == Rows::BN && Keys::BM == Rows::box, "one box of the maps for both");
    constexpr auto launcher = [](Context& ctx, const AttendBackward& call, const BackwardMaps& maps,
                                 const BackwardWork& work, const BackwardGrid90& grid) {
      const Attend& a = call.forward;
      if (call.dk || call.dv)
        launch<attend_bwd_keys_sm90<Keys>>(ctx, kBackward90, grid.total(), Keys::threads,
                                           Keys::shared_bytes, call, maps, work, grid);
      if (!call.dq) return;
      const int64_t heads = a.h * a.sequences.count, group = a.h / a.g;
      const WorkOrder rows{static_cast<int32_t>(ceil_div(a.sequences.query_max, Rows::BM)),
                           static_cast<int32_t>(heads),
                           1,
                           static_cast<int32_t>(std::min(grid.first.size * group, heads)),
                           0,
                           a.mask.window.right > 0};
      launch<attend_bwd_rows_sm90<Rows>>(ctx, kBackward90, rows.works(), Rows::threads,
                                         Rows::shared_bytes, call, maps, work, rows);
    };
    return {Dtype, D, E, Sums, Keys::BM, Keys::BN, Keys::TileQ::panels, launcher};
  }
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(dtype, d, e, sums, tile, stages1, stages2)               \
  template fovea::cuda::BackwardInstance90 fovea::cuda::backward_sm90_instance< \
      dtype, d, e, fovea::cuda::Sums90::sums, tile, stages1, stages2>();
