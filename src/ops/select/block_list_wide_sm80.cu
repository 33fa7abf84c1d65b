// SPDX-License-Identifier: Apache-2.0
// Lists of x_select_block by blocks of threads.
#include "ops/select/block_list_sm80.cuh"

namespace fovea::cuda {

void run_wide_lists(Context& ctx, const SelectProduct& x, const SelectChunk& chunk) {
  const int64_t blocks = list_blocks(x.a);
  if (blocks <= 2048) return run_teams<256, 8>(ctx, x, chunk);
  if (blocks <= 8192) return run_teams<256, 32>(ctx, x, chunk);
  run_teams<1024, 32>(ctx, x, chunk);
}

}  // namespace fovea::cuda
