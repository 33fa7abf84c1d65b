// SPDX-License-Identifier: Apache-2.0
// Rows whose list and keys 16 heads share, on mma.sync (sm_80 and up): a block of four warps owns a
// row of 16 heads, whose list's keys come to shared memory once for all of them, 64 at a time, of
// which each warp takes 16.  There are two sides, each with q and one key head of its own.
// Shared memory: q of both sides, 16 x 128, two stages of keys of both, 64 x 128.
// Barriers: one when a stage has landed, one when it is done with.
#pragma once
#include "cuda/block/softmax.cuh"
#include "cuda/block/stage.cuh"
#include "cuda/loop/list_transpose.cuh"
#include "cuda/tile/copy.cuh"
#include "cuda/tile/mma_sm80.cuh"

namespace fovea::cuda {

constexpr int kListThreads = 128, kListWarps = kListThreads / 32;
constexpr int kListHeads = 16, kListKeys = 64, kListWidth = 128;

// q and k of a distribution as rows of 16-bit elements.
struct ListSide {
  Operand q, k;
  int64_t q_stride[3], k_stride[3];  // batch, token, head
};
struct ListSides {
  KeyLists lists;
  ListSide side[2];
};

// Row i of a head, and key j of the one key head.
__device__ __forceinline__ int64_t list_row(const ListSide& x, const Sequence& q, int64_t h,
                                            int64_t i) {
  return q.batch * x.q_stride[0] + (q.row_begin + i) * x.q_stride[1] + h * x.q_stride[2];
}
__device__ __forceinline__ int64_t list_key(const ListSide& x, const Sequence& q, int64_t j) {
  return q.key_batch * x.k_stride[0] + (q.key_begin + j) * x.k_stride[1];
}

// A warp's fragment of scores: rows are heads.
struct ListFragment {
  static constexpr int R = 2, C = 4;
  __device__ static float max(float x) { return quad_max(x); }
  __device__ static float sum(float x) { return quad_sum(x); }
  __device__ static int row_of(int r) { return threadIdx.x % 32 / 4 + 8 * r; }
  __device__ static int column_of(int c) { return c / 2 * 8 + threadIdx.x % 4 * 2 + c % 2; }
};

struct SharedListTiles {
  using Q = Swizzled<kListHeads, kListWidth>;
  using K = Swizzled<kListKeys, kListWidth>;
  static constexpr int stage_bytes = 2 * K::bytes, bytes = 2 * Q::bytes + 2 * stage_bytes;
  static constexpr int step = kListThreads / kPanelChunks, rows = kListKeys / step;

  uint32_t q, k;
  int (*named)[kListKeys];  // of each stage: the keys, < 0: none
  int next[rows];           // keys that this thread copies from next

  __device__ SharedListTiles(void* shared, int (*named)[kListKeys])
      : q(shared_address(shared)), k(q + 2 * Q::bytes), named(named) {}

  // q of row i, of the heads from h0 on, and its first keys are on their way.
  __device__ __forceinline__ void begin(const ListSides& call, const Sequence& of, int64_t h0,
                                        int64_t i) {
    find(call, of, i, 0);
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const ListSide& x = call.side[side];
      const uint16_t* base = static_cast<const uint16_t*>(x.q.data);
      copy_rows<kListHeads, kListWidth, kListThreads>(
          q + side * Q::bytes, x.q.width, base, [&](int row) -> const uint16_t* {
            return h0 + row < call.lists.h ? base + list_row(x, of, h0 + row, i) : nullptr;
          });
    }
    copy(call, of, 0);
    find(call, of, i, kListKeys);
  }
  __device__ uint32_t stage(int64_t n0) const {
    return k + static_cast<uint32_t>(n0 / kListKeys % 2) * stage_bytes;
  }
  // Whether the keys of this lane's column c, of those from n0 on, exist.
  __device__ bool names(int64_t n0, int c) const {
    return named[n0 / kListKeys % 2][threadIdx.x / 32 * 16 + ListFragment::column_of(c)] >= 0;
  }
  // The keys from n0 on are there; those after them are on their way.
  __device__ __forceinline__ void advance(const ListSides& call, const Sequence& of, int64_t i,
                                          int64_t n0) {
    if (n0 + kListKeys < call.lists.n) {
      copy(call, of, n0 + kListKeys);
      find(call, of, i, n0 + 2 * kListKeys);
      copy_wait<1>();
    } else {
      copy_wait<0>();
    }
    __syncthreads();
  }
  // <q, k> of one side and the warp's keys.
  template <int Dtype>
  __device__ __forceinline__ void product(float (&sums)[1][2][4], int side, int64_t n0) const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) sums[0][j][c] = 0;
    product_rows<Dtype, 1, 2, kListWidth, Q, K>(
        sums, q + side * Q::bytes + Q::at(outer_row(lane), outer_chunk(lane)),
        stage(n0) + side * K::bytes + K::at(warp * 16 + inner_row(lane), inner_chunk(lane)));
  }

 private:
  __device__ __forceinline__ void find(const ListSides& call, const Sequence& of, int64_t i,
                                       int64_t n0) {
#pragma unroll
    for (int m = 0; m < rows; ++m)
      next[m] =
          static_cast<int>(call.lists.key(of, 0, i, n0 + threadIdx.x / kPanelChunks + m * step));
  }
  // Keys of entries from n0 on; a row of zeros for an entry that names none.
  __device__ __forceinline__ void copy(const ListSides& call, const Sequence& of, int64_t n0) {
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const ListSide& x = call.side[side];
      const uint16_t* base = static_cast<const uint16_t*>(x.k.data);
      copy_rows<kListKeys, kListWidth, kListThreads>(
          stage(n0) + side * K::bytes, x.k.width, base, [&](int row) -> const uint16_t* {
            const int key = next[row / step];
            return key < 0 ? nullptr : base + list_key(x, of, key);
          });
    }
    if (threadIdx.x % kPanelChunks == 0)
#pragma unroll
      for (int m = 0; m < rows; ++m)
        named[n0 / kListKeys % 2][threadIdx.x / kPanelChunks + m * step] = next[m];
    copy_commit();
  }
};

}  // namespace fovea::cuda
