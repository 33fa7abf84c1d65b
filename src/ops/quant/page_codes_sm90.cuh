// SPDX-License-Identifier: Apache-2.0
// Codes of pages on the 8-bit Hopper sweep: scales of k stand with their page, that of v is one of
// all pages.
#pragma once
#include "ops/quant/float_codes_sm90.cuh"
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

}  // namespace fovea::cuda
