// SPDX-License-Identifier: Apache-2.0
// quant_forward over small pages on the 8-bit Hopper sweep (loop/attend_fp8_sm90.cuh).
//   A page is a multiple of 16 tokens.  A box of K or of V transposed is 16 or 32 keys of one page.
//   A row of V transposed has 16 bytes of a run of keys: too few for a swizzle.  So its tile is
//   panels of 16 columns that are not swizzled, and each step of 32 k reads two of them.  Boxes
//   without a page read zeros, and their scores are hidden.  The scales of k and v are one of all
//   pages.
// FlashAttention-3 (2407.08608), PagedAttention (2309.06180).
#pragma once
#include <algorithm>

#include "cuda/launch.h"
#include "ops/quant/forward.cuh"
#include "ops/quant/page_codes_sm90.cuh"

namespace fovea::cuda {

template <class Base>
struct RunShape90 : Base {
  using TileV = sm90::ByteRuns<Base::E, Base::BN>;
};

template <QuantConfig90 C>
QuantInstance90 quant_runs_sm90_instance() {
  static_assert(C.dtype == FOVEA_E4M3);
  using Shape = RunShape90<ByteShape90<C.d, C.d, C.groups, C.keys, C.stages, C.run>>;
  using Source = KeySourceOf<PagedCodeTiles<false, C.groups>, PageRunBoxes>;
  constexpr auto launcher = [](Context& ctx, const QuantAttend& a, const QuantWork& work,
                               const CodeMaps& maps) {
    launch<attend_fp8_sm90<Shape, Source, DirectEpilogue>>(
        ctx, "quant_forward", std::min(work.schedule.items, device_info(ctx).multiprocessors),
        Shape::threads, byte_shared_bytes<Shape, Source>, a, work.grid, maps, work.order,
        work.schedule, DirectEpilogue());
  };
  return {{C.d, Shape::BM, C.keys, Shape::TileK::Panel, Shape::TileV::Panel}, launcher};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(...)                                                       \
  namespace fovea::cuda {                                                         \
  template QuantInstance90 quant_runs_sm90_instance<QuantConfig90 __VA_ARGS__>(); \
  }
