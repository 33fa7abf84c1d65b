// SPDX-License-Identifier: Apache-2.0
// The tile of a recurrence on tensor cores, which launchers and kernels share; how many blocks walk
// a chain.
#pragma once
#include "core/context.h"
#include "core/recur.h"

namespace fovea::cuda {

constexpr int kChainTokens = 64;   // of a chunk
constexpr int kChainColumns = 64;  // value columns of a state

// Whether states may be written where the call reads them.
bool states_in_place(const Recur& a);
// Copies of each of `chains`, so many that every multiprocessor has a block, at most `most`.  Those
// that write a state over the one that they read, `together`, start as a cluster: two fit
// everywhere.
int64_t chain_copies(const Context& ctx, const Recur& a, int64_t chains, bool together,
                     int64_t most);

}  // namespace fovea::cuda
