// SPDX-License-Identifier: Apache-2.0
// What the ways to a row's list share (pick_rows.cuh, pick_ordered.cuh): the cluster's blocks, sums
// over a block, and what a block keeps of its run of entries.
#pragma once
#include "core/pick.h"
#include "cuda/launch.h"
#include "cuda/tile/order.cuh"

namespace fovea::cuda {

constexpr int kPickThreads = 256, kPickPartsMost = 8;
constexpr int kPickAhead = 16;                     // loads in flight
constexpr int kPickKept = 4096;                    // entries that a cluster keeps
constexpr int kPickFewMost = 2048;                 // wanted entries of a row that is sampled
constexpr int kPickBins = 2048, kPickNear = 1024;  // entries near a cut of bins
constexpr uint32_t kPickForced = UINT32_MAX;       // the key of an entry that is taken in any case

// A cluster's blocks, or the only one.
class PickParts {
 public:
  int parts, rank;

  __device__ explicit PickParts(int parts) : parts(parts), rank(blockIdx.x % parts) {}
  __device__ void sync() const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (parts > 1) {
      asm volatile("barrier.cluster.arrive.release;" ::: "memory");
      asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
      return;
    }
#endif
    __syncthreads();
  }
  // to[n] = what stands at from[n] of block[n]; one branch for all, so that no load waits for
  // another.
  template <int N>
  __device__ __forceinline__ void load(uint32_t (&to)[N], const uint32_t* const (&from)[N],
                                       const int (&block)[N]) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (parts > 1) {
#pragma unroll
      for (int n = 0; n < N; ++n)
        asm volatile(
            "{.reg .u32 there; mapa.shared::cluster.u32 there, %1, %2; ld.shared::cluster.u32 %0, "
            "[there];}"
            : "=r"(to[n])
            : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(from[n]))), "r"(block[n])
            : "memory");
      return;
    }
#endif
#pragma unroll
    for (int n = 0; n < N; ++n) to[n] = *from[n];
  }
};

struct PickKeptShared {
  uint32_t key[kPickKept];
  int at[kPickKept];  // in the block's run
};
struct PickBinsShared {
  uint4 bins[3][kPickBins / 4];
  uint32_t key[kPickNear];
  int at[kPickNear];
};
struct PickShared {
  union {
    PickKeptShared kept;
    PickBinsShared walk;
  };
  uint32_t warp[2][kPickThreads / 32];
  uint32_t digit[kPickThreads];
  uint32_t kept_count;
  int near_count;
  uint32_t bin, before;  // the cut's bin, and entries above it
  uint32_t total[2];     // of the block: entries above the cut, and of its key
  uint32_t words[1];     // taken, then tied
};

constexpr int64_t pick_shared_bytes(int64_t words) {
  return static_cast<int64_t>(sizeof(PickShared)) + 8 * words;
}

// Sums over a block.  Two slots take turns, so each costs one barrier.
class PickBlock {
 public:
  static constexpr int kWarps = kPickThreads / 32;

  __device__ explicit PickBlock(PickShared& shared) : s_(shared), turn_(0) {}

  __device__ uint32_t sum(uint32_t x) {
    put(__reduce_add_sync(~0u, x));
    uint32_t all = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) all += s_.warp[turn_][w];
    turn_ ^= 1;
    return all;
  }
  __device__ uint32_t largest(uint32_t x) {
    put(__reduce_max_sync(~0u, x));
    uint32_t all = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) all = max(all, s_.warp[turn_][w]);
    turn_ ^= 1;
    return all;
  }
  // Sum over the threads before; `total` over all.
  __device__ uint32_t exclusive(uint32_t x, uint32_t& total) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t sum = x;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t other = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += other;
    }
    put(__shfl_sync(~0u, sum, 31));
    uint32_t before = sum - x;
    total = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const uint32_t other = s_.warp[turn_][w];
      before += w < warp ? other : 0, total += other;
    }
    turn_ ^= 1;
    return before;
  }
  // The largest number of the form `prefix`, then bits [last, first], then zeros, that at least
  // `wanted` of the block's keys reach; or the first tried one that at most `slack` more reach.
  template <int N>
  __device__ uint32_t bisect(const uint32_t (&key)[N], int used, uint32_t wanted, uint32_t slack,
                             uint32_t prefix, int first, int last) {
#pragma unroll 1
    for (int bit = first; bit >= last; --bit) {
      const uint32_t tried = prefix | 1u << bit;
      uint32_t own = 0;
#pragma unroll
      for (int j = 0; j < N; ++j)
        if (j < used) own += key[j] >= tried;
      const uint32_t many = sum(own);
      if (many < wanted) continue;
      prefix = tried;
      if (many <= wanted + slack) break;
    }
    return prefix;
  }

 private:
  __device__ void put(uint32_t x) {
    if (threadIdx.x % 32 == 0) s_.warp[turn_][threadIdx.x / 32] = x;
    __syncthreads();
  }

  PickShared& s_;
  int turn_;
};

// Of 2^log sampled keys of n so many reach what somewhat more than `wanted` entries reach, if the
// sample does not mislead.  0: a cluster has no room for those.
__device__ inline uint32_t sampled_rank(int n, float wanted, int log) {
  const float each = static_cast<float>(n) / static_cast<float>(1 << log);
  const float share = fmaxf(wanted, 1.f) / each, rank = share + 4.f * sqrtf(share) + 4.f;
  return rank * each > 0.9f * kPickKept ? 0 : static_cast<uint32_t>(rank);
}

// What a row's list is made of: bits of the block's run.
template <class Source>
class PickRun {
  using Row = typename Source::Row;
  static constexpr int kWarps = PickBlock::kWarps;

 public:
  const Source& source;
  const PickParts& cluster;
  PickShared& s;
  const Row& row;
  uint32_t *const taken, *const tied;
  int first, words;  // the block's run

  __device__ PickRun(const Source& source, const PickParts& cluster, PickShared& s, int all_words,
                     const Row& row)
      : source(source),
        cluster(cluster),
        s(s),
        row(row),
        taken(s.words),
        tied(s.words + all_words) {
    const int all = (row.n + 31) / 32, each = (all + cluster.parts - 1) / cluster.parts;
    first = min(cluster.rank * each, all), words = min(each, all - first);
  }

  // visit(key[], first word) for so many words of each warp; word n is `kWarps` n on.  Keys past
  // the end are 0.
  template <class Visit>
  __device__ __forceinline__ void each_batch(Visit visit) const {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int from = threadIdx.x / 32; from < words; from += kPickAhead * kWarps) {
      // Loads come first and ask nothing: none waits for another.
      typename Source::Raw raw[kPickAhead];
      uint32_t key[kPickAhead];
#pragma unroll
      for (int n = 0; n < kPickAhead; ++n)
        raw[n] = source.load(row, min((first + from + n * kWarps) * 32 + lane, row.n - 1));
#pragma unroll
      for (int n = 0; n < kPickAhead; ++n) {
        const int word = from + n * kWarps, i = (first + word) * 32 + lane;
        const uint32_t own = source.key(row, i, raw[n]);
        key[n] = word < words && i < row.n ? own : 0u;
      }
      visit(key, from);
    }
  }
  // visit(word, place in the run, key), by whole warps.
  template <class Visit>
  __device__ __forceinline__ void each_key(Visit visit) const {
    each_batch([&](const uint32_t(&key)[kPickAhead], int from) {
#pragma unroll
      for (int n = 0; n < kPickAhead; ++n) {
        const int word = from + n * kWarps;
        if (word < words) visit(word, word * 32 + static_cast<int>(threadIdx.x % 32), key[n]);
      }
    });
  }
  // 2^Log keys of the row for a block, one of each of equal parts.
  template <int Log>
  __device__ __forceinline__ void sample(uint32_t (&key)[(1 << Log) / kPickThreads]) const {
    constexpr int Each = (1 << Log) / kPickThreads;
    typename Source::Raw raw[Each];
    int at[Each];
#pragma unroll
    for (int j = 0; j < Each; ++j) {
      const uint32_t part = threadIdx.x + j * kPickThreads;
      const uint64_t n = static_cast<uint64_t>(row.n);
      at[j] = static_cast<int>((part * n + ((part * 2654435761u) * n >> 32)) >> Log);
      raw[j] = source.load(row, at[j]);
    }
#pragma unroll
    for (int j = 0; j < Each; ++j) key[j] = source.key(row, at[j], raw[j]);
  }
  __device__ void clear() const {
    for (int i = threadIdx.x; i < words; i += kPickThreads) taken[i] = tied[i] = 0;
  }
  // The bit of an entry by the cut's key.
  __device__ void mark(int at, uint32_t key, uint32_t cut) const {
    if (key > cut) atomicOr(taken + at / 32, 1u << at % 32);
    if (key == cut) atomicOr(tied + at / 32, 1u << at % 32);
  }

  // Entries of the list to their places, of the ties the first `ties`.  In the blocks before are so
  // many of both; with `ask` they are asked.
  __device__ void emit(PickBlock& block, uint32_t ties, uint32_t taken_before, uint32_t tied_before,
                       bool ask) const {
    const int each = (words + kPickThreads - 1) / kPickThreads;
    const int begin = min(static_cast<int>(threadIdx.x) * each, words);
    const int end = min(begin + each, words);
    uint32_t own_taken = 0, own_tied = 0, all_taken, all_tied;
    for (int word = begin; word < end; ++word)
      own_taken += __popc(taken[word]), own_tied += __popc(tied[word]);
    own_taken = block.exclusive(own_taken, all_taken);
    own_tied = block.exclusive(own_tied, all_tied);
    if (ask && cluster.parts > 1) {
      if (threadIdx.x == 0) s.total[0] = all_taken, s.total[1] = all_tied;
      cluster.sync();
      for (int other = 0; other < cluster.rank; ++other) {
        uint32_t total[2];
        cluster.load(total, {s.total, s.total + 1}, {other, other});
        taken_before += total[0], tied_before += total[1];
      }
    }
    uint32_t equal_before = tied_before + own_tied;
    int64_t place = taken_before + own_taken + min(equal_before, ties);
    for (int word = begin; word < end; ++word) {
      const uint32_t equal = tied[word];
      for (uint32_t left = taken[word] | equal; left; left &= left - 1) {
        const int bit = __ffs(static_cast<int>(left)) - 1;
        if (equal >> bit & 1 && equal_before++ >= ties) continue;
        source.put(row, place++, (first + word) * 32 + bit);
      }
    }
  }
  // How many there are, and the places that have none.
  __device__ void finish(uint32_t listed, int64_t wanted) const {
    if (cluster.rank == 0 && threadIdx.x == 0) source.count(row, wanted);
    const int64_t begin = listed + cluster.rank * kPickThreads + threadIdx.x;
    for (int64_t place = begin; place < source.keep; place += cluster.parts * kPickThreads)
      source.pad(row, place);
  }
};

}  // namespace fovea::cuda
