// SPDX-License-Identifier: Apache-2.0
// The list of a row by a count alone, by one block (pick_rows.cuh), where rows fill the device.
//   pivot    what somewhat more than the wanted entries reach, from a sample of the row
//   keep     the row is read once, 4096 entries a step and 16 neighbours a thread; what reaches
//            the pivot is kept in the order of places
//   cut      the kept keys' digits of eight bits, by bins
//   list     each thread has 16 neighbours of what is kept, so that two sums give their places
// Rows that it does not take are left to bins of the whole row.
#pragma once
#include "cuda/loop/pick_run.cuh"

namespace fovea::cuda {

// Whether a source's neighbours can be loaded four at a time, which it says by
//   load4(row, i, raw)   entries i .. i + 3, of which those past the end are anything; 4 divides i
//   plain(row)           entries before it are their own keys
template <class Source>
concept PickNeighbours = requires(const Source& source, const typename Source::Row& row,
                                  uint32_t (&raw)[4]) {
  source.load4(row, 0, raw), source.plain(row);
};

template <class Source>
class PickOrdered {
  static constexpr int kEach = kPickKept / kPickThreads;
  static constexpr int kDigit = 8;  // bits; a bin a thread
  static_assert(kPickThreads == 1 << kDigit && kEach == 16);

  // Of a block's keys: how many are forced, how many others are there, and their bounds.
  struct Survey {
    uint32_t forced, others, low, top;
  };
  // Keys above `key` are taken, and of that key the first `ties`.
  struct Cut {
    uint32_t key, ties;
  };

 public:
  __device__ PickOrdered(const PickRun<Source>& run, PickBlock& block)
      : run_(run), s_(run.s), block_(block) {}

  // False: nothing is written.
  __device__ bool operator()() {
    const int64_t wanted = run_.row.wanted > 0 ? run_.row.wanted : 0;
    const bool all = run_.row.n <= kPickKept;
    uint32_t pivot = kPickNone + 1;
    if (!all && (wanted > kPickFewMost || !sample(static_cast<float>(wanted), pivot))) return false;
    const int total = keep(pivot);
    if (total > kPickKept || (!all && total < wanted)) return false;

    uint32_t key[kEach];
    int at[kEach];
    read(total, key, at);
    const Survey survey = look(key);
    int64_t counted = wanted > survey.forced ? wanted : survey.forced;
    if (counted > total) counted = total;
    const int64_t room = run_.source.keep;
    const uint32_t listed = static_cast<uint32_t>(counted < room ? counted : room);
    if (listed) {
      const bool whole = listed == static_cast<uint32_t>(total);
      emit(key, at, whole ? Cut{kPickNone, 0} : find(key, survey, listed, 4), listed);
    }
    run_.finish(listed, counted);
    return true;
  }

 private:
  // ---- the pivot

  // False: a sample would be too small.
  __device__ bool sample(float wanted, uint32_t& pivot) {
    for (int log = 10; log <= 12; ++log) {
      const uint32_t rank = sampled_rank(run_.row.n, wanted, log);
      if (!rank) continue;
      pivot = log == 12 ? sample<12>(rank) : log == 11 ? sample<11>(rank) : sample<10>(rank);
      return true;
    }
    return false;
  }
  // What `rank` of 2^Log keys reach.
  template <int Log>
  __device__ __forceinline__ uint32_t sample(uint32_t rank) {
    uint32_t key[(1 << Log) / kPickThreads];
    run_.template sample<Log>(key);
#pragma unroll
    for (uint32_t& one : key)
      if (one <= kPickNone) one = 0;
    const Survey survey = look(key);
    if (rank >= survey.forced + survey.others) return kPickNone + 1;
    const Cut cut = find(key, survey, rank, 2);
    return max(cut.ties ? cut.key : cut.key + 1, kPickNone + 1);
  }

  // ---- what is kept

  // Where a kept entry lies: pairs of them take turns with those of the 16 before.
  __device__ static int slot(int place) {
    return place ^ (place >> 3 & 14);
  }
  __device__ uint2* kept() const {
    return reinterpret_cast<uint2*>(s_.kept.key);
  }
  __device__ __forceinline__ void load(int from, uint32_t (&key)[kEach]) const {
    const auto& source = run_.source;
    const auto& row = run_.row;
#pragma unroll
    for (int j = 0; j < kEach; j += 4) {
      uint32_t raw[4] = {};
      if (from + j < row.n) source.load4(row, from + j, raw);
#pragma unroll
      for (int c = 0; c < 4; ++c) key[j + c] = raw[c];
    }
  }
  // How many there are, or more than kPickKept where they have no room.
  __device__ __forceinline__ int keep(uint32_t pivot) {
    const auto& source = run_.source;
    const auto& row = run_.row;
    const int plain = source.plain(row), own = static_cast<int>(threadIdx.x) * kEach;
    int base = 0;
    uint32_t next[kEach];
    load(own, next);
#pragma unroll 1
    for (int first = 0; first < row.n; first += kPickKept) {
      const int from = first + own;
      uint32_t key[kEach];
#pragma unroll
      for (int j = 0; j < kEach; ++j) key[j] = next[j];
      load(from + kPickKept, next);
      if (from + kEach > plain) {
#pragma unroll
        for (int j = 0; j < kEach; ++j)
          key[j] = from + j < row.n ? source.key(row, from + j, key[j]) : 0u;
      }
      uint32_t reach = 0, all;
#pragma unroll
      for (int j = 0; j < kEach; ++j) reach += key[j] >= pivot;
      int place = base + static_cast<int>(block_.exclusive(reach, all));
      base += static_cast<int>(all);
      if (base > kPickKept) return base;
#pragma unroll
      for (int j = 0; j < kEach; ++j)
        if (key[j] >= pivot) kept()[slot(place++)] = make_uint2(key[j], from + j);
    }
    __syncthreads();
    return base;
  }
  // The thread's 16 of the kept entries; those past the end have the key 0.
  __device__ __forceinline__ void read(int total, uint32_t (&key)[kEach], int (&at)[kEach]) const {
    const int own = static_cast<int>(threadIdx.x) * kEach;
#pragma unroll
    for (int j = 0; j < kEach; j += 2) {
      const uint4 two = *reinterpret_cast<const uint4*>(kept() + slot(own + j));
      key[j] = own + j < total ? two.x : 0u, key[j + 1] = own + j + 1 < total ? two.z : 0u;
      at[j] = static_cast<int>(two.y), at[j + 1] = static_cast<int>(two.w);
    }
  }

  // ---- the cut

  template <int N>
  __device__ __forceinline__ Survey look(const uint32_t (&key)[N]) {
    uint32_t many = 0, below = 0, top = 0;  // many: forced in the upper half; below: ~low
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if (key[j] == kPickForced) many += 1u << 16;
      if (key[j] - 1 < kPickForced - 1) ++many, below = max(below, ~key[j]), top = max(top, key[j]);
    }
    many = block_.sum(many), below = block_.largest(below), top = block_.largest(top);
    return {many >> 16, many & 0xffff, ~below, top};
  }
  // Where the `wanted`-th of the keys lies, to `digits` digits below the bits that all have.
  template <int N>
  __device__ __forceinline__ Cut find(const uint32_t (&key)[N], const Survey& survey,
                                      uint32_t wanted, int digits) {
    if (wanted <= survey.forced) return {kPickForced, wanted};
    uint32_t left = wanted - survey.forced;
    int shift = 32 - __clz(static_cast<int>(survey.low ^ survey.top));
    uint32_t prefix = shift == 32 ? 0u : survey.top >> shift << shift;
#pragma unroll 1
    for (; shift > 0 && digits > 0; --digits) {
      const int next = max(shift - kDigit, 0);
      const uint32_t mask = (1u << (shift - next)) - 1;
      s_.digit[threadIdx.x] = 0;
      __syncthreads();
#pragma unroll
      for (int j = 0; j < N; ++j)
        if (key[j] - 1 < kPickForced - 1 && __funnelshift_rc(key[j] ^ prefix, 0u, shift) == 0)
          atomicAdd(s_.digit + (key[j] >> next & mask), 1u);
      __syncthreads();
      const uint32_t bin = kPickThreads - 1 - threadIdx.x, count = s_.digit[bin];
      uint32_t total;
      const uint32_t before = block_.exclusive(count, total);
      if (before < left && left <= before + count)
        s_.bin = bin, s_.before = before, s_.total[0] = count;
      __syncthreads();
      left -= s_.before, prefix |= s_.bin << next, shift = next;
      if (s_.total[0] == left) return {max(prefix, kPickNone + 1) - 1, 0};
    }
    return {prefix, left};
  }

  // ---- the list

  __device__ __forceinline__ void emit(const uint32_t (&key)[kEach], const int (&at)[kEach],
                                       const Cut& cut, uint32_t listed) {
    uint32_t both = 0, all;  // of the cut's key in the upper half
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (key[j] > cut.key) ++both;
      if (key[j] == cut.key) both += 1u << 16;
    }
    both = block_.exclusive(both, all);
    uint32_t equal = both >> 16, place = (both & 0xffff) + min(equal, cut.ties);
    int* const to = s_.kept.at;  // what is kept is in registers now
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const bool tie = key[j] == cut.key && equal < cut.ties;
      equal += key[j] == cut.key;
      if (key[j] > cut.key || tie) to[place++] = at[j];
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < listed; i += kPickThreads)
      run_.source.put(run_.row, i, to[i]);
  }

  const PickRun<Source>& run_;
  PickShared& s_;
  PickBlock& block_;
};

}  // namespace fovea::cuda
