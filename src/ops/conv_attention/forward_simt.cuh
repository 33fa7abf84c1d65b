// SPDX-License-Identifier: Apache-2.0
// conv_attention_forward in f32 FMA: every dtype, width, stride and number of taps.
//   S = scale q k', 0 where unseen;  A = S convolved, -inf where unseen;  online softmax;  o += p v
// A block owns a strip of 64 score rows (strip_simt.cuh) of one sequence and one part of its keys,
// and slides over them in steps of 64: s[row][c] holds key j0 - left + c, of which the last
// kernel_columns - 1 columns stay for the next step, so that a part computes each score once.  The
// step before a part's first only fills those.  Thread (ty, tx) owns rows ty + 16 r: of a product
// keys tx + 16 c, of the convolution and the softmax keys 4 tx + c.
// Shared memory: block/stage.cuh, s, taps, where rows and keys lie.
// Multi-Token Attention (2504.00927), FlashAttention-2 (2307.08691).
#pragma once
#include "cuda/block/stage_softmax.cuh"
#include "cuda/loop/combine.cuh"
#include "cuda/loop/source.cuh"
#include "ops/conv_attention/strip_simt.cuh"

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

struct ConvShared {
  Sequence seq;
  ConvAttend::Rows out;
  int64_t q[kStripRows];  // element offsets; -1: no such row or key
  int64_t i[kStripRows];  // row of the sequence
  int64_t k[kStageTile], v[kStageTile];
  int32_t slot[kStripRows];  // -1: the row has no output
  int64_t last[kStripRows];  // keys that the row sees: those before
};

constexpr int kTapsRoom = kStripRows * static_cast<int>(kKernelColumnsMost);

constexpr int64_t conv_simt_bytes() {
  return FmaTiles<4>::bytes() +
         (kStripRows * kScorePitch + kTapsRoom) * static_cast<int64_t>(sizeof(float));
}

// The rows of the strip whose first own row is `first` of the sequence's.
__device__ __forceinline__ void place_rows(const ConvSimt& call, ConvShared& s, int64_t head,
                                           int heads, int64_t first) {
  if (threadIdx.x >= kStripRows) return;
  const ConvAttend& c = call.c;
  const Attend& a = c.attend;
  const int m = threadIdx.x, slot = m / call.strips.slot, local = m % call.strips.slot;
  const int64_t i = first - c.above() + local;
  const bool there = slot < heads && i >= 0 && i < s.seq.rows;
  s.i[m] = i;
  s.q[m] = there ? s.seq.batch * a.q.stride[0] + (s.seq.row_begin + i) * a.q.stride[1] +
                       (head + slot) * a.q.stride[2]
                 : -1;
  s.slot[m] = there && local >= c.above() && i < c.history + s.out.count ? slot : -1;
  const int64_t end = c.causal ? i + s.seq.keys - s.seq.rows + 1 : s.seq.keys;
  s.last[m] = there ? clamp_i64(end, 0, s.seq.keys) : 0;
}

// Where keys j0 .. j0 + 63 lie.
__device__ __forceinline__ void place_keys(const Attend& a, const Sequence& seq, int64_t g,
                                           int64_t j0, const int64_t* stride, int64_t* to,
                                           int thread) {
  const int64_t j = j0 + thread;
  const int64_t at = j >= 0 && j < seq.keys ? a.sequences.key_offset(seq, j, stride) : int64_t{-1};
  to[thread] = at < 0 ? -1 : at + g * stride[2];
}

template <int Chunks>
__device__ __forceinline__ void finish(const ConvSimt& call, const ConvShared& s, int64_t head,
                                       int64_t split, const StageSoftmax<4>& state,
                                       const float (&o)[Chunks][4][4]) {
  const Attend& a = call.c.attend;
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
  const bool partial = call.splits > 1;
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int m = ty + 16 * r;
    const StageRow end = state.end(r, -INFINITY);
    if (s.slot[m] < 0) continue;
    const float inverse = end.sum == 0 ? 0 : end.factor / end.sum, lse = end.lse();
    const int64_t h = head + s.slot[m], row = s.out.begin + s.i[m] - call.c.history;
    const int64_t token = s.seq.batch * call.c.rows_out + row;
    if (tx == 0 && partial) *call.parts.lse_row(split, token, h) = lse;
    if (tx == 0 && !partial && a.lse)
      a.lse.as()[s.seq.batch * a.lse.stride[0] + h * a.lse.stride[1] + row * a.lse.stride[2]] = lse;
    float* part = partial ? call.parts.o_row(split, token, h) : nullptr;
    const int64_t out = s.seq.batch * a.o.stride[0] + row * a.o.stride[1] + h * a.o.stride[2];
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

template <int Chunks>
__global__ void __launch_bounds__(kStageThreads, Chunks <= 2 ? 2 : 1)
    conv_simt_kernel(const __grid_constant__ ConvSimt call) {
  extern __shared__ float4 s_dynamic[];
  __shared__ ConvShared s;
  const FmaTiles<4> tiles(reinterpret_cast<float*>(s_dynamic));
  float* const scores = reinterpret_cast<float*>(s_dynamic) + FmaTiles<4>::bytes() / 4;
  float* const taps = scores + kStripRows * kScorePitch;
  const ConvAttend& c = call.c;
  const Attend& a = c.attend;
  const Strips& strips = call.strips;
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
  const int columns = static_cast<int>(c.kernel_columns), rows = static_cast<int>(c.kernel_rows);
  const int carried = columns - 1;
  for (int64_t w = blockIdx.x; w < call.work; w += gridDim.x) {
    // Late rows first: under a causal mask they are the longest.
    int64_t rest = w;
    const auto digit = [&](int64_t n) {
      const int64_t x = rest % n;
      rest /= n;
      return x;
    };
    const int64_t split = digit(call.splits), tile = strips.most - 1 - digit(strips.most),
                  pack = digit(strips.packs), g = digit(a.g), group = a.h / a.g;
    const int64_t head = g * group + pack * strips.heads;
    const int heads = static_cast<int>(min(int64_t{strips.heads}, group - pack * strips.heads));
    const int64_t first = c.history + tile * strips.own;
    __syncthreads();
    if (threadIdx.x == 0) {
      s.seq = a.sequences[rest];
      s.out = c.rows_of(s.seq, rest);
    }
    __syncthreads();
    if (tile * strips.own >= s.out.count) continue;
    place_rows(call, s, head, heads, first);
    load_taps(c, head, heads, taps);
    const int64_t end =
        c.causal ? min(first + strips.own, s.seq.rows) + s.seq.keys - s.seq.rows : s.seq.keys;
    const SplitRange range = split_range(
        (clamp_i64(end, 0, s.seq.keys) + kStageTile - 1) / kStageTile, call.splits, split);
    __syncthreads();  // a part without keys reads the rows at once

    StageSoftmax<4> state;
    float o[Chunks][4][4] = {};
    for (int64_t n = range.begin - 1; n < range.end; ++n) {
      const int64_t j0 = n * kStageTile;
      if (range.begin == range.end) break;
      __syncthreads();  // the last step's keys and scores are done with
      if (threadIdx.x < kStageTile)
        place_keys(a, s.seq, g, j0 + c.right(), a.k.stride, s.k, threadIdx.x);
      else if (threadIdx.x < 2 * kStageTile)
        place_keys(a, s.seq, g, j0, a.v.stride, s.v, threadIdx.x - kStageTile);
      for (int i = threadIdx.x; i < kStripRows * carried; i += kStageThreads) {
        float* line = scores + i / carried * kScorePitch + i % carried;
        *line = line[kStageTile];
      }
      __syncthreads();
      float x[4][4] = {};
      multiply_nt(
          x, tiles, call.q.width,
          [&](int row, int column) { return load_four(call.q, s.q[row], column); },
          [&](int row, int column) { return load_four(call.k, s.k[row], column); });
#pragma unroll
      for (int r = 0; r < 4; ++r)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int m = ty + 16 * r, key = tx + 16 * i;
          const bool seen = s.k[key] >= 0 && j0 + c.right() + key < s.last[m];
          scores[m * kScorePitch + carried + key] = seen ? x[r][i] * a.score.scale : 0.f;
        }
      if (n < range.begin) continue;
      __syncthreads();
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int m = ty + 16 * r;
#pragma unroll
        for (int i = 0; i < 4; ++i) x[r][i] = 0.f;
        if (s.slot[m] < 0) continue;
        convolve_four<false>(x[r], scores + (m - rows + 1) * kScorePitch + 4 * tx,
                             taps + s.slot[m] * rows * columns, rows, columns);
      }
      state.weigh(x, o, [&](int r, int i, float logit) {
        const int m = ty + 16 * r, key = 4 * tx + i;
        const bool seen = s.slot[m] >= 0 && s.v[key] >= 0 && j0 + key < s.last[m];
        return seen ? logit : -INFINITY;
      });
      __syncwarp();
#pragma unroll
      for (int r = 0; r < 4; ++r)
        *reinterpret_cast<float4*>(tiles.p + (ty + 16 * r) * kStagePitch + 4 * tx) =
            make_float4(x[r][0], x[r][1], x[r][2], x[r][3]);
      __syncwarp();
      multiply_nn(o, tiles, call.v.width,
                  static_cast<int>(clamp_i64(s.seq.keys - j0, 0, kStageTile)),
                  [&](int row, int column) { return load_four(call.v, s.v[row], column); });
    }
    finish(call, s, head, split, state, o);
  }
}

}  // namespace fovea::cuda
