// SPDX-License-Identifier: Apache-2.0
// x_sparse_forward on the sweep of few rows: keys are gathered one by one, 16-bit or codes.
#pragma once
#include "cuda/launch.h"
#include "cuda/loop/merging_epilogue.cuh"
#include "ops/sparse/forward.cuh"
#include "ops/sparse/list_keys_sm80.cuh"

namespace fovea::cuda {

// As many stages as shared memory holds for the blocks that registers leave.
template <class Operands, SparseConfig80 C>
struct ListStages80 {
  static constexpr int row = Operands::bytes * C.d;  // bytes
  static constexpr int blocks = row > 256 ? 1 : Operands::codes || row > 128 ? 2 : 3;
  static constexpr int stages = row > 128 ? 3 : Operands::codes ? 5 : 4;
};
template <class Operands, SparseConfig80 C>
struct ListShape80 : RowsShape<Operands, ListStages80<Operands, C>::stages,
                               ListStages80<Operands, C>::blocks, ListNote> {};

template <class Operands, SparseConfig80 C>
void launch_list(Context& ctx, const SparseAttend& call, const ListGrid& grid,
                 const SparseWork80& work) {
  using Shape = ListShape80<Operands, C>;
  using Epilogue = MergingEpilogue<8>;
  launch<attend_list_sm80<Shape, Epilogue>>(ctx, "x_sparse_forward", grid.work, Shape::threads,
                                            Shape::shared_bytes, call, grid,
                                            Epilogue{work.parts, work.splits, work.arrived});
}

template <SparseConfig80 C>
SparseInstance80 sparse_sm80_instance() {
  using Halves = HalfOperands<C.dtype, C.d, C.e>;
  using Floats = CodeOperands<FloatCodes, C.dtype, C.d, C.e>;
  using Integers = CodeOperands<IntegerCodes, C.dtype, C.d, C.e>;
  constexpr auto launcher = [](Context& ctx, const SparseAttend& call, const ListGrid& grid,
                               const SparseWork80& work) {
    if (!call.attend.codes())
      launch_list<Halves, C>(ctx, call, grid, work);
    else if (call.attend.k_dtype == FOVEA_I8)
      launch_list<Integers, C>(ctx, call, grid, work);
    else
      launch_list<Floats, C>(ctx, call, grid, work);
  };
  return {C.dtype,
          C.d,
          C.e,
          {ListShape80<Halves, C>::Blocks, ListShape80<Floats, C>::Blocks},
          launcher};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(...)                                                     \
  namespace fovea::cuda {                                                       \
  template SparseInstance80 sparse_sm80_instance<SparseConfig80 __VA_ARGS__>(); \
  }
