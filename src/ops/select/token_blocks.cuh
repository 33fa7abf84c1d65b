// SPDX-License-Identifier: Apache-2.0
// Between the launcher of x_select_token with pool_keys and its Hopper kernel of scores
// (token_blocks_sm90.cuh), which is compiled apart.
#pragma once
#include "ops/select/token_scores.cuh"

namespace fovea::cuda {

constexpr int kTokenHeadsMost = 64;  // of a unit

// A unit: some heads of a key head, for a group of 256 / heads rows.  `units` of a group are g
// times `parts`.
struct TokenBlocks90 : TokenScores90 {
  int32_t log_heads;  // heads of a unit: a power of two
  int32_t parts;      // units of a key head
  int32_t list;       // query heads of a list head: 1, 2, 4 or 8
  int32_t cells;      // scores of a tile: 1, 2, 4 or 8
};

struct TokenBlocksInstance90 {
  int32_t dtype, width;
  // `behind`: the launch before was a list kernel of this call, and the two may overlap.
  void (*run)(Context& ctx, const TokenBlocks90& call, const TokenMaps90& maps, bool behind);
};

// Rows of token_blocks.inc; each is compiled apart.
template <int Dtype, int D>
TokenBlocksInstance90 select_token_blocks_sm90_instance();

}  // namespace fovea::cuda
