// SPDX-License-Identifier: Apache-2.0
// What the divergence of an indexer makes of a tile's scores (cuda/loop/heads_sm90.cuh): the sums
// of each row over the keys of a part, or the gradient of its logits.
#pragma once
#include "cuda/block/softmax.cuh"
#include "cuda/loop/heads_sm90.cuh"
#include "ops/kl_experimental/indexer.cuh"

namespace fovea::cuda {

// max(z, 0) that keeps NaN.
__device__ __forceinline__ float rectified90(float z) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(z), "f"(0.f));
  return y;
}

// The mean of the teacher's heads p and the student's logits b of a tile.
struct IndexerTile90 {
  static constexpr int N = kHeadsTile / 8;
  const HeadsWork& work;
  const HeadsTile& at;
  int row;         // in the sequence
  float value[2];  // of the step's head: lse (log2 units) or weight
  float p[N][4], b[N][4];

  __device__ IndexerTile90(const HeadsWork& work, const HeadsTile& at, int row)
      : work(work), at(at), row(row) {}
  __device__ void begin() {
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) p[j][c] = b[j][c] = 0.f;
  }
  // `lse` is (b, h, s), `weight` (b, s, x).
  __device__ void load(const HeadsStep& step, const View<3>& lse, const View<3>& weight) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = row + 8 * half;
      value[half] = 0.f;
      if (i >= at.seq.rows) continue;
      const View<3>& x = step.side ? weight : lse;
      const int64_t token = at.seq.row_begin + i;
      const int64_t place = at.seq.batch * x.stride[0] +
                            (step.side ? token : step.head) * x.stride[1] +
                            (step.side ? step.head : token) * x.stride[2];
      value[half] = x.as()[place] * (step.side ? 1.f : kLog2E);
    }
  }
  __device__ void take(const HeadsStep& step, const float (&x)[N][4]) {
    if (step.side == 0) {
      const float factor = work.a.score.scale * kLog2E;
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c) p[j][c] += exp2_fast(fmaf(x[j][c], factor, -value[c / 2]));
    } else {
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c) b[j][c] = fmaf(value[c / 2], rectified90(x[j][c]), b[j][c]);
    }
  }
  __device__ float share() const {
    return 1.f / static_cast<float>(work.heads[0]);
  }
  __device__ static int column(int j, int c) {
    return j * 8 + threadIdx.x % 4 * 2 + c % 2;
  }
};

struct IndexerForwardPolicy90 : IndexerTile90 {
  using Args = IndexerArgs90;
  const Args& args;
  IndexerSums sums[2];

  __device__ static int first(const HeadsWork& work, const Args& args) {
    return args.teacher ? 0 : work.heads[0];
  }
  __device__ IndexerForwardPolicy90(const HeadsWork& work, const Args& args, const HeadsTile& at,
                                    int row)
      : IndexerTile90(work, at, row), args(args) {
    sums[0] = sums[1] = {kNegativeInfinity, 0.f, 0.f, 0.f};
  }
  __device__ void load(const HeadsStep& step) { IndexerTile90::load(step, args.lse, args.weight); }
  __device__ void end(const PlainPairs& pairs, int key, bool full) {
    const float mean = share();
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const bool seen = full || pairs.sees(row + c / 2 * 8, key + column(j, c));
        // An infinity becomes NaN, which every sum that takes it shows.
        b[j][c] = seen ? fmaf(b[j][c], 0.f, b[j][c]) : kNegativeInfinity;
        p[j][c] = seen ? p[j][c] * mean : 0.f;
      }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      IndexerSums& x = sums[half];
      float top = x.top;
#pragma unroll
      for (int j = 0; j < N; ++j) top = fmaxf(top, fmaxf(b[j][2 * half], b[j][2 * half + 1]));
      top = quad_max(top);
      const float base = top == kNegativeInfinity ? 0.f : top;
      const float rise = x.top == kNegativeInfinity ? 0.f : base - x.top;
      x.sum *= exp2_fast((x.top - base) * kLog2E);
      x.cross = fmaf(x.weight, rise, x.cross);
      x.top = top;
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int c = 2 * half; c < 2 * half + 2; ++c) {
          const float away = b[j][c] - base;
          x.sum += exp2_fast(away * kLog2E), x.weight += p[j][c];
          if (p[j][c] != 0.f) x.cross = fmaf(p[j][c], fmaf(__log2f(p[j][c]), kLn2, -away), x.cross);
        }
    }
  }
  __device__ void finish() const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const IndexerSums& x = sums[half];
      const IndexerSums all{x.top, quad_sum(x.sum), quad_sum(x.weight), quad_sum(x.cross)};
      const int i = row + 8 * half;
      if (threadIdx.x % 4 == 0 && i < at.seq.rows)
        args.row_sums[(int64_t{work.first + at.number} * kHeadsTile + i - at.i0) * work.parts +
                      at.part] = all;
    }
  }
};

// db of the tile's pairs to memory: 0 where one does not count.
struct IndexerDscoresPolicy90 : IndexerTile90 {
  using Args = IndexerArgs90;
  const Args& args;
  float gain[2] = {}, lse[2] = {};

  __device__ static int first(const HeadsWork&, const Args&) { return 0; }
  __device__ IndexerDscoresPolicy90(const HeadsWork& work, const Args& args, const HeadsTile& at,
                                    int row)
      : IndexerTile90(work, at, row), args(args) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = row + 8 * half;
      if (i >= at.seq.rows) continue;
      const auto value = [&](const View<2>& x) {
        return x.as()[at.seq.batch * x.stride[0] + (at.seq.row_begin + i) * x.stride[1]];
      };
      gain[half] = value(args.gain);
      if (gain[half] != 0.f) lse[half] = value(args.lse_student);
    }
  }
  __device__ void load(const HeadsStep& step) {
    IndexerTile90::load(step, args.lse, args.weight);
  }
  __device__ void end(const PlainPairs& pairs, int key, bool full) const {
    const float mean = share();
    float* const to =
        args.db + (int64_t{at.number} * kHeadsTile + row - at.i0) * args.columns + key;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int j = 0; j < N; ++j) {
        float dscore[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float logit = b[j][2 * half + c];
          const bool counts =
              gain[half] != 0.f &&
              (full || pairs.sees(row + 8 * half, sm90::unhoisted(key) + column(j, c)));
          const float r = exp2_fast((logit - lse[half]) * kLog2E);
          dscore[c] = counts ? gain[half] * (r - p[j][2 * half + c] * mean) : 0.f;
        }
        *reinterpret_cast<float2*>(to + 8 * half * args.columns + column(j, 0)) =
            make_float2(dscore[0], dscore[1]);
      }
  }
  __device__ void finish() const {}
};

}  // namespace fovea::cuda
