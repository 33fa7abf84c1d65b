// SPDX-License-Identifier: Apache-2.0
// quant_forward of SageAttention2 on the 8-bit Hopper sweep where q is smoothed too: i8 q and k
// with scales of threads or blocks, e4m3 v, and delta, which rows of a block of 128 share.
//   score = scale (q_scale k_scale q k' + delta)
#pragma once
#include <algorithm>

#include "cuda/launch.h"
#include "ops/quant/forward.cuh"
#include "ops/quant/integer_codes_sm90.cuh"

namespace fovea::cuda {

// The tiles that the mask leaves.
template <int Groups>
struct DeltaTiles : SeenTiles, IntegerCodes {
  using Call = QuantAttend;
  static constexpr bool reads_device = true, blocks = true;
  float unit;
  int key_step;
  const float* deltas[Groups];  // of key 0

  __device__ void start(const QuantAttend& call, const RowTile& tile, int, WindowMask&) {
    find(call, tile, tile.rows.seq);
    unit = scale, key_step = static_cast<int>(call.delta.stride[3]);
    // A tile may end with rows of no block.
#pragma unroll 1
    for (int group = 0; group < Groups; ++group)
      deltas[group] = call.delta_of(tile.rows.seq, tile.rows.r, tile.rows.g,
                                    min(tile.begin + group * 64, tile.count - 1));
  }
  __device__ float row_factor(int, int row) const {
    return row < count ? row_scale(row) : 1;
  }
  __device__ KeyTerms terms(int group) const {
    return {deltas[group], key_step};
  }
};

template <QuantConfig90 C>
QuantInstance90 quant_delta_sm90_instance() {
  static_assert(C.dtype == FOVEA_I8);
  using Shape = ByteShape90<C.d, C.d, C.groups, C.keys, C.stages, C.run>;
  constexpr auto launcher = [](Context& ctx, const QuantAttend& a, const QuantWork& work,
                               const CodeMaps& maps) {
    using Source = KeySourceOf<DeltaTiles<C.groups>, RowBoxes>;
    launch<attend_fp8_sm90<Shape, Source, DirectEpilogue>>(
        ctx, "quant_forward", std::min(work.schedule.items, device_info(ctx).multiprocessors),
        Shape::threads, byte_shared_bytes<Shape, Source>, a, work.grid, maps, work.order,
        work.schedule, DirectEpilogue());
  };
  return {{C.d, Shape::BM, C.keys, Shape::TileK::Panel, Shape::TileV::Panel}, launcher};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(...)                                                        \
  namespace fovea::cuda {                                                          \
  template QuantInstance90 quant_delta_sm90_instance<QuantConfig90 __VA_ARGS__>(); \
  }
