// SPDX-License-Identifier: Apache-2.0
// The tile of the f32 gradient: S, and from it dA or p, in shared memory; dS of its middle.
#pragma once
#include "cuda/launch.h"
#include "ops/conv_attention/strip_simt.cuh"

namespace fovea::cuda {

constexpr int kTileRows = 64, kTileKeysMost = 108;

struct ConvBackwardSimt {
  ConvAttendBackward b;
  Operand q, k, v, dout;
  float* delta;      // (b, h, rows_out)
  double* dweight;   // (r, h, row tiles, taps): sums of a row tile
  int32_t own_rows;  // of a tile
  int32_t own_keys;
  int64_t row_tiles, key_tiles;

  explicit ConvBackwardSimt(const ConvAttendBackward& call) : b(call) {
    const ConvAttend& c = call.forward;
    const Attend& a = c.attend;
    q = operand_of(a.q, a.dtype, a.d), k = operand_of(a.k, a.dtype, a.d);
    v = operand_of(a.v, a.dtype, a.e), dout = operand_of(call.dout, a.o_dtype, a.e);
    own_rows = static_cast<int32_t>(kTileRows - 2 * c.above());
    const int64_t most = kTileKeysMost - 2 * (c.kernel_columns - 1);
    own_keys = static_cast<int32_t>(most < kStageTile ? most : kStageTile);
    row_tiles = ceil_div(a.sequences.query_max, own_rows);
    key_tiles = ceil_div(a.sequences.key_max, own_keys);
    delta = nullptr, dweight = nullptr;
  }
};

struct ConvBackwardShared {
  Sequence seq;
  ConvAttend::Rows out;
  int64_t q[kTileRows], dout[kTileRows];  // element offsets; -1: no such row or key
  float lse[kTileRows], delta[kTileRows];
  int64_t last[kTileRows];  // keys that the row sees: those before
  int64_t k[2 * kStageTile], v[2 * kStageTile];
};

enum class ConvOwner { rows, dk, dv };

constexpr int64_t conv_backward_bytes() {
  return ((kTileRows + kStageTile) * kStagePitch + 2 * kTileRows * kScorePitch +
          kKernelRowsMost * kKernelColumnsMost) *
         static_cast<int64_t>(sizeof(float));
}

// A NaN row of q or k reaches its gradients through S; as an operand it would also meet the zeros
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
  StageTiles<4> tiles;
  float *const scores, *const da, *const taps;
  const int above, left, rows, columns, width;

  // Rows of the tile whose first own row is i0.
  __device__ void place_rows(int64_t head, int64_t i0) const {
    if (threadIdx.x >= kTileRows) return;
    const int m = threadIdx.x;
    const int64_t i = i0 - above + m;
    const bool there = i >= 0 && i < s.seq.rows;
    const bool out = there && i >= c.history && i < c.history + s.out.count;
    const int64_t row = s.out.begin + i - c.history;
    s.q[m] = there ? s.seq.batch * a.q.stride[0] + (s.seq.row_begin + i) * a.q.stride[1] +
                         head * a.q.stride[2]
                   : -1;
    const int64_t* stride = call.b.dout.stride;
    s.dout[m] = out ? s.seq.batch * stride[0] + row * stride[1] + head * stride[2] : -1;
    s.lse[m] = out ? a.lse.as()[s.seq.batch * a.lse.stride[0] + head * a.lse.stride[1] +
                                row * a.lse.stride[2]]
                   : -INFINITY;
    s.delta[m] = out ? call.delta[(s.seq.batch * a.h + head) * c.rows_out + row] : 0.f;
    const int64_t end = c.causal ? i + s.seq.keys - s.seq.rows + 1 : s.seq.keys;
    s.last[m] = there ? clamp_i64(end, 0, s.seq.keys) : 0;
  }
  __device__ void place_keys(int64_t g, int64_t j0) const {
    if (threadIdx.x >= 2 * kStageTile) return;
    const int64_t j = j0 - columns + 1 + threadIdx.x;
    const bool there = static_cast<int>(threadIdx.x) < width && j >= 0 && j < s.seq.keys;
    const auto at = [&](const int64_t* stride) {
      return there ? a.sequences.key_offset(s.seq, j, stride) + g * stride[2] : -1;
    };
    s.k[threadIdx.x] = at(a.k.stride), s.v[threadIdx.x] = at(a.v.stride);
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

  // dS of own row m and own key n.
  __device__ float slope(int m, int n) const {
    const int key = n + columns - 1, right = columns - 1 - left;
    if (s.k[key] < 0) return 0.f;
    float sum = 0.f;
    const float* line = da + (m + above) * kScorePitch + key - right;
    for (int u = 0; u < rows; ++u)
      for (int v = 0; v < columns; ++v)
        sum = fmaf(taps[rows * columns - 1 - u * columns - v], line[u * kScorePitch + v], sum);
    return sum;
  }
  __device__ bool seen(int m, int64_t j) const {
    return j < s.last[m + above];
  }

 private:
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

}  // namespace fovea::cuda
