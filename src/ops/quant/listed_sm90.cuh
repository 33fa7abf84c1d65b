// SPDX-License-Identifier: Apache-2.0
// quant_forward over lists on the 8-bit Hopper sweep (loop/attend_fp8_sm90.cuh): SageAttention2's
// codes over blocks of 64 keys.
//   A step of the sweep is BN / 64 neighbouring places of the list row, from its last to its first
//   (loop/tile_lists.cuh).  Each is a box of K, of V transposed, and has scales of its own.
// SpargeAttention (2502.18137).
#pragma once
#include <algorithm>

#include "cuda/launch.h"
#include "ops/quant/integer_codes_sm90.cuh"
#include "ops/quant/listed.cuh"

namespace fovea::cuda {

// The blocks of a list row, and what their codes stand for.  A step is Each neighbouring places of
// the span; of the last some may be missing.  SpannedBlocks with constants: the scheduler has few
// registers.
template <int Each>
struct IntegerBlocks : private SpannedTiles, IntegerCodes {
  using Call = QuantTiled;
  static constexpr bool reads_device = true, blocks = true;
  int size;  // places of the span

  template <class Mask>
  __device__ static KeyTiles tiles(const QuantTiled& call, const RowTile& tile, int width) {
    const TileSpan span = span_of(call.lists, tile);
    const int base = base_of(tile, width);
    return {0, base, base + (span.end - span.begin + Each - 1) / Each};
  }
  __device__ void start(const QuantTiled& call, const RowTile& tile, int width, WindowMask& mask) {
    const TileSpan span = span_of(call.lists, tile);
    base = base_of(tile, width);
    place = places_of(call.lists, tile) + span.begin;
    size = span.end - span.begin;
    mask.begin = base + (span.whole_begin - span.begin + Each - 1) / Each;
    mask.end = max(base + (span.whole_end - span.begin) / Each, mask.begin);
    // What is found is stored before more is looked for.
    asm volatile("" ::: "memory");
    find(call.codes, tile, tile.rows.seq);
    asm volatile("" ::: "memory");
  }
  // Only whether a step is before another's tile: no step is.
  __device__ int key_tile(int) const { return 0; }
  // The key in a column of step n; past every key where there is none.
  __device__ int key_at(int n, int column) const {
    const int at = (n - base) * Each + column / kTileKeys;
    return n < base || at >= size ? static_cast<int>(kIndexMax)
                                  : place[at] * kTileKeys + column % kTileKeys;
  }
  __device__ float raise(const QuantTiled& call, const RowTile& tile, int m) const {
    return IntegerCodes::raise(call.codes, tile, m);
  }
};

// The scheduler looks up more than without lists.
template <class Base>
struct ListShape90 : Base {
  static_assert(Base::Groups == 2);
  static constexpr int producer_regs = Base::producer_regs + 16,
                       consumer_regs = Base::consumer_regs - 8;
};

template <QuantConfig90 C>
QuantListInstance90 quant_list_sm90_instance() {
  static_assert(C.dtype == FOVEA_I8);
  using Shape = ListShape90<ByteShape90<C.d, C.d, C.groups, C.keys, C.stages, C.run>>;
  constexpr auto launcher = [](Context& ctx, const QuantTiled& call, const QuantWork& work,
                               const CodeMaps& maps) {
    using Source = KeySourceOf<IntegerBlocks<C.keys / kTileKeys>, PartBoxes>;
    launch<attend_fp8_sm90<Shape, Source, DirectEpilogue>>(
        ctx, "quant_forward", std::min(work.schedule.items, device_info(ctx).multiprocessors),
        Shape::threads, byte_shared_bytes<Shape, Source>, call, work.grid, maps, work.order,
        work.schedule, DirectEpilogue());
  };
  return {{C.d, Shape::BM, kTileKeys, Shape::TileK::Panel, Shape::TileV::Panel}, launcher};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(...)                                                           \
  namespace fovea::cuda {                                                             \
  template QuantListInstance90 quant_list_sm90_instance<QuantConfig90 __VA_ARGS__>(); \
  }
