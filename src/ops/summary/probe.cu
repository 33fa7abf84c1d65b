// SPDX-License-Identifier: Apache-2.0
// x_probe_forward: every dtype, width and stride.  P = exp(scale q k' - lse), reduced on the fly.
// A thread block makes tiles of 64 rows x 64 keys in f32 FMA (block/stage.cuh).
//   lse       a block owns a row tile of a head, and walks its keys
//   columns   a block owns 64 keys of a head of x, and walks the heads' rows in order
//   blocks    a block owns row blocks x key blocks that fill a tile, or one row block x key block,
//             of a head of x, and walks the heads in order
//   diagonal  a block owns a tile of a head and adds integers: any order gives the same sums
// Shared memory: the tiles; of `blocks` also sums and maxima of a head and of its group.
#include <cmath>

#include "core/dtype.h"
#include "cuda/block/reduce.cuh"
#include "cuda/block/stage.cuh"
#include "cuda/launch.h"
#include "ops/summary/probe_work.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr int kTile = 64;
constexpr int kRowsOfThread = 4;

// x / y, rounded up.
FOVEA_HD int64_t parts_of(int64_t x, int64_t y) {
  return (x + y - 1) / y;
}

using Tiles = FmaTiles<kRowsOfThread>;
using Scores = float[kRowsOfThread][4];

struct Work {
  ProbeCall p;
  Operand q, k;
  float* lse;                      // (r, h, rows)
  unsigned long long* diagonal;    // (r, h, columns)
  int64_t row_blocks, key_blocks;  // of a block of threads
};

// Not inlined: columns of several tokens are rare.
__device__ __noinline__ float4 load_units(const ProbeCall& p, const Operand& x, const Sequence& seq,
                                          int64_t h, int64_t unit, int column, bool keys) {
  float out[4];
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const int64_t r = (column + n) / p.a.d, c = (column + n) % p.a.d;
    const int64_t at = r >= p.stride ? -1
                       : keys        ? p.k_offset(seq, h, unit, r)
                                     : p.q_offset(seq, h, unit, r);
    out[n] = at < 0 ? 0.f : load_float(x.data, x.dtype, at + c * x.column_stride);
  }
  return {out[0], out[1], out[2], out[3]};
}

// Logits of rows i0 .. and keys j0 .. of head h; -inf where a row does not see a key.
__device__ __forceinline__ void scores(const Work& w, const Sequence& seq, const Tiles& tiles,
                                       int64_t h, int64_t i0, int64_t j0, Scores& x) {
  const ProbeCall& p = w.p;
#pragma unroll
  for (int r = 0; r < kRowsOfThread; ++r)
#pragma unroll
    for (int c = 0; c < 4; ++c) x[r][c] = 0;
  const int64_t rows = p.rows(seq), keys = p.keys(seq);
  multiply_nt(
      x, tiles, static_cast<int>(p.width()),
      [&](int row, int column) -> float4 {
        if (i0 + row >= rows) return {0, 0, 0, 0};
        if (p.stride > 1) return load_units(p, w.q, seq, h, i0 + row, column, false);
        return load_four(w.q, p.q_offset(seq, h, i0 + row, 0), column);
      },
      [&](int row, int column) -> float4 {
        if (j0 + row >= keys) return {0, 0, 0, 0};
        if (p.stride > 1) return load_units(p, w.k, seq, h, j0 + row, column, true);
        return load_four(w.k, p.k_offset(seq, h, j0 + row, 0), column);
      });
#pragma unroll
  for (int r = 0; r < kRowsOfThread; ++r)
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int64_t i = i0 + threadIdx.x / 16 + 16 * r, j = j0 + threadIdx.x % 16 + 16 * c;
      x[r][c] = p.sees(seq, h, i, j) ? x[r][c] * p.a.score.scale : -INFINITY;
    }
}

__device__ __forceinline__ float lse_of(const Work& w, const Sequence& seq, int64_t r, int64_t h,
                                        int64_t i) {
  if (i >= w.p.rows(seq)) return -INFINITY;
  if (w.p.lse_in) return *w.p.lse_in.at(seq.batch, h, seq.row_begin + i);
  return w.lse[(r * w.p.a.h + h) * w.p.rows_most() + i];
}

// Probabilities in place of logits.
__device__ __forceinline__ void probabilities(const Work& w, const Sequence& seq, int64_t r,
                                              int64_t h, int64_t i0, Scores& x) {
#pragma unroll
  for (int n = 0; n < kRowsOfThread; ++n) {
    const float lse = lse_of(w, seq, r, h, i0 + threadIdx.x / 16 + 16 * n);
#pragma unroll
    for (int c = 0; c < 4; ++c) x[n][c] = probe_p(x[n][c], lse);
  }
}

__global__ void __launch_bounds__(kStageThreads, 1)
    probe_lse_kernel(const __grid_constant__ Work w, int64_t work) {
  extern __shared__ float4 s_dynamic[];
  const Tiles tiles(reinterpret_cast<float*>(s_dynamic));
  const ProbeCall& p = w.p;
  const int64_t row_tiles = parts_of(p.rows_most(), kTile);
  for (int64_t n = blockIdx.x; n < work; n += gridDim.x) {
    const int64_t i0 = n % row_tiles * kTile, h = n / row_tiles % p.a.h, r = n / row_tiles / p.a.h;
    const Sequence seq = p.a.sequences[r];
    const int64_t rows = p.rows(seq), keys = p.keys(seq);
    if (i0 >= rows) continue;
    float top[kRowsOfThread], sum[kRowsOfThread] = {};
#pragma unroll
    for (float& one : top) one = -INFINITY;
    for (int64_t j0 = 0; j0 < keys; j0 += kTile) {
      if (!p.may_see(seq, i0, min(rows, i0 + kTile), j0, min(keys, j0 + kTile))) continue;
      Scores x;
      scores(w, seq, tiles, h, i0, j0, x);
#pragma unroll
      for (int i = 0; i < kRowsOfThread; ++i) {
        const float most = lanes_max<16>(fmaxf(fmaxf(x[i][0], x[i][1]), fmaxf(x[i][2], x[i][3])));
        const float next = fmaxf(top[i], most);
        float own = 0;
#pragma unroll
        for (int c = 0; c < 4; ++c) own += x[i][c] == -INFINITY ? 0.f : expf(x[i][c] - next);
        own = lanes_sum<16>(own);
        sum[i] = (sum[i] == 0 ? 0.f : sum[i] * expf(top[i] - next)) + own, top[i] = next;
      }
    }
#pragma unroll
    for (int i = 0; i < kRowsOfThread; ++i) {
      const int64_t row = i0 + threadIdx.x / 16 + 16 * i;
      if (row >= rows || threadIdx.x % 16) continue;
      const float lse = sum[i] == 0 ? -INFINITY : top[i] + logf(sum[i]);
      w.lse[(r * p.a.h + h) * p.rows_most() + row] = lse;
      if (p.a.lse) *p.a.lse.at(seq.batch, h, seq.row_begin + row) = lse;
    }
  }
}

__global__ void __launch_bounds__(kStageThreads, 1)
    probe_columns_kernel(const __grid_constant__ Work w, int64_t work) {
  extern __shared__ float4 s_dynamic[];
  __shared__ float s_sum[16][kTile];
  const Tiles tiles(reinterpret_cast<float*>(s_dynamic));
  const ProbeCall& p = w.p;
  const int64_t key_tiles = parts_of(p.keys_most(), kTile);
  for (int64_t n = blockIdx.x; n < work; n += gridDim.x) {
    const int64_t j0 = n % key_tiles * kTile, head = n / key_tiles % p.x, r = n / key_tiles / p.x;
    const Sequence seq = p.a.sequences[r];
    const int64_t rows = p.rows(seq), keys = p.keys(seq);
    if (j0 >= keys) continue;
    float group = 0;
    for (int64_t h = head * p.group(); h < (head + 1) * p.group(); ++h) {
      float sum[4] = {};
      for (int64_t i0 = 0; i0 < rows; i0 += kTile) {
        if (!p.may_see(seq, i0, min(rows, i0 + kTile), j0, min(keys, j0 + kTile))) continue;
        Scores x;
        scores(w, seq, tiles, h, i0, j0, x);
        probabilities(w, seq, r, h, i0, x);
#pragma unroll
        for (int c = 0; c < 4; ++c)
          for (int i = 0; i < kRowsOfThread; ++i) sum[c] += x[i][c];
      }
      __syncthreads();
#pragma unroll
      for (int c = 0; c < 4; ++c) s_sum[threadIdx.x / 16][threadIdx.x % 16 + 16 * c] = sum[c];
      __syncthreads();
      if (threadIdx.x >= kTile) continue;
      float all = 0;
      for (int i = 0; i < 16; ++i) all += s_sum[i][threadIdx.x];
      group = probe_join(p, group, all);
    }
    const int64_t j = j0 + threadIdx.x;
    if (threadIdx.x < kTile && j < keys)
      *p.column_sum.at(seq.key_b, head, seq.key_begin + j) = probe_end(p, group);
  }
}

// Blocks of a tile, or one block of many tiles.  cells: sum, most of a head and of its group.
__global__ void __launch_bounds__(kStageThreads, 1)
    probe_blocks_kernel(const __grid_constant__ Work w, int64_t work) {
  extern __shared__ float4 s_dynamic[];
  const Tiles tiles(reinterpret_cast<float*>(s_dynamic));
  float* const sum = reinterpret_cast<float*>(s_dynamic) + Tiles::bytes() / sizeof(float);
  const ProbeCall& p = w.p;
  const int cells = static_cast<int>(w.row_blocks * w.key_blocks);
  float *const most = sum + cells, *const all_sum = most + cells, *const all_most = all_sum + cells;
  const int64_t row_parts = parts_of(p.n, w.row_blocks), key_parts = parts_of(p.u, w.key_blocks);
  for (int64_t n = blockIdx.x; n < work; n += gridDim.x) {
    const int64_t J0 = n % key_parts * w.key_blocks, I0 = n / key_parts % row_parts * w.row_blocks;
    const int64_t head = n / key_parts / row_parts % p.x, r = n / key_parts / row_parts / p.x;
    const Sequence seq = p.a.sequences[r];
    const int64_t rows = p.rows(seq), keys = p.keys(seq);
    const int64_t first = I0 * p.unit_rows, end = min(rows, (I0 + w.row_blocks) * p.unit_rows);
    const int64_t begin = J0 * p.unit_keys, to = min(keys, (J0 + w.key_blocks) * p.unit_keys);
    if (first >= rows) continue;
    // A thread owns a cell in all four arrays, so none waits for another.
    for (int c = threadIdx.x; c < cells; c += kStageThreads) all_sum[c] = all_most[c] = 0;
    for (int64_t h = head * p.group(); h < (head + 1) * p.group(); ++h) {
      for (int c = threadIdx.x; c < cells; c += kStageThreads) sum[c] = most[c] = 0;
      for (int64_t i0 = first; i0 < end; i0 += kTile)
        for (int64_t j0 = begin; j0 < to; j0 += kTile) {
          if (!p.may_see(seq, i0, min(end, i0 + kTile), j0, min(to, j0 + kTile))) continue;
          Scores x;
          scores(w, seq, tiles, h, i0, j0, x);
          probabilities(w, seq, r, h, i0, x);
          __syncthreads();
          put_p(tiles, x);
          __syncthreads();
          for (int c = threadIdx.x; c < cells; c += kStageThreads) {
            const int64_t i_low = max(i0, first + c / w.key_blocks * p.unit_rows);
            const int64_t i_high =
                min(min(end, i0 + kTile), first + (c / w.key_blocks + 1) * p.unit_rows);
            const int64_t j_low = max(j0, begin + c % w.key_blocks * p.unit_keys);
            const int64_t j_high =
                min(min(to, j0 + kTile), begin + (c % w.key_blocks + 1) * p.unit_keys);
            float own = 0, high = most[c];
            for (int64_t i = i_low; i < i_high; ++i)
              for (int64_t j = j_low; j < j_high; ++j) {
                const float one = tiles.p[(i - i0) * kStagePitch + j - j0];
                own += one;
                if (one > high || one != one) high = one;
              }
            sum[c] += own, most[c] = high;
          }
        }
      for (int c = threadIdx.x; c < cells; c += kStageThreads) {
        all_sum[c] = probe_join(p, all_sum[c], sum[c]);
        all_most[c] = probe_join(p, all_most[c], most[c]);
      }
    }
    for (int c = threadIdx.x; c < cells; c += kStageThreads) {
      const int64_t I = I0 + c / w.key_blocks, J = J0 + c % w.key_blocks;
      const int64_t row = p.first_block(seq, r) + I;
      if (I * p.unit_rows >= rows || row >= p.n || J >= p.u) continue;
      if (p.block_sum) *p.block_sum.at(seq.batch, head, row, J) = probe_end(p, all_sum[c]);
      if (p.block_max) *p.block_max.at(seq.batch, head, row, J) = probe_end(p, all_most[c]);
    }
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kStageThreads, 1)
    probe_diagonal_kernel(const __grid_constant__ Work w, int64_t work) {
  extern __shared__ float4 s_dynamic[];
  const Tiles tiles(reinterpret_cast<float*>(s_dynamic));
  const ProbeCall& p = w.p;
  const int64_t row_tiles = parts_of(p.rows_most(), kTile);
  const int64_t key_tiles = parts_of(p.keys_most(), kTile);
  for (int64_t n = blockIdx.x; n < work; n += gridDim.x) {
    const int64_t j0 = n % key_tiles * kTile, i0 = n / key_tiles % row_tiles * kTile;
    const int64_t h = n / key_tiles / row_tiles % p.a.h, r = n / key_tiles / row_tiles / p.a.h;
    const Sequence seq = p.a.sequences[r];
    const int64_t rows = p.rows(seq), keys = p.keys(seq);
    if (i0 >= rows || j0 >= keys) continue;
    if (!p.may_see(seq, i0, min(rows, i0 + kTile), j0, min(keys, j0 + kTile))) continue;
    Scores x;
    scores(w, seq, tiles, h, i0, j0, x);
    probabilities(w, seq, r, h, i0, x);
    for (int i = 0; i < kRowsOfThread; ++i) {
      const int64_t row = i0 + threadIdx.x / 16 + 16 * i;
      if (row >= rows) continue;
      const int64_t at = p.a.mask.query_at(seq, h, row);
      for (int c = 0; c < 4; ++c) {
        const int64_t away = at - (j0 + threadIdx.x % 16 + 16 * c);
        const unsigned long long one = probe_fixed(x[i][c]);
        if (one && away >= 0 && away < p.columns)
          atomicAdd(w.diagonal + (r * p.a.h + h) * p.columns + away, one);
      }
    }
  }
}

// Row blocks and key blocks that fill a tile.
int64_t fill(int64_t units) {
  return units < kTile ? kTile / units : 1;
}

void enqueue(Context& ctx, const Work& w) {
  constexpr char op[] = "x_probe_forward";
  const ProbeCall& p = w.p;
  const int64_t count = p.a.sequences.count;
  const int64_t rows = ceil_div(p.rows_most(), kTile), keys = ceil_div(p.keys_most(), kTile);
  const int64_t bytes = Tiles::bytes();
  if (!p.lse_in) {
    const int64_t work = count * p.a.h * rows;
    launch<probe_lse_kernel>(ctx, op, work, kStageThreads, bytes, w, work);
  }
  if (p.column_sum) {
    probe_clear_columns(ctx, p);
    const int64_t work = count * p.x * keys;
    launch<probe_columns_kernel>(ctx, op, work, kStageThreads, bytes, w, work);
  }
  if (p.blocks()) {
    const int64_t work = count * p.x * ceil_div(p.n, w.row_blocks) * ceil_div(p.u, w.key_blocks);
    const int64_t cells = 4 * w.row_blocks * w.key_blocks * static_cast<int64_t>(sizeof(float));
    launch<probe_blocks_kernel>(ctx, op, work, kStageThreads, bytes + cells, w, work);
  }
  if (!p.diagonal_sum) return;
  const int64_t work = count * p.a.h * rows * keys;
  probe_clear_diagonals(ctx, p, w.diagonal);
  launch<probe_diagonal_kernel>(ctx, op, work, kStageThreads, bytes, w, work);
  probe_store_diagonals(ctx, p, w.diagonal);
}

}  // namespace
}  // namespace cuda

extern const Kernel<ProbeCall> probe_forward_simt = {
    "simt", [](const Context&, const ProbeCall& p, Plan& plan) {
      const int64_t count = p.a.sequences.count;
      const auto lse = plan.workspace.add<float>(p.lse_in ? 0 : count, p.a.h, p.rows_most());
      const auto diagonal =
          plan.workspace.add<unsigned long long>(p.diagonal_sum ? count : 0, p.a.h, p.columns);
      cuda::Work w{p,
                   cuda::operand_of(p.a.q, p.a.dtype, p.a.d),
                   cuda::operand_of(p.a.k, p.a.dtype, p.a.d),
                   nullptr,
                   nullptr,
                   cuda::fill(p.unit_rows),
                   cuda::fill(p.unit_keys)};
      plan.kernel += Text(".") + dtype_name(p.a.dtype);
      plan.launch = [=](Context& ctx, void* base) {
        cuda::Work call = w;
        call.lse = lse.at(base), call.diagonal = diagonal.at(base);
        cuda::enqueue(ctx, call);
      };
      return Text();
    }};

}  // namespace fovea
