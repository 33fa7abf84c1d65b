// SPDX-License-Identifier: Apache-2.0
// attention_forward over caches of 8-bit codes: the sweep of few rows (loop/attend_rows_sm80.cuh).
#pragma once
#include "cuda/launch.h"
#include "cuda/loop/attend_rows_sm80.cuh"
#include "cuda/loop/merging_epilogue.cuh"
#include "cuda/tile/order.cuh"
#include "ops/attention/forward_codes.cuh"

namespace fovea::cuda {

template <class Shape, TileScore Score, TileMask Mask, class Epilogue>
__global__ void __launch_bounds__(Shape::threads, Shape::Blocks)
    attend_codes_sm89(const __grid_constant__ Attend a, const __grid_constant__ AttendGrid grid,
                      const __grid_constant__ Epilogue epilogue) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ __align__(16) unsigned char s_tile[sizeof(RowTile)];
  const int64_t number = blockIdx.x / grid.splits, owner = number / grid.row_tiles;
  int64_t row_tile = number - owner * grid.row_tiles;
  if (grid.reversed) row_tile = grid.row_tiles - 1 - row_tile;
  pdl_wait();
  pdl_trigger();
  if (threadIdx.x == 0)
    new (s_tile) RowTile(a, grid, owner / grid.heads, owner % grid.heads,
                         static_cast<int>(row_tile * Shape::rows), Shape::rows);
  __syncthreads();
  const RowTile& tile = *reinterpret_cast<const RowTile*>(s_tile);
  if (tile.size <= 0) return;
  const int split = static_cast<int>(blockIdx.x - number * grid.splits);
  WindowSteps<Shape::StepKeys, Score, Mask> keys(a, tile, grid.splits, split);
  attend_rows<Shape>(a, tile, keys, epilogue, number, split, shared);
}

template <ForwardConfig80 C, class Codes>
struct CodesKernel {
  using Operands = CodeOperands<Codes, C.dtype, C.d, C.e, codes_step(C.d)>;
  using Shape = RowsShape<Operands, C.stages, C.blocks>;
  static_assert(C.rows == Shape::rows && C.warps == Shape::Warps);
  static constexpr bool rich = C.kind == ForwardKind::rich_codes;
  using Score = std::conditional_t<rich, RichScore, PlainScore>;
  using Mask = std::conditional_t<rich, RichMask, WindowMask>;
  using Epilogue = MergingEpilogue<8>;

  static void launch(Context& ctx, const Attend& a, const ForwardWork& work) {
    launch_pdl<attend_codes_sm89<Shape, Score, Mask, Epilogue>>(
        ctx, "attention_forward", work.blocks, Shape::threads, Shape::shared_bytes, a, work.grid,
        Epilogue{work.parts, work.grid.splits, work.arrived});
  }
};

template <ForwardConfig80 C>
ForwardInstance forward_sm89_instance() {
  constexpr auto launcher = [](Context& ctx, const Attend& a, const ForwardWork& work) {
    if (a.k_dtype == FOVEA_I8) return CodesKernel<C, IntegerCodes>::launch(ctx, a, work);
    if constexpr (C.kind == ForwardKind::codes)
      if (a.k_dtype == FOVEA_E4M3 && a.v_dtype == FOVEA_E4M3)
        return CodesKernel<C, E4m3Codes>::launch(ctx, a, work);
    CodesKernel<C, FloatCodes>::launch(ctx, a, work);
  };
  return {
      C.dtype, C.d, C.e, C.kind, C.rows, C.blocks, CodesKernel<C, FloatCodes>::Shape::shared_bytes,
      launcher};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(...)                                                      \
  namespace fovea::cuda {                                                        \
  template ForwardInstance forward_sm89_instance<ForwardConfig80 __VA_ARGS__>(); \
  }
