// SPDX-License-Identifier: Apache-2.0
// x_sparse_forward over gathered 8-bit codes.
#pragma once
#include "ops/sparse/list_launch_sm80.cuh"

namespace fovea::cuda {

template <SparseConfig80 C>
SparseInstance80 sparse_sm89_instance() {
  using Floats = CodeOperands<FloatCodes, C.dtype, C.d, C.e>;
  using Integers = CodeOperands<IntegerCodes, C.dtype, C.d, C.e>;
  constexpr auto launcher = [](Context& ctx, const SparseAttend& call, const ListGrid& grid,
                               const SparseWork80& work) {
    if (call.attend.k_dtype == FOVEA_I8)
      launch_list<Integers, C>(ctx, call, grid, work);
    else
      launch_list<Floats, C>(ctx, call, grid, work);
  };
  return {C.dtype, C.d, C.e, ListShape80<Floats, C>::Blocks, launcher};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(...)                                                     \
  namespace fovea::cuda {                                                       \
  template SparseInstance80 sparse_sm89_instance<SparseConfig80 __VA_ARGS__>(); \
  }
