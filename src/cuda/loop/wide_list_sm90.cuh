// SPDX-License-Identifier: Apache-2.0
// Lists of single keys for the sweep over wide keys: which keys a row tile walks, and the shape.
//   A row tile is heads of one row of q, which share its list.  A step is 64 places of the list.
//   What the row does not see by its window is no key of the list, so that no score needs a mask.
#pragma once
#include <climits>

#include "core/sparse.h"
#include "cuda/loop/shared_wide_sm90.cuh"
#include "cuda/loop/source_sm90.cuh"

namespace fovea::cuda {

// step: packed rows of a row tile, all of one row of q.
struct KeyLists : SparseList {
  int32_t step;
};
// A call whose rows see the keys of lists alone.
struct KeyListAttend {
  Attend attend;
  KeyLists lists;
};
FOVEA_HD const Attend& attend_in(const KeyListAttend& call) {
  return call.attend;
}

struct ListedKeys {
  using Call = KeyListAttend;
  static constexpr bool reads_device = true, single = true;
  const int32_t* index;  // of the first place
  int64_t stride;
  int places, key_head;
  int low, high, first_low, first_high;  // keys that the row sees by its window

  template <class Mask>
  __device__ static KeyTiles tiles(const KeyListAttend& a, const RowTile& tile, int width) {
    const int64_t places = a.lists.count(row_of(a, tile));
    return {0, 0, (places + width - 1) / width};
  }
  template <class Mask>
  __device__ void start(const KeyListAttend& a, const RowTile& tile, int, Mask&) {
    const ListRow row = row_of(a, tile);
    places = static_cast<int>(a.lists.count(row));
    index = row.row < 0 ? nullptr : a.lists.index.at<int32_t>(row.batch, row.head, row.row);
    stride = a.lists.index.stride[3];
    const int group = static_cast<int>(a.attend.h) / static_cast<int>(a.attend.g);
    key_head = static_cast<int>(tile.rows.head_begin()) / group;
    const KeyRange seen =
        a.attend.mask.window.range(tile.position(tile.begin), tile.keys, a.attend.mask.axis);
    low = static_cast<int>(seen.low), high = static_cast<int>(seen.high);
    first_low = static_cast<int>(seen.first_low), first_high = static_cast<int>(seen.first_high);
  }
  // Planned while the kernel before may still write lists: whether the list is still as long.
  __device__ bool unchanged(const KeyListAttend& a, const RowTile& tile) const {
    return places == static_cast<int>(a.lists.count(row_of(a, tile)));
  }
  // Only whether a step is before another's tile: no step is.
  __device__ int key_tile(int) const { return 0; }
  __device__ bool sees(int key) const {
    return key >= 0 && key < high && (key >= low || (key >= first_low && key < first_high));
  }

 private:
  __device__ static ListRow row_of(const KeyListAttend& a, const RowTile& tile) {
    const int head = static_cast<int>(tile.rows.head_begin()) / static_cast<int>(a.lists.group);
    return a.lists.at(tile.rows.seq, tile.rows.r, static_cast<bool>(a.attend.sequences.query_start),
                      head, tile.first_query());
  }
};

// Of a walk whose steps have no key that a row does not see.
struct SeenMask {
  using Call = Attend;
  static constexpr bool sinks = false;
  static constexpr int begin = 0, end = INT_MAX;

  __device__ SeenMask(const Attend&, const RowTile&, int) {}
  __device__ static KeyTiles tiles(const Attend&, const RowTile&, int) { return {0, 0, 0}; }
  __device__ bool full(int) const { return true; }
  template <int M, int N>
  __device__ void apply(float (&)[M][N][4], int, int) const {}
};
static_assert(TileMask<SeenMask>);

// Keys lie anywhere: nothing is a box.
using WideLists = KeySourceOf<ListedKeys, RowBoxes>;
static_assert(KeySource<WideLists>);
struct NoMaps {};

// Six warps copy rows: what is in flight for one does not fill the bus.  Joined: K is (v, k), for
// q_value.
template <int Dtype, int D, bool VInK, bool Joined>
struct WideListShape90 : WideShape90<Dtype, D, VInK> {
  static constexpr bool joined = Joined;
  static_assert(!Joined || WideShape90<Dtype, D, VInK>::joins);
  static constexpr int threads = 512, producer_regs = 48;
  static constexpr bool values_first = true;
  static constexpr int loaders = 6, readers = loaders + 1;
  static constexpr int q_arrivals = 32 * loaders, copy_arrivals = 33 * loaders;
  static constexpr int absent_words = 4;
};

}  // namespace fovea::cuda
