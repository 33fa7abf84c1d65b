// SPDX-License-Identifier: Apache-2.0
// Gradients of an attention-like call in f32 FMA: every dtype, width and stride, no atomics.
//   x = score(q k'), y = dout v',  (p, ds, dx) = gradient(x, y) by the call's own formula
//   dq = scale dx k,  dk = scale dx' q,  dv = p' dout
// A block owns 64 packed rows (dq) or 64 keys of one key head (dk, or dv).  Its loop takes the
// other operand's tiles of 64 in ascending order, so each sum has one owner and one order. Each of
// the passes recomputes scores: three to five products, and only row statistics between passes.
// Tiles: gradient_tile.cuh.  Keys of rows come from a KeySource (attend_simt.cuh), rows of keys
// from a RowSource.  Products, shared memory and barriers: block/stage.cuh.
// Source: FlashAttention-2 (2307.08691).
#pragma once
#include "cuda/block/reduce.cuh"
#include "cuda/loop/gradient_tile.cuh"

namespace fovea::cuda {

// dq, and each row's part of dalibi.
template <int Chunks, GradientCall Call>
__global__ void __launch_bounds__(kStageThreads, Chunks <= 2 ? 2 : 1)
    dq_simt_kernel(const __grid_constant__ Call b, const __grid_constant__ PackedGrid grid) {
  extern __shared__ float4 s_dynamic[];
  __shared__ GradientTile s;
  const FmaTiles<4> tiles(reinterpret_cast<float*>(s_dynamic));
  const Attend& a = b.call.forward;
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
  for (int64_t w = blockIdx.x; w < grid.work; w += gridDim.x) {
    PackedItem item(grid, w, kStageTile);
    const PackGqaRows& rows = s.piece;
    if (!stage_item(a, grid.group, item, s, row_values(b, s, item.m0))) continue;
    const WindowKeys keys(a, rows, item, 1,
                          [&](int n, int64_t j) { return put_key(b, s, rows.g, n, j); });
    float acc[Chunks][4][4] = {}, alibi[4] = {};
    sweep_keys(keys, [&](int64_t j0, bool missing) {
      PairTiles t;
      pair_tiles<true, true>(b, s, tiles, plain_pairs(a, rows, item.m0, item.m1, j0, missing), t);
      if (b.row_alibi)
#pragma unroll
        for (int r = 0; r < 4; ++r)
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            const int64_t apart = s.rows[ty + 16 * r].p - s.keys[tx + 16 * c].p;
            alibi[r] -= t.ds[r][c] * static_cast<float>(apart < 0 ? -apart : apart);
          }
      if (!b.call.dq) return;
      put_p(tiles, t.dx);
      multiply_nn(acc, tiles, b.k.width, keys.count(j0),
                  [&](int row, int column) { return load_four(b.k, s.keys[row].k, column); });
    });
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const RowInfo& row = s.rows[ty + 16 * r];
      const float sum = lanes_sum<16>(alibi[r]);
      if (row.i < 0) continue;
      if (b.row_alibi && tx == 0) b.row_alibi[row_stats_offset(a, rows.seq, row.h, row.i)] = sum;
      const GradientView& dq = b.call.dq;
      if (dq)
        store_columns(dq.data, dq.dtype, row_offset(rows.seq, row.i, row.h, dq.stride),
                      dq.stride[3], b.q.width, a.score.scale, acc, r);
    }
  }
}

// RowSource: tiles of 64 packed rows, from the first row of the window on that sees a key of
// [j0, j1).
struct WindowRows {
  int64_t first, begin, end;

  __device__ WindowRows(const Attend& a, const PackGqaRows& rows, int64_t j0, int64_t j1)
      : begin(0) {
    const Range range = row_range(a.mask, rows.seq, rows.head_begin(), rows.head_end(), j0, j1);
    first = range.begin * rows.group;
    end = (range.end * rows.group - first + kStageTile - 1) / kStageTile;
  }
  __device__ int64_t operator[](int64_t n) const { return first + n * kStageTile; }
};

// dk or dv.
template <Owner owner, int Chunks, GradientCall Call>
__global__ void __launch_bounds__(kStageThreads, Chunks <= 2 ? 2 : 1)
    dkv_simt_kernel(const __grid_constant__ Call b, int64_t key_tiles, int64_t work) {
  constexpr bool gradient = owner == Owner::dk;
  extern __shared__ float4 s_dynamic[];
  __shared__ GradientTile s;
  const FmaTiles<4> tiles(reinterpret_cast<float*>(s_dynamic));
  const Attend& a = b.call.forward;
  const Operand& other = gradient ? b.q : b.dout;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t j0 = w % key_tiles * kStageTile, r = w / key_tiles / a.g, g = w / key_tiles % a.g;
    const int64_t parts = b.parts() / a.g;
    float acc[Chunks][4][4] = {};
    const PackGqaRows& rows = s.piece;
    for (int64_t part = g * parts; part < (g + 1) * parts; ++part) {
      __syncthreads();  // the last part's rows and keys are done with
      if (threadIdx.x == 0) s.piece = {a.sequences[r], r, part, a.h / b.parts()};
      __syncthreads();
      if (j0 >= rows.seq.keys) break;
      const bool missing = __syncthreads_or(threadIdx.x < kStageTile &&
                                            put_key(b, s, part, threadIdx.x, j0 + threadIdx.x));
      const int64_t j1 = j0 + kStageTile < rows.seq.keys ? j0 + kStageTile : rows.seq.keys;
      const WindowRows source(a, rows, j0, j1);
      for (int64_t n = source.begin; n < source.end; ++n) {
        const int64_t m0 = source[n], left = rows.count() - m0;
        const int count = static_cast<int>(left < kStageTile ? left : kStageTile);
        __syncthreads();  // the last tile's rows are done with
        stage_rows(a, m0, s, row_values(b, s, m0));
        __syncthreads();
        PairTiles t;
        pair_tiles<false, gradient>(b, s, tiles, plain_pairs(a, rows, m0, m0 + count, j0, missing),
                                    t);
        put_p(tiles, gradient ? t.dx : t.p);
        multiply_nn(acc, tiles, other.width, count, [&](int row, int column) {
          return load_four(other, gradient ? s.q[row] : s.dout[row], column);
        });
      }
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int64_t j = j0 + threadIdx.x / 16 + 16 * r;
      if (j >= rows.seq.keys) continue;
      const GradientView& out = gradient ? b.call.dk : b.call.dv;
      store_columns(out.data, out.dtype, key_place(a.sequences, rows.seq, j).offset(g, out.stride),
                    out.stride[3], other.width, gradient ? a.score.scale : 1.f, acc, r);
    }
  }
}

template <Owner owner, int Chunks, GradientCall Call>
void launch_gradient(Context& ctx, const char* op, const Call& b) {
  const Attend& a = b.call.forward;
  if constexpr (owner == Owner::dq) {
    const PackedGrid grid(a, b.parts(), 0);
    launch<dq_simt_kernel<Chunks, Call>>(ctx, op, grid.work, kStageThreads, FmaTiles<4>::bytes(), b,
                                         grid);
  } else {
    const int64_t tiles = ceil_div(a.sequences.key_max, kStageTile);
    const int64_t work = a.sequences.count * a.g * tiles;
    launch<dkv_simt_kernel<owner, Chunks, Call>>(ctx, op, work, kStageThreads, FmaTiles<4>::bytes(),
                                                 b, tiles, work);
  }
}

}  // namespace fovea::cuda
