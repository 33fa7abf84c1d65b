// SPDX-License-Identifier: Apache-2.0
// x_select_block from summaries, scope row, on tensor cores: products of f16.
#include "ops/select/block_products_sm80.cuh"

namespace fovea::cuda {

void run_products_f16(Context& ctx, const ProductPlan& plan, const SelectProduct& x,
                      const SelectChunk& chunk) {
  run_ring<FOVEA_F16>(ctx, plan, x, chunk);
}

}  // namespace fovea::cuda
