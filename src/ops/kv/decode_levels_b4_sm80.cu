// SPDX-License-Identifier: Apache-2.0
#include "ops/kv/decode_levels_sm80.cuh"

namespace fovea::cuda {

template void launch_levels<4, 64, false>(Context&, const LevelSplit&, int, int);
template void launch_levels<4, 128, false>(Context&, const LevelSplit&, int, int);

}  // namespace fovea::cuda
