// SPDX-License-Identifier: Apache-2.0
// DirectEpilogue on Hopper: a warpgroup's 64 rows of o leave by TMA, through the shared memory of
// its rows of Q.  That takes a third of the instructions of stores from registers.
// Rows of a tile in which the sequence, but not the tensor, ends are stored from registers.
#pragma once
#include "cuda/loop/epilogue.cuh"
#include "cuda/tile/mma_sm90.cuh"

namespace fovea::cuda {

struct TmaEpilogue : DirectEpilogue {
  CUtensorMap o;  // boxes of 64 rows
  bool given;     // o has a map, and rows of a tile are those of one head

  __device__ bool takes(const Attend& a, const RowTile& tile, int begin) const {
    const int64_t end = tile.rows.seq.row_begin + tile.count;
    return given && (begin + 64 <= tile.size || end == a.s);
  }

  // Rows [begin, begin + 64) of the tile, by a warpgroup.  factor: finish() of the lane's two rows.
  // to: Q, which may be written again after tma_store_wait_read by the warpgroup's first thread.
  template <class Tile, int Dtype, int N>
  __device__ __forceinline__ void store_rows(const RowTile& tile, int begin, int barrier,
                                             uint32_t to, const float (&factor)[2],
                                             float (&o)[1][N][4]) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    uint32_t packed[1][N / 2][4];
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) o[0][j][c] *= factor[c / 2];
    pack_operand<Dtype>(packed, o);
    const uint32_t at = to + Tile::at(begin + warp * 16 + outer_row(lane), outer_chunk(lane));
#pragma unroll
    for (int k = 0; k < N / 2; ++k) sm90::store_matrices(Tile::pair(at, k), packed[0][k]);
    sm90::fence_shared();
    sm90::named_barrier_sync(barrier, 128);
    if (threadIdx.x % 128 != 0) return;
    const Sequence& seq = tile.rows.seq;
    const int row = static_cast<int>(seq.row_begin) + tile.begin + begin;
#pragma unroll
    for (int panel = 0; panel < Tile::panels; ++panel)
      sm90::tma_store_box(this->o, to + panel * Tile::panel_bytes + begin * kPanelRowBytes,
                          panel * 64, row, static_cast<int>(tile.rows.g),
                          static_cast<int>(seq.batch));
    sm90::tma_store_commit();
  }
};

}  // namespace fovea::cuda
