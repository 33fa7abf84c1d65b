// SPDX-License-Identifier: Apache-2.0
// The lists of rows by a count alone: the largest entries of a row in the order of core/pick.h,
// ascending.  A cluster of `parts` blocks owns a row, a block of it a run of its entries, in words
// of 32.  Before Hopper a block owns a row.
//   few      a pivot that somewhat more than the wanted entries reach, from a sample of the row;
//            the row is read once, and what reaches the pivot is kept with its place.  Each block
//            gathers all that its cluster keeps, in registers, and finds the cut by bisection
//   bins     where that fails (equal entries, samples that mislead, large counts): histograms of
//            the digits of keys, added up over the cluster.  The row is read at least twice
//   ordered  a row of one block, whose source has neighbours: pick_ordered.cuh
//   ranks    entries of the list are bits; those before a word, in the block and in the blocks
//            before it, are its places
// A sample and the order in which threads keep entries decide nothing: the cut is that of all
// entries.
//
//   cluster barrier  all blocks of a row: what others read was written
//   few              after a block's entries are kept
//   bins             after the bins of each of three digits; after a block's totals
//   both             at the end of a row
#pragma once
#include "cuda/loop/pick_ordered.cuh"

namespace fovea::cuda {

// ---- few

template <class Source>
class PickFew {
  static constexpr int kEach = kPickKept / kPickThreads;

 public:
  __device__ PickFew(const PickRun<Source>& run, PickBlock& block)
      : run_(run), block_(block), total_(0), before_(0) {}

  // False: nothing is written, and the same in all blocks of the cluster.
  __device__ bool operator()() {
    const int64_t wanted = run_.row.wanted > 0 ? run_.row.wanted : 0;
    const bool all = run_.row.n <= kPickKept;
    uint32_t pivot = kPickNone + 1;
    if (!all && (wanted > kPickFewMost || !sample(static_cast<float>(wanted), pivot))) return false;
    run_.clear();
    if (threadIdx.x == 0) run_.s.kept_count = 0;
    __syncthreads();
    keep(pivot);
    run_.cluster.sync();
    if (!gather(all ? 0 : static_cast<int>(wanted))) return false;

    const int used = (total_ + kPickThreads - 1) / kPickThreads;
    uint32_t top = 0, own = 0;
#pragma unroll
    for (int j = 0; j < kEach; ++j)
      if (j < used) top = max(top, key_[j]), own += key_[j] == kPickForced;
    top = block_.largest(top);
    const int64_t forced = top == kPickForced ? block_.sum(own) : 0;
    int64_t counted = wanted > forced ? wanted : forced;
    if (counted > total_) counted = total_;
    const int64_t room = run_.source.keep;
    const uint32_t listed = static_cast<uint32_t>(counted < room ? counted : room);
    if (listed) list(used, listed, pivot, top);
    run_.finish(listed, counted);
    return true;
  }

 private:
  // A number that some more entries than wanted reach, if the sample does not mislead.  False: a
  // sample would be too small.
  __device__ bool sample(float wanted, uint32_t& pivot) {
    const int log = 1024 * fmaxf(wanted, 1.f) < 64.f * static_cast<float>(run_.row.n) ? 12 : 10;
    const uint32_t rank = sampled_rank(run_.row.n, wanted, log);
    if (!rank) return false;
    pivot = log == 12 ? sample<12>(rank) : sample<10>(rank);
    pivot = max(pivot, kPickNone + 1);
    return true;
  }
  // What `rank` of 2^Log keys reach.
  template <int Log>
  __device__ __forceinline__ uint32_t sample(uint32_t rank) {
    constexpr int Each = (1 << Log) / kPickThreads;
    uint32_t key[Each];
    run_.template sample<Log>(key);
    return block_.bisect(key, Each, rank, rank / 16, 0u, 31, 14);
  }

  // Entries that reach the pivot.
  __device__ void keep(uint32_t pivot) const {
    const int lane = threadIdx.x % 32;
    PickShared& s = run_.s;
    run_.each_batch([&](const uint32_t(&key)[kPickAhead], int from) {
      int all = 0;
#pragma unroll
      for (int n = 0; n < kPickAhead; ++n) all += __popc(__ballot_sync(~0u, key[n] >= pivot));
      if (!all) return;
      int to = 0;
      if (lane == 0) to = static_cast<int>(atomicAdd(&s.kept_count, static_cast<uint32_t>(all)));
      to = __shfl_sync(~0u, to, 0);
#pragma unroll
      for (int n = 0; n < kPickAhead; ++n) {
        const uint32_t reach = __ballot_sync(~0u, key[n] >= pivot);
        const int place = to + __popc(reach & ((1u << lane) - 1));
        if (key[n] >= pivot && place < kPickKept) {
          s.kept.key[place] = key[n];
          s.kept.at[place] = (from + n * PickBlock::kWarps) * 32 + lane;
        }
        to += __popc(reach);
      }
    });
  }

  // The cluster's kept keys, in the order of blocks; false: there are too many or too few.
  __device__ bool gather(int least) {
    const PickParts& cluster = run_.cluster;
    uint32_t count[kPickPartsMost];
    const uint32_t* from[kPickPartsMost];
    int start[kPickPartsMost], blocks[kPickPartsMost];
#pragma unroll
    for (int n = 0; n < kPickPartsMost; ++n)
      from[n] = &run_.s.kept_count, blocks[n] = min(n, cluster.parts - 1);
    cluster.load(count, from, blocks);
    bool fits = true;
#pragma unroll
    for (int n = 0; n < kPickPartsMost; ++n) {
      if (n >= cluster.parts) count[n] = 0;
      start[n] = total_;
      if (n == cluster.rank) before_ = total_;
      fits = fits && count[n] <= kPickKept;
      total_ += static_cast<int>(min(count[n], static_cast<uint32_t>(kPickKept)));
    }
    if (!fits || total_ > kPickKept || total_ < least) return false;
    const uint32_t* of[kEach];
    int owner[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int place = min(static_cast<int>(threadIdx.x) + j * kPickThreads, max(total_ - 1, 0));
      int begin = 0;
      owner[j] = 0;
#pragma unroll
      for (int n = 1; n < kPickPartsMost; ++n)
        if (n < cluster.parts && place >= start[n]) owner[j] = n, begin = start[n];
      of[j] = run_.s.kept.key + (place - begin);
    }
    cluster.load(key_, of, owner);
#pragma unroll
    for (int j = 0; j < kEach; ++j)
      if (static_cast<int>(threadIdx.x) + j * kPickThreads >= total_) key_[j] = 0;
    return true;
  }

  __device__ void list(int used, uint32_t listed, uint32_t pivot, uint32_t top) {
    const uint32_t apart = pivot ^ top;
    const int first = 31 - __clz(static_cast<int>(apart));  // -1: they are equal
    const uint32_t prefix =
        first < 0 ? top : static_cast<uint32_t>(top >> first >> 1) << first << 1;
    const uint32_t cut = block_.bisect(key_, used, listed, 0u, prefix, first, 0);
    uint32_t above = 0, above_before = 0, tied_before = 0;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (j >= used) continue;
      const bool earlier = static_cast<int>(threadIdx.x) + j * kPickThreads < before_;
      above += key_[j] > cut;
      above_before += earlier && key_[j] > cut, tied_before += earlier && key_[j] == cut;
    }
    const uint32_t both = block_.sum(above | above_before << 16);
    if (run_.cluster.parts > 1) tied_before = block_.sum(tied_before);
    const int own = static_cast<int>(run_.s.kept_count);
    for (int i = threadIdx.x; i < own; i += kPickThreads)
      run_.mark(run_.s.kept.at[i], run_.s.kept.key[i], cut);
    __syncthreads();
    run_.emit(block_, listed - (both & 0xffff), both >> 16, tied_before, false);
  }

  const PickRun<Source>& run_;
  PickBlock& block_;
  int total_, before_;  // kept by the cluster, and by its blocks before this one
  uint32_t key_[kEach];
};

// ---- bins

template <class Source>
class PickWide {
  static constexpr int kOwn = kPickBins / kPickThreads;  // bins of a thread, from the largest on

 public:
  __device__ PickWide(const PickRun<Source>& run, PickBlock& block)
      : run_(run), s_(run.s), block_(block) {}

  __device__ void operator()() {
    for (int i = threadIdx.x; i < 3 * kPickBins / 4; i += kPickThreads)
      s_.walk.bins[0][i] = make_uint4(0, 0, 0, 0);
    if (threadIdx.x == 0) s_.near_count = 0;
    run_.clear();
    __syncthreads();
    run_.each_key([&](int, int, uint32_t key) {
      if (key > kPickNone) add(0, key >> 21);
    });
    run_.cluster.sync();
    uint32_t count[kOwn], total;
    const uint32_t before = block_.exclusive(sum_bins(0, count), total);
    // The bin of forced entries is the first thread's first.
    const uint32_t forced = block_.largest(threadIdx.x == 0 ? count[0] : 0);
    int64_t wanted = run_.row.wanted > forced ? run_.row.wanted : forced;
    if (wanted > total) wanted = total;
    const int64_t room = run_.source.keep;
    const uint32_t listed = static_cast<uint32_t>(wanted < room ? wanted : room);
    if (listed) {
      const uint32_t ties = listed == total ? take_all() : take(count, before, listed);
      run_.emit(block_, ties, 0, 0, true);
    }
    run_.finish(listed, wanted);
  }

 private:
  __device__ void add(int digit, uint32_t bin) const {
    atomicAdd(reinterpret_cast<uint32_t*>(s_.walk.bins[digit]) + bin, 1u);
  }
  // visit(place in the run, key) for the entries of the cut's first bin.
  template <class Visit>
  __device__ __forceinline__ void each_near(uint32_t bin, Visit visit) const {
    if (s_.near_count <= kPickNear) {
      for (int i = threadIdx.x; i < s_.near_count; i += kPickThreads)
        visit(s_.walk.at[i], s_.walk.key[i]);
    } else {
      run_.each_key([&](int, int at, uint32_t key) {
        if (key >> 21 == bin) visit(at, key);
      });
    }
  }
  // The thread's bins of all blocks, and their sum.
  __device__ uint32_t sum_bins(int digit, uint32_t (&count)[kOwn]) const {
    const uint32_t* from[kOwn];
    int blocks[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      count[i] = 0;
      from[i] = reinterpret_cast<const uint32_t*>(s_.walk.bins[digit]) + kPickBins - 1 - i -
                kOwn * static_cast<int>(threadIdx.x);
    }
#pragma unroll 1
    for (int block = 0; block < run_.cluster.parts; ++block) {
      uint32_t x[kOwn];
#pragma unroll
      for (int i = 0; i < kOwn; ++i) blocks[i] = block;
      run_.cluster.load(x, from, blocks);
#pragma unroll
      for (int i = 0; i < kOwn; ++i) count[i] += x[i];
    }
    uint32_t sum = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) sum += count[i];
    return sum;
  }
  // The bin in which the `wanted`-th entry lies, and how many are above that bin.
  __device__ void find(const uint32_t (&count)[kOwn], uint32_t before, uint32_t wanted) const {
    uint32_t bin = kPickBins - 1 - kOwn * threadIdx.x;
#pragma unroll
    for (int i = 0; i < kOwn; ++i, --bin) {
      if (before < wanted && wanted <= before + count[i]) s_.bin = bin, s_.before = before;
      before += count[i];
    }
    __syncthreads();
  }

  // Bits of all entries that there are; no ties.
  __device__ uint32_t take_all() const {
    run_.each_key([&](int word, int, uint32_t key) {
      const uint32_t bits = __ballot_sync(~0u, key > kPickNone);
      if (threadIdx.x % 32 == 0) run_.taken[word] = bits;
    });
    __syncthreads();
    return 0;
  }
  // Bits of the entries above the cut and of those of its key.  Returns how many of these are
  // taken.
  __device__ uint32_t take(const uint32_t (&first)[kOwn], uint32_t before, uint32_t wanted) {
    find(first, before, wanted);
    const uint32_t bin = s_.bin;
    uint32_t above = s_.before;
    collect(bin);
    __syncthreads();
    uint32_t prefix = bin;
#pragma unroll 1
    for (int digit = 1; digit < 3; ++digit) {
      const int shift = digit == 1 ? 10 : 0;
      each_near(bin, [&](int, uint32_t key) {
        const uint32_t top = digit == 1 ? key >> 21 : key >> 10;
        if (top == prefix) add(digit, key >> shift & (digit == 1 ? 2047u : 1023u));
      });
      run_.cluster.sync();
      uint32_t count[kOwn], total;
      const uint32_t at = block_.exclusive(sum_bins(digit, count), total);
      find(count, at, wanted - above);
      above += s_.before;
      prefix = digit == 1 ? prefix << 11 | s_.bin : prefix << 10 | s_.bin;
    }
    each_near(bin, [&](int at, uint32_t key) { run_.mark(at, key, prefix); });
    __syncthreads();
    return wanted - above;
  }
  __device__ void collect(uint32_t bin) const {
    const int lane = threadIdx.x % 32;
    run_.each_key([&](int word, int at, uint32_t key) {
      const uint32_t bits = __ballot_sync(~0u, key >> 21 > bin);
      const bool here = key >> 21 == bin;
      const uint32_t near = __ballot_sync(~0u, here);
      if (lane == 0) run_.taken[word] = bits;
      if (!near) return;
      int to = 0;
      if (lane == 0) to = atomicAdd(&s_.near_count, __popc(near));
      to = __shfl_sync(~0u, to, 0) + __popc(near & ((1u << lane) - 1));
      if (here && to < kPickNear) s_.walk.key[to] = key, s_.walk.at[to] = at;
    });
  }

  const PickRun<Source>& run_;
  PickShared& s_;
  PickBlock& block_;
};

// Apart, since its registers would cost the usual way some.
template <class Source>
__device__ __noinline__ void pick_wide(const Source& source, int parts, PickShared& s, int words,
                                       typename Source::Row row) {
  const PickParts cluster(parts);
  const PickRun<Source> run(source, cluster, s, words, row);
  PickBlock block(s);
  __syncthreads();  // the sums of the block before are read
  PickWide<Source>(run, block)();
}

// Source has
//   struct Row { int n; int64_t wanted; ... }
//   open(w, row)         false: row w has no list
//   load(row, i)         what memory has of an entry, a Raw
//   key(row, i, raw)     at most kPickNone: never taken; kPickForced: taken first, and counts
//   put(row, place, i)   writes an entry
//   pad(row, place)      a place that has none
//   count(row, wanted)   how many there would be with room for all
//   keep                 places of a list
template <class Source>
__global__ void __launch_bounds__(kPickThreads, 4)
    pick_rows_kernel(const __grid_constant__ Source source, int64_t rows, int parts, int words) {
  extern __shared__ __align__(16) unsigned char s_pick[];
  __shared__ typename Source::Row s_row;
  __shared__ bool s_open;
  PickShared& s = *reinterpret_cast<PickShared*>(s_pick);
  const PickParts cluster(parts);
  PickBlock block(s);
  pdl_wait();
  pdl_trigger();
  for (int64_t w = blockIdx.x / parts; w < rows; w += gridDim.x / parts) {
    __syncthreads();  // the row before is read
    if (threadIdx.x == 0) s_open = source.open(w, s_row);
    __syncthreads();
    if (!s_open) continue;
    const typename Source::Row row = s_row;
    const PickRun<Source> run(source, cluster, s, words, row);
    bool done = false;
    if constexpr (PickNeighbours<Source>)
      done = parts == 1 ? PickOrdered<Source>(run, block)() : PickFew<Source>(run, block)();
    else
      done = PickFew<Source>(run, block)();
    if (!done) pick_wide(source, parts, s, words, row);
    cluster.sync();
  }
}

// How the rows of a launch are cut.
struct PickShape {
  int parts, words;  // words: of a block's run
  int64_t shared_bytes;

  PickShape(const DeviceInfo& device, int64_t rows, int64_t longest) : parts(1) {
    constexpr int64_t kEach = 4096;  // entries of a block, at least
    // Each block of a cluster finds the cut anew: two share a multiprocessor.
    const int64_t blocks = int64_t{2} * device.multiprocessors;
    const int most = device.arch < 90 ? 1 : kPickPartsMost;
    while (parts < most && rows * 2 * parts <= blocks && longest >= kEach * 2 * parts) parts *= 2;
    for (cut(longest); parts < most && !fits(device); cut(longest)) parts *= 2;
  }
  bool fits(const DeviceInfo& device) const { return shared_bytes <= device.shared_block_bytes; }

 private:
  void cut(int64_t longest) {
    words = static_cast<int>(ceil_div(ceil_div(longest, 32), parts));
    shared_bytes = pick_shared_bytes(words);
  }
};

// The lists of rows [0, rows), of at most `longest` entries, as a launch with PDL.
template <class Source>
void pick_rows(Context& ctx, const char* op, const Source& source, int64_t rows, int64_t longest) {
  if (rows <= 0) return;
  constexpr auto kernel = pick_rows_kernel<Source>;
  const DeviceInfo& device = device_info(ctx);
  const PickShape shape(device, rows, longest);
  allow_shared<kernel>(ctx, op);
  cudaLaunchAttribute attribute[2]{};
  attribute[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute[0].val.programmaticStreamSerializationAllowed = 1;
  attribute[1].id = cudaLaunchAttributeClusterDimension;
  attribute[1].val.clusterDim.x = static_cast<unsigned>(shape.parts);
  attribute[1].val.clusterDim.y = attribute[1].val.clusterDim.z = 1;
  constexpr int64_t kMost = int64_t{1} << 27;
  const int64_t clusters = rows < kMost ? rows : kMost;
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(clusters * shape.parts), config.blockDim = kPickThreads;
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes), config.stream = stream(ctx);
  config.attrs = attribute;
  config.numAttrs = device.arch < 90 ? 0 : shape.parts > 1 ? 2 : 1;
  check(cudaLaunchKernelEx(&config, kernel, source, rows, shape.parts, shape.words), op);
}

}  // namespace fovea::cuda
