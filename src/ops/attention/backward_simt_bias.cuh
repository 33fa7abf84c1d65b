// SPDX-License-Identifier: Apache-2.0
// dbias: ds, summed in order over the dimensions in which dbias has stride 0.  A block owns 64 x 64
// distinct elements of one (sequence, head).  It loops over the summed dimensions: sequences,
// heads, row tiles, column tiles, each ascending.  A summed row or column dimension is also added
// up within the tile at the end.
#pragma once
#include "ops/attention/backward_simt.cuh"

namespace fovea::cuda {

// Extents of sequences, heads, row tiles, column tiles: a dimension is owned or summed, and 1 in
// the other.
struct BiasTiles {
  int64_t own[4], summed[4];
  bool sum_rows, sum_columns;
  FOVEA_HD int64_t work() const { return own[0] * own[1] * own[2] * own[3]; }
};

__global__ void __launch_bounds__(kStageThreads, 1)
    bias_simt_kernel(const __grid_constant__ BackwardSimt b,
                     const __grid_constant__ BiasTiles grid) {
  extern __shared__ float4 s_dynamic[];
  __shared__ GradientTile s;
  const FmaTiles<4> tiles(reinterpret_cast<float*>(s_dynamic));
  const Attend& a = b.call.forward;
  const int64_t group = a.h / a.g;
  for (int64_t w = blockIdx.x; w < grid.work(); w += gridDim.x) {
    int64_t own[4], rest = w;
    for (int i = 3; i >= 0; --i) own[i] = rest % grid.own[i], rest /= grid.own[i];
    float acc[4][4] = {};
    const int64_t steps = grid.summed[0] * grid.summed[1] * grid.summed[2] * grid.summed[3];
    for (int64_t step = 0; step < steps; ++step) {
      int64_t at[4];
      rest = step;
      for (int i = 3; i >= 0; --i) at[i] = own[i] + rest % grid.summed[i], rest /= grid.summed[i];
      const int64_t h = at[1], m0 = at[2] * kStageTile;
      __syncthreads();
      if (threadIdx.x == 0) s.piece = {a.sequences[at[0]], at[0], h, 1};
      __syncthreads();
      const PackGqaRows& rows = s.piece;
      const int64_t j0 = at[3] * kStageTile - rows.seq.key_first;
      const int64_t first = j0 > 0 ? j0 : 0;
      const int64_t last = j0 + kStageTile < rows.seq.keys ? j0 + kStageTile : rows.seq.keys;
      if (m0 >= rows.count() || first >= last) continue;
      const Range range = row_range(a.mask, rows.seq, h, h + 1, first, last);
      if (range.begin >= m0 + kStageTile || range.end <= m0) continue;
      stage_rows(a, m0, s, row_values(b, s, m0));
      if (threadIdx.x < kStageTile) put_key(b, s, h / group, threadIdx.x, j0 + threadIdx.x);
      __syncthreads();
      PairTiles t;
      pair_tiles<true, true>(b, s, tiles, false, t);
#pragma unroll
      for (int r = 0; r < 4; ++r)
#pragma unroll
        for (int c = 0; c < 4; ++c) acc[r][c] += t.ds[r][c];
    }
    __syncthreads();
    put_p(tiles, acc);
    __syncthreads();
    const View<4>& out = b.call.dbias;
    const Sequence seq = a.sequences[own[0]];
    const int64_t row_count = a.sequences.query_start ? seq.rows : a.s;
    const int rows = grid.sum_rows ? kStageTile : 1, columns = grid.sum_columns ? kStageTile : 1;
    for (int n = threadIdx.x; n < kStageTile * kStageTile; n += kStageThreads) {
      const int row = n / kStageTile, column = n % kStageTile;
      if (row % rows || column % columns) continue;
      const int64_t i = own[2] * kStageTile + row, x = own[3] * kStageTile + column;
      if ((!grid.sum_rows && i >= row_count) || x >= a.columns) continue;
      float sum = 0;
      for (int y = 0; y < rows; ++y)
        for (int z = 0; z < columns; ++z) sum += tiles.p[(row + y) * kStagePitch + column + z];
      out.as()[seq.batch * out.stride[0] + own[1] * out.stride[1] +
               (seq.row_begin + i) * out.stride[2] + x * out.stride[3]] = sum;
    }
  }
}

}  // namespace fovea::cuda
