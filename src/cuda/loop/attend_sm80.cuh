// SPDX-License-Identifier: Apache-2.0
// The sweep over keys on mma.sync (sm_80 and up): o = softmax(scores(q k') + mask) v, for BM rows.
//   A block owns BM packed rows of one sequence and key head.  A warp owns BM / Warps of them, so
//   the softmax of a row never leaves its warp.
//   Mainloop: tiles of 64 keys, from last to first.  S = Q K', online softmax, O += P V; P takes
//   the registers of S, rounded to the dtype of q.
//   Shared memory: Q (BM x D), Stages x (K (64 x D), V (64 x E)), then the Load policy's own, as
//   swizzled panels (tile/layout.cuh).
//
//   | Stages | K and V are copied                              | barriers a tile                 |
//   | 1      | V under S; K of the next tile under softmax, PV | before S and before the softmax |
//   | 2      | both of the next tile under this one            | before S                        |
//
//   A barrier says that all copies have landed, and that the buffer filled next is free.
// Policies: Load (load.cuh), Score and Mask (tile_policy.cuh), Epilogue (epilogue.cuh).
// FlashAttention-2 (2307.08691).
#pragma once
#include <new>

#include "cuda/block/softmax.cuh"
#include "cuda/loop/epilogue.cuh"
#include "cuda/loop/load.cuh"
#include "cuda/loop/row_tile.cuh"
#include "cuda/loop/tile_policy.cuh"
#include "cuda/tile/copy.cuh"
#include "cuda/tile/mma_sm80.cuh"

namespace fovea::cuda {

struct AttendConfig {
  int dtype, d, e;
  int rows, warps, stages;
  int blocks;  // a multiprocessor should hold
};

template <AttendConfig C>
struct AttendShape {
  static constexpr int Dtype = C.dtype, D = C.d, E = C.e, BM = C.rows, Warps = C.warps;
  static constexpr int Stages = C.stages, Blocks = C.blocks;
  static constexpr int threads = Warps * 32;
  static constexpr int M = BM / Warps / 16;  // 16-row fragments of a warp
  static constexpr int N = kTileKeys / 8;    // 8-key fragments of a tile
  using TileQ = Swizzled<BM, D>;
  using TileK = Swizzled<kTileKeys, D>;
  using TileV = Swizzled<kTileKeys, E>;
  static constexpr int shared_bytes = TileQ::bytes + Stages * (TileK::bytes + TileV::bytes);
};

// The flat grid: (sequence and head, row tile, split), the last fastest.
struct AttendPlace {
  int split;
  int64_t row_tile, owner;

  __device__ __forceinline__ AttendPlace(const AttendGrid& grid, int64_t work) {
    split = static_cast<int>(work % grid.splits);
    work /= grid.splits;
    row_tile = work % grid.row_tiles;
    if (grid.reversed) row_tile = grid.row_tiles - 1 - row_tile;
    owner = work / grid.row_tiles;
  }
};

template <class Shape, KeyLoad Load, TileScore Score, TileMask Mask, class Epilogue>
__global__ void __launch_bounds__(Shape::threads, Shape::Blocks)
    attend_sm80(const __grid_constant__ Attend a, const __grid_constant__ AttendGrid grid,
                const __grid_constant__ Epilogue epilogue) {
  constexpr int M = Shape::M, N = Shape::N, D = Shape::D, E = Shape::E, BM = Shape::BM;
  constexpr int kStageBytes = Shape::TileK::bytes + Shape::TileV::bytes;
  extern __shared__ __align__(128) unsigned char shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

  const AttendPlace place(grid, blockIdx.x);
  __shared__ __align__(16) unsigned char s_tile[sizeof(RowTile)];
  if (threadIdx.x == 0)
    new (s_tile) RowTile(a, grid, place.owner / grid.heads, place.owner % grid.heads,
                         static_cast<int>(place.row_tile * BM), BM);
  __syncthreads();
  const RowTile& tile = *reinterpret_cast<const RowTile*>(s_tile);
  if (tile.size <= 0) return;

  const KeyTiles tiles = Mask::tiles(a, tile, kTileKeys);
  const TilePart part(static_cast<int>(tiles.count()), grid.splits, place.split);
  const int count = part.end - part.begin;
  const int jump_at = static_cast<int>(tiles.first), jump_to = static_cast<int>(tiles.sinks) - 1;
  const auto before = [&](int n) { return Mask::sinks && n == jump_at ? jump_to : n - 1; };

  const uint32_t s_q = shared_address(shared), s_kv = s_q + Shape::TileQ::bytes;
  Load load(a, tile.rows.seq, tile.key_head(a), shared + Shape::shared_bytes);
  const Score score(a, tile);
  const Mask mask(a, tile, kTileKeys);
  const auto load_k = [&](int slot, int n, int stage) {
    copy_rows<kTileKeys, D, Shape::threads>(s_kv + stage * kStageBytes, static_cast<int>(a.d),
                                            load.k,
                                            [&](int row) { return load.key(slot, n, row); });
  };
  const auto load_v = [&](int slot, int n, int stage) {
    copy_rows<kTileKeys, E, Shape::threads>(s_kv + stage * kStageBytes + Shape::TileK::bytes,
                                            static_cast<int>(a.e), load.v,
                                            [&](int row) { return load.value(slot, n, row); });
  };

  int n = count > 0 ? static_cast<int>(tiles[part.end - 1]) : 0;
  if (count > 0) {
    copy_rows<BM, D, Shape::threads>(s_q, static_cast<int>(a.d), elements(a.q, 0), [&](int row) {
      return row < tile.size ? elements(a.q, tile.offset(tile.begin + row, a.q.stride)) : nullptr;
    });
    load.prepare(0, n);
    if (count > 1) load.prepare(1, before(n));
    if constexpr (Load::shared_bytes > 0) __syncthreads();
    load_k(0, n, 0);
    if constexpr (Shape::Stages > 1) load_v(0, n, 0);
  }
  copy_commit();

  // A warp without rows only copies.
  const int warp_row = warp * M * 16;
  const bool active = warp_row < tile.size;
  const int row = tile.begin + warp_row;
  const uint32_t q_lane = s_q + Shape::TileQ::at(warp_row + outer_row(lane), outer_chunk(lane));
  const uint32_t k_lane = s_kv + Shape::TileK::at(inner_row(lane), inner_chunk(lane));
  const uint32_t v_lane =
      s_kv + Shape::TileK::bytes + Shape::TileV::at(outer_row(lane), outer_chunk(lane));

  OnlineSoftmax<M> state;
  float o[M][E / 8][4] = {};
  uint64_t absent = 0;
  if (count > 0 && Shape::Stages > 1) absent = load.absent(0);
  for (int it = 0; it < count; ++it) {
    const int stage = Shape::Stages > 1 ? it % 2 : 0, next = before(n);
    float x[M][N][4] = {};
    uint64_t absent_next = 0;
    copy_wait<0>();
    __syncthreads();
    if constexpr (Shape::Stages > 1) {
      if (it + 1 < count) {
        load_k((it + 1) % 2, next, stage ^ 1);
        load_v((it + 1) % 2, next, stage ^ 1);
        absent_next = load.absent((it + 1) % 2);
      }
    } else {
      load_v(it % 2, n, 0);
      absent = load.absent(it % 2);
    }
    copy_commit();
    if (active)
      product_rows<Shape::Dtype, M, N, D, typename Shape::TileQ, typename Shape::TileK>(
          x, q_lane, k_lane + stage * kStageBytes);
    if constexpr (Shape::Stages == 1) {
      copy_wait<0>();
      __syncthreads();
      if (it + 1 < count) load_k((it + 1) % 2, next, 0);
      copy_commit();
    }
    if (it + 2 < count) load.prepare(it % 2, before(next));
    if (active) {
      score.apply(x, n * kTileKeys, row);
      if (!mask.full(n)) mask.apply(x, n * kTileKeys, row);
      if (absent) {
        const uint32_t words[2] = {static_cast<uint32_t>(absent),
                                   static_cast<uint32_t>(absent >> 32)};
        hide_absent(x, words);
      }
      state.step(x, o, score.factor);
      uint32_t p[M][N / 2][4];
      pack_operand<Shape::Dtype>(p, x);
      product_columns<Shape::Dtype, M, E / 8, kTileKeys, typename Shape::TileV>(
          o, p, v_lane + stage * kStageBytes);
    }
    if constexpr (Shape::Stages > 1) absent = absent_next;
    n = next;
  }

  if (!active) return;
  each_row<M>(row, [&](int i, int half, int m) {
    const float sum = state.total(i, half), top = state.top(i, half, score.factor);
    epilogue.template store<Shape::Dtype>(a, tile, m, m < tile.count, place.split, top, sum, o[i],
                                          half);
  });
}

}  // namespace fovea::cuda
