// SPDX-License-Identifier: Apache-2.0
// quant_forward on the 8-bit Hopper sweep.
#pragma once
#include <algorithm>

#include "cuda/launch.h"
#include "cuda/loop/attend_fp8_sm90.cuh"
#include "ops/quant/forward.cuh"

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
    const Sequence& seq = tile.rows.seq;
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
  __device__ float row_factor(int group, int) const {
    return row_factors[group];
  }
  struct KeyScales {
    BlockScales keys;
    float first;
    int last;
    __device__ float at(int key) const { return Blocks ? keys[min(key, last)] : first; }
  };
  __device__ KeyScales key_scales() const {
    return {keys, first_key_factor, last_key};
  }
  __device__ float2 value_factor(int) const {
    return {values, values};
  }
};

template <QuantConfig90 C>
QuantInstance90 quant_sm90_instance() {
  static_assert(C.dtype == FOVEA_E4M3);
  using Shape = ByteShape90<C.d, C.d, C.groups, C.keys, C.stages, C.run>;
  constexpr auto launcher = [](Context& ctx, const QuantAttend& a, const QuantWork& work,
                               const CodeMaps& maps) {
    const int blocks = std::min(work.schedule.items, device_info(ctx).multiprocessors);
    const auto run = [&]<bool Blocks>() {
      using Source = KeySourceOf<CodeTiles<Blocks, C.groups>, RowBoxes>;
      launch<attend_fp8_sm90<Shape, Source, DirectEpilogue>>(
          ctx, "quant_forward", blocks, Shape::threads, byte_shared_bytes<Shape, Source>, a,
          work.grid, maps, work.order, work.schedule, DirectEpilogue());
    };
    a.k_axis.block ? run.template operator()<true>() : run.template operator()<false>();
  };
  return {{C.d, Shape::BM, C.keys, Shape::TileK::Panel, Shape::TileV::Panel}, launcher};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(...)                                                  \
  namespace fovea::cuda {                                                    \
  template QuantInstance90 quant_sm90_instance<QuantConfig90 __VA_ARGS__>(); \
  }
