// SPDX-License-Identifier: Apache-2.0
// Lists of x_select_block by warps.
#include "ops/select/block_list_sm80.cuh"

namespace fovea::cuda {

void run_lists(Context& ctx, const SelectProduct& x, const SelectChunk& chunk) {
  if (counted_lists(x)) return run_counted_lists(ctx, x, chunk);
  const int64_t blocks = list_blocks(x.a);
  if (blocks <= 32) return run_teams<32, 1>(ctx, x, chunk);
  if (blocks <= 128) return run_teams<32, 4>(ctx, x, chunk);
  if (blocks > 1024) return run_wide_lists(ctx, x, chunk);
  blocks <= 512 ? run_teams<32, 16>(ctx, x, chunk) : run_teams<32, 32>(ctx, x, chunk);
}

}  // namespace fovea::cuda
