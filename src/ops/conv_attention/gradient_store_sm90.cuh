// SPDX-License-Identifier: Apache-2.0
// What a work of conv_attention's gradient sweep (backward_sm90.cuh) leaves in memory.
#pragma once
#include "cuda/loop/sink.cuh"
#include "cuda/tile/convolve_sm80.cuh"
#include "ops/conv_attention/backward_work.cuh"

namespace fovea::cuda {

// dq, or dk and dv, of the lane's lines, the first of which S has at `mine`.
template <class Shape, int N, int M>
__device__ __forceinline__ void store_gradient(const ConvAttendBackward& b,
                                               const ConvGradientWork& more,
                                               const ConvGradientSlot& work, const ConvReach& reach,
                                               float grain, int mine, bool any, float (&sum)[N][4],
                                               float (&dv)[M][4]) {
  const Attend& a = b.forward.attend;
  const auto store = [&](const View<4>& out, int width, auto& x, float factor, int lag) {
    if (!out) return;
#pragma unroll
    for (int j = 0; j < static_cast<int>(sizeof x / 16); ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (!any) x[j][e] = 0.f;
    const Sequence& seq = work.seq;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int line = mine + 8 * half - lag, local = line - work.line - reach.halo;
      const bool own = local >= 0 && local < reach.own(Shape::BM) &&
                       line < (Shape::keys ? work.keys : work.rows);
      const int64_t at = Shape::keys
                             ? seq.key_batch * out.stride[0] +
                                   (seq.key_begin + line) * out.stride[1] + work.g * out.stride[2]
                             : seq.batch * out.stride[0] + (seq.row_begin + line) * out.stride[1] +
                                   work.head * out.stride[2];
      store_row<Shape::Dtype>(own ? static_cast<uint16_t*>(out.data) + at : nullptr, width, x, half,
                              factor);
    }
  };
  store(Shape::keys ? b.dk : b.dq, static_cast<int>(a.d), sum, a.score.scale * grain, reach.halo);
  if constexpr (Shape::keys) store(b.dv, static_cast<int>(a.e), dv, 1.f, reach.below);
}

// A warp's part of dweight.  Of each pair of shifts the 16 x 8 Ahead sums go through `room` of
// shared memory: each tap is the sum of the 8 columns that it takes to.
template <int Pairs, int Ahead>
__device__ __forceinline__ void store_taps(const ConvAttend& c, const ConvGradientWork& more,
                                           const ConvGradientSlot& work,
                                           const float (&taps)[Pairs][Ahead][4], float* room,
                                           int warp, int warps) {
  const int lane = threadIdx.x % 32;
  const ConvReach& reach = work.reach;
  const int64_t head = work.r * c.attend.h + work.head;
  const float grain = grain_of(more.largest[head]) * kScoreUnit;
  double* to = more.dweight + ((head * more.order.row_tiles + work.tile) * warps + warp) * c.taps();
#pragma unroll
  for (int p = 0; p < Pairs; ++p) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < Ahead; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const bool alone = TapBands<Pairs, Ahead>::alone(p, reach.lines);
        const int half = alone ? 0 : e / 2, block = alone ? 2 * i + e / 2 : i;
        if (block < Ahead)
          room[(lane / 4 + half * 8) * (8 * Ahead) + block * 8 + lane % 4 * 2 + e % 2] =
              taps[p][i][e];
      }
    __syncwarp();
    for (int i = lane; i < 2 * reach.columns; i += 32) {
      const int d = 2 * p + i / reach.columns, v = i % reach.columns;
      if (d >= reach.lines || !more.dweight) continue;
      float all = 0.f;
#pragma unroll
      for (int n = 0; n < 8; ++n)
        all += room[((v + n) % 8 + i / reach.columns * 8) * (8 * Ahead) + (v + n) / 8 * 8 + n];
      to[(reach.lines - 1 - d) * reach.columns + v] = all * grain;
    }
  }
}

}  // namespace fovea::cuda
