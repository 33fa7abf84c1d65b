// SPDX-License-Identifier: Apache-2.0
// x_sparse_forward over blocks and single keys on the Hopper sweep (loop/attend_sm90.cuh).
//   o_i = sum_j p_ij v_j / sum_j p_ij over the keys j that the list of row i names, as often as it
//   does.
//   A row tile is 128 rows of one list row or of two (column_lists.cuh).
//   A key tile is either whole pieces, a TMA box each, at any key; or 128 columns, whose rows the
//   producer warp gathers by cp.async (Producer90).
//   A walk meets pieces first, from the last key on, and columns after.
//   Shared memory and mbarriers: Shared90.
#pragma once
#include <algorithm>

#include "cuda/launch.h"
#include "cuda/loop/list_shape_sm90.cuh"
#include "cuda/tile/copy.cuh"
#include "ops/sparse/column_lists.cuh"
#include "ops/sparse/forward.cuh"

namespace fovea::cuda {

// Steps count from behind the last tile of the sequence, as those of SpannedTiles: columns, then
// pieces.
struct ColumnTiles {
  using Call = ColumnAttend;
  static constexpr bool reads_device = true, repeats = true, blocks = true, gathers = true;
  const int32_t *piece, *column;  // places of the row tile
  int base, gathered;             // the first step; steps of columns
  int pieces, columns;
  int shift, each;  // a piece is 1 << shift keys; pieces of a step
  int first_keys, last_keys;
  int second;  // packed rows of the first list row

  template <class Mask>
  __device__ static KeyTiles tiles(const ColumnAttend& a, const RowTile& tile, int width) {
    const ColumnSpan span = span_of(a.lists, tile);
    const int base = base_of(tile, width), each = width / a.lists.width;
    return {0, base, base + steps(span.columns, width) + steps(span.pieces, each)};
  }
  template <class Mask>
  __device__ void start(const ColumnAttend& a, const RowTile& tile, int width, Mask& mask) {
    const ColumnLists& lists = a.lists;
    const ColumnSpan span = span_of(lists, tile);
    const int64_t row = row_of(lists, tile);
    piece = lists.tile + row * lists.most, column = lists.column + row * lists.most_columns;
    pieces = span.pieces, columns = span.columns;
    shift = __ffs(lists.width) - 1, each = width / lists.width;
    base = base_of(tile, width), gathered = steps(columns, width);
    first_keys = lists.first_keys, last_keys = lists.last_keys;
    second = lists.step / lists.rows;
    mask.begin = base + gathered + steps(span.whole_begin, each);
    mask.end = max(base + gathered + span.whole_end / each, mask.begin);
  }
  // Only whether a step is before another's tile: no step is.
  __device__ int key_tile(int) const { return 0; }
  __device__ bool gathers_at(int n) const { return n >= base && n < base + gathered; }
  // The key in a column of step n of pieces; past every key where there is none.
  __device__ int key_at(int n, int at) const {
    const int place = place_of(n, at);
    return place < 0 ? static_cast<int>(kIndexMax)
                     : tile_in(piece[place]) + (at & ((1 << shift) - 1));
  }
  __device__ int block_keys() const { return 1 << shift; }

  // Hides the pairs of step n that do not count; `row`: the warp's first.  `whole`: every row sees
  // the keys, but for those of pieces that one list row alone names.
  template <int N>
  __device__ __forceinline__ void hide(float (&x)[1][N][4], int n, int row, const WindowMask& mask,
                                       bool whole) const {
    const Rows rows(*this, row, mask);
    if (whole) return hide_unnamed(x, n, rows);
    const bool gathered = gathers_at(n);
    // Pieces do not show the first keys: these are columns.
    const int floor = gathered ? 0 : first_keys, lane = threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      int two[2];
      if (gathered) {
        const int at = sm90::unhoisted((n - base) * N * 8 + j * 8 + lane);
#pragma unroll
        for (int i = 0; i < 2; ++i) two[i] = at + i < columns ? column[at + i] : -1;
      } else {
        const int at = place_of(n, sm90::unhoisted(j * 8));
        const int first = at < 0 ? 0 : piece[at] + ((j * 8 & ((1 << shift) - 1)) + lane);
        two[0] = at < 0 ? -1 : first, two[1] = at < 0 ? -1 : first + 1;
      }
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int place = two[c % 2];
        if (place < 0 || tile_in(place) < floor || !rows.see(place, c / 2))
          x[0][j][c] = kNegativeInfinity;
      }
    }
  }

 private:
  // What the lane's two rows see.
  struct Rows {
    int position[2], list[2];  // list: the bit of its list row
    int left, right, keys;     // of the window, kIndexMax for all; of the sequence
    int first, most;           // first_keys, last_keys

    __device__ Rows(const ColumnTiles& steps, int row, const WindowMask& mask)
        : left(mask.left > 0 ? mask.left : static_cast<int>(kIndexMax)),
          right(mask.right > 0 ? mask.right : static_cast<int>(kIndexMax)),
          keys(mask.tile.keys),
          first(steps.first_keys),
          most(steps.last_keys) {
      each_row<1>(row, [&](int, int half, int m) {
        position[half] = mask.tile.query(m) + mask.tile.shift;
        list[half] = m - mask.tile.begin < steps.second ? 1 : 2;
      });
    }
    // A key of the band only as one of the row's last, another only as none of them.
    __device__ bool see(int place, int half) const {
      const int key = tile_in(place), by = rows_in(place), behind = position[half] - key;
      const bool last = key >= first && static_cast<uint32_t>(behind) < static_cast<uint32_t>(most);
      return behind < left && -behind < right && key < keys &&
             (last ? by & kColumnBand : by & list[half]) != 0;
    }
  };

  __device__ static int steps(int places, int each) {
    return (places + each - 1) / each;
  }
  __device__ static int base_of(const RowTile& tile, int width) {
    return tile.keys / width + 2;
  }
  __device__ static int64_t row_of(const ColumnLists& lists, const RowTile& tile) {
    const int head = static_cast<int>(tile.rows.head_begin()) / lists.group;
    return lists.first(tile.rows.seq, tile.rows.r, head) +
           tile.begin / lists.step * int64_t{lists.rows};
  }
  __device__ static ColumnSpan span_of(const ColumnLists& lists, const RowTile& tile) {
    const int block = tile.begin / lists.step * lists.rows;
    if (!lists.has(tile.rows.seq, tile.rows.r, block)) return {};
    return lists.spans[row_of(lists, tile)];
  }
  // The place of the piece in a column of step n; -1: none.
  __device__ int place_of(int n, int at) const {
    const int step = n - base - gathered, place = step * each + (at >> shift);
    return step < 0 || place >= pieces ? -1 : place;
  }
  // Hides pieces of step n from rows whose list row does not name them.
  template <int N>
  __device__ __forceinline__ void hide_unnamed(float (&x)[1][N][4], int n, const Rows& rows) const {
    constexpr int kAll = (1 << kColumnLists) - 1;
    const int lane = threadIdx.x % 32, mine = lane < each ? place_of(n, lane << shift) : -1;
    const int named = mine < 0 ? kAll : rows_in(piece[mine]);
    if (__all_sync(~0u, named == kAll)) return;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const int by = __shfl_sync(~0u, named, j * 8 >> shift);
#pragma unroll
      for (int c = 0; c < 4; ++c)
        if (!(by & rows.list[c / 2])) x[0][j][c] = kNegativeInfinity;
    }
  }
};

// Boxes of pieces, one a lane, and columns row by row.
template <class Shape>
struct ColumnBoxes {
  static constexpr bool paged = false, gathers = true;
  // Boxes of the steps that 32 lanes hold, down to `first`.
  struct Stretch {
    int first, row, batch;
  };
  const Attend& a;
  const PageCuts& cuts;

  __device__ ColumnBoxes(const Attend& a, const auto& maps) : a(a), cuts(maps.pages) {}
  __device__ bool pages() const { return true; }
  template <class Work>
  __device__ __forceinline__ Stretch first(const Work& work, const int*) const {
    return stretch_to(work, work.last, threadIdx.x % 32);
  }
  // Of a step of columns: its first column, and -1.
  template <class Work>
  __device__ __forceinline__ KeyBox box(const Work& work, int step, int lane,
                                        Stretch& stretch) const {
    if (work.gathers_at(step)) return {(step - work.base) * Shape::BN, -1};
    if (step < stretch.first) stretch = stretch_to(work, step, lane);
    const int from = (step - stretch.first) * cuts.boxes + lane;
    return {__shfl_sync(~0u, stretch.row, from), __shfl_sync(~0u, stretch.batch, from)};
  }

  // Copies rows of K or V to a tile, by a warp: `first` is the column of its row 0.
  template <bool V, class Work>
  __device__ __forceinline__ void gather(const Work& work, int first, int head, uint32_t to,
                                         int lane) const {
    using Tile = std::conditional_t<V, typename Shape::TileV, typename Shape::TileK>;
    constexpr int kRows = 32 / kPanelChunks;  // of an instruction
    const View<4>& x = V ? a.v : a.k;
    const Sequence& seq = work.tile.rows.seq;
    const int64_t stride = x.stride[1];
    const int chunk = lane % kPanelChunks, width = static_cast<int>(V ? a.e : a.d);
    const uint16_t* origin = static_cast<const uint16_t*>(x.data) + seq.key_batch * x.stride[0] +
                             seq.key_begin * stride + head * x.stride[2] + chunk * kChunk;
    const int32_t* column = work.column + first;
    const int there = work.columns - first;
#pragma unroll 1
    for (int row = 0; row < Shape::BN; row += 32) {
      const int mine = row + lane < there ? tile_in(column[row + lane]) : -1;
#pragma unroll 4
      for (int i = 0; i < 32; i += kRows) {
        const int at = i + lane / kPanelChunks, key = __shfl_sync(~0u, mine, at);
        const uint16_t* from = origin + (key < 0 ? 0 : key * stride);
#pragma unroll
        for (int panel = 0; panel < Tile::panels; ++panel)
          copy_async(to + Tile::at(row + at, panel * kPanelChunks + chunk), from + panel * 64,
                     key >= 0 && panel * 64 + chunk * kChunk < width);
      }
    }
  }

 private:
  // What no row reads as.
  __device__ int nowhere() const {
    return static_cast<int>(a.sequences.caches);
  }
  template <class Work>
  __device__ __forceinline__ Stretch stretch_to(const Work& work, int step, int lane) const {
    const int boxes = cuts.boxes, first = step - 32 / boxes + 1;
    const int at = lane / boxes;
    const int key = work.key_at(first + at, (lane - at * boxes) * cuts.rows);
    if (key >= work.tile.keys) return {first, 0, nowhere()};
    const Sequence& seq = work.tile.rows.seq;
    return {first, static_cast<int>(seq.key_begin) + key, static_cast<int>(seq.key_batch)};
  }
};
using Columns = KeySourceOf<ColumnTiles, ColumnBoxes>;
static_assert(KeySource<Columns>);

// A producer that gathers keys takes more registers, so that Q finds none.  Work items are larger.
template <class Base>
struct ColumnShape90 : ListShape90<Base> {
  static constexpr int shared_bytes = Base::tile_bytes + 2 * Base::slack_bytes;
  static_assert(shared_bytes <= 227 * 1024);
  static constexpr int producer_regs = 72, consumer_regs = 216;
  static constexpr bool q_in_registers = false;
};

template <SparseConfig90 C>
ColumnInstance90 columns_sm90_instance() {
  using Shape = ColumnShape90<AttendShape90<C.dtype, C.d, C.e, C.groups, C.keys, C.stages>>;
  static_assert(Shape::Slots == 2);  // rows of o leave through Q
  constexpr auto launcher = [](Context& ctx, const Attend& a, const ColumnWork90& work) {
    const int blocks =
        std::min(work.schedule.items, Shape::blocks * device_info(ctx).multiprocessors);
    TmaEpilogue epilogue{};
    epilogue.o = work.o, epilogue.given = work.o_given;
    launch_pdl<attend_sm90<Shape, Columns, PlainScore, WindowMask, TmaEpilogue>>(
        ctx, "x_sparse_forward", blocks, Shape::threads, Shape::shared_bytes,
        ColumnAttend{a, work.lists}, work.grid, work.maps, work.order, work.schedule, epilogue);
  };
  return {C.dtype, C.d, C.e, Shape::BM, C.keys, launcher};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(...)                                                      \
  namespace fovea::cuda {                                                        \
  template ColumnInstance90 columns_sm90_instance<SparseConfig90 __VA_ARGS__>(); \
  }
