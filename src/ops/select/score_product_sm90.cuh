// SPDX-License-Identifier: Apache-2.0
// The product of the Hopper kernels whose scores are sums over heads: 64 keys of a consumer
// warpgroup times 256 columns (row, head).  The keys are wgmma's rows, so that the heads of a score
// lie in one thread and its three neighbours.  Two warpgroups take turns: the sums of one run under
// the product of the other.
//
//   barrier     arrives              waits          guards
//   kTurn + n   the other warpgroup  warpgroup n    ping-pong: its turn to multiply
#pragma once
#include "cuda/tile/mma_sm90.cuh"
#include "ops/select/token_walk_sm90.cuh"

namespace fovea::cuda {

template <int Dtype, int Rows, int D>
struct TokenTile90 : Swizzled<Rows, D> {
  static constexpr int box = 64, row_bytes = kPanelRowBytes;
  __device__ static uint64_t descriptor(uint32_t address) { return sm90::descriptor(address); }
};
template <int Rows, int D>
struct TokenTile90<FOVEA_E4M3, Rows, D> : sm90::Bytes<Rows, D, D> {
  static constexpr int box = D, row_bytes = D;
};

// Unit: what a warpgroup keeps of a unit of Rows rows, in shared memory.
template <int Dtype_, int D_, int Heads_, template <int> class Unit_>
struct ScoreShape90 {
  static constexpr int Dtype = Dtype_, D = D_, Heads = Heads_, Rows = kTokenSums / Heads;
  using TileQ = TokenTile90<Dtype, kTokenSums, D>;
  using TileK = TokenTile90<Dtype, kTokenKeys, D>;
  static constexpr int QStages = 2, Stages = TileK::bytes > 16 * 1024 ? 3 : 4, warps = 8;
  static constexpr int producer_regs = 56, consumer_regs = 224;
  static constexpr int keys = QStages * TileQ::bytes, barriers = keys + Stages * TileK::bytes;
  // Behind the barriers: each warpgroup's unit; before them what find_span needs.
  using Unit = Unit_<Rows>;
  static constexpr int units = barriers + 16 * (QStages + Stages);
  static constexpr int shared_bytes = units + 2 * static_cast<int>(sizeof(Unit));
  static_assert(shared_bytes <= 227 * 1024);
};

template <class Shape>
struct ScoreProduct90 {
  static constexpr int N = kTokenSums / 8, kTurn = 3;
  const int group;  // the warpgroup
  TokenRings90<Shape> rings;
  int64_t left = 0;  // tiles to come
  float x[N][4];

  __device__ ScoreProduct90(int group, const TokenRings90<Shape>& rings)
      : group(group), rings(rings) {}

  __device__ __forceinline__ void release(uint32_t barrier) const {
    if (threadIdx.x % 32 == 0) sm90::barrier_arrive(barrier);
  }
  template <int From, int To>
  __device__ __forceinline__ void steps(uint64_t keys, uint64_t rows) {
    using TileQ = typename Shape::TileQ;
    using TileK = typename Shape::TileK;
#pragma unroll
    for (int k = From; k < To; ++k)
      if constexpr (Shape::Dtype == FOVEA_E4M3)
        sm90::Wgmma<Shape::Dtype, kTokenSums>::ss(x, keys + TileK::step(k), rows + TileQ::step(k),
                                                  k != 0);
      else
        sm90::Wgmma<Shape::Dtype, kTokenSums>::template ss<0>(
            x, keys + k / 4 * (TileK::panel_bytes / 16) + k % 4 * 2,
            rows + k / 4 * (TileQ::panel_bytes / 16) + k % 4 * 2, k != 0);
    sm90::commit();
  }
  // The warpgroup's product, of which the last quarter is in flight when it ends; the other's may
  // follow then.
  __device__ __forceinline__ void product() {
    using TileQ = typename Shape::TileQ;
    using TileK = typename Shape::TileK;
    constexpr int Steps = Shape::D / (Shape::Dtype == FOVEA_E4M3 ? 32 : 16);
    const uint64_t keys = TileK::descriptor(rings.k() + group * 64 * TileK::row_bytes);
    const uint64_t rows = TileQ::descriptor(rings.q());
    // The first step overwrites x: its registers are free until then.
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) asm volatile("" : "=f"(x[j][c]));
    sm90::named_barrier_sync(kTurn + group, 256);
    sm90::fence();
    steps<0, Steps - Steps / 4 - (Steps < 4)>(keys, rows);
    steps<Steps - Steps / 4 - (Steps < 4), Steps>(keys, rows);
    sm90::wait<1>();
    if (--left > 0 || group == 0) sm90::named_barrier_arrive(kTurn + 1 - group, 256);
  }
  // Row t of four for lane t: the sum of what the four lanes have of it.
  template <int Rows>
  __device__ __forceinline__ static float quad_row(const float (&sum)[Rows][2], int first,
                                                   int half) {
    const bool low = threadIdx.x & 1, high = threadIdx.x & 2;
    float pair[2];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float a0 = sum[first + n][half], a1 = sum[first + 2 + n][half];
      pair[n] = (high ? a1 : a0) + __shfl_xor_sync(~0u, high ? a0 : a1, 2);
    }
    return (low ? pair[1] : pair[0]) + __shfl_xor_sync(~0u, low ? pair[0] : pair[1], 1);
  }
  // The lane's first key of a tile, which has another 8 on.
  __device__ __forceinline__ int own_key() const {
    return group * 64 + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
  }
};

}  // namespace fovea::cuda
