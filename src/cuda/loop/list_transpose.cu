// SPDX-License-Identifier: Apache-2.0
#include "cuda/loop/list_transpose.cuh"

#include <thrust/iterator/counting_iterator.h>

#include <algorithm>
#include <bit>
#include <cub/block/block_radix_sort.cuh>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_select.cuh>

#include "core/locate.h"

namespace fovea::cuda {
namespace {

constexpr int kThreads = 256, kSortThreads = 128;

// 1 << shift lanes take a list; tiles have one key.
template <class Lists>
__global__ void __launch_bounds__(kThreads)
    entries_kernel(const __grid_constant__ Lists a, const __grid_constant__ ListTranspose order,
                   int shift, int64_t work, uint64_t* to) {
  const Sequences& q = a.sequences;
  const int lane = threadIdx.x & ((1 << shift) - 1), each = kThreads >> shift;
  for (int64_t w = int64_t{blockIdx.x} * each + (threadIdx.x >> shift); w < work;
       w += int64_t{gridDim.x} * each) {
    const int64_t rows = a.rows_most();
    const int64_t list = quotient(w, rows), i = w - list * rows;
    const int64_t r = quotient(list, order.heads), h = list - r * order.heads;
    const Sequence sequence = q[r];
    const uint64_t none = order.from(order.none, i), first = order.from(order.tile(r, h, 0), i);
    for (int64_t n = lane; n < a.n; n += 1 << shift) {
      const int64_t j = i < a.rows(sequence) ? a.key(sequence, r, h, i, n) : -1;
      to[w * a.n + n] = static_cast<uint64_t>(n) | (j < 0 ? none : order.named(first, j));
    }
  }
}

// A block takes Each entries a thread of a list, by key.
template <int Each, class Lists>
__global__ void __launch_bounds__(kSortThreads)
    sorted_lists_kernel(const __grid_constant__ Lists a,
                        const __grid_constant__ ListTranspose order, int bits, int64_t chunks,
                        int64_t work, uint64_t* to) {
  using Sort = cub::BlockRadixSort<uint32_t, kSortThreads, Each, uint32_t>;
  __shared__ typename Sort::TempStorage s_sort;
  const Sequences& q = a.sequences;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t list = w / chunks, n0 = w % chunks * kSortThreads * Each;
    const int64_t rows = a.rows_most();
    const int64_t i = list % rows, h = list / rows % order.heads, r = list / rows / order.heads;
    const Sequence sequence = q[r];
    uint32_t key[Each], place[Each];
    const uint32_t none = ~0u >> (32 - bits);
#pragma unroll
    for (int m = 0; m < Each; ++m) {
      const int64_t n = n0 + threadIdx.x * Each + m;
      const int64_t j = i < a.rows(sequence) ? a.key(sequence, r, h, i, n) : -1;
      key[m] = j < 0 ? none : static_cast<uint32_t>(j), place[m] = static_cast<uint32_t>(n);
    }
    Sort(s_sort).SortBlockedToStriped(key, place, 0, bits);
    const uint64_t last = order.from(order.none, i), first = order.from(order.tile(r, h, 0), i);
    const int64_t end = a.n - n0;
#pragma unroll
    for (int m = 0; m < Each; ++m)
      if (const int64_t n = m * kSortThreads + threadIdx.x; n < end)
        to[list * a.n + n0 + n] = place[m] | (key[m] == none ? last : order.named(first, key[m]));
    __syncthreads();
  }
}

struct StartsRun {
  const uint64_t* entries;
  ListTranspose order;
  __device__ bool operator()(int64_t at) const {
    if (at == 0) return true;
    const uint64_t last = entries[at - 1] >> order.list_bits, own = entries[at] >> order.list_bits;
    if (order.tile_of(entries[at]) == order.none)
      return order.tile_of(entries[at - 1]) != order.none;
    return last >= own || last >> order.key_bits != own >> order.key_bits;
  }
};

int bits_of(int64_t x) {
  return static_cast<int>(std::bit_width(static_cast<uint64_t>(x)));
}

// Rows ascend before, and the sort is stable.
cudaError_t sort_entries(void* room, size_t& bytes, cub::DoubleBuffer<uint64_t>& entries,
                         const ListTranspose& order, cudaStream_t stream) {
  return cub::DeviceRadixSort::SortKeys(room, bytes, entries, order.entries,
                                        order.list_bits + order.key_bits + order.row_bits,
                                        order.bits, stream);
}

cudaError_t find_runs(void* room, size_t& bytes, const uint64_t* entries,
                      const ListTranspose& order, int64_t* first, int64_t* count,
                      cudaStream_t stream) {
  return cub::DeviceSelect::If(room, bytes, thrust::counting_iterator<int64_t>(0), first, count,
                               order.entries, StartsRun{entries, order}, stream);
}

}  // namespace

template <class Lists>
ListTranspose::ListTranspose(const Lists& a, int key_bits) : heads(a.heads()), key_bits(key_bits) {
  const Sequences& q = a.sequences;
  tiles = ceil_div(a.keys_most(), int64_t{1} << key_bits);
  entries = q.count * heads * a.rows_most() * a.n;
  none = static_cast<uint64_t>(q.count * heads * tiles);
  list_bits = bits_of(a.n), row_bits = bits_of(a.rows_most());
  bits = list_bits + key_bits + row_bits + bits_of(q.count * heads * tiles);
}

template <class Lists>
ListTransposeSlots<Lists>::ListTransposeSlots(Layout& layout, const char* op, const Lists& lists,
                                              int key_bits, bool needed)
    : lists(lists), order(lists, key_bits) {
  if (!needed) order.entries = 0;
  for (Slot<uint64_t>& slot : entries) slot = layout.add<uint64_t>(order.entries);
  size_t bytes = 0, more = 0;
  cub::DoubleBuffer<uint64_t> none;
  if (order.entries) {
    check(sort_entries(nullptr, bytes, none, order, nullptr), op);
    check(find_runs(nullptr, more, nullptr, order, nullptr, nullptr, nullptr), op);
  }
  count = layout.add<int64_t>(order.entries ? 1 : 0);
  room = layout.add<unsigned char>(static_cast<int64_t>(std::max(bytes, more)));
}

template <class Lists>
ListRuns ListTransposeSlots<Lists>::sort(Context& ctx, const char* op, void* base) const {
  if (!order.entries) return {};
  const int64_t count_of_lists = order.entries / lists.n;
  uint64_t* const to = entries[0].at(base);
  const auto sort_lists = [&]<int Each> {
    const int64_t chunks = ceil_div(lists.n, int64_t{kSortThreads} * Each);
    launch<sorted_lists_kernel<Each, Lists>>(
        ctx, op, count_of_lists * chunks, kSortThreads, 0, lists, order,
        std::clamp(bits_of(lists.keys_most()), 1, 32), chunks, count_of_lists * chunks, to);
  };
  // Lanes of a list: as many as it has entries, up to a warp.
  const int shift = std::min(bits_of(lists.n - 1), 5);
  if (!order.key_bits)
    launch<entries_kernel<Lists>>(ctx, op, ceil_div(count_of_lists, kThreads >> shift), kThreads, 0,
                                  lists, order, shift, count_of_lists, to);
  else if (lists.n <= 512)
    sort_lists.template operator()<4>();
  else
    sort_lists.template operator()<16>();
  cub::DoubleBuffer<uint64_t> both(to, entries[1].at(base));
  size_t bytes = room.count;
  check(sort_entries(room.at(base), bytes, both, order, stream(ctx)), op);
  ListRuns runs{both.Current(), nullptr, nullptr};
  if (!order.key_bits) return runs;
  auto* first = reinterpret_cast<int64_t*>(both.Alternate());
  check(find_runs(room.at(base), bytes, runs.entries, order, first, count.at(base), stream(ctx)),
        op);
  runs.first = first, runs.count = count.at(base);
  return runs;
}

template ListTranspose::ListTranspose(const KeyLists&, int);
template ListTranspose::ListTranspose(const BlockLists&, int);
template struct ListTransposeSlots<KeyLists>;
template struct ListTransposeSlots<BlockLists>;

}  // namespace fovea::cuda
