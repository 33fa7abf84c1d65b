// SPDX-License-Identifier: Apache-2.0
// What the Hopper gradient loops share: the keys that a block owns, the row tiles that it loops
// over, and loads of tiles whose tail is not the sequence's.
#pragma once
#include <concepts>

#include "cuda/loop/backward_tiles.cuh"
#include "cuda/loop/row_tile.cuh"
#include "cuda/tensor_map.h"
#include "cuda/tile/mma_sm90.cuh"

namespace fovea::cuda {

// A block's work for key head g of sequence r: key block n, or, if part >= 0, a part of dq.
struct BackwardBlock {
  int64_t r = 0;
  int g, n = 0, part = -1;
  bool idle = true;  // past the last head
  // The two orders in which an owner's key blocks start, and the row tiles of each:
  //
  //   | order | key blocks | row tiles            | for                                         |
  //   | up    | descending | up from the diagonal | most heads: hardly ever waits for dq_order, |
  //   |       |            |                      | but the longest blocks start last           |
  //   | down  | ascending  | down                 | the last heads: the shortest blocks end the |
  //   |       |            |                      | call, at the price of waits                 |
  //
  // The head and the call's longest sequence decide: bits do not depend on a sequence's place.
  bool down;
  // The last key block, where keys end inside it and all rows see it.  It adds last: its masked
  // steps are slower, and all blocks behind it would wait for it at each tile.
  int tail = -1;

  __device__ explicit BackwardBlock(const BackwardGrid90& grid) {
    const uint32_t firsts = grid.owners() - grid.late * grid.down_heads;
    const uint32_t keys = grid.first.size * grid.blocks, per = keys + grid.first.size * grid.parts,
                   index = blockIdx.x / per;
    uint32_t at = blockIdx.x % per, owner, end = firsts;
    if (index < grid.first.count) {
      if (at < keys) {
        owner = index * grid.first.size + at % grid.first.size, n = at / grid.first.size;
      } else {
        if (index < 2) return;
        at -= keys;
        owner = (index - 2) * grid.first.size + at % grid.first.size, part = at / grid.first.size;
      }
    } else {
      at = blockIdx.x - grid.first.count * per;
      const uint32_t section = grid.last.size * grid.blocks;
      end = grid.owners();
      if (at < grid.last.count * section) {
        owner = firsts + at / section * grid.last.size, at %= section;
        owner += at % grid.last.size, n = at / grid.last.size;
      } else {
        at -= grid.last.count * section;
        owner = grid.early() + at / grid.parts, part = at % grid.parts;
      }
    }
    if (owner >= end) return;
    idle = false;
    // All heads of the first sequences, then the late sequences' up heads, then their down heads.
    const uint32_t heads = grid.heads, ups = heads - grid.down_heads,
                   late_from = grid.sequences - grid.late, whole = late_from * heads;
    if (owner < whole)
      r = owner / heads, g = owner % heads;
    else if (owner < firsts)
      r = late_from + (owner - whole) / ups, g = (owner - whole) % ups;
    else
      r = late_from + (owner - firsts) / grid.down_heads,
      g = ups + (owner - firsts) % grid.down_heads;
    down = g >= static_cast<int>(ups);
    if (!down) n = grid.blocks - 1 - n;
  }
  // Finds `tail`, before n is used, in loops that add to dq in order.  width: keys of a block.
  __device__ void place_tail(const Mask& mask, int64_t keys, int width) {
    if (part >= 0 || mask.window.right || keys % width == 0) return;
    tail = static_cast<int>(keys / width);
    if (n <= tail) n = n == 0 ? tail : n - 1;
  }
};

// A step of a key block: a row tile of one of the group's query heads.
struct RowStep {
  int m, head;  // head: within the group
};

// The steps of a key block:
//   first(), next(at), ends(at)  the first, the one after, whether `at` is behind the last
//   count()                      steps of all heads
//   each(f)                      calls f(query head, row tile) for each step
template <class S>
concept RowSource = requires(const S rows, RowStep at, void (*f)(int, int)) {
  { rows.first() } -> std::same_as<RowStep>;
  { rows.ends(at) } -> std::same_as<bool>;
  { rows.count() } -> std::same_as<int>;
  rows.next(at);
  rows.each(f);
};

// The row tiles in which some row sees some key of [begin, end) through the window.  All heads of
// the group take a row tile before any takes the next.  With a head's tiles in a row, a short key
// block that loops down would wait for the longest one at every head.
struct WindowRows {
  int begin, end, step, head, heads;
  __device__ WindowRows(const Attend& a, const Sequence& seq, int g, int begin, int end, int rows,
                        bool down) {
    heads = sm90::uniform(static_cast<uint32_t>(a.h) / static_cast<uint32_t>(a.g));
    head = g * heads;
    const PlainWindow window(a.mask.window, static_cast<int>(seq.rows), static_cast<int>(seq.keys));
    const PlainWindow::Span seen = window.rows_of(begin, end);
    const int low = seen.low / rows,
              high = seen.low < seen.high ? (seen.high + rows - 1) / rows : low;
    step = sm90::uniform(down ? -1 : 1);
    this->begin = sm90::uniform(down ? high - 1 : low);
    this->end = sm90::uniform(down ? low - 1 : high);
  }
  __device__ int count() const { return (end - begin) * step * heads; }
  __device__ RowStep first() const { return {begin, 0}; }
  __device__ bool ends(const RowStep& at) const { return at.m == end; }
  __device__ void next(RowStep& at) const {
    if (++at.head == heads) at = {at.m + step, 0};
  }
  template <class F>
  __device__ __forceinline__ void each(F f) const {
#pragma unroll 1
    for (RowStep at = first(); !ends(at); next(at)) f(head + at.head, sm90::unhoisted(at.m));
  }
};
static_assert(RowSource<WindowRows>);

// The key blocks [low, high) of `width` keys that rows [begin, end) see, and their dq order.
struct WindowBlocks {
  int low, high;
  __device__ WindowBlocks(const Mask& mask, int rows, int keys, int begin, int end, int width) {
    const PlainWindow::Span seen = PlainWindow(mask.window, rows, keys).keys_of(begin, end);
    low = seen.low / width;
    high = seen.high > 0 ? (seen.high - 1) / width + 1 : low;
  }
  // How many of them add to the tile before `block`.
  __device__ int before(const BackwardBlock& block) const {
    const int n = block.n;
    if (block.down || n == block.tail) return (block.down ? n : high - 1) - low;
    return high - 1 - n - (block.tail >= 0);
  }
};

// A warp loads rows [row, row + Rows).  Rows that do not count become zeros: NaN times a ds of 0
// would be NaN.  `full` expects the bytes and `more`, which the caller loads next.  `raw` is the
// warp's own barrier.
template <class Tile, int Rows, class Counts>
__device__ __forceinline__ void copy_present(uint32_t to, const CUtensorMap& map, uint32_t full,
                                             uint32_t raw, uint32_t& raw_phase, int row, int head,
                                             int batch, const Counts& counts, uint32_t more) {
  const bool leads = threadIdx.x % 32 == 0;
  const bool whole = counts.all(Rows);
  if (leads) {
    sm90::barrier_expect(whole ? full : raw, Tile::bytes + (whole ? more : 0));
    sm90::tma_load_panels<Tile>(to, map, whole ? full : raw, row, head, batch);
  }
  if (whole) return;
  __syncwarp();
  sm90::barrier_wait(raw, raw_phase);
  raw_phase ^= 1;
  const uint32_t end = to + Tile::bytes;
  for (; to < end; to += Tile::panel_bytes)
#pragma unroll 1
    for (int i = threadIdx.x % 32 * 16; i < Tile::panel_bytes; i += 512)
      if (!counts(i / kPanelRowBytes)) sm90::store_zeros(to + i);
  sm90::fence_shared();
  __syncwarp();
  if (leads) sm90::barrier_expect(full, more);
}

// A warp zeroes those of 16 rows of a tile that hold an infinity or NaN: times a ds of 0 it would
// be NaN.  The caller synchronises its warps before products of them.
template <int Dtype, class Tile>
__device__ __forceinline__ void clear_non_finite_rows(unsigned char* tile, int row) {
  constexpr uint32_t kExponent = Dtype == FOVEA_F16 ? 0x7c00 : 0x7f80;
  const int lane = threadIdx.x % 32;
  unsigned char* const line = tile + (row + lane % 16) * kPanelRowBytes;
  const auto chunk = [&](int panel, int c) {  // without bank conflicts among 8 lanes
    return reinterpret_cast<uint4*>(line + panel * Tile::panel_bytes + (c + lane) % 8 * 16);
  };
  uint32_t most = 0;
#pragma unroll
  for (int panel = lane / 16; panel < Tile::panels; panel += 2)
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      const uint4 x = *chunk(panel, c);
      for (uint32_t two : {x.x, x.y, x.z, x.w}) most = __vmaxu2(most, two & 0x7fff7fff);
    }
  most = __vmaxu2(most, __shfl_xor_sync(~0u, most, 16));
  if ((most & 0xffff) < kExponent && most >> 16 < kExponent) return;
#pragma unroll 1
  for (int panel = lane / 16; panel < Tile::panels; panel += 2)
#pragma unroll 1
    for (int c = 0; c < 8; ++c) *chunk(panel, c) = {};
  sm90::fence_shared();
}

}  // namespace fovea::cuda
