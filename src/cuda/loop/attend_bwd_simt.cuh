// SPDX-License-Identifier: Apache-2.0
// Gradients of an attention-like call in f32 FMA: every dtype, width and stride, no atomics.
//   x = score(q k'), y = dout v',  (p, ds, dx) = slope(x, y) by the call's own formula
//   dq = scale dx k,  dk = scale dx' q,  dv = p' dout
// One kernel, three owners: a block owns 64 packed rows (dq) or 64 keys of one key head (dk, dv)
// and walks the other side's tiles of 64 in ascending order, the group's heads folded into the
// rows, so each sum has one owner and one order.  Scores are computed again in each pass: five to
// three products a pass, and nothing but row values between them.
// Products, shared memory and barriers: block/stage.cuh.  Source: FlashAttention-2 (2307.08691).
#pragma once
#include <concepts>

#include "cuda/block/reduce.cuh"
#include "cuda/block/stage.cuh"
#include "cuda/launch.h"
#include "cuda/loop/pairs.cuh"

namespace fovea::cuda {

// What a pair of a row and a key it sees is worth: p for dv, dx for dq and dk, ds before the slope
// of a softcap.
struct Slope {
  float p = 0, ds = 0, dx = 0;
};

// A call: AttendBackward `call`, its operands as matrices, what a row's values are (fill), and the
// slope of a pair of scores.  Query heads come in parts() parts, each with one head of k and one of
// v; a head of k has whole parts.
template <class C>
concept GradientCall = requires(const C c, RowInfo& row, const PackedRows& rows, int64_t m,
                                float x) {
  { c.call.forward } -> std::convertible_to<Attend>;
  { c.q } -> std::convertible_to<Operand>;
  { c.row_alibi } -> std::convertible_to<float*>;       // (b, h, s): nullptr: not wanted
  { C::infinite_counts } -> std::convertible_to<bool>;  // a score of -inf, else it is as unseen
  c.fill(row, rows, m);
  { c.value_head(m) } -> std::convertible_to<int64_t>;
  { c.slope(row, x, x, x) } -> std::same_as<Slope>;
};

FOVEA_HD int64_t side_offset(const Attend& a, const Sequence& seq, int64_t h, int64_t i) {
  return (seq.batch * a.h + h) * a.s + seq.row_begin + i;
}

template <GradientCall Call>
__device__ PackedRows part_rows(const Call& b, int64_t r, int64_t part) {
  const Attend& a = b.call.forward;
  return {a.sequences[r], r, part, a.h / b.parts()};
}

struct BackwardShared {
  PackedRows piece;
  RowInfo rows[kStageTile];
  int64_t q[kStageTile], dout[kStageTile];  // element offsets; -1: no such row
  KeyInfo keys[kStageTile];
};

// Rows m0 .. m0 + 63 into shared memory; a row that is not there has p = 0 for every key.
template <GradientCall Call>
__device__ __forceinline__ void stage_rows(const Call& b, BackwardShared& s, const PackedRows& rows,
                                           int64_t m0) {
  if (threadIdx.x >= kStageTile) return;
  const Attend& a = b.call.forward;
  const int64_t m = m0 + threadIdx.x;
  RowInfo row = row_info(a, rows, m);
  row.lse = INFINITY;
  int64_t q = -1, dout = -1;
  if (row.i >= 0) {
    b.fill(row, rows, m);
    q = rows.offset(m, a.q.stride), dout = rows.offset(m, b.call.dout.stride);
  }
  s.rows[threadIdx.x] = row, s.q[threadIdx.x] = q, s.dout[threadIdx.x] = dout;
}

// Keys j0 .. j0 + 63 of a part's head; returns whether this thread's is missing.
template <GradientCall Call>
__device__ __forceinline__ bool stage_keys(const Call& b, BackwardShared& s, const Sequence& seq,
                                           int64_t part, int64_t j0) {
  if (threadIdx.x >= kStageTile) return false;
  const Attend& a = b.call.forward;
  const int64_t head = b.key_head(part);
  KeyInfo key = key_info(a, seq, head, j0 + threadIdx.x);
  if (key.k >= 0) key.v += (b.value_head(part) - head) * a.v.stride[2];
  s.keys[threadIdx.x] = key;
  return key.k < 0;
}

// The tile's scores and, where `ds` is wanted, dout v': thread (r, c) holds own ty + 16 r, other
// tx + 16 c.  `Rows`: the rows own.  `dx` is ds by the slope of the softcap.
struct PairTiles {
  float p[4][4], ds[4][4], dx[4][4];
};

template <bool Rows, bool Gradient, GradientCall Call>
__device__ __forceinline__ void pair_tiles(const Call& b, const BackwardShared& s,
                                           const FmaTiles<4>& tiles, const Sequence& seq,
                                           bool plain, PairTiles& t) {
  const Attend& a = b.call.forward;
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
  const auto load_q = [&](int row, int column) { return load_four(b.q, s.q[row], column); };
  const auto load_k = [&](int row, int column) { return load_four(b.k, s.keys[row].k, column); };
  const auto load_v = [&](int row, int column) { return load_four(b.v, s.keys[row].v, column); };
  const auto load_dout = [&](int row, int column) {
    return load_four(b.dout, s.dout[row], column);
  };
  float x[4][4] = {}, dp[4][4] = {};
  if constexpr (Rows)
    multiply_nt(x, tiles, b.q.width, load_q, load_k);
  else
    multiply_nt(x, tiles, b.q.width, load_k, load_q);
  if constexpr (Gradient) {
    if constexpr (Rows)
      multiply_nt(dp, tiles, b.v.width, load_dout, load_v);
    else
      multiply_nt(dp, tiles, b.v.width, load_v, load_dout);
  }
#pragma unroll
  for (int r = 0; r < 4; ++r)
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const RowInfo& row = s.rows[Rows ? ty + 16 * r : tx + 16 * c];
      const KeyInfo& key = s.keys[Rows ? tx + 16 * c : ty + 16 * r];
      const float value = capped(a.score, x[r][c]);
      // An unseen pair is 0 whatever its product is, NaN included.
      float score = value;
      bool seen = true;
      if constexpr (Call::infinite_counts) {
        seen = plain || pair_score(a, seq, row, key, 0.f) != -INFINITY;
      } else {
        if (!plain) score = pair_score(a, seq, row, key, value);
        seen = score != -INFINITY;
      }
      const Slope slope = seen ? b.slope(row, value, score, dp[r][c]) : Slope{};
      t.p[r][c] = slope.p;
      t.ds[r][c] = Gradient ? slope.ds : 0, t.dx[r][c] = Gradient ? slope.dx : 0;
    }
}

// Every pair of rows [m0, m0 + 64) and keys [j0, j0 + 64) that exists is seen, and nothing but
// scale and softcap makes its score.
__device__ __forceinline__ bool plain_pairs(const Attend& a, const PackedRows& rows, int64_t m0,
                                            int64_t j0, bool missing) {
  if (missing || a.score.bias || a.score.alibi) return false;
  const int64_t m1 = m0 + kStageTile < rows.count() ? m0 + kStageTile : rows.count();
  const int64_t j1 = j0 + kStageTile < rows.seq.keys ? j0 + kStageTile : rows.seq.keys;
  return tile_full(a.mask, rows.seq, rows.head_begin(), rows.head_end(), rows.row(m0),
                   rows.row(m1 - 1) + 1, j0, j1);
}

enum class Owner { dq, dk, dv };

template <int Chunks, int R>
__device__ __forceinline__ void store_gradient(const View<4>& out, int32_t dtype, int64_t offset,
                                               int width, float scale,
                                               const float (&acc)[Chunks][R][4], int r) {
#pragma unroll
  for (int chunk = 0; chunk < Chunks; ++chunk)
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int column = chunk * kStageTile + 4 * static_cast<int>(threadIdx.x % 16) + c;
      if (column < width)
        store_float(out.data, dtype, offset + column * out.stride[3], scale * acc[chunk][r][c]);
    }
}

// dq, and each row's part of dalibi.
template <int Chunks, GradientCall Call>
__global__ void __launch_bounds__(kStageThreads, Chunks <= 2 ? 2 : 1)
    rows_simt_kernel(const __grid_constant__ Call b, int64_t row_tiles, int64_t work) {
  extern __shared__ float4 s_dynamic[];
  __shared__ BackwardShared s;
  const FmaTiles<4> tiles(reinterpret_cast<float*>(s_dynamic));
  const Attend& a = b.call.forward;
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t m0 = (row_tiles - 1 - w % row_tiles) * kStageTile, gr = w / row_tiles;
    __syncthreads();
    if (threadIdx.x == 0) s.piece = part_rows(b, gr / b.parts(), gr % b.parts());
    __syncthreads();
    const PackedRows& rows = s.piece;
    if (m0 >= rows.count()) continue;
    stage_rows(b, s, rows, m0);
    __syncthreads();
    const int64_t m1 = m0 + kStageTile < rows.count() ? m0 + kStageTile : rows.count();
    const KeyTiles range = key_tiles(a.mask, rows.seq, rows.head_begin(), rows.head_end(),
                                     rows.row(m0), rows.row(m1 - 1) + 1, kStageTile);
    float acc[Chunks][4][4] = {}, alibi[4] = {};
    for (int64_t n = 0; n < range.count(); ++n) {
      const int64_t j0 = range[n] * kStageTile;
      __syncthreads();
      const bool missing = __syncthreads_or(stage_keys(b, s, rows.seq, rows.g, j0));
      PairTiles t;
      pair_tiles<true, true>(b, s, tiles, rows.seq, plain_pairs(a, rows, m0, j0, missing), t);
      if (b.row_alibi)
#pragma unroll
        for (int r = 0; r < 4; ++r)
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            const int64_t apart = s.rows[ty + 16 * r].p - s.keys[tx + 16 * c].p;
            alibi[r] -= t.ds[r][c] * static_cast<float>(apart < 0 ? -apart : apart);
          }
      if (b.call.dq) {
        put_p(tiles, t.dx);
        multiply_nn(acc, tiles, b.k.width,
                    static_cast<int>(clamp_i64(rows.seq.keys - j0, 0, kStageTile)),
                    [&](int row, int column) { return load_four(b.k, s.keys[row].k, column); });
      }
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const RowInfo& row = s.rows[ty + 16 * r];
      const float sum = lanes_sum<16>(alibi[r]);
      if (row.i < 0) continue;
      if (b.row_alibi && tx == 0) b.row_alibi[side_offset(a, rows.seq, row.h, row.i)] = sum;
      if (b.call.dq)
        store_gradient(b.call.dq, a.dtype, rows.offset(m0 + ty + 16 * r, b.call.dq.stride),
                       b.q.width, a.score.scale, acc, r);
    }
  }
}

// dk or dv.
template <Owner owner, int Chunks, GradientCall Call>
__global__ void __launch_bounds__(kStageThreads, Chunks <= 2 ? 2 : 1)
    keys_simt_kernel(const __grid_constant__ Call b, int64_t key_tiles, int64_t work) {
  constexpr bool gradient = owner == Owner::dk;
  extern __shared__ float4 s_dynamic[];
  __shared__ BackwardShared s;
  const FmaTiles<4> tiles(reinterpret_cast<float*>(s_dynamic));
  const Attend& a = b.call.forward;
  const Operand& other = gradient ? b.q : b.dout;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t j0 = w % key_tiles * kStageTile, gr = w / key_tiles;
    const int64_t parts = b.parts() / a.g, g = gr % a.g;
    float acc[Chunks][4][4] = {};
    const PackedRows& rows = s.piece;
    for (int64_t part = g * parts; part < (g + 1) * parts; ++part) {
      __syncthreads();  // the last part's rows and keys are done with
      if (threadIdx.x == 0) s.piece = part_rows(b, gr / a.g, part);
      __syncthreads();
      if (j0 >= rows.seq.keys) break;
      const bool missing = __syncthreads_or(stage_keys(b, s, rows.seq, part, j0));
      const int64_t j1 = j0 + kStageTile < rows.seq.keys ? j0 + kStageTile : rows.seq.keys;
      const Range range = row_range(a.mask, rows.seq, rows.head_begin(), rows.head_end(), j0, j1);
      for (int64_t m0 = range.begin * rows.group; m0 < range.end * rows.group; m0 += kStageTile) {
        __syncthreads();
        stage_rows(b, s, rows, m0);
        __syncthreads();
        PairTiles t;
        pair_tiles<false, gradient>(b, s, tiles, rows.seq, plain_pairs(a, rows, m0, j0, missing),
                                    t);
        put_p(tiles, gradient ? t.dx : t.p);
        multiply_nn(acc, tiles, other.width,
                    static_cast<int>(clamp_i64(rows.count() - m0, 0, kStageTile)),
                    [&](int row, int column) {
                      return load_four(other, gradient ? s.q[row] : s.dout[row], column);
                    });
      }
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int64_t j = j0 + threadIdx.x / 16 + 16 * r;
      if (j >= rows.seq.keys) continue;
      const View<4>& out = gradient ? b.call.dk : b.call.dv;
      const int64_t offset = key_place(a.sequences, rows.seq, j).offset(g, out.stride);
      store_gradient(out, a.dtype, offset, other.width, gradient ? a.score.scale : 1.f, acc, r);
    }
  }
}

// f<Chunks>() for accumulators of `width` columns.
template <class F>
void with_chunks(int64_t width, const F& f) {
  const int64_t chunks = ceil_div(width, kStageTile);
  if (chunks <= 1)
    f.template operator()<1>();
  else if (chunks <= 2)
    f.template operator()<2>();
  else if (chunks <= 4)
    f.template operator()<4>();
  else
    f.template operator()<9>();
}

template <GradientCall Call>
void launch_rows(Context& ctx, const char* op, const Call& b) {
  const Attend& a = b.call.forward;
  const int64_t parts = b.parts();
  const int64_t tiles = parts ? ceil_div(a.sequences.query_max * (a.h / parts), kStageTile) : 0;
  const int64_t work = a.sequences.count * parts * tiles;
  with_chunks(b.call.dq ? a.d : 1, [&]<int Chunks> {
    launch<rows_simt_kernel<Chunks, Call>>(ctx, op, work, kStageThreads, FmaTiles<4>::bytes(), b,
                                           tiles, work);
  });
}

template <Owner owner, GradientCall Call>
void launch_keys(Context& ctx, const char* op, const Call& b) {
  const Attend& a = b.call.forward;
  const int64_t tiles = ceil_div(a.sequences.key_max, kStageTile);
  const int64_t work = a.sequences.count * a.g * tiles;
  with_chunks(owner == Owner::dk ? a.d : a.e, [&]<int Chunks> {
    launch<keys_simt_kernel<owner, Chunks, Call>>(ctx, op, work, kStageThreads,
                                                  FmaTiles<4>::bytes(), b, tiles, work);
  });
}

}  // namespace fovea::cuda
