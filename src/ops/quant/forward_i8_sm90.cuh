// SPDX-License-Identifier: Apache-2.0
// quant_forward of SageAttention2 on the 8-bit Hopper sweep: i8 q and k with scales of threads or
// blocks, e4m3 v with scales of channels.
#pragma once
#include <algorithm>

#include "cuda/launch.h"
#include "ops/quant/forward.cuh"
#include "ops/quant/integer_codes_sm90.cuh"

namespace fovea::cuda {

template <QuantConfig90 C>
QuantInstance90 quant_sm90_instance() {
  static_assert(C.dtype == FOVEA_I8);
  using Shape = ByteShape90<C.d, C.d, C.groups, C.keys, C.stages, C.run>;
  constexpr auto launcher = [](Context& ctx, const QuantAttend& a, const QuantWork& work,
                               const CodeMaps& maps) {
    using Source = KeySourceOf<IntegerTiles, RowBoxes>;
    launch<attend_fp8_sm90<Shape, Source, DirectEpilogue>>(
        ctx, "quant_forward", std::min(work.schedule.items, device_info(ctx).multiprocessors),
        Shape::threads, byte_shared_bytes<Shape, Source>, a, work.grid, maps, work.order,
        work.schedule, DirectEpilogue());
  };
  return {{C.d, Shape::BM, C.keys, Shape::TileK::Panel, Shape::TileV::Panel}, launcher};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(...)                                                  \
  namespace fovea::cuda {                                                    \
  template QuantInstance90 quant_sm90_instance<QuantConfig90 __VA_ARGS__>(); \
  }
