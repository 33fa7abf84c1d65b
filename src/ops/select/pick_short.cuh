// SPDX-License-Identifier: Apache-2.0
// The lists of short rows, for a source of cuda/loop/pick_rows.cuh and with its results.  A warp
// owns a row and holds its entries in registers: entry 32 j + lane is the lane's j-th.
//   cut     the largest key that `listed` entries reach, bit by bit below the bits that all keys
//           share.  The search ends at the first key that exactly `listed` entries reach
//   ranks   an entry's place is the number of listed ones before it, by ballots
#pragma once
#include "cuda/loop/pick_rows.cuh"

namespace fovea::cuda {

constexpr int kShortMost = 1024;  // entries

template <int Each>
class ShortRow {
 public:
  template <class Source>
  __device__ __forceinline__ ShortRow(const Source& source, const typename Source::Row& row)
      : used_((row.n + 31) / 32), lane_(threadIdx.x % 32) {
    typename Source::Raw raw[Each];
#pragma unroll
    for (int j = 0; j < Each; ++j) {
      const int i = 32 * j + lane_;
      raw[j] = i < row.n ? source.load(row, i) : 0;
    }
#pragma unroll
    for (int j = 0; j < Each; ++j) {
      const int i = 32 * j + lane_;
      key_[j] = i < row.n ? source.key(row, i, raw[j]) : 0u;
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
    if (lane_ == 0) source.count(row, counted);
    for (int64_t place = listed + lane_; place < source.keep; place += 32) source.pad(row, place);
  }

 private:
  // Entries of the row with at least this key.
  __device__ __forceinline__ uint32_t reached(uint32_t least) const {
    uint32_t own = 0;
#pragma unroll
    for (int j = 0; j < Each; ++j)
      if (j < used_) own += key_[j] >= least;
    return __reduce_add_sync(~0u, own);
  }
  // More entries than `listed` are there, and fewer than that are forced.
  __device__ __forceinline__ uint32_t find_cut(uint32_t listed) const {
    uint32_t top = 0, least = kPickForced;
#pragma unroll
    for (int j = 0; j < Each; ++j)
      if (key_[j] > kPickNone && key_[j] != kPickForced)
        top = max(top, key_[j]), least = min(least, key_[j]);
    top = __reduce_max_sync(~0u, top), least = __reduce_min_sync(~0u, least);
    int bit = 31 - __clz(static_cast<int>(top ^ least));  // -1: they are equal
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
    uint32_t above = 0;
#pragma unroll
    for (int j = 0; j < Each; ++j)
      if (j < used_) above += key_[j] > cut;
    const uint32_t ties = listed - __reduce_add_sync(~0u, above), before = (1u << lane_) - 1;
    uint32_t taken = 0, tied = 0;
#pragma unroll
    for (int j = 0; j < Each; ++j) {
      if (j >= used_) continue;
      const uint32_t more = __ballot_sync(~0u, key_[j] > cut);
      const uint32_t same = ties ? __ballot_sync(~0u, key_[j] == cut) : 0u;
      const uint32_t equal = tied + __popc(same & before);
      if (key_[j] > cut || (key_[j] == cut && equal < ties))
        source.put(row, taken + __popc(more & before) + min(equal, ties), 32 * j + lane_);
      taken += __popc(more), tied += __popc(same);
    }
  }

  const int used_, lane_;
  uint32_t key_[Each];
};

template <class Source, int Each>
__global__ void __launch_bounds__(kPickThreads)
    pick_short_kernel(const __grid_constant__ Source source, int64_t rows) {
  constexpr int warps = kPickThreads / 32;
  pdl_wait();
  pdl_trigger();
  for (int64_t w = blockIdx.x * int64_t{warps} + threadIdx.x / 32; w < rows;
       w += gridDim.x * int64_t{warps}) {
    typename Source::Row row;
    if (!source.open(w, row)) continue;
    ShortRow<Each>(source, row).list(source, row);
  }
}

// As pick_rows(), of at most kShortMost entries.
template <class Source>
void pick_short(Context& ctx, const char* op, const Source& source, int64_t rows, int64_t longest) {
  const int64_t blocks = ceil_div(rows, kPickThreads / 32);
  longest <= 128
      ? launch_pdl<pick_short_kernel<Source, 4>>(ctx, op, blocks, kPickThreads, 0, source, rows)
  : longest <= 512
      ? launch_pdl<pick_short_kernel<Source, 16>>(ctx, op, blocks, kPickThreads, 0, source, rows)
      : launch_pdl<pick_short_kernel<Source, kShortMost / 32>>(ctx, op, blocks, kPickThreads, 0,
                                                               source, rows);
}

}  // namespace fovea::cuda
