// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "cuda/launch.h"
#include "ops/merge/kernels.h"

namespace fovea {

// Fills a.source from a.row, where there is one.
void build_source(Context& ctx, const char* op, const Merge& a);

// Threads of one row: enough for its chunks, a power of two, a warp at most.
inline int lanes_of(int64_t chunks) {
  int lanes = 1;
  while (lanes < 32 && lanes < chunks) lanes *= 2;
  return lanes;
}

}  // namespace fovea
