// SPDX-License-Identifier: Apache-2.0
// Epilogue policy of the forward sweeps: what becomes of a row's m, l and o.
//
//   | epilogue                                | stores                                           |
//   | DirectEpilogue                          | o / l, lse = ln l + m; l includes the sink logit |
//   | TmaEpilogue (tma_epilogue_sm90.cuh)     | the same, rows of o by TMA                       |
//   | SplitEpilogue (split_epilogue.cuh)      | split-K: partial o and lse in f32                |
//   | MergingEpilogue (merging_epilogue.cuh) | the same, merged by the last split           |
#pragma once
#include "cuda/block/softmax.cuh"
#include "cuda/loop/row_tile.cuh"
#include "cuda/loop/score.cuh"
#include "cuda/tile/mma_sm80.cuh"

namespace fovea::cuda {

// Fragment row `half` times `factor` to f32, `width` columns.
template <int N>
__device__ inline void store_wide(float* row, int width, const float (&o)[N][4], int half,
                                  float factor) {
#pragma unroll
  for (int j = 0; j < N; ++j)
    if (j * 8 < width)
      *reinterpret_cast<float2*>(row + j * 8 + threadIdx.x % 4 * 2) =
          make_float2(o[j][2 * half] * factor, o[j][2 * half + 1] * factor);
}

// The same to Dtype, 16 bytes a lane.  A nullptr row only takes part in the transpose.
template <int Dtype, int N>
__device__ inline void store_row(uint16_t* row, int width, const float (&o)[N][4], int half,
                                 float factor) {
  static_assert(N % 4 == 0);
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int j = 0; j < N; j += 4) {
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      w[i] = pack<Dtype>(o[j + i][2 * half] * factor, o[j + i][2 * half + 1] * factor);
    quad_transpose(w);
    if (row && (j + t) * 8 < width)
      *reinterpret_cast<uint4*>(row + (j + t) * 8) = make_uint4(w[0], w[1], w[2], w[3]);
  }
}

// The same from element `at` of a tensor of Dtype or f32 on.  A row that is not `valid` only takes
// part in the transpose.
template <int Dtype, int N>
__device__ __forceinline__ void store_as(void* data, int32_t dtype, int64_t at, bool valid,
                                         int width, const float (&o)[N][4], int half,
                                         float factor) {
  if (dtype != FOVEA_F32)
    store_row<Dtype>(valid ? static_cast<uint16_t*>(data) + at : nullptr, width, o, half, factor);
  else if (valid)
    store_wide(static_cast<float*>(data) + at, width, o, half, factor);
}

struct DirectEpilogue {
  // Stores lse of packed row m, if `valid` and `leads`, and returns the factor of o.
  __device__ float finish(const Attend& a, const RowTile& tile, int m, bool valid, float top,
                          float sum, bool leads = true) const {
    float inverse = sum == 0.f ? 0.f : __fdividef(1.f, sum);
    float lse = sum == 0.f ? kNegativeInfinity : (top + __log2f(sum)) * kLn2;
    if (a.score.sink_logit && valid) {
      const float sink = sink_logit(a.score, tile.head(m)) * kLog2E;
      const float most = fmaxf(top, sink);
      const float scale = sum == 0.f ? 0.f : exp2f(top - most);
      sum = sum * scale + (sink == kNegativeInfinity ? 0.f : exp2f(sink - most));
      inverse = sum == 0.f ? 0.f : scale / sum;
      lse = sum == 0.f ? kNegativeInfinity : (most + log2f(sum)) * kLn2;
    }
    if (a.lse && valid && leads && threadIdx.x % 4 == 0)
      a.lse.as()[tile.offset(m, a.lse.stride, 1, 2)] = lse;
    return inverse;
  }

  // Stores packed row m, fragment row `half`, whose sums begin at `column`.  `valid` is the same in
  // all lanes of a quad.
  template <int Dtype, int N>
  __device__ void store(const Attend& a, const RowTile& tile, int m, bool valid, int, float top,
                        float sum, const float (&o)[N][4], int half, int column = 0) const {
    const float inverse = finish(a, tile, m, valid, top, sum, column == 0);
    const int64_t offset = valid ? tile.offset(m, a.o.stride) + column : 0;
    store_as<Dtype>(a.o.data, a.o_dtype, offset, valid, static_cast<int>(a.e) - column, o, half,
                    inverse);
  }
};

}  // namespace fovea::cuda
