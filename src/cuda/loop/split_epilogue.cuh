// SPDX-License-Identifier: Apache-2.0
// The epilogue of split-K in two kernels: combine() merges (combine.cuh).
#pragma once
#include "cuda/loop/combine.cuh"
#include "cuda/loop/epilogue.cuh"

namespace fovea::cuda {

// Stores a split's o / l and lse in f32 for the merge, which adds the sink logit.  A single split
// is the result.
struct SplitEpilogue {
  Partials parts;
  int32_t splits;

  template <int Dtype, int N>
  __device__ void store(const Attend& a, const RowTile& tile, int m, bool valid, int split,
                        float top, float sum, const float (&o)[N][4], int half,
                        int column = 0) const {
    if (splits == 1) {
      DirectEpilogue().store<Dtype>(a, tile, m, valid, split, top, sum, o, half, column);
      return;
    }
    if (!valid) return;
    const int64_t token = tile.token(a, m), h = tile.head(m);
    store_wide(parts.o_row(split, token, h) + column, static_cast<int>(a.e) - column, o, half,
               sum == 0.f ? 0.f : 1.f / sum);
    if (threadIdx.x % 4 == 0 && column == 0)
      *parts.lse_row(split, token, h) = sum == 0.f ? kNegativeInfinity : (top + log2f(sum)) * kLn2;
  }
};

}  // namespace fovea::cuda
