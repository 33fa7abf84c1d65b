// SPDX-License-Identifier: Apache-2.0
// conv_attention_backward in f32 FMA: every dtype, width, stride and number of taps, no atomics.
//   S = scale q k' (0 where unseen), A = S convolved, p = exp(A - lse), dA = p (dout v' - delta)
//   dweight[u,v] = sum dA[i,j] S[i - above + u, j - left + v],  dS = dA convolved, taps turned
//   dq = scale dS k,  dk = scale dS' q,  dv = p' dout
// A tile is 64 rows and at most 108 keys of S, of which the middle is its own.  `above` rows and
// kernel_columns - 1 keys on either side of it are computed in two tiles.
// A block owns the rows (dq, and dweight of them) or the keys (dk, dv) of a tile.  It loops over
// the other axis in ascending order, so each sum has one owner and one order.
// p and dA take the place of dout v'.
// Thread (ty, tx) owns rows (keys) ty + 16 r of a sum and columns 4 tx + c.
// Shared memory: block/stage.cuh with P in A's place, S, dA, taps, where rows and keys lie.
#pragma once
#include "cuda/block/reduce.cuh"
#include "cuda/launch.h"
#include "ops/conv_attention/strip_simt.cuh"

namespace fovea::cuda {

struct ConvBackwardShared {
  Sequence seq;
  ConvAttend::Rows out;
  int64_t q[kTileRows], dout[kTileRows];  // element offsets; -1: no such row or key
  float lse[kTileRows], delta[kTileRows];
  int64_t last[kTileRows];  // keys that the row sees: those before
  int64_t k[2 * kStageTile], v[2 * kStageTile];
};

constexpr int64_t conv_backward_bytes() {
  return ((kTileRows + kStageTile) * kStagePitch + 2 * kTileRows * kScorePitch +
          kKernelRowsMost * kKernelColumnsMost) *
         static_cast<int64_t>(sizeof(float));
}

// A NaN row of q or k reaches its gradients through S.  As an operand it would also meet the zeros
// of what does not see it.
__device__ __forceinline__ float4 finite_of(float4 x) {
  const auto of = [](float x) { return fabsf(x) < INFINITY ? x : 0.f; };
  return {of(x.x), of(x.y), of(x.z), of(x.w)};
}

// A block's tile: S and dA (or p) of rows from i0 - above on and keys from j0 - columns + 1 on.
class ConvTile {
 public:
  __device__ ConvTile(const ConvBackwardSimt& call, ConvBackwardShared& s, float* base)
      : call(call),
        c(call.b.forward),
        a(c.attend),
        s(s),
        tiles(base),
        scores(base + (kTileRows + kStageTile) * kStagePitch),
        da(scores + kTileRows * kScorePitch),
        taps(da + kTileRows * kScorePitch),
        above(static_cast<int>(c.above())),
        left(static_cast<int>(c.left())),
        rows(static_cast<int>(c.kernel_rows)),
        columns(static_cast<int>(c.kernel_columns)),
        width(call.own_keys + 2 * (columns - 1)) {
    tiles.p = tiles.a;
  }

  const ConvBackwardSimt& call;
  const ConvAttend& c;
  const Attend& a;
  ConvBackwardShared& s;
  FmaTiles<4> tiles;
  float *const scores, *const da, *const taps;
  const int above, left, rows, columns, width;

  // Rows of the tile whose first own row is i0.
  __device__ void place_rows(int64_t head, int64_t i0) const {
    if (threadIdx.x >= kTileRows) return;
    const int m = threadIdx.x;
    const int64_t i = i0 - above + m;
    s.q[m] = q_offset(s.seq, a.q.stride, head, i);
    s.dout[m] = out_offset(c, s, call.b.dout.stride, head, i);
    s.lse[m] = lse_of(c, s, head, i);
    const int64_t stride[3] = {a.h * c.rows_out, 1, c.rows_out},
                  delta = out_offset(c, s, stride, head, i);
    s.delta[m] = delta < 0 ? 0.f : call.delta[delta];
    s.last[m] = c.seen(s.seq, i);
  }
  __device__ void place_keys(int64_t g, int64_t j0) const {
    if (threadIdx.x >= 2 * kStageTile) return;
    const int64_t j = j0 - columns + 1 + threadIdx.x;
    const bool there = static_cast<int>(threadIdx.x) < width;
    s.k[threadIdx.x] = there ? key_offset(a, s.seq, a.k.stride, g, j) : -1;
    s.v[threadIdx.x] = there ? key_offset(a, s.seq, a.v.stride, g, j) : -1;
  }

  // s.seq, rows and keys are in place.  da becomes dA where the owner wants dS, else p.
  template <bool Gradient>
  __device__ __forceinline__ void fill(int64_t j0) const {
    const int64_t first = j0 - columns + 1;
    product(scores, call.q, s.q, call.k, s.k, [&](int m, int key, float x) {
      return s.k[key] >= 0 && first + key < s.last[m] ? x * a.score.scale : 0.f;
    });
    if constexpr (Gradient)
      product(da, call.dout, s.dout, call.v, s.v, [](int, int, float x) { return x; });
    __syncthreads();
    // Outputs [left, width - right) of the convolution, four at a time.
    const int end = width - (columns - 1 - left), quads = (width - columns + 4) / 4;
    for (int n = threadIdx.x; n < kTileRows * quads; n += kStageThreads) {
      const int m = n / quads, key = n % quads * 4;
      float y[4] = {};
      const bool out = m >= above && s.lse[m] != -INFINITY;
      if (out)
        convolve_four<false>(y, scores + (m - above) * kScorePitch + key, taps, rows, columns);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = key + left + i;
        if (at >= end) break;
        float& to = da[m * kScorePitch + at];
        const bool seen = out && s.k[at] >= 0 && first + at < s.last[m];
        const float p = seen ? expf(y[i] - s.lse[m]) : 0.f;
        to = !seen ? 0.f : Gradient ? p * (to - s.delta[m]) : p;
      }
    }
    __syncthreads();
  }

  // dq, dk or dv of the tile's own pairs, `count` of whose rows there are.
  template <ConvOwner Owner, int Chunks>
  __device__ __forceinline__ void add(float (&acc)[Chunks][4][4], int64_t j0, int count) const {
    constexpr bool of_rows = Owner == ConvOwner::rows;
    const int ty = threadIdx.x / 16, tx = threadIdx.x % 16, own_keys = call.own_keys;
    __syncwarp();
#pragma unroll 1
    for (int n = 0; n < 16; ++n) {
      const int line = ty + 16 * (n % 4), column = tx + 16 * (n / 4);
      const int m = of_rows ? line : column, key = of_rows ? column : line;
      float x = 0.f;
      if (m < count && key < own_keys && j0 + key < s.last[m + above])
        x = Owner == ConvOwner::dv ? da[(m + above) * kScorePitch + key + columns - 1]
                                   : make_ds(m, key);
      tiles.p[line * kStagePitch + column] = x;
    }
    __syncwarp();
    const Operand& x = of_rows ? call.k : Owner == ConvOwner::dk ? call.q : call.dout;
    multiply_nn(acc, tiles, x.width, of_rows ? own_keys : call.own_rows, [&](int row, int column) {
      const int64_t* const at =
          of_rows ? s.k + columns - 1 : (Owner == ConvOwner::dk ? s.q : s.dout) + above;
      const float4 four = load_four(x, row < (of_rows ? own_keys : count) ? at[row] : -1, column);
      return Owner == ConvOwner::dv ? four : finite_of(four);
    });
  }

 private:
  // dS of own row m and own key n.
  __device__ float make_ds(int m, int n) const {
    const int key = n + columns - 1, right = columns - 1 - left;
    if (s.k[key] < 0) return 0.f;
    float sum = 0.f;
    const float* line = da + (m + above) * kScorePitch + key - right;
    for (int u = 0; u < rows; ++u)
      for (int v = 0; v < columns; ++v)
        sum = fmaf(taps[rows * columns - 1 - u * columns - v], line[u * kScorePitch + v], sum);
    return sum;
  }
  template <class Then>
  __device__ __forceinline__ void product(float* to, const Operand& x, const int64_t* x_at,
                                          const Operand& y, const int64_t* y_at,
                                          const Then& then) const {
    const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
#pragma unroll 1
    for (int half = 0; half < width; half += kStageTile) {
      float sum[4][4] = {};
      multiply_nt(
          sum, tiles, x.width, [&](int row, int column) { return load_four(x, x_at[row], column); },
          [&](int row, int column) { return load_four(y, y_at[half + row], column); });
#pragma unroll
      for (int r = 0; r < 4; ++r)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int m = ty + 16 * r, key = half + tx + 16 * i;
          if (key < width) to[m * kScorePitch + key] = then(m, key, sum[r][i]);
        }
    }
  }
};

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
        if (group == 0 && tap + n * kStageThreads < taps) to[tap + n * kStageThreads] = sum[n];
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
  const int ty = threadIdx.x / 16;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    // Late rows first: under a causal mask they are the longest.
    const int64_t tile = call.row_tiles - 1 - w % call.row_tiles, head = w / call.row_tiles % a.h,
                  r = w / call.row_tiles / a.h;
    const int64_t i0 = tile * call.own_rows, g = head / (a.h / a.g);
    open_sequence(t.c, s, r);
    double* partial = call.dweight ? call.dweight + w * t.c.taps() : nullptr;
    TapSums taps(t.rows * t.columns);
    float acc[Chunks][4][4] = {};
    if (i0 < s.seq.rows) {
      t.place_rows(head, i0);
      load_taps(t.c, head, 1, t.taps);
      const int64_t i1 = min(i0 + call.own_rows, s.seq.rows);
      const int64_t end = t.c.seen(s.seq, i1 - 1);
      for (int64_t j0 = 0; j0 < end; j0 += call.own_keys) {
        __syncthreads();
        t.place_keys(g, j0);
        __syncthreads();
        t.fill<true>(j0);
        if (partial) taps.add(t, static_cast<int>(i1 - i0), call.own_keys);
        if (!call.b.dq) continue;
        t.add<ConvOwner::rows>(acc, j0, static_cast<int>(i1 - i0));
      }
      if (call.b.dq)
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const int m = ty + 16 * r;
          if (m >= i1 - i0) continue;
          const View<4>& dq = call.b.dq;
          store_columns(dq.data, a.dtype, row_offset(s.seq, i0 + m, head, dq.stride), dq.stride[3],
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
  const int ty = threadIdx.x / 16;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t j0 = w % call.key_tiles * call.own_keys, g = w / call.key_tiles % a.g,
                  r = w / call.key_tiles / a.g, group = a.h / a.g;
    open_sequence(t.c, s, r);
    if (j0 >= s.seq.keys) continue;
    t.place_keys(g, j0);
    // The first row that sees key j0; for dv, rows without an output count for nothing.
    const int64_t shift = s.seq.keys - s.seq.rows;
    int64_t low = max(t.c.reach().first_row(j0, shift) - shift, int64_t{0});
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
        t.add<Owner>(acc, j0, static_cast<int>(min(int64_t{call.own_rows}, s.seq.rows - i0)));
      }
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int key = ty + 16 * r;
      if (key >= call.own_keys || j0 + key >= s.seq.keys) continue;
      const View<4>& out = gradient ? call.b.dk : call.b.dv;
      const int64_t offset =
          a.sequences.key_offset(s.seq, j0 + key, out.stride) + g * out.stride[2];
      store_columns(out.data, a.dtype, offset, out.stride[3],
                    gradient ? call.q.width : call.dout.width, gradient ? a.score.scale : 1.f, acc,
                    r);
    }
  }
}

template <ConvOwner Owner, int Chunks>
void conv_gradient_simt(Context& ctx, const ConvBackwardSimt& call) {
  const Attend& a = call.b.forward.attend;
  const auto run = [&]<auto kernel>(int64_t work) {
    launch<kernel>(ctx, "conv_attention_backward", work, kStageThreads, conv_backward_bytes(), call,
                   work);
  };
  if constexpr (Owner == ConvOwner::rows)
    run.template operator()<conv_rows_simt_kernel<Chunks>>(a.sequences.count * a.h *
                                                           call.row_tiles);
  else
    run.template operator()<conv_keys_simt_kernel<Owner, Chunks>>(a.sequences.count * a.g *
                                                                  call.key_tiles);
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(dtype, columns, owner)                                                 \
  template void fovea::cuda::conv_gradient_simt<fovea::cuda::ConvOwner::owner, columns / 64>( \
      fovea::Context&, const fovea::cuda::ConvBackwardSimt&);
