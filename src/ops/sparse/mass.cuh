// SPDX-License-Identifier: Apache-2.0
// mass of x_sparse_forward, after the forward, of its lse.
#pragma once
#include "ops/sparse/forward.cuh"

namespace fovea::cuda {

struct MassSlots {
  Slot<float> lse;  // where the caller wants none
  Slot<unsigned long long> sum;
  Slot<int32_t> odd;
};

// Nothing without slots.sum.
void add_mass(Context& ctx, const SparseAttend& call, const ListGrid& grid, const MassSlots& slots,
              void* base);

}  // namespace fovea::cuda
