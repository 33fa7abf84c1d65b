// SPDX-License-Identifier: Apache-2.0
// What the f32 kernels share: a tile of scores in shared memory, and its convolution.
//   Slot: rows of one head, `above` rows that only the convolution reads before its own.  A strip
//   of 64 rows holds one slot, or the same few rows of several heads of a key head.
#pragma once
#include "cuda/block/stage.cuh"
#include "ops/conv_attention/kernels.h"

namespace fovea::cuda {

constexpr int kScorePitch = 116;  // of a tile of scores: at most 108 keys and a window's last chunk

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
