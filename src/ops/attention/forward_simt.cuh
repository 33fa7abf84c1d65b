// SPDX-License-Identifier: Apache-2.0
// attention_forward in f32 FMA: every dtype, width, stride and feature.
//   for key tiles:  s = score(q k');  m' = max(m, s);  p = exp(s - m');  l, o scaled by exp(m - m')
//                   l += sum p;  o += p v        at the end  o / l,  lse = m + ln l
// A block owns 16 R packed rows (R = 1 for decode) of one sequence and key head, and one split of
// its key tiles of 64.  Thread (ty, tx) owns rows ty + 16 r: m and l of a row live in its 16 tx
// lanes, l as partial sums until the end.  Products, shared memory and barriers: block/stage.cuh.
// Source: FlashAttention-2 (2307.08691).
#pragma once
#include "core/rotate.h"
#include "cuda/block/stage.cuh"
#include "cuda/block/stage_softmax.cuh"
#include "cuda/loop/combine.cuh"
#include "cuda/loop/pairs.cuh"

namespace fovea::cuda {

struct ForwardSimt {
  Attend a;
  Operand q, k, v, q_value;
  Partials parts;  // splits == 1: unused, o and lse are written at once
  int64_t splits, row_tiles, work;
};

// Four columns of a key that is stored unrotated.
inline __device__ __noinline__ float4 load_turned(const ForwardSimt& call, const KeyInfo& key,
                                                  int column) {
  float4 out = load_four(call.k, key.k, column);
  const Rope& rope = call.a.rope;
  if (key.k < 0 || column + 4 <= rope.begin || column >= rope.begin + 2 * rope.half) return out;
  const Turn turn = turn_at(rope, key.p, 1.f);
  float* lanes = &out.x;
  for (int i = 0; i < 4; ++i) {
    const int64_t x = column + i - rope.begin;
    if (x < 0 || x >= 2 * rope.half) continue;
    const int64_t pair = rope.interleaved ? x / 2 : x % rope.half;
    const bool second = rope.interleaved ? x % 2 : x >= rope.half;
    const int64_t other = column + i + (rope.interleaved ? 1 : rope.half) * (second ? -1 : 1);
    const float partner =
        load_float(call.k.data, call.k.dtype, key.k + other * call.k.column_stride);
    const float c = turn.cos[pair * turn.cos_stride], s = turn.sin[pair * turn.sin_stride];
    lanes[i] = turn.outside ? quiet_nan()
               : second     ? partner * s + lanes[i] * c
                            : lanes[i] * c - partner * s;
  }
  return out;
}

template <int R>
struct ForwardShared {
  PackedRows piece;
  RowInfo rows[16 * R];
  int64_t q[16 * R], q_value[16 * R];  // element offsets; -1: no such row
  KeyInfo keys[kStageTile];
};

// Writes the rows of a finished tile, to o and lse or to the split's partial.
template <int R, int Chunks>
__device__ __forceinline__ void finish(const ForwardSimt& call, const PackedRows& rows, int64_t m0,
                                       int64_t split, const RowInfo* s_rows,
                                       const StageSoftmax<R>& state,
                                       const float (&o)[Chunks][R][4]) {
  const Attend& a = call.a;
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
  const bool partial = call.splits > 1, sinks = !partial && a.score.sink_logit;
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const RowInfo& row = s_rows[ty + 16 * r];
    const StageRow end = state.end(r, sinks && row.i >= 0 ? sink_logit(a.score, row.h) : -INFINITY);
    if (row.i < 0) continue;
    const float inverse = end.sum == 0 ? 0 : end.factor / end.sum, lse = end.lse();
    const int64_t token = rows.seq.batch * a.s + rows.seq.row_begin + row.i;
    if (tx == 0 && partial) *call.parts.lse_row(split, token, row.h) = lse;
    if (tx == 0 && !partial && a.lse)
      a.lse.as()[rows.lse_offset(m0 + ty + 16 * r, a.lse.stride)] = lse;
    float* part = partial ? call.parts.o_row(split, token, row.h) : nullptr;
    const int64_t out = rows.offset(m0 + ty + 16 * r, a.o.stride);
#pragma unroll
    for (int chunk = 0; chunk < Chunks; ++chunk)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int column = chunk * kStageTile + 4 * tx + c;
        if (column >= a.e) continue;
        const float x = o[chunk][r][c] * inverse;
        if (partial)
          part[column] = x;
        else
          store_float(a.o.data, a.o_dtype, out + column * a.o.stride[3], x);
      }
  }
}

template <int R, int Chunks>
__global__ void __launch_bounds__(kStageThreads, Chunks <= 2 ? 2 : 1)
    forward_simt_kernel(const __grid_constant__ ForwardSimt call) {
  extern __shared__ float4 s_dynamic[];
  __shared__ ForwardShared<R> s;
  const FmaTiles<R> tiles(reinterpret_cast<float*>(s_dynamic));
  const Attend& a = call.a;
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
  for (int64_t w = blockIdx.x; w < call.work; w += gridDim.x) {
    // Late rows first: under a causal mask they are the longest.
    const int64_t split = w % call.splits,
                  tile = call.row_tiles - 1 - w / call.splits % call.row_tiles;
    const int64_t gr = w / call.splits / call.row_tiles;
    const int64_t m0 = tile * 16 * R;
    __syncthreads();
    if (threadIdx.x == 0) s.piece = packed_rows(a, gr / a.g, gr % a.g);
    __syncthreads();
    const PackedRows& rows = s.piece;
    if (m0 >= rows.count()) continue;
    for (int m = threadIdx.x; m < 16 * R; m += kStageThreads) {
      s.rows[m] = row_info(a, rows, m0 + m);
      s.q[m] = s.rows[m].i < 0 ? -1 : rows.offset(m0 + m, a.q.stride);
      s.q_value[m] = s.rows[m].i < 0 ? -1 : rows.offset(m0 + m, a.q_value.stride);
    }
    __syncthreads();  // a piece without keys reads the rows at once
    const int64_t m1 = m0 + 16 * R < rows.count() ? m0 + 16 * R : rows.count();
    const int64_t i0 = rows.row(m0), i1 = rows.row(m1 - 1) + 1;
    const KeyTiles key_range =
        key_tiles(a.mask, rows.seq, rows.head_begin(), rows.head_end(), i0, i1, kStageTile);
    const SplitRange range = split_range(key_range.count(), call.splits, split);

    StageSoftmax<R> state;
    float o[Chunks][R][4] = {};
    for (int64_t n = range.begin; n < range.end; ++n) {
      const int64_t j0 = key_range[n] * kStageTile;
      const int keys = static_cast<int>(clamp_i64(rows.seq.keys - j0, 0, kStageTile));
      __syncthreads();  // the last tile's keys are done with
      bool missing = false;
      if (threadIdx.x < kStageTile) {
        s.keys[threadIdx.x] = key_info(a, rows.seq, rows.g, j0 + threadIdx.x);
        missing = s.keys[threadIdx.x].k < 0;
      }
      missing = __syncthreads_or(missing);

      float x[R][4] = {};
      const auto load_q = [&](int row, int column) { return load_four(call.q, s.q[row], column); };
      const auto load_v = [&](int row, int column) {
        return load_four(call.v, s.keys[row].v, column);
      };
      if (a.rope.cos)
        multiply_nt(x, tiles, call.q.width, load_q,
                    [&](int row, int column) { return load_turned(call, s.keys[row], column); });
      else
        multiply_nt(x, tiles, call.q.width, load_q,
                    [&](int row, int column) { return load_four(call.k, s.keys[row].k, column); });
      if (a.q_value)
        multiply_nt(
            x, tiles, call.v.width,
            [&](int row, int column) { return load_four(call.q_value, s.q_value[row], column); },
            load_v);

      const bool plain =
          !missing && !a.score.bias && !a.score.alibi &&
          tile_full(a.mask, rows.seq, rows.head_begin(), rows.head_end(), i0, i1, j0, j0 + keys);
      state.weigh(x, o, [&](int r, int c, float product) {
        const float score = capped(a.score, product);
        return plain ? score
                     : pair_score(a, rows.seq, s.rows[ty + 16 * r], s.keys[tx + 16 * c], score);
      });
      put_p(tiles, x);
      multiply_nn(o, tiles, call.v.width, keys, load_v);
    }
    finish(call, rows, m0, split, s.rows, state, o);
  }
}

}  // namespace fovea::cuda
