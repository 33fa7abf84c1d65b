// SPDX-License-Identifier: Apache-2.0
// The persistent tile scheduler: which work items a block takes, and what they are.
// A block's first item is its own number.  An atomic counter hands out the others.  Results do not
// depend on which block computes an item.
#pragma once
#include <cstdint>

#include "core/attend.h"

namespace fovea::cuda {

// A work item is a head of a sequence, a row tile and a split.  The order, longest tiles first
// (LPT):
//
//   | outermost to innermost                | why                                           |
//   | L2 sections; row tile; head; split    | a section's K and V stay in L2 (head swizzle) |
//   | the `shortest` row tiles; head; split | they fill the gaps at the end                 |
struct TileOrder {
  int32_t row_tiles, heads, splits;  // heads: of all sequences
  int32_t l2_section, shortest;      // heads of a section; row tiles kept for the end
  bool reversed;                     // later row tiles are longer

  __host__ __device__ int64_t items() const { return int64_t{row_tiles} * heads * splits; }
  // Items [n run, (n + 1) run) are of one row tile and one sequence, which has `width` heads.
  __device__ int run(int width) const {
    int common = l2_section;
    while (width) {
      const int rest = common % width;
      common = width, width = rest;
    }
    return common * splits;
  }
};

// Heads of an L2 section: so many that their K and V fit in half of L2.  `shared` heads have K and
// V in common, of `bytes`. Under a mask it has at least 8 heads: the longest items of fewer do not
// fill the device. Sections have equal size: a short last one would end in long items, with none to
// fill the gaps.
inline int32_t section_of(int64_t heads, int64_t shared, int64_t bytes, int64_t cache,
                          bool masked) {
  const int64_t held = clamp_i64(cache / 2 / (bytes + 1), 1, 64) * shared,
                most = masked && held < 8 ? 8 : held, sections = (heads + most - 1) / most;
  return static_cast<int32_t>(sections ? (heads + sections - 1) / sections : 1);
}

struct TileCoord {
  int32_t head, row_tile, split;

  __device__ TileCoord(const TileOrder& order, int work) {
    split = take(work, order.splits);
    const int first = order.row_tiles - order.shortest, sections = order.heads * first;
    if (work < sections) {
      int section = work;
      row_tile = take(section, order.l2_section * first);
      const int width = min(order.heads - section * order.l2_section, order.l2_section);
      head = section * order.l2_section + take(row_tile, width);
    } else {
      row_tile = work - sections;
      head = take(row_tile, order.heads), row_tile += first;
    }
    if (order.reversed) row_tile = order.row_tiles - 1 - row_tile;
  }

 private:
  // x % n, and x becomes x / n.  Divides only where x >= n > 1, since division is slow.
  __device__ static int take(int& x, int n) {
    const int all = x;
    x = all < n ? 0 : n == 1 ? all : static_cast<uint32_t>(all) / static_cast<uint32_t>(n);
    return all - x * n;
  }
};

struct DynamicSchedule {
  int32_t items;
  int32_t* counters;  // items taken, blocks done; 0 between launches; nullptr: one item a block

  // By one thread of a block: the next item, past the last where none is left.
  __device__ int take() const {
    return counters ? static_cast<int>(gridDim.x) + atomicAdd(counters, 1) : items;
  }
  // By that thread: no block takes items before number `work` any more.
  __device__ void pass(int work) const {
    if (counters) atomicMax(counters, work - static_cast<int>(gridDim.x));
  }
  // By that thread, after the last item: the last block resets the counters.
  __device__ void leave() const {
    if (!counters) return;
    __threadfence();
    if (atomicAdd(counters + 1, 1) + 1 == static_cast<int>(gridDim.x))
      counters[0] = counters[1] = 0;
  }
};

// A block's loop over its work items, for one warp.  `ahead`: the next item is fetched from
// the counter now (prefetch), else when it is needed.
class TileScheduler {
 public:
  __device__ TileScheduler(const DynamicSchedule& schedule, bool ahead)
      : schedule_(schedule), now_(static_cast<int>(blockIdx.x)) {
    fetch(ahead);
  }
  __device__ bool done() const { return now_ >= schedule_.items; }
  __device__ int operator*() const { return now_; }
  __device__ void next(bool ahead) {
    if (!fetched_) fetch(true);
    now_ = __shfl_sync(~0u, next_, 0);
    if (done() && threadIdx.x % 32 == 0) schedule_.leave();
    fetch(ahead);
  }
  // Skips items of which some(item) is false, for all blocks.  some() is the same for a run of
  // items, so each lane tests another run.
  template <class F>
  __device__ void pass(int run, F some) {
    const int lane = threadIdx.x % 32;
    while (!done()) {
      const int first = now_ / run;
      const auto begin = [&](int at) { return min((first + at) * run, schedule_.items - 1); };
      const uint32_t are = __ballot_sync(~0u, some(begin(lane)));
      if (are & 1) return;
      if (lane == 0) schedule_.pass((first + (are ? __ffs(are) - 1 : 32)) * run);
      next(false);
    }
  }

 private:
  __device__ void fetch(bool now) {
    fetched_ = now;
    if (!now) return;
    next_ = schedule_.items;
    if (schedule_.counters && !done() && threadIdx.x % 32 == 0) next_ = schedule_.take();
  }

  const DynamicSchedule& schedule_;
  bool fetched_;
  int now_, next_;
};

}  // namespace fovea::cuda
