// SPDX-License-Identifier: Apache-2.0
// Between the launcher of x_gla_forward and its tuned instances (forward.inc), which are compiled
// apart.
#pragma once
#include <cuda.h>  // CUtensorMap; nothing of libcuda is linked

#include "core/recur.h"
#include "cuda/device.h"

namespace fovea::cuda {

struct GlaWork90 {
  Recur a;
  CUtensorMap q, k, v;
  int32_t tiles;    // of 64 value columns
  int32_t copies;   // blocks that share the outputs of a chain
  int32_t cluster;  // of copies: none writes a state before all have read theirs
  int64_t blocks;
};

struct GlaInstance90 {
  int32_t dtype, d;
  bool gated;
  void (*launch)(Context&, const GlaWork90&);
};

// A row of forward.inc.
struct GlaConfig90 {
  int dtype, d;
  int gated;    // there is a head gate, or select
  int stages;   // of K and V
  int queries;  // stages of Q
};

// Explicitly instantiated, one file for each width.
template <GlaConfig90 C>
GlaInstance90 gla_sm90_instance();

}  // namespace fovea::cuda
