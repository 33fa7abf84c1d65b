// SPDX-License-Identifier: Apache-2.0
// Between the launcher of x_select_token and its Hopper kernel of scores (token_sm90.cuh), which is
// compiled apart.
#pragma once
#include <cuda.h>  // CUtensorMap; nothing of libcuda is linked

#include "cuda/device.h"
#include "ops/select/token.h"
#include "ops/select/token_groups.h"

namespace fovea::cuda {

constexpr int kTokenKeys = 128;  // of a tile
constexpr int kTokenSums = 256;  // rows x heads of a tile
constexpr int kTokenThreads = 384;

// A chunk: units [0, units), each a part of the heads of a group of rows; parts are fastest.
struct TokenScores90 {
  SelectToken a;
  TokenGroups groups;
  uint32_t* key;  // (groups, x, rows_each, pitch): keys of core/pick.h, 0: not selectable
  int64_t pitch;  // a multiple of kTokenKeys
  int64_t first;  // group
  int32_t units, rows_each, group_units;  // units of a group: x where a unit is a list head
  int32_t box_keys, boxes;                // of a tile of keys: 1 but for short pages
};

// "" or what no Hopper kernel of x_select_token takes.
Text token_refuses_sm90(const Context& ctx, const SelectToken& a);

struct TokenMaps90 {
  CUtensorMap q, k;
};

struct TokenInstance90 {
  int32_t dtype, width, heads;
  // `behind`: the launch before was a list kernel of this call, and the two may overlap.
  void (*run)(Context& ctx, const TokenScores90& call, const TokenMaps90& maps, bool behind);
};

// Rows of token.inc; each is compiled apart.
template <int Dtype, int D, int Heads>
TokenInstance90 select_token_sm90_instance();

}  // namespace fovea::cuda
