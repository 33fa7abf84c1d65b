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
#include "ops/quant/float_codes_sm90.cuh"
#include "ops/quant/forward.cuh"
#include "ops/quant/integer_codes_sm90.cuh"

namespace fovea::cuda {

// Scales of a head's keys in a pool: those of a page stand in one row.
struct PageScales {
  const float* first;  // of page 0, the lane's part of block 0
  int64_t page_stride;
  int step, shift, last;  // from block to block; keys of a block; a later part has no such scale

  __device__ float at(const PagePart& at) const {
    if (at.page < 0 || at.key > last) return 1;
    return __ldg(first + at.page * page_stride + static_cast<int64_t>(at.row >> shift) * step);
  }
};

// What pages share stands with page 0.
__device__ inline Sequence of_first_page(const RowTile& tile) {
  Sequence seq = tile.rows.seq;
  seq.key_batch = 0;
  return seq;
}

template <bool Blocks, int Groups>
struct PagedCodeTiles : CodeTiles<Blocks, Groups> {
  int64_t page_stride;

  __device__ void start(const QuantAttend& call, const RowTile& tile, int, WindowMask&) {
    this->find(call, tile, of_first_page(tile));
    this->beyond = tile.keys % kTileKeys != 0;
    page_stride = call.k_axis.scale.stride[0];
  }
  struct OneScale {
    float factor;
    __device__ float at(const PagePart&) const { return factor; }
  };
  __device__ auto key_scales() const {
    if constexpr (Blocks) {
      const BlockScales& keys = this->keys;
      return PageScales{keys.first, page_stride, static_cast<int>(keys.stride),
                        keys.block == kCodeRun ? 7
                        : keys.block           ? 6
                                               : 31,
                        this->last_key};
    } else {
      return OneScale{this->first_key_factor};
    }
  }
};

struct PagedIntegerTiles : SeenTiles, IntegerCodes {
  using Call = QuantAttend;
  static constexpr bool reads_device = true, blocks = true;
  int64_t page_stride;

  __device__ void start(const QuantAttend& call, const RowTile& tile, int, WindowMask&) {
    find(call, tile, of_first_page(tile));
    beyond = tile.keys % kTileKeys != 0;
    page_stride = call.k_axis.scale.stride[0];
    // A mean that pages share is a constant of the row.
    if (call.k_mean && call.shows_constants()) mean = call.k_mean.at(0, tile.key_head(call.attend));
  }
  __device__ PageScales key_scales() const {
    const int part = keys.parts > 1 ? static_cast<int>(threadIdx.x % 4) : 0;
    return {keys.first + static_cast<int64_t>(part) * keys.stride, page_stride,
            keys.parts * keys.stride, keys.shift, key_count - 1 - 2 * part};
  }
};

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
