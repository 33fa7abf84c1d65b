// SPDX-License-Identifier: Apache-2.0
// The online softmax of the rows of a thread of stage.cuh, as in softmax.cuh but in natural units.
// l is the thread's own share; end() adds the 16 lanes'.
#pragma once
#include "cuda/block/reduce.cuh"

namespace fovea::cuda {

// A finished row: its weights were factor e^(x - top) and sum to `sum`.  factor < 1 where the
// attention sink is the heaviest term.
struct StageRow {
  float top, sum, factor;
  __device__ float lse() const { return sum == 0 ? -INFINITY : top + logf(sum); }
};

template <int R>
struct StageSoftmax {
  float m[R], l[R];

  __device__ StageSoftmax() {
#pragma unroll
    for (int r = 0; r < R; ++r) m[r] = -INFINITY, l[r] = 0;
  }

  // Products x become scores by score(r, c, x), then weights; o is rescaled.
  template <int Chunks, class Score>
  __device__ __forceinline__ void weigh(float (&x)[R][4], float (&o)[Chunks][R][4], Score score) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      float top = m[r];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        x[r][c] = score(r, c, x[r][c]);
        top = fmaxf(top, x[r][c]);
      }
      top = lanes_max<16>(top);
      const float base = top == -INFINITY ? 0 : top;
      const float alpha = expf(m[r] - base);
      m[r] = top;
      l[r] *= alpha;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        x[r][c] = expf(x[r][c] - base);
        l[r] += x[r][c];
      }
#pragma unroll
      for (int chunk = 0; chunk < Chunks; ++chunk)
#pragma unroll
        for (int c = 0; c < 4; ++c) o[chunk][r][c] *= alpha;
    }
  }

  // Row r; `sink` is the logit of a key without a value, -inf for none.
  __device__ StageRow end(int r, float sink) const {
    StageRow row{m[r] == -INFINITY ? 0 : m[r], lanes_sum<16>(l[r]), 1};
    const float base = fmaxf(m[r], sink);
    if (base > -INFINITY) {
      row.factor = expf(m[r] - base);
      row.sum = row.sum * row.factor + expf(sink - base);
      row.top = base;
    }
    return row;
  }
};

}  // namespace fovea::cuda
