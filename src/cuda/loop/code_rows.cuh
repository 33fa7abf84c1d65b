// SPDX-License-Identifier: Apache-2.0
// Where rows of keys that are 8-bit codes lie: of tiles of BN keys, or of BN places of lists.
#pragma once
#include "cuda/loop/stored_key.cuh"
#include "cuda/loop/wide_list_sm90.cuh"

namespace fovea::cuda {

template <class Slot, int BN>
struct CodeRows {
  static constexpr int kTailColumn = 512;
  const Attend& a;

  // The key that row `row` of step n is; -1: none.
  __device__ __forceinline__ int entry_of(const Slot& work, int n, int row) const {
    if (!work.count) return -1;
    if constexpr (Slot::kSingle) {
      const int place = n * BN + row;
      return place < work.places ? work.index[place * work.stride] : -1;
    } else {
      const int key = work.key_tile(n) * BN + row;
      return key < work.tile.keys ? key : -1;
    }
  }
  __device__ __forceinline__ StoredKey key_of(const Slot& work, int entry) const {
    bool there = entry >= 0;
    if constexpr (Slot::kSingle) there = work.sees(entry);
    if (!there) return {-1, 0};
    return stored_key(a.sequences, work.tile.rows.seq, entry);
  }
  // The row of x, or its first one.  Strides fit in an int.
  template <class T>
  __device__ __forceinline__ const T* row_of(const Slot& work, StoredKey key,
                                             const View<4>& x) const {
    const T* first = x.as<T>();
    return key.block < 0 ? first
                         : first + int64_t{key.block} * static_cast<int>(x.stride[0]) +
                               int64_t{key.token} * static_cast<int>(x.stride[1]) +
                               head_of(work) * x.stride[2];
  }
  // What follows the first 512 columns: a row of k where K is (v, k).
  __device__ __forceinline__ const void* tail_of(const Slot& work, StoredKey key) const {
    if (a.q_value) return row_of<uint16_t>(work, key, a.k);
    return row_of<uint8_t>(work, key, a.v) + (key.block < 0 ? 0 : kTailColumn);
  }

 private:
  __device__ __forceinline__ int64_t head_of(const Slot& work) const {
    if constexpr (Slot::kSingle)
      return work.key_head;
    else
      return work.tile.key_head(a);
  }
};

// Where !valid a zero; `from` is not read then.
__device__ __forceinline__ void copy_scale(uint32_t to, const float* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 4 : 0)
               : "memory");
}

}  // namespace fovea::cuda
