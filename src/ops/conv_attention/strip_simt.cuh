// SPDX-License-Identifier: Apache-2.0
// What the f32 kernels share: a tile of scores in shared memory, and its convolution.
//   Slot: rows of one head, `above` rows that only the convolution reads before its own.  A strip
//   of 64 rows holds one slot, or the same few rows of several heads of a key head.
#pragma once
#include "cuda/block/stage.cuh"
#include "cuda/loop/combine.cuh"
#include "cuda/loop/source.cuh"
#include "ops/conv_attention/kernels.h"

namespace fovea::cuda {

constexpr int kStripRows = 64;

// How rows and heads become strips, by shapes alone.
struct Strips {
  int32_t own, slot;    // rows of a slot that have an output, all its rows
  int32_t heads;        // of a strip, at most
  int64_t packs, most;  // strips for the heads of a key head, for the rows of a sequence

  explicit Strips(const ConvAttend& c) {
    constexpr int64_t kPackRows = 16;  // up to here heads share a strip
    const int64_t longest = clamp_i64(c.attend.sequences.query_max - c.history, 0, INT64_MAX);
    const int64_t group = c.attend.g ? c.attend.h / c.attend.g : 1, above = c.above();
    const bool few = longest > 0 && longest <= kPackRows;
    own = static_cast<int32_t>(few ? longest : kStripRows - above);
    slot = static_cast<int32_t>(own + above);
    heads = few ? static_cast<int32_t>(clamp_i64(group, 1, kStripRows / slot)) : 1;
    packs = (group + heads - 1) / heads, most = (longest + own - 1) / own;
  }
};

struct ConvSimt {
  ConvAttend c;
  Operand q, k, v;
  Partials parts;  // splits == 1: unused, o and lse are written at once
  Strips strips;
  int64_t splits, work;
};

// Stamped for each width of o (forward.inc): at most 64 Chunks columns.
template <int Chunks>
void conv_simt(Context& ctx, const ConvSimt& call);

constexpr int kScorePitch = 116;  // of a tile of scores: at most 108 keys and a window's last chunk

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

enum class ConvOwner { rows, dk, dv };

// Stamped for each owner and width (backward.inc): sums of at most 64 Chunks columns.
template <ConvOwner Owner, int Chunks>
void conv_gradient_simt(Context& ctx, const ConvBackwardSimt& call);

// Puts sequence r and where its rows of o are into shared memory; what was there is done with.
template <class Shared>
__device__ __forceinline__ void open_sequence(const ConvAttend& c, Shared& s, int64_t r) {
  __syncthreads();
  if (threadIdx.x == 0) s.seq = c.attend.sequences[r], s.out = c.rows_of(s.seq, r);
  __syncthreads();
}

// Element offset of row i in a tensor like q, and in one like o; -1: there is none.
__device__ __forceinline__ int64_t q_offset(const Sequence& q, const int64_t* stride, int64_t head,
                                            int64_t i) {
  return i >= 0 && i < q.rows ? row_offset(q, i, head, stride) : -1;
}
template <class Shared>
__device__ __forceinline__ int64_t out_offset(const ConvAttend& c, const Shared& s,
                                              const int64_t* stride, int64_t head, int64_t i) {
  const int64_t row = i - c.history;
  return row >= 0 && row < s.out.count
             ? s.seq.batch * stride[0] + (s.out.begin + row) * stride[1] + head * stride[2]
             : -1;
}
// Element offset of key j of head g; -1: there is none.
__device__ __forceinline__ int64_t key_offset(const Attend& a, const Sequence& q,
                                              const int64_t* stride, int64_t g, int64_t j) {
  const int64_t at = j >= 0 && j < q.keys ? a.sequences.key_offset(q, j, stride) : -1;
  return at < 0 ? -1 : at + g * stride[2];
}
// lse of row i; -inf: it has no output.
template <class Shared>
__device__ __forceinline__ float lse_of(const ConvAttend& c, const Shared& s, int64_t head,
                                        int64_t i) {
  const int64_t* lse = c.attend.lse.stride;
  const int64_t stride[3] = {lse[0], lse[2], lse[1]}, at = out_offset(c, s, stride, head, i);
  return at < 0 ? -INFINITY : c.attend.lse.as()[at];
}

// The taps of `heads` heads from `head` on as f32: [head][kernel_rows][kernel_columns].
__device__ inline void load_taps(const ConvAttend& c, int64_t head, int heads, float* taps) {
  const int each = static_cast<int>(c.taps()), columns = static_cast<int>(c.kernel_columns);
  for (int n = threadIdx.x; n < heads * each; n += kStageThreads) {
    const int tap = n % each;
    taps[n] =
        load_float(c.weight.data, c.weight_dtype,
                   (head + n / each) * c.weight.stride[0] + tap / columns * c.weight.stride[1] +
                       tap % columns * c.weight.stride[2]);
  }
}

// y[c] += sum_uv taps[u][v] s[u][c + v], s a multiple of 16 bytes.  Reversed: taps are read from
// the last to the first.
template <bool Reversed>
__device__ __forceinline__ void convolve_four(float (&y)[4], const float* s, const float* taps,
                                              int rows, int columns) {
  const int last = rows * columns - 1;
  for (int u = 0; u < rows; ++u, s += kScorePitch) {
    float window[8];
    const auto load = [&](int at, int column) {
      const float4 x = *reinterpret_cast<const float4*>(s + column);
      window[at] = x.x, window[at + 1] = x.y, window[at + 2] = x.z, window[at + 3] = x.w;
    };
    load(0, 0);
    for (int v = 0; v < columns; v += 4) {
      load(4, v + 4);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (v + i >= columns) break;
        const int tap = u * columns + v + i;
        const float w = taps[Reversed ? last - tap : tap];
#pragma unroll
        for (int c = 0; c < 4; ++c) y[c] = fmaf(w, window[c + i], y[c]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) window[i] = window[i + 4];
    }
  }
}

}  // namespace fovea::cuda
