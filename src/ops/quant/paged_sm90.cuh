// SPDX-License-Identifier: Apache-2.0
// quant_forward over pages on the 8-bit Hopper sweep (loop/attend_fp8_sm90.cuh).
//   A page is a multiple of 64 tokens.  A step of the sweep is BN / 64 parts of 64 keys.  A part is
//   a box of K and one of V transposed, both of one page.  The producer finds the page and writes
//   it beside the stage, where consumers look up the scale of k.  Boxes without a page read zeros,
//   and their scores are hidden.  The scale of v is one of all pages.
// FlashAttention-3 (2407.08608), SageAttention2 (2411.10958), PagedAttention (2309.06180).
#pragma once
#include <algorithm>

#include "cuda/launch.h"
#include "ops/quant/forward.cuh"
#include "ops/quant/page_codes_sm90.cuh"

namespace fovea::cuda {

// A box of V is 64 keys.
template <class Base>
struct PageShape90 : Base {
  using TileV = sm90::Bytes<Base::E, Base::BN, kTileKeys>;
};

template <QuantConfig90 C>
QuantInstance90 quant_paged_sm90_instance() {
  using Shape = PageShape90<ByteShape90<C.d, C.d, C.groups, C.keys, C.stages, C.run>>;
  constexpr auto launcher = [](Context& ctx, const QuantAttend& a, const QuantWork& work,
                               const CodeMaps& maps) {
    const auto run = [&]<class Tiles>() {
      using Source = KeySourceOf<Tiles, PagePartBoxes>;
      launch<attend_fp8_sm90<Shape, Source, DirectEpilogue>>(
          ctx, "quant_forward", std::min(work.schedule.items, device_info(ctx).multiprocessors),
          Shape::threads, byte_shared_bytes<Shape, Source>, a, work.grid, maps, work.order,
          work.schedule, DirectEpilogue());
    };
    if constexpr (C.dtype == FOVEA_I8)
      run.template operator()<PagedIntegerTiles>();
    else if (a.one_scale(a.k_axis))
      run.template operator()<PagedCodeTiles<false, C.groups>>();
    else
      run.template operator()<PagedCodeTiles<true, C.groups>>();
  };
  return {{C.d, Shape::BM, kTileKeys, Shape::TileK::Panel, Shape::TileV::Panel}, launcher};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(...)                                                        \
  namespace fovea::cuda {                                                          \
  template QuantInstance90 quant_paged_sm90_instance<QuantConfig90 __VA_ARGS__>(); \
  }
