// SPDX-License-Identifier: Apache-2.0
// What the Hopper gradient loops share: which keys a block owns, which row tiles it walks, and how
// a tile whose tail is not the sequence's gets to shared memory.
#pragma once
#include "cuda/loop/backward_tiles.cuh"
#include "cuda/tensor_map.h"
#include "cuda/tile/mma_sm90.cuh"

namespace fovea::cuda {

constexpr int kHeadsDown = 4;  // key heads from which on the last walks down

// What a block does for key head g of sequence r: key block n, or, from 0 on, a part of dq.
// Which way it walks depends on the head alone, so a sequence has the same bits wherever it lies.
struct BackwardBlock {
  int64_t r;
  int g, n, part;
  bool idle;  // past the last head
  // Key blocks descend and walk up from the diagonal, so a turn has mostly come, but the longest
  // are the last to start.  Of the last head they ascend and walk down, shortest last: the call's
  // end is balanced at the price of turns waited for.
  bool down;
  __device__ BackwardBlock(const Attend& a, const BackwardGrid90& grid) {
    const int64_t per = grid.section * (grid.blocks + grid.parts);
    const int64_t at = blockIdx.x % per / grid.section;
    part = static_cast<int>(at - grid.blocks);
    const int64_t section = blockIdx.x / per - (part >= 0);
    const int64_t owner = section * grid.section + blockIdx.x % grid.section;
    idle = owner < 0 || owner >= a.g * a.sequences.count;
    r = owner / a.g, g = static_cast<int>(owner % a.g);
    down = a.g >= kHeadsDown && g == a.g - 1;
    n = static_cast<int>(down ? at : grid.blocks - 1 - at);
  }
};

// The row tiles that see a key block, from `first` on in steps until `end`, for each head of its
// group.
struct RowWalk {
  int first, end, step, head, heads;
  __device__ RowWalk(const Attend& a, const Sequence& seq, int g, int begin, int end, int rows,
                     bool down) {
    heads = sm90::uniform(static_cast<int>(a.h / a.g));
    head = g * heads;
    const Range range = row_range(a.mask, seq, head, head + heads, begin, end);
    int low = static_cast<int>(range.begin) / rows;
    int high = (static_cast<int>(range.end) + rows - 1) / rows;
    if (range.begin >= range.end) high = low;
    step = sm90::uniform(down ? -1 : 1);
    first = sm90::uniform(down ? high - 1 : low);
    this->end = sm90::uniform(down ? low - 1 : high);
  }
  __device__ int count() const { return (end - first) * step * heads; }
  // Calls f(query head, row tile).
  template <class F>
  __device__ __forceinline__ void each(F f) const {
#pragma unroll 1
    for (int h = head; h < head + heads; ++h)
#pragma unroll 1
      for (int m = first; m != end; m += step) f(h, sm90::unhoisted(m));
  }
};

// A warp copies rows [row, row + Rows) to shared memory, those that do not count as zeros: a NaN
// there times a slope of 0 would count.  `full` counts the bytes, and `more` that the caller sends
// for next.  `raw` is the warp's own barrier.
template <class Tile, int Rows, class Counts>
__device__ __forceinline__ void copy_present(uint32_t to, const CUtensorMap& map, uint32_t full,
                                             uint32_t raw, uint32_t& raw_phase, int row, int head,
                                             int batch, const Counts& counts, uint32_t more) {
  const bool leads = threadIdx.x % 32 == 0;
  const bool whole = counts.all(Rows);
  if (leads) {
    sm90::barrier_expect(whole ? full : raw, Tile::bytes + (whole ? more : 0));
    sm90::copy_panels<Tile>(to, map, whole ? full : raw, row, head, batch);
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

}  // namespace fovea::cuda
