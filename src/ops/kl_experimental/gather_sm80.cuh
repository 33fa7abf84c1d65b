// SPDX-License-Identifier: Apache-2.0
// Rows whose list and keys 16 heads share, on mma.sync (sm_80 and up): a block of four warps owns a
// row of 16 heads, whose list's keys come to shared memory once for all of them, 64 at a time, of
// which each warp takes 16.
// Shared memory: q of both sides, 16 x 128, two stages of keys of both, 64 x 128.
// Barriers: one when a stage has landed, one when it is done with.
#pragma once
#include "cuda/tile/copy.cuh"
#include "cuda/tile/mma_sm80.cuh"
#include "ops/kl_experimental/gather_simt.cuh"

namespace fovea::cuda {

constexpr int kGatherHeads = 16, kGatherKeys = 64, kGatherWidth = 128;

// A warp's fragment of scores: rows are heads.
struct GatherFragment {
  static constexpr int R = 2, C = 4;
  __device__ static float max(float x) { return quad_max(x); }
  __device__ static float sum(float x) { return quad_sum(x); }
  __device__ static int row_of(int r) { return threadIdx.x % 32 / 4 + 8 * r; }
  __device__ static int column_of(int c) { return c / 2 * 8 + threadIdx.x % 4 * 2 + c % 2; }
};

struct GatherTiles {
  using Q = Swizzled<kGatherHeads, kGatherWidth>;
  using K = Swizzled<kGatherKeys, kGatherWidth>;
  static constexpr int stage_bytes = 2 * K::bytes, bytes = 2 * Q::bytes + 2 * stage_bytes;
  static constexpr int step = kGatherThreads / kPanelChunks, rows = kGatherKeys / step;

  uint32_t q, k;
  int (*named)[kGatherKeys];  // of each stage: the keys, < 0: none
  int next[rows];             // keys that this thread copies from next

  __device__ GatherTiles(void* shared, int (*named)[kGatherKeys])
      : q(shared_address(shared)), k(q + 2 * Q::bytes), named(named) {}

  __device__ uint32_t stage(int64_t n0) const {
    return k + static_cast<uint32_t>(n0 / kGatherKeys % 2) * stage_bytes;
  }
  __device__ const int* names(int64_t n0) const { return named[n0 / kGatherKeys % 2]; }

  __device__ __forceinline__ void find(const GatherSimt& call, const Sequence& of, int64_t i,
                                       int64_t n0) {
#pragma unroll
    for (int m = 0; m < rows; ++m)
      next[m] = static_cast<int>(
          list_entry(call.a, of, 0, i, n0 + threadIdx.x / kPanelChunks + m * step));
  }
  // The heads from h0 on, and the first keys.
  __device__ __forceinline__ void begin(const GatherSimt& call, const Sequence& of, int64_t h0,
                                        int64_t i) {
    find(call, of, i, 0);
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const StageSide& x = call.side[side];
      const uint16_t* base = static_cast<const uint16_t*>(x.q.data);
      copy_rows<kGatherHeads, kGatherWidth, kGatherThreads>(
          q + side * Q::bytes, x.q.width, base, [&](int row) -> const uint16_t* {
            return h0 + row < call.a.kl.h ? base + q_place(x, of, h0 + row, i) : nullptr;
          });
    }
    copy(call, of, 0);
    find(call, of, i, kGatherKeys);
  }
  // Keys of entries from n0 on; a row of zeros for an entry that names none.
  __device__ __forceinline__ void copy(const GatherSimt& call, const Sequence& of, int64_t n0) {
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const StageSide& x = call.side[side];
      const uint16_t* base = static_cast<const uint16_t*>(x.k.data);
      copy_rows<kGatherKeys, kGatherWidth, kGatherThreads>(
          stage(n0) + side * K::bytes, x.k.width, base, [&](int row) -> const uint16_t* {
            const int key = next[row / step];
            return key < 0 ? nullptr : base + k_place(x, of, 0, key);
          });
    }
    if (threadIdx.x % kPanelChunks == 0)
#pragma unroll
      for (int m = 0; m < rows; ++m)
        named[n0 / kGatherKeys % 2][threadIdx.x / kPanelChunks + m * step] = next[m];
    copy_commit();
  }
  // The keys from n0 on are there when all threads are; those after them are on their way.
  __device__ __forceinline__ void advance(const GatherSimt& call, const Sequence& of, int64_t i,
                                          int64_t n0) {
    if (n0 + kGatherKeys < call.a.n) {
      copy(call, of, n0 + kGatherKeys);
      find(call, of, i, n0 + 2 * kGatherKeys);
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
    product_rows<Dtype, 1, 2, kGatherWidth, Q, K>(
        sums, q + side * Q::bytes + Q::at(outer_row(lane), outer_chunk(lane)),
        stage(n0) + side * K::bytes + K::at(warp * 16 + inner_row(lane), inner_chunk(lane)));
  }
};

inline std::string gather_heads_refuse(const Context& ctx, const KlGather& a) {
  if (const std::string why = mma_refuses(ctx, a.kl.first, a.kl.second, kGatherWidth); !why.empty())
    return why;
  if (a.kl.h < 4) return "fewer than 4 heads";
  if (a.index.stride[1] != 0) return "a list of its own for each head";
  if (a.kl.first.key_heads != 1 || a.kl.second.key_heads != 1) return "more than one key head";
  return "";
}

}  // namespace fovea::cuda
