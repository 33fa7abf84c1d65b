// SPDX-License-Identifier: Apache-2.0
// What forward and backward of an indexer share on Hopper: who serves a call, and its works.
#pragma once
#include <string>

#include "ops/kl_experimental/indexer.cuh"
#include "ops/kl_experimental/indexer.h"

namespace fovea::cuda {

// nullptr: none in this build.
const IndexerInstance90* indexer_instance(const KlIndexer& a);
std::string indexer_sm90_refuses(const Context& ctx, const KlIndexer& a);
// All row tiles in one launch; one part.
HeadsWork indexer_work(const KlIndexer& a);
// Parts of the keys of so many row tiles: enough for every multiprocessor to take several works.
int32_t indexer_parts(const DeviceInfo& device, const KlIndexer& a, int32_t row_tiles);
HeadsMaps indexer_maps(const KlIndexer& a, const char* op);
// Zeros for gradients that no sequence reaches.
void clear_unreached(Context& ctx, const KlIndexer& a);

}  // namespace fovea::cuda
