// SPDX-License-Identifier: Apache-2.0
// Sums of a block's own rows, 64 columns to a chunk, and where they go.
#pragma once
#include "ops/kl/stage_sides.cuh"

namespace fovea::cuda {

// Row r of a thread's sums, of columns from `first` on, times scale, to the row of `out` at element
// `offset`.
template <class Pairs, int Chunks>
__device__ __forceinline__ void store_sums(const View<4>& out, int32_t dtype, int64_t offset,
                                           int first, int width, float scale,
                                           const float (&acc)[Chunks][Pairs::R][Pairs::C], int r) {
#pragma unroll
  for (int n = 0; n < Chunks; ++n)
#pragma unroll
    for (int c = 0; c < Pairs::C; ++c) {
      const int column = first + n * Pairs::chunk + Pairs::column_of(c);
      if (column < width)
        store_float(out.data, dtype, offset + column * out.stride[3], scale * acc[n][r][c]);
    }
}

}  // namespace fovea::cuda
