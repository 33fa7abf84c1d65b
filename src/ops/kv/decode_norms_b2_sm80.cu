// SPDX-License-Identifier: Apache-2.0
#include "ops/kv/decode_levels_sm80.cuh"

namespace fovea::cuda {

template void launch_levels<2, 64, true>(Context&, const LevelSplit&, int, int);
template void launch_levels<2, 128, true>(Context&, const LevelSplit&, int, int);

}  // namespace fovea::cuda
