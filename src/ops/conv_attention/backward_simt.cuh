// SPDX-License-Identifier: Apache-2.0
// conv_attention_backward in f32 FMA: every dtype, width, stride and number of taps, no atomics.
//   S = scale q k' (0 where unseen), A = S convolved, p = exp(A - lse), dA = p (dout v' - delta)
//   dweight[u,v] = sum dA[i,j] S[i - above + u, j - left + v],  dS = dA convolved, taps turned
//   dq = scale dS k,  dk = scale dS' q,  dv = p' dout
// A tile is 64 rows and at most 108 keys of S, of which the middle is its own: `above` rows on
// either side and kernel_columns - 1 keys on either side are computed in two tiles.  A block owns
// the rows (dq, and dweight of them) or the keys (dk, dv) of a tile and walks the other side in
// ascending order, so each sum has one owner and one order.  p and dA take the place of dout v'.
// Thread (ty, tx) owns rows (keys) ty + 16 r of a sum and columns 4 tx + c.
// Shared memory: block/stage.cuh with P in A's place, S, dA, taps, where rows and keys lie.
#pragma once
#include "ops/conv_attention/backward_tile_simt.cuh"

namespace fovea::cuda {

template <int Chunks>
__device__ __forceinline__ void store_sums(const View<4>& out, int32_t dtype, int64_t offset,
                                           int width, float scale, const float (&acc)[Chunks][4][4],
                                           int r) {
#pragma unroll
  for (int chunk = 0; chunk < Chunks; ++chunk)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = chunk * kStageTile + 4 * static_cast<int>(threadIdx.x % 16) + i;
      if (column < width)
        store_float(out.data, dtype, offset + column * out.stride[3], scale * acc[chunk][r][i]);
    }
}

// dweight of a row tile: a thread has one or two taps of one of as many groups of rows as fit.
struct TapSums {
  double sum[2] = {0, 0};
  int tap, group, groups;

  __device__ explicit TapSums(int taps) {
    groups = taps < kStageThreads ? kStageThreads / taps : 1;
    group = taps < kStageThreads ? threadIdx.x / taps : 0;
    tap = taps < kStageThreads ? threadIdx.x % taps : threadIdx.x;
  }
  __device__ void add(const ConvTile& t, int own_rows, int own_keys) {
    const int count = t.rows * t.columns;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int at = tap + n * kStageThreads;
      if (group >= groups || at >= count) break;
      const int u = at / t.columns, v = at % t.columns;
      double all = 0;
      for (int m = group; m < own_rows; m += groups) {
        const float* da = t.da + (m + t.above) * kScorePitch + t.columns - 1;
        const float* s = t.scores + (m + u) * kScorePitch + t.columns - 1 - t.left + v;
        float line = 0.f;
        for (int j = 0; j < own_keys; ++j) line = fmaf(da[j], s[j], line);
        all += line;
      }
      sum[n] += all;
    }
  }
  // The groups' sums in order; `room` holds a double of every thread.
  __device__ void store(int taps, double* room, double* to) const {
    __syncthreads();
    if (groups == 1) {
      for (int n = 0; n < 2; ++n)
        if (tap + n * kStageThreads < taps) to[tap + n * kStageThreads] = sum[n];
      return;
    }
    if (group < groups) room[threadIdx.x] = sum[0];
    __syncthreads();
    if (static_cast<int>(threadIdx.x) >= taps) return;
    double all = 0;
    for (int n = 0; n < groups; ++n) all += room[n * taps + threadIdx.x];
    to[threadIdx.x] = all;
  }
};

// dq of the rows, dweight's part.
template <int Chunks>
__global__ void __launch_bounds__(kStageThreads, 1)
    conv_rows_simt_kernel(const __grid_constant__ ConvBackwardSimt call, int64_t work) {
  extern __shared__ float4 s_dynamic[];
  __shared__ ConvBackwardShared s;
  const ConvTile t(call, s, reinterpret_cast<float*>(s_dynamic));
  const Attend& a = t.a;
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    // Late rows first: under a causal mask they are the longest.
    const int64_t tile = call.row_tiles - 1 - w % call.row_tiles, head = w / call.row_tiles % a.h,
                  r = w / call.row_tiles / a.h;
    const int64_t i0 = tile * call.own_rows, g = head / (a.h / a.g);
    __syncthreads();
    if (threadIdx.x == 0) s.seq = a.sequences[r], s.out = t.c.rows_of(s.seq, r);
    __syncthreads();
    double* partial = call.dweight ? call.dweight + w * t.c.taps() : nullptr;
    TapSums taps(t.rows * t.columns);
    float acc[Chunks][4][4] = {};
    if (i0 < s.seq.rows) {
      t.place_rows(head, i0);
      load_taps(t.c, head, 1, t.taps);
      const int64_t i1 = min(i0 + call.own_rows, s.seq.rows);
      const int64_t end = t.c.causal ? i1 + s.seq.keys - s.seq.rows : s.seq.keys;
      for (int64_t j0 = 0; j0 < clamp_i64(end, 0, s.seq.keys); j0 += call.own_keys) {
        __syncthreads();
        t.place_keys(g, j0);
        __syncthreads();
        t.fill<true>(j0);
        if (partial) taps.add(t, static_cast<int>(i1 - i0), call.own_keys);
        if (!call.b.dq) continue;
        __syncwarp();
#pragma unroll 1
        for (int n = 0; n < 16; ++n) {
          const int m = ty + 16 * (n % 4), key = tx + 16 * (n / 4);
          const bool own = m < i1 - i0 && key < call.own_keys && t.seen(m, j0 + key);
          t.tiles.p[m * kStagePitch + key] = own ? t.slope(m, key) : 0.f;
        }
        __syncwarp();
        multiply_nn(acc, t.tiles, call.k.width, call.own_keys, [&](int row, int column) {
          const int64_t at = row < call.own_keys ? s.k[row + t.columns - 1] : -1;
          return finite_of(load_four(call.k, at, column));
        });
      }
      if (call.b.dq)
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const int m = ty + 16 * r;
          if (m >= i1 - i0) continue;
          const int64_t* stride = call.b.dq.stride;
          store_sums(
              call.b.dq, a.dtype,
              s.seq.batch * stride[0] + (s.seq.row_begin + i0 + m) * stride[1] + head * stride[2],
              call.q.width, a.score.scale, acc, r);
        }
    }
    if (partial) taps.store(t.rows * t.columns, reinterpret_cast<double*>(t.scores), partial);
  }
}

// dk or dv of the keys.
template <ConvOwner Owner, int Chunks>
__global__ void __launch_bounds__(kStageThreads, 1)
    conv_keys_simt_kernel(const __grid_constant__ ConvBackwardSimt call, int64_t work) {
  constexpr bool gradient = Owner == ConvOwner::dk;
  extern __shared__ float4 s_dynamic[];
  __shared__ ConvBackwardShared s;
  const ConvTile t(call, s, reinterpret_cast<float*>(s_dynamic));
  const Attend& a = t.a;
  const Operand& other = gradient ? call.q : call.dout;
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t j0 = w % call.key_tiles * call.own_keys, g = w / call.key_tiles % a.g,
                  r = w / call.key_tiles / a.g, group = a.h / a.g;
    __syncthreads();
    if (threadIdx.x == 0) s.seq = a.sequences[r], s.out = t.c.rows_of(s.seq, r);
    __syncthreads();
    if (j0 >= s.seq.keys) continue;
    t.place_keys(g, j0);
    // The first row that sees key j0; for dv, rows without an output count for nothing.
    int64_t low = t.c.causal ? max(j0 - s.seq.keys + s.seq.rows, int64_t{0}) : 0;
    if (!gradient) low = max(low, t.c.history);
    float acc[Chunks][4][4] = {};
    for (int64_t head = g * group; head < (g + 1) * group; ++head) {
      __syncthreads();
      load_taps(t.c, head, 1, t.taps);
      for (int64_t i0 = low / call.own_rows * call.own_rows; i0 < s.seq.rows; i0 += call.own_rows) {
        __syncthreads();
        t.place_rows(head, i0);
        __syncthreads();
        t.fill<gradient>(j0);
        const int64_t count = min(int64_t{call.own_rows}, s.seq.rows - i0);
        __syncwarp();
#pragma unroll 1
        for (int n = 0; n < 16; ++n) {
          const int key = ty + 16 * (n % 4), m = tx + 16 * (n / 4);
          const bool own = m < count && key < call.own_keys && t.seen(m, j0 + key);
          float x = 0.f;
          if (own)
            x = gradient ? t.slope(m, key)
                         : t.da[(m + t.above) * kScorePitch + key + t.columns - 1];
          t.tiles.p[key * kStagePitch + m] = x;
        }
        __syncwarp();
        multiply_nn(acc, t.tiles, other.width, call.own_rows, [&](int row, int column) {
          const int64_t at = row < count ? (gradient ? s.q : s.dout)[row + t.above] : -1;
          const float4 x = load_four(other, at, column);
          return gradient ? finite_of(x) : x;
        });
      }
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int key = ty + 16 * r;
      if (key >= call.own_keys || j0 + key >= s.seq.keys) continue;
      const View<4>& out = gradient ? call.b.dk : call.b.dv;
      const int64_t offset =
          a.sequences.key_offset(s.seq, j0 + key, out.stride) + g * out.stride[2];
      store_sums(out, a.dtype, offset, other.width, gradient ? a.score.scale : 1.f, acc, r);
    }
  }
}

}  // namespace fovea::cuda
