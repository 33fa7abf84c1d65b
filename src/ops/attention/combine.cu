// SPDX-License-Identifier: Apache-2.0
// The merge of split-key partials (combine.cuh).  A warp owns 128 columns of one row and walks the
// splits in order; no shared memory.
#include "cuda/loop/score.cuh"
#include "cuda/loop/source.cuh"
#include "ops/attention/combine.cuh"

namespace fovea::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kColumns = 128;  // of a warp: four of a lane

__global__ void __launch_bounds__(kWarps * 32)
    combine_kernel(Attend a, Partials parts, int64_t work) {
  const int lane = threadIdx.x % 32;
  const int64_t chunks = (a.e + kColumns - 1) / kColumns;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t w = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; w < work;
       w += stride) {
    const int64_t chunk = w % chunks, h = w / chunks % a.h;
    const int64_t i = w / chunks / a.h % a.sequences.query_max;
    const Sequence seq = a.sequences[w / chunks / a.h / a.sequences.query_max];
    if (i >= seq.rows) continue;
    const int64_t token = seq.batch * a.s + seq.row_begin + i;

    const float sink = a.score.sink_logit ? sink_logit(a.score, h) : -INFINITY;
    float top = sink;
    bool bad = sink != sink;  // fmaxf drops NaN, the row must not
    for (int c = 0; c < parts.splits; ++c) {
      const float lse = *parts.lse_row(c, token, h);
      top = fmaxf(top, lse);
      bad |= lse != lse;
    }
    float sum = 0, acc[kColumns / 32] = {};
    if (top > -INFINITY || bad) {
      for (int c = 0; c < parts.splits; ++c) {
        const float lse = *parts.lse_row(c, token, h);
        if (lse == -INFINITY) continue;
        const float weight = expf(lse - top);
        sum += weight;
        const float* o = parts.o_row(c, token, h);
#pragma unroll
        for (int n = 0; n < kColumns / 32; ++n) {
          const int64_t column = chunk * kColumns + n * 32 + lane;
          if (column < a.e) acc[n] += weight * o[column];
        }
      }
      if (a.score.sink_logit) sum += expf(sink - top);
    }
    const float inverse = sum == 0 ? 0 : 1 / sum;
    const int64_t* o = a.o.stride;
    const int64_t row = seq.batch * o[0] + (seq.row_begin + i) * o[1] + h * o[2];
#pragma unroll
    for (int n = 0; n < kColumns / 32; ++n) {
      const int64_t column = chunk * kColumns + n * 32 + lane;
      if (column < a.e) store_float(a.o.data, a.o_dtype, row + column * o[3], acc[n] * inverse);
    }
    if (a.lse && chunk == 0 && lane == 0)
      a.lse.as()[seq.batch * a.lse.stride[0] + h * a.lse.stride[1] +
                 (seq.row_begin + i) * a.lse.stride[2]] = sum == 0 ? -INFINITY : top + logf(sum);
  }
}

}  // namespace

void combine(Context& ctx, const char* op, const Attend& a, const Partials& parts) {
  const int64_t work = a.sequences.count * a.sequences.query_max * a.h * ceil_div(a.e, kColumns);
  launch<combine_kernel>(ctx, op, ceil_div(work, kWarps), kWarps * 32, 0, a, parts, work);
}

}  // namespace fovea::cuda
