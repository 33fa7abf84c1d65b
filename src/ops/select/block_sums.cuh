// SPDX-License-Identifier: Apache-2.0
// Between the plan of x_select_block on Hopper (block_sm90.cu) and its kernel of scores
// (block_sums_sm90.cuh), which is compiled apart.
#pragma once
#include <cuda.h>  // CUtensorMap; nothing of libcuda is linked

#include "ops/select/block_sm80.cuh"

namespace fovea::cuda {

// A chunk of list rows.  Units: groups of 256 / heads list rows under a list head, groups fastest.
struct BlockSums90 {
  SelectProduct x;
  SelectChunk chunk;
  int32_t groups, units;
  int32_t* seen;  // (b, n): columns that a list row sees
};

struct BlockSumsMaps90 {
  CUtensorMap row, column;
};

struct BlockSumsInstance90 {
  int32_t dtype, width, heads;  // heads: query heads of a list head
  void (*run)(Context& ctx, const BlockSums90& call, const BlockSumsMaps90& maps);
};

// Rows of block_sums.inc; each is compiled apart.
template <int Dtype, int D, int Heads>
BlockSumsInstance90 select_block_sums_sm90_instance();

}  // namespace fovea::cuda
