// SPDX-License-Identifier: Apache-2.0
// The lists of short rows, for a source of cuda/loop/pick_rows.cuh and with its results.  A team (a
// warp, or a block) owns a row and holds its entries in registers.  Warp w of it has the entries
// from 32 Each w on: entry 32 j + lane of these is the lane's j-th.
//   cut     the largest key that `listed` entries reach, bit by bit below the bits that all keys
//           share.  The search ends at the first key that exactly `listed` entries reach
//   ranks   an entry's place is the number of listed ones before it, by ballots
#pragma once
#include <algorithm>

#include "cuda/loop/pick_rows.cuh"
#include "ops/select/row_team.cuh"

namespace fovea::cuda {

constexpr int kShortMost = 1024, kShortBlockMost = 8192;  // entries of a warp, and of a block

template <int Threads, int Each>
class ShortRow {
  using Team = RowTeam<Threads>;

 public:
  template <class Source>
  __device__ __forceinline__ ShortRow(const Source& source, const typename Source::Row& row,
                                      Team& team)
      : team_(team), first_(team.warp() * 32 * Each), lane_(team.lane()) {
    used_ = min(max((row.n - first_ + 31) / 32, 0), Each);
    constexpr int kAhead = sizeof(typename Source::Raw) > 4 ? 4 : 16;  // loads in flight
#pragma unroll
    for (int from = 0; from < Each; from += kAhead) {
      typename Source::Raw raw[kAhead]{};
#pragma unroll
      for (int j = from; j < Each && j < from + kAhead; ++j)
        if (j < used_ && at(j) < row.n) raw[j - from] = source.load(row, at(j));
#pragma unroll
      for (int j = from; j < Each && j < from + kAhead; ++j) {
        key_[j] = 0;
        if (j < used_ && at(j) < row.n) key_[j] = source.key(row, at(j), raw[j - from]);
      }
    }
  }

  template <class Source>
  __device__ __forceinline__ void list(const Source& source, const typename Source::Row& row) {
    const uint32_t total = reached(kPickNone + 1), forced = reached(kPickForced);
    const int64_t wanted = row.wanted > forced ? row.wanted : forced;
    const int64_t counted = wanted < total ? wanted : total;
    const auto listed = static_cast<uint32_t>(counted < source.keep ? counted : source.keep);
    if (listed) {
      const uint32_t cut = listed == total    ? kPickNone
                           : listed <= forced ? kPickForced
                                              : find_cut(listed);
      emit(source, row, cut, listed);
    }
    if (team_.thread() == 0) source.count(row, counted);
    for (int64_t place = listed + team_.thread(); place < source.keep; place += Threads)
      source.pad(row, place);
  }

 private:
  __device__ int at(int j) const {
    return first_ + 32 * j + lane_;
  }

  // Entries of the row with at least this key.
  __device__ __forceinline__ uint32_t reached(uint32_t least) const {
    int own = 0;
#pragma unroll
    for (int j = 0; j < Each; ++j) {
      if (j % 8 == 0 && j >= used_) break;  // keys past the row are 0
      own += key_[j] >= least;
    }
    return static_cast<uint32_t>(team_.sum(own));
  }
  // More entries than `listed` are there, and fewer than that are forced.
  __device__ __forceinline__ uint32_t find_cut(uint32_t listed) const {
    uint32_t top = 0, below = 0;  // below: the complement of the least key
#pragma unroll
    for (int j = 0; j < Each; ++j)
      if (j < used_ && key_[j] > kPickNone && key_[j] != kPickForced)
        top = max(top, key_[j]), below = max(below, ~key_[j]);
    top = team_.largest(top), below = team_.largest(below);
    int bit = 31 - __clz(static_cast<int>(top ^ ~below));  // -1: they are equal
    uint32_t cut = bit < 0 ? top : static_cast<uint32_t>(top >> bit >> 1) << bit << 1;
#pragma unroll 1
    for (; bit >= 0; --bit) {
      const uint32_t tried = cut | 1u << bit, many = reached(tried);
      if (many < listed) continue;
      cut = tried;
      if (many == listed) break;
    }
    return cut;
  }
  // The entries above the cut, and of its key the first ones.
  template <class Source>
  __device__ __forceinline__ void emit(const Source& source, const typename Source::Row& row,
                                       uint32_t cut, uint32_t listed) const {
    uint32_t own = 0;  // above the cut, and its ties from bit 16 on
#pragma unroll
    for (int j = 0; j < Each; ++j)
      if (j < used_) own += key_[j] > cut ? 1 : key_[j] == cut ? 1 << 16 : 0;
    int all;
    const auto first =
        static_cast<uint32_t>(team_.before(static_cast<int>(__reduce_add_sync(~0u, own)), all));
    const uint32_t ties = listed - (static_cast<uint32_t>(all) & 0xffff);
    const uint32_t before = (1u << lane_) - 1;
    uint32_t taken = first & 0xffff, tied = first >> 16;
#pragma unroll
    for (int j = 0; j < Each; ++j) {
      if (j >= used_) continue;
      const uint32_t more = __ballot_sync(~0u, key_[j] > cut);
      const uint32_t same = ties ? __ballot_sync(~0u, key_[j] == cut) : 0u;
      if (!(more | same)) continue;
      const uint32_t equal = tied + __popc(same & before);
      if (key_[j] > cut || (key_[j] == cut && equal < ties))
        source.put(row, taken + __popc(more & before) + min(equal, ties), at(j));
      taken += __popc(more), tied += __popc(same);
    }
  }

  Team& team_;
  const int first_, lane_;  // first_: the warp's first entry
  int used_;
  uint32_t key_[Each];
};

// A lane's value, word by word.
template <class T>
__device__ __forceinline__ T from_lane(const T& x, int lane) {
  static_assert(sizeof(T) % 4 == 0);
  uint32_t word[sizeof(T) / 4];
  memcpy(word, &x, sizeof(T));
#pragma unroll
  for (uint32_t& w : word) w = __shfl_sync(~0u, w, lane);
  T all;
  memcpy(&all, word, sizeof(T));
  return all;
}

// A warp has `each` rows: its lanes open one each, for that takes as long as a short list.
template <class Source, int Each>
__global__ void __launch_bounds__(kPickThreads, 3)
    pick_warps_kernel(const __grid_constant__ Source source, int64_t rows, int each) {
  __shared__ typename RowTeam<32>::Shared s;
  RowTeam<32> team(s);
  pdl_wait();
  pdl_trigger();
  const int64_t warp = blockIdx.x * int64_t{kPickThreads / 32} + threadIdx.x / 32;
  const int64_t w = warp * each + team.lane();
  typename Source::Row own{};
  const bool there = team.lane() < each && w < rows && source.open(w, own);
  for (uint32_t left = __ballot_sync(~0u, there); left; left &= left - 1) {
    const auto row = from_lane(own, __ffs(static_cast<int>(left)) - 1);
    ShortRow<32, Each>(source, row, team).list(source, row);
  }
}

template <class Source, int Threads, int Each>
__global__ void __launch_bounds__(Threads)
    pick_block_kernel(const __grid_constant__ Source source) {
  __shared__ typename RowTeam<Threads>::Shared s;
  RowTeam<Threads> team(s);
  pdl_wait();
  pdl_trigger();
  typename Source::Row row;
  if (source.open(blockIdx.x, row)) ShortRow<Threads, Each>(source, row, team).list(source, row);
}

template <class Source, int Each>
void run_warps(Context& ctx, const char* op, const Source& source, int64_t rows) {
  const int64_t resident = int64_t{32} * device_info(ctx).multiprocessors;
  const int each = static_cast<int>(std::min<int64_t>(32, 1 + rows / (2 * resident)));
  launch_pdl<pick_warps_kernel<Source, Each>>(ctx, op, ceil_div(rows, each * kPickThreads / 32),
                                              kPickThreads, 0, source, rows, each);
}

template <class Source, int Threads, int Each>
void run_blocks(Context& ctx, const char* op, const Source& source, int64_t rows) {
  launch_pdl<pick_block_kernel<Source, Threads, Each>>(ctx, op, rows, Threads, 0, source);
}

// As pick_rows(), of at most kShortMost entries.
template <class Source>
void pick_short(Context& ctx, const char* op, const Source& source, int64_t rows, int64_t longest) {
  longest <= 128   ? run_warps<Source, 4>(ctx, op, source, rows)
  : longest <= 512 ? run_warps<Source, 16>(ctx, op, source, rows)
                   : run_warps<Source, 32>(ctx, op, source, rows);
}

// As pick_rows(), of at most kShortBlockMost entries.
template <class Source>
void pick_short_block(Context& ctx, const char* op, const Source& source, int64_t rows,
                      int64_t longest) {
  longest <= 2048 ? run_blocks<Source, 128, 16>(ctx, op, source, rows)
                  : run_blocks<Source, 256, 32>(ctx, op, source, rows);
}

}  // namespace fovea::cuda
