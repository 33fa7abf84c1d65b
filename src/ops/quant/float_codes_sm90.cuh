// SPDX-License-Identifier: Apache-2.0
// Codes of FlashAttention-3 on the 8-bit Hopper sweep: e4m3 with scales of blocks.
#pragma once
#include "cuda/loop/attend_fp8_sm90.cuh"
#include "ops/quant/kernels.h"

namespace fovea::cuda {

// The tiles that the mask leaves, and what their codes stand for.  Blocks: scales of keys change
// within a sequence.
template <bool Blocks, int Groups>
struct CodeTiles : SeenTiles {
  using Call = QuantAttend;
  static constexpr bool reads_device = true, blocks = Blocks;
  static constexpr int dtype = FOVEA_E4M3;
  BlockScales keys;
  float row_factors[Groups];  // with the score's scale, in units of log2
  float first_key_factor, values;
  int column, last_key;
  bool beyond;

  __device__ void start(const QuantAttend& call, const RowTile& tile, int, WindowMask&) {
    find(call, tile, tile.rows.seq);
  }
  __device__ float row_factor(int group, int) const { return row_factors[group]; }
  struct KeyScales {
    BlockScales keys;
    float first;
    int last;
    __device__ float at(int key) const { return Blocks ? keys[min(key, last)] : first; }
  };
  __device__ KeyScales key_scales() const { return {keys, first_key_factor, last_key}; }
  __device__ float2 value_factor(int) const { return {values, values}; }

 protected:
  // Scales of k and v are those of the cache row that `seq` names.
  __device__ void find(const QuantAttend& call, const RowTile& tile, const Sequence& seq) {
    const int64_t r = tile.rows.r, g = tile.key_head(call.attend);
    column = static_cast<int>(call.v_column(r) - seq.key_begin);
    beyond = call.v_column(r) + tile.keys < call.padded;
    if (tile.keys <= 0) return;  // nor are there scales
    last_key = tile.keys - 1;
    const float scale = call.attend.score.scale * kLog2E;
    const BlockScales rows = call.q_blocks(seq, r, tile.rows.g);
#pragma unroll 1
    for (int group = 0; group < Groups; ++group)
      row_factors[group] = scale * rows[min(tile.begin + group * 64, tile.count - 1)];
    keys = call.k_blocks(seq, r, g), first_key_factor = keys[0];
    values = call.v_scale_of(seq, r, g);
  }
};

}  // namespace fovea::cuda
