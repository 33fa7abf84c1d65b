// SPDX-License-Identifier: Apache-2.0
// Load policy of the tiled sweeps: where the key and value rows of a tile lie in global memory.
//   ContiguousKeys  Rows are a fixed stride apart.
//   GatheredKeys    Paged, packed or contiguous.  Offsets of rows are looked up a tile ahead into
//                   shared memory, which hides the page table's latency.  -1: past the end or in
//                   an absent page.
// An absent row is nullptr: the copy writes zeros, since 0 * NaN would reach a sum.
#pragma once
#include <concepts>

#include "core/attend.h"

namespace fovea::cuda {

// `slot` alternates by tile.  prepare(slot, tile) takes effect after a barrier.
template <class L>
concept KeyLoad = requires(L load, int slot, int tile, int row) {
  { L::shared_bytes } -> std::convertible_to<int>;
  load.prepare(slot, tile);
  { load.key(slot, tile, row) } -> std::same_as<const uint16_t*>;
  { load.value(slot, tile, row) } -> std::same_as<const uint16_t*>;
  { load.absent(slot) } -> std::same_as<uint64_t>;
};

inline __device__ const uint16_t* elements(const View<4>& x, int64_t offset) {
  return static_cast<const uint16_t*>(x.data) + offset;
}

template <int Rows, int Threads>
struct ContiguousKeys {
  static constexpr int shared_bytes = 0;
  const Attend& a;
  const uint16_t *k, *v;
  int keys;

  __device__ ContiguousKeys(const Attend& a, const Sequence& q, int64_t g, void*)
      : a(a), keys(static_cast<int>(q.keys)) {
    const int64_t row = q.key_batch < 0 ? 0 : q.key_batch;
    k = elements(a.k, row * a.k.stride[0] + q.key_begin * a.k.stride[1] + g * a.k.stride[2]);
    v = elements(a.v, row * a.v.stride[0] + q.key_begin * a.v.stride[1] + g * a.v.stride[2]);
  }
  __device__ void prepare(int, int) {}
  __device__ const uint16_t* key(int, int tile, int row) const {
    const int j = tile * Rows + row;
    return j < keys ? k + j * a.k.stride[1] : nullptr;
  }
  __device__ const uint16_t* value(int, int tile, int row) const {
    const int j = tile * Rows + row;
    return j < keys ? v + j * a.v.stride[1] : nullptr;
  }
  __device__ uint64_t absent(int) const { return 0; }
};

template <int Rows, int Threads>
struct GatheredKeys {
  static_assert(Rows == 64 && Threads >= 2 * Rows);  // absent() is one bit a row
  static constexpr int shared_bytes = 2 * 2 * Rows * 8;
  const Attend& a;
  const Sequence& q;
  const uint16_t *k, *v;
  int64_t (*s_offset)[2][Rows];

  __device__ GatheredKeys(const Attend& a, const Sequence& q, int64_t g, void* shared)
      : a(a), q(q), k(elements(a.k, g * a.k.stride[2])), v(elements(a.v, g * a.v.stride[2])) {
    s_offset = static_cast<int64_t(*)[2][Rows]>(shared);
  }
  __device__ void prepare(int slot, int tile) {
    const int row = threadIdx.x % Rows, tensor = threadIdx.x / Rows;
    if (tensor > 1) return;
    const int j = tile * Rows + row;
    const int64_t* stride = tensor ? a.v.stride : a.k.stride;
    s_offset[slot][tensor][row] = j < q.keys ? a.sequences.key_offset(q, j, stride) : -1;
  }
  __device__ const uint16_t* key(int slot, int, int row) const {
    const int64_t offset = s_offset[slot][0][row];
    return offset < 0 ? nullptr : k + offset;
  }
  __device__ const uint16_t* value(int slot, int, int row) const {
    const int64_t offset = s_offset[slot][1][row];
    return offset < 0 ? nullptr : v + offset;
  }
  __device__ uint64_t absent(int slot) const {
    const int lane = threadIdx.x % 32;
    const uint32_t low = __ballot_sync(~0u, s_offset[slot][0][lane] < 0);
    const uint32_t high = __ballot_sync(~0u, s_offset[slot][0][lane + 32] < 0);
    return low | static_cast<uint64_t>(high) << 32;
  }
};

}  // namespace fovea::cuda
