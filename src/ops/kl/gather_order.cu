// SPDX-License-Identifier: Apache-2.0
#include "ops/kl/gather_order.cuh"

#include <bit>
#include <cub/device/device_radix_sort.cuh>

namespace fovea::cuda {
namespace {

constexpr int kThreads = 256;

// A thread takes an entry of a list.
__global__ void __launch_bounds__(kThreads)
    entries_kernel(const __grid_constant__ KlGather a, const __grid_constant__ GatherOrder order,
                   uint64_t* to) {
  const Sequences& q = a.kl.sequences;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t w = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; w < order.entries;
       w += stride) {
    const int64_t n = w % a.n, i = w / a.n % q.query_max, h = w / a.n / q.query_max % order.heads;
    const int64_t r = w / a.n / q.query_max / order.heads;
    const Sequence sequence = q[r];
    const int64_t j = i < sequence.rows ? list_entry(a, sequence, h, i, n) : -1;
    const uint64_t key = j < 0 ? order.key(q.count, 0, 0) : order.key(r, h, j);
    to[w] = key << order.row_bits | static_cast<uint64_t>(i);
  }
}

int bits_of(int64_t x) {
  return static_cast<int>(std::bit_width(static_cast<uint64_t>(x)));
}

cudaError_t sort_entries(void* room, size_t& bytes, cub::DoubleBuffer<uint64_t>& entries,
                         const GatherOrder& order, cudaStream_t stream) {
  return cub::DeviceRadixSort::SortKeys(room, bytes, entries, order.entries, order.row_bits,
                                        order.row_bits + order.key_bits, stream);
}

}  // namespace

GatherOrder::GatherOrder(const KlGather& a) {
  const Sequences& q = a.kl.sequences;
  heads = a.index.stride[1] == 0 ? 1 : a.kl.h, keys = q.key_max;
  row_bits = bits_of(q.query_max), key_bits = bits_of(q.count * heads * keys);
  entries = q.count * heads * q.query_max * a.n;
}

GatherOrderSlots::GatherOrderSlots(Layout& layout, const KlGather& a, bool needed) : order(a) {
  if (!needed) order.entries = 0;
  for (Slot<uint64_t>& slot : entries) slot = layout.add<uint64_t>(order.entries);
  size_t bytes = 0;
  cub::DoubleBuffer<uint64_t> none;
  if (order.entries)
    check(sort_entries(nullptr, bytes, none, order, nullptr), "x_kl_gather_backward");
  room = layout.add<unsigned char>(static_cast<int64_t>(bytes));
}

const uint64_t* GatherOrderSlots::sort(Context& ctx, const char* op, const GatherSimt& call,
                                       void* base) const {
  if (!order.entries) return nullptr;
  launch<entries_kernel>(ctx, op, ceil_div(order.entries, kThreads), kThreads, 0, call.a, order,
                         entries[0].at(base));
  cub::DoubleBuffer<uint64_t> both(entries[0].at(base), entries[1].at(base));
  size_t bytes = room.count;
  check(sort_entries(room.at(base), bytes, both, order, stream(ctx)), op);
  return both.Current();
}

}  // namespace fovea::cuda
