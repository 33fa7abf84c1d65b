// SPDX-License-Identifier: Apache-2.0
// quant_forward on the 8-bit Hopper sweep.
#pragma once
#include <algorithm>

#include "cuda/launch.h"
#include "ops/quant/float_codes_sm90.cuh"
#include "ops/quant/forward.cuh"

namespace fovea::cuda {

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
