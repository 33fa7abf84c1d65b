// SPDX-License-Identifier: Apache-2.0
// conv_attention_forward on the portable flash loop (loop/attend_simt.cuh): every dtype, width,
// stride and number of taps.
//   S = scale q k', 0 where unseen;  A = S convolved, -inf where unseen;  online softmax;  o += p v
// A block owns a strip of 64 score rows (strip_simt.cuh) of one sequence and one part of its keys.
// It slides over the keys in steps of 64, and s[row][c] holds key j0 - left + c.  The last
// kernel_columns - 1 columns stay for the next step, so that a part computes each score once.  The
// step before a part's first only fills those.
// Thread (ty, tx) owns rows ty + 16 r: of a product keys tx + 16 c, of the convolution and the
// softmax keys 4 tx + c.
// Shared memory: block/stage.cuh, s, taps, where rows and keys lie.
// Multi-Token Attention (2504.00927).
#pragma once
#include "cuda/loop/attend_simt.cuh"
#include "ops/conv_attention/strip_simt.cuh"

namespace fovea::cuda {

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
  s.i[m] = i;
  s.q[m] = slot < heads ? q_offset(s.seq, a.q.stride, head + slot, i) : -1;
  s.slot[m] = s.q[m] >= 0 && local >= c.above() && i < c.history + s.out.count ? slot : -1;
  s.last[m] = s.q[m] >= 0 ? c.seen(s.seq, i) : 0;
}

// KeySource: a part of the keys, and the step before it.  The keys of S are `right` ahead of v's.
struct StripKeys {
  const ConvAttend& c;
  ConvShared& s;
  float* scores;
  int64_t g, begin, end;

  __device__ int64_t operator[](int64_t n) const { return n * kStageTile; }
  __device__ int count(int64_t j0) const {
    return static_cast<int>(clamp_i64(s.seq.keys - j0, 0, kStageTile));
  }
  __device__ bool place(int64_t j0) const {
    const Attend& a = c.attend;
    const int thread = threadIdx.x, n = thread % kStageTile;
    if (thread < kStageTile)
      s.k[n] = key_offset(a, s.seq, a.k.stride, g, j0 + c.right() + n);
    else if (thread < 2 * kStageTile)
      s.v[n] = key_offset(a, s.seq, a.v.stride, g, j0 + n);
    const int carried = static_cast<int>(c.kernel_columns) - 1;
    for (int i = thread; i < kStripRows * carried; i += kStageThreads) {
      float* line = scores + i / carried * kScorePitch + i % carried;
      *line = line[kStageTile];
    }
    return false;
  }
};

// Score: S of a tile, convolved.
struct ConvScore : TileScores<4> {
  const ConvSimt& call;
  const ConvShared& s;
  float *scores, *taps;
  int64_t first;  // key of the part
  int width = call.v.width;

  __device__ __forceinline__ bool products(float (&x)[4][4], int64_t j0) const {
    const ConvAttend& c = call.c;
    const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    const int columns = static_cast<int>(c.kernel_columns), rows = static_cast<int>(c.kernel_rows);
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
        scores[m * kScorePitch + columns - 1 + key] = seen ? x[r][i] * c.attend.score.scale : 0.f;
      }
    if (j0 < first) return false;
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
    return true;
  }
  __device__ auto logits(int64_t j0, bool) const {
    return [this, j0](int r, int i, float logit) {
      const int m = threadIdx.x / 16 + 16 * r, key = 4 * static_cast<int>(threadIdx.x % 16) + i;
      return s.slot[m] >= 0 && s.v[key] >= 0 && j0 + key < s.last[m] ? logit : -INFINITY;
    };
  }
  __device__ float4 values(int row, int column) const {
    return load_four(call.v, s.v[row], column);
  }
  __device__ void put(const float (&p)[4][4]) const {
    __syncwarp();
#pragma unroll
    for (int r = 0; r < 4; ++r)
      *reinterpret_cast<float4*>(tiles.p + (threadIdx.x / 16 + 16 * r) * kStagePitch +
                                 4 * (threadIdx.x % 16)) =
          make_float4(p[r][0], p[r][1], p[r][2], p[r][3]);
    __syncwarp();
  }
};

struct StripEpilogue : WholeEpilogue {
  const ConvSimt& call;
  const ConvShared& s;
  int64_t head;

  __device__ bool there(int m) const { return s.slot[m] >= 0; }
  __device__ static float sink(int) { return -INFINITY; }
  __device__ RowPlace place(int m) const {
    const int64_t row = s.out.begin + s.i[m] - call.c.history, batch = s.seq.batch;
    return WholeEpilogue::place(batch, batch * call.c.rows_out + row, row, head + s.slot[m]);
  }
};

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
    open_sequence(c, s, rest);
    if (tile * strips.own >= s.out.count) continue;
    place_rows(call, s, head, heads, first);
    load_taps(c, head, heads, taps);
    const int64_t end = c.seen(s.seq, min(first + strips.own, s.seq.rows) - 1);
    const SplitRange range = split_range((end + kStageTile - 1) / kStageTile, call.splits, split);
    __syncthreads();  // a part without keys reads the rows at once
    const StripKeys keys{c, s, scores, g, range.begin - (range.begin < range.end), range.end};
    attend_simt<Chunks>(tiles, keys,
                        ConvScore{{tiles}, call, s, scores, taps, range.begin * kStageTile},
                        StripEpilogue{{a, call.parts, call.splits, split}, call, s, head});
  }
}

template <int Chunks>
void conv_simt(Context& ctx, const ConvSimt& call) {
  launch<conv_simt_kernel<Chunks>>(ctx, "conv_attention_forward", call.work, kStageThreads,
                                   conv_simt_bytes(), call);
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(dtype, columns) \
  template void fovea::cuda::conv_simt<columns / 64>(fovea::Context&, const fovea::cuda::ConvSimt&);
