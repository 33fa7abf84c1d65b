// SPDX-License-Identifier: Apache-2.0
// Lists of x_select_block by warps.
#include "ops/select/block_list_sm80.cuh"

namespace fovea::cuda {

void run_lists(Context& ctx, const SelectProduct& x, const SelectChunk& chunk) {
  // Of key_max keys there are no more.  All scores that are asked for are written, of others too.
  const int64_t there = ceil_div(x.a.sequences.key_max, x.a.block_keys);
  const int64_t blocks = x.a.score_out || x.a.y < there ? x.a.y : there;
  if (blocks <= 32) return run_teams<32, 1>(ctx, x, chunk);
  if (blocks <= 128) return run_teams<32, 4>(ctx, x, chunk);
  if (blocks > 1024) return run_wide_lists(ctx, x, chunk);
  blocks <= 512 ? run_teams<32, 16>(ctx, x, chunk) : run_teams<32, 32>(ctx, x, chunk);
}

}  // namespace fovea::cuda
