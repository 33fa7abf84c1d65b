// SPDX-License-Identifier: Apache-2.0
// The tile of a recurrence on tensor cores, which launchers and kernels share.
#pragma once

namespace fovea::cuda {

constexpr int kChainTokens = 64;   // of a chunk
constexpr int kChainColumns = 64;  // value columns of a state

}  // namespace fovea::cuda
