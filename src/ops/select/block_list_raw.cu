// SPDX-License-Identifier: Apache-2.0
// Lists of x_select_block from the raw scores of one head, by warps.
#include "ops/select/block_list_sm80.cuh"

namespace fovea::cuda {

namespace {
constexpr int64_t kWarpMost = 1024;  // entries
}

bool raw_lists(const SelectBlock& a) {
  return a.scored() && a.x && a.group() == 1 && !a.wide() && !a.remap_step &&
         a.normalise != FOVEA_X_SELECT_NORMALISE_WEIGHTED && list_blocks(a) <= kWarpMost &&
         block_lists_refuse(a).empty();
}

void run_raw_lists(Context& ctx, const SelectProduct& x, const SelectChunk& chunk) {
  const int64_t blocks = list_blocks(x.a);
  if (blocks <= 256) return run_teams<32, 8, true>(ctx, x, chunk);
  blocks <= 512 ? run_teams<32, 16, true>(ctx, x, chunk) : run_teams<32, 32, true>(ctx, x, chunk);
}

}  // namespace fovea::cuda
