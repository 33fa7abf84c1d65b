// SPDX-License-Identifier: Apache-2.0
// x_sparse_forward on the sweep of few rows: keys are gathered one by one.
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

}  // namespace fovea::cuda
