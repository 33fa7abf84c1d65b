// SPDX-License-Identifier: Apache-2.0
// x_sparse_forward over gathered 16-bit keys.
#pragma once
#include "ops/sparse/list_launch_sm80.cuh"

namespace fovea::cuda {

template <SparseConfig80 C>
SparseInstance80 sparse_sm80_instance() {
  using Halves = HalfOperands<C.dtype, C.d, C.e>;
  return {C.dtype, C.d, C.e, ListShape80<Halves, C>::Blocks, launch_list<Halves, C>};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(...)                                                     \
  namespace fovea::cuda {                                                       \
  template SparseInstance80 sparse_sm80_instance<SparseConfig80 __VA_ARGS__>(); \
  }
