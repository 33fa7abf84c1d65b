// SPDX-License-Identifier: Apache-2.0
// Selections by a block: the radix select of core/pick.h over a sequence that any thread can read.
// Histograms of a digit are in shared memory.  Their atomics are of integers, so no order matters.
// Every function is called by all threads with the same arguments and returns the same to all.
#pragma once
#include <cub/block/block_scan.cuh>

#include "core/pick.h"

namespace fovea::cuda {

struct PickBin {
  int64_t count, mass;
};
struct AddBins {
  __device__ PickBin operator()(const PickBin& x, const PickBin& y) const {
    return {x.count + y.count, x.mass + y.mass};
  }
};

template <int Threads>
class BlockPick {
  static_assert(Threads >= PickWalk::kBins && Threads % 32 == 0);
  static constexpr int kWarps = Threads / 32;
  using Scan = cub::BlockScan<PickBin, Threads>;

 public:
  struct Shared {
    union {
      typename Scan::TempStorage scan;
      int64_t integer[kWarps];
      float number[kWarps];
    };
    unsigned int count[PickWalk::kBins];
    unsigned long long mass[PickWalk::kBins];
    PickWalk walk;
    int64_t ties, end;
  };
  __device__ explicit BlockPick(Shared& shared) : s_(shared) {}

  // The sum over the block, in the order of lanes and warps.
  template <class T>
  __device__ T sum(T x) const {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    T* const part = parts<T>();
    __syncthreads();
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    __syncthreads();
    T all = part[0];
    for (int i = 1; i < kWarps; ++i) all += part[i];
    return all;
  }
  __device__ float largest(float x) const {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
    __syncthreads();
    if (threadIdx.x % 32 == 0) s_.number[threadIdx.x / 32] = x;
    __syncthreads();
    float all = s_.number[0];
    for (int i = 1; i < kWarps; ++i) all = fmaxf(all, s_.number[i]);
    return all;
  }

  // Entries for which test(i) holds.
  template <class Test>
  __device__ int64_t count(int64_t n, Test test) const {
    int64_t own = 0;
    for (int64_t i = threadIdx.x; i < n; i += Threads) own += test(i);
    return sum(own);
  }

  // visit(i, rank) for the entries for which test(i) holds, rank in ascending order of i.
  // Returns how many there are.
  template <class Test, class Visit>
  __device__ int64_t each(int64_t n, Test test, Visit visit) const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t share = ((n + kWarps - 1) / kWarps + 31) / 32 * 32;
    const int64_t begin = warp * share, end = begin + share < n ? begin + share : n;
    int64_t own = 0;
    for (int64_t i = begin; i < end; i += 32)
      own += __popc(__ballot_sync(~0u, i + lane < end && test(i + lane)));
    __syncthreads();
    if (lane == 0) s_.integer[warp] = own;
    __syncthreads();
    int64_t rank = 0, all = 0;
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) rank += s_.integer[w];
      all += s_.integer[w];
    }
    for (int64_t i = begin; i < end; i += 32) {
      const bool here = i + lane < end && test(i + lane);
      const uint32_t taken = __ballot_sync(~0u, here);
      if (here) visit(i + lane, rank + __popc(taken & ((1u << lane) - 1)));
      rank += __popc(taken);
    }
    return all;
  }

  // host/pick.h's functions of the same names.
  template <class Key>
  __device__ PickCut cut_after(int64_t n, Key key, int64_t wanted, int64_t total) const {
    if (wanted <= 0) return {};
    if (wanted >= total) return PickCut::all();
    PickWalk walk{false, PickRule::count, wanted, 0, 0, 0};
    const int64_t ties = walk_digits(n, key, PickMass(), walk);
    const int64_t left = wanted - walk.count;
    if (left >= ties) return {walk.prefix, n};
    each(
        n, [&](int64_t i) { return key(i) == walk.prefix; },
        [&](int64_t i, int64_t rank) {
          if (rank == left - 1) s_.end = i + 1;
        });
    __syncthreads();
    return {walk.prefix, s_.end};
  }
  template <class Key>
  __device__ int64_t count_by_mass(int64_t n, Key key, const PickMass& mass, PickRule rule,
                                   int64_t target, int64_t before, int64_t total,
                                   int64_t total_mass) const {
    PickWalk walk{true, rule, target, 0, before, 0};
    if (walk.crosses(0, before)) return 0;
    if (!walk.crosses(total, before + total_mass)) return total;
    const int64_t ties = walk_digits(n, key, mass, walk);
    return walk.count + walk.ties(ties, mass(pick_value(walk.prefix)));
  }

  template <class Key, class IsForced, class Visit>
  __device__ PickKeep each_kept(int64_t n, const PickLimits& limits, Key key, IsForced forced,
                                PickCut cut, int64_t begin, Visit visit) const {
    const int64_t all_forced = count(n, forced);
    const int64_t others = count(n, [&](int64_t c) { return key(c) != 0; });
    const int64_t taken = count(n, [&](int64_t c) {
      const uint32_t k = key(c);
      return k && cut.takes(k, begin + c);
    });
    const PickKeep keep(limits, all_forced, taken, others);
    if (keep.free != taken) cut = cut_after(n, key, keep.free, others), begin = 0;
    int64_t forced_end = n;
    if (keep.forced < all_forced)
      forced_end = cut_after(
                       n, [&](int64_t c) { return forced(c) ? 1u : 0u; }, keep.forced, all_forced)
                       .end;
    each(
        n,
        [&](int64_t c) {
          if (forced(c)) return c < forced_end;
          const uint32_t k = key(c);
          return k && cut.takes(k, begin + c);
        },
        visit);
    return keep;
  }

 private:
  template <class T>
  __device__ T* parts() const {
    if constexpr (sizeof(T) == 8)
      return reinterpret_cast<T*>(s_.integer);
    else
      return reinterpret_cast<T*>(s_.number);
  }

  template <class Key>
  __device__ int64_t walk_digits(int64_t n, Key key, const PickMass& mass, PickWalk& walk) const {
    constexpr int64_t kMost = int64_t{1} << 31;  // entries that 32 bits count
    const int thread = threadIdx.x, bin = PickWalk::kBins - 1 - thread;
#pragma unroll 1
    for (int digit = 0; digit < PickWalk::kDigits; ++digit) {
      PickBin own{};
      int64_t from = 0;
      do {
        const int64_t to = n - from < kMost ? n : from + kMost;
        __syncthreads();
        if (bin >= 0) s_.count[bin] = 0, s_.mass[bin] = 0;
        __syncthreads();
        for (int64_t i = from + thread; i < to; i += Threads) {
          const uint32_t k = key(i);
          if (!k || !walk.has(k, digit)) continue;
          atomicAdd(s_.count + PickWalk::bin(k, digit), 1u);
          if (walk.by_mass)
            atomicAdd(s_.mass + PickWalk::bin(k, digit),
                      static_cast<unsigned long long>(mass(pick_value(k))));
        }
        __syncthreads();
        if (bin >= 0) own.count += s_.count[bin], own.mass += static_cast<int64_t>(s_.mass[bin]);
        from = to;
      } while (from < n);
      PickBin before;
      __syncthreads();
      Scan(s_.scan).ExclusiveScan(own, before, PickBin{}, AddBins());
      before.count += walk.count, before.mass += walk.mass;
      if (bin >= 0 && !walk.crosses(before.count, before.mass) &&
          (bin == 0 || walk.crosses(before.count + own.count, before.mass + own.mass))) {
        s_.walk = walk;
        s_.walk.count = before.count, s_.walk.mass = before.mass;
        s_.walk.prefix = walk.prefix << 8 | static_cast<uint32_t>(bin);
        s_.ties = own.count;
      }
      __syncthreads();
      walk = s_.walk;
    }
    const int64_t ties = s_.ties;
    __syncthreads();
    return ties;
  }

  Shared& s_;
};

}  // namespace fovea::cuda
