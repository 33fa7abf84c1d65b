// SPDX-License-Identifier: Apache-2.0
// KeySource of unions of many list rows (tile_unions.cuh), beside those of source_sm90.cuh.
#pragma once
#include "cuda/loop/source_sm90.cuh"
#include "cuda/loop/tile_unions.cuh"

namespace fovea::cuda {

// Steps are places in the union of the row tile, counted as those of SpannedTiles.
struct UnitedTiles {
  using Call = UnitedAttend;
  static constexpr bool reads_device = true, repeats = true, unions = true;
  const int32_t* place;  // of step `base`
  const uint8_t* times;  // of the row tile's first row
  int base, row_bytes, shift;
  float doubled;  // what a product lacks to a weight of twice its own

  template <class Mask>
  __device__ static KeyTiles tiles(const UnitedAttend& a, const RowTile& tile, int width) {
    const TileSpan span = a.lists.span[number_of(a.lists, tile)];
    const int base = base_of(tile, width);
    return {0, base + span.begin, base + span.end};
  }
  template <class Mask>
  __device__ void start(const UnitedAttend& a, const RowTile& tile, int width, Mask& mask) {
    const TileUnions& lists = a.lists;
    const int64_t number = number_of(lists, tile);
    const TileSpan span = lists.span[number];
    base = base_of(tile, width), row_bytes = lists.blocks, shift = lists.shift;
    place = lists.tile + number * lists.tiles;
    times = lists.times + number * lists.rows * row_bytes;
    doubled = 1.f / (a.attend.score.scale * kLog2E);
    mask.begin = base + span.whole_begin, mask.end = base + span.whole_end;
  }
  __device__ int key_tile(int n) const { return n >= base ? place[n - base] : n; }
  // Hides step n from rows that do not name it; `row`: the warp's first in the row tile.
  template <int N>
  __device__ void hide(float (&x)[1][N][4], int n, int row) const {
    const int block = n >= base ? place[n - base] >> shift : 0;
    each_row<1>(row, [&](int, int half, int m) {
      const int often = n >= base ? __ldg(times + m * row_bytes + block) : 0;
      if (often == 1) return;
      const float more = often ? log2f(static_cast<float>(often)) * doubled : kNegativeInfinity;
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int c = 2 * half; c < 2 * half + 2; ++c) x[0][j][c] = often ? x[0][j][c] + more : more;
    });
  }

 private:
  __device__ static int base_of(const RowTile& tile, int width) {
    return tile.keys / width + 2;
  }
  __device__ static int64_t number_of(const TileUnions& lists, const RowTile& tile) {
    const int head = static_cast<int>(tile.rows.head_begin()) / lists.group;
    return (tile.rows.r * lists.x + head) * lists.row_tiles + tile.begin / lists.rows;
  }
};
using United = KeySourceOf<UnitedTiles, RowBoxes>;

static_assert(KeySource<United>);

}  // namespace fovea::cuda
