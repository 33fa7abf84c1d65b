// SPDX-License-Identifier: Apache-2.0
// A list of key blocks as tiles of 64 keys for the products of block/stage.cuh.  Key i of the list
// is key i % block_keys of block i / block_keys: small blocks share a tile, one of 128 has two.
// A key that is absent, or that no row of the item sees, has offset -1 and reads as zero.
#pragma once
#include "cuda/block/stage.cuh"
#include "ops/trace/stages.cuh"

namespace fovea::cuda {

struct ListColumns {
  int64_t key[kStageTile];  // INT64_MAX: absent
  int64_t k[kStageTile], v[kStageTile];

  // By threads [0, 64).  block_at(slot): -1 for none.  Keys from `end` on are absent.
  template <class BlockAt>
  __device__ void fill(const Trace& a, const TraceItem& item, int64_t tile, int64_t count,
                       int64_t end, BlockAt block_at) {
    if (threadIdx.x >= kStageTile) return;
    const int64_t at = tile * kStageTile + threadIdx.x, slot = at / a.block_keys;
    const int64_t block = slot < count ? block_at(slot) : -1;
    const int64_t j = block * a.block_keys + at % a.block_keys;
    const bool there = block >= 0 && j < end;
    const Sequences& q = a.attend.sequences;
    const auto offset = [&](const View<4>& x) {
      return there ? q.key_offset(item.seq, j, x.stride) + item.key_head * x.stride[2] : -1;
    };
    key[threadIdx.x] = there ? j : INT64_MAX;
    k[threadIdx.x] = offset(a.attend.k), v[threadIdx.x] = offset(a.attend.v);
  }
};

inline __device__ int64_t list_tiles(const Trace& a, int64_t count) {
  return (count * a.block_keys + kStageTile - 1) / kStageTile;
}

// Rows of an item, `Most` at a time: the offset of q (-1: no such row) and the keys [0, seen).
template <int Most>
struct ListRows {
  int64_t q[Most], seen[Most];

  __device__ void fill(const Trace& a, const TraceItem& item, int64_t from, int count) {
    for (int m = threadIdx.x; m < count; m += kStageThreads) {
      const int64_t i = item.first + from + m;
      const bool there = from + m < item.rows;
      q[m] = there ? item.row(a.attend.q, i) : -1;
      seen[m] = there ? a.seen(item.seq, i) : 0;
    }
  }
};

// acc = q k', of rows from `from` on and a tile of keys.
template <int R, class Rows>
__device__ __forceinline__ void list_products(float (&acc)[R][4], const FmaTiles<R>& tiles,
                                              const Operand& q, const Operand& k, const Rows& rows,
                                              int from, const ListColumns& columns) {
  multiply_nt(
      acc, tiles, q.width,
      [&](int row, int column) { return load_four(q, rows.q[from + row], column); },
      [&](int row, int column) { return load_four(k, columns.k[row], column); });
}

// Calls f.operator()<R>(): a pass has 16 R rows.  A row block takes one or, with 128 rows, two.
template <class F>
void with_passes(const Trace& a, const F& f) {
  a.block_rows == 16 ? f.template operator()<1>() : f.template operator()<4>();
}

}  // namespace fovea::cuda
