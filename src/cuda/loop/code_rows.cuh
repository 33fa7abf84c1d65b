// SPDX-License-Identifier: Apache-2.0
// Where rows of keys that are 8-bit codes lie: of tiles of BN keys, or of BN places of lists.
#pragma once
#include "cuda/loop/wide_list_sm90.cuh"

namespace fovea::cuda {

// Where a key is stored; block < 0: there is none.
struct CodeKey {
  int block, token;
};

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
  __device__ __forceinline__ CodeKey key_of(const Slot& work, int entry) const {
    const Sequences& given = a.sequences;
    const Sequence& seq = work.tile.rows.seq;
    bool there = entry >= 0;
    if constexpr (Slot::kSingle) there = work.sees(entry);
    if (!there) return {-1, 0};
    const int token = static_cast<int>(seq.key_begin) + entry;
    if (!given.page) return {static_cast<int>(seq.key_batch), token};
    const uint32_t page = static_cast<uint32_t>(given.page),
                   place = static_cast<uint32_t>(token) / page;
    const int id =
        given.page_table.template as<int32_t>()[seq.key_batch * given.page_table.stride[0] +
                                                place * given.page_table.stride[1]];
    const bool is = static_cast<uint32_t>(id) < static_cast<uint32_t>(given.pool);
    return {is ? id : -1, static_cast<int>(static_cast<uint32_t>(token) - place * page)};
  }
  // The row of x, or its first one.  Strides fit in an int.
  template <class T>
  __device__ __forceinline__ const T* row_of(const Slot& work, CodeKey key,
                                             const View<4>& x) const {
    const T* first = x.as<T>();
    return key.block < 0 ? first
                         : first + int64_t{key.block} * static_cast<int>(x.stride[0]) +
                               int64_t{key.token} * static_cast<int>(x.stride[1]) +
                               head_of(work) * x.stride[2];
  }
  // What follows the first 512 columns: a row of k where K is (v, k).
  __device__ __forceinline__ const void* tail_of(const Slot& work, CodeKey key) const {
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
