// SPDX-License-Identifier: Apache-2.0
// Between a launcher and the sweep over all heads of a tile on Hopper (heads_sm90.cuh), which is
// compiled apart.
#pragma once
#include <cuda.h>  // CUtensorMap; nothing of libcuda is linked

#include "core/attend.h"

namespace fovea::cuda {

constexpr int kHeadsTile = 128;  // rows, and keys

// Side 0 is the teacher, 1 the student.
struct HeadsMaps {
  CUtensorMap q[2], k[2];
};

// Works are (sequence, row tile, part of its key tiles), late rows first: under a causal mask they
// have most keys.
struct HeadsWork {
  Attend a;                    // rows, keys, what is seen, scale: the teacher's
  int32_t heads[2], group[2];  // group: query heads of a key head
  int32_t row_tiles, parts;
  int32_t first, count;  // row tiles of all sequences that a launch takes

  int64_t items() const { return int64_t{count} * parts; }
};

}  // namespace fovea::cuda
