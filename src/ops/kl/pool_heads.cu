// SPDX-License-Identifier: Apache-2.0
#include "ops/kl/pool_heads.cuh"

namespace fovea::cuda {

const PoolHeads90* heads_instance(int32_t dtype, int64_t width) {
  static const PoolHeads90 rows[] = {
#define FOVEA_INSTANCE(dtype, width) kl_pool_heads_sm90_instance<dtype, width>(),
#include "instances/kl_pool_heads_sm90.inc"
#undef FOVEA_INSTANCE
    {}
  };
  for (const PoolHeads90& row : rows)
    if (row.pool && row.dtype == dtype && width <= row.width) return &row;
  return nullptr;
}

}  // namespace fovea::cuda
