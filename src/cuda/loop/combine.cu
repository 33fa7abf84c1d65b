// SPDX-License-Identifier: Apache-2.0
// The merge of split-key partials (combine.cuh).  A warp owns 128 columns of one row and walks the
// splits in order; no shared memory.
#include "cuda/block/reduce.cuh"
#include "cuda/loop/combine.cuh"
#include "cuda/loop/score.cuh"
#include "cuda/loop/source.cuh"
#include "cuda/tile/order.cuh"

namespace fovea::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kColumns = 128;  // of a warp: four of a lane
constexpr int kAtOnce = 8;     // splits whose loads are in flight together

// Four columns of a row of `width`, 0 past its end.
__device__ inline float4 load_four(const float* row, int64_t column, int64_t width) {
  if (width % 4 == 0)
    return column < width ? *reinterpret_cast<const float4*>(row + column) : float4{};
  return {column < width ? row[column] : 0.f, column + 1 < width ? row[column + 1] : 0.f,
          column + 2 < width ? row[column + 2] : 0.f, column + 3 < width ? row[column + 3] : 0.f};
}

// Takes the last digit of `rest` to base `n`, in 32 bits where they do.
__device__ inline int64_t digit(int64_t& rest, int64_t n) {
  const int64_t all = rest;
  if ((all | n) >> 32 == 0)
    rest = static_cast<uint32_t>(all) / static_cast<uint32_t>(n);
  else
    rest = all / n;
  return all - rest * n;
}

__global__ void __launch_bounds__(kWarps * 32)
    combine_kernel(Attend a, Partials parts, int64_t work) {
  const int lane = threadIdx.x % 32;
  const int64_t chunks = (a.e + kColumns - 1) / kColumns;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t w = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; w < work;
       w += stride) {
    int64_t rest = w;
    const int64_t chunk = digit(rest, chunks), h = digit(rest, a.h);
    const int64_t i = digit(rest, a.sequences.query_max - parts.out.history);
    const Sequence seq = a.sequences[rest];
    const OutRows::Place out = parts.out.of(a.sequences, seq, rest);
    if (i >= out.count) continue;
    const int64_t token = seq.batch * parts.out.extent + out.begin + i;
    wait_for_previous();

    // A lane holds the lse of one split of 32.
    const auto lse_of = [&](int first) {
      return first + lane < parts.splits ? *parts.lse_row(first + lane, token, h) : -INFINITY;
    };
    const float sink = a.score.sink_logit ? sink_logit(a.score, h) : -INFINITY;
    float top = sink;
    bool bad = sink != sink;  // fmaxf drops NaN, the row must not
    for (int first = 0; first < parts.splits; first += 32) {
      const float lse = lse_of(first);
      top = fmaxf(top, lse);
      bad |= lse != lse;
    }
    top = lanes_max<32>(top), bad = __any_sync(~0u, bad);
    float sum = 0;
    float4 acc{};
    const int64_t column = chunk * kColumns + lane * 4;
    if (top > -INFINITY || bad) {
      for (int first = 0; first < parts.splits; first += 32) {
        const float lse = lse_of(first), mine = lse == -INFINITY ? 0.f : expf(lse - top);
        const uint32_t seen = __ballot_sync(~0u, lse != -INFINITY);
        const int count = min(parts.splits - first, 32);
        for (int c = 0; c < count; c += kAtOnce) {
          float4 o[kAtOnce];
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i)
            o[i] = seen >> c >> i & 1 ? load_four(parts.o_row(first + c + i, token, h), column, a.e)
                                      : float4{};
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) {
            const float weight = __shfl_sync(~0u, mine, c + i);
            sum += weight;
            acc.x += weight * o[i].x, acc.y += weight * o[i].y;
            acc.z += weight * o[i].z, acc.w += weight * o[i].w;
          }
        }
      }
      if (a.score.sink_logit) sum += expf(sink - top);
    }
    const float inverse = sum == 0 ? 0 : 1 / sum;
    const int64_t* o = a.o.stride;
    const int64_t row = seq.batch * o[0] + (out.begin + i) * o[1] + h * o[2];
    const float sums[4] = {acc.x, acc.y, acc.z, acc.w};
#pragma unroll
    for (int n = 0; n < 4; ++n)
      if (column + n < a.e)
        store_float(a.o.data, a.o_dtype, row + (column + n) * o[3], sums[n] * inverse);
    if (a.lse && chunk == 0 && lane == 0)
      a.lse.as()[seq.batch * a.lse.stride[0] + h * a.lse.stride[1] +
                 (out.begin + i) * a.lse.stride[2]] = sum == 0 ? -INFINITY : top + logf(sum);
  }
}

}  // namespace

void combine(Context& ctx, const char* op, const Attend& a, const Partials& parts) {
  const int64_t rows = a.sequences.query_max - parts.out.history;
  if (rows <= 0) return;
  const int64_t work = a.sequences.count * rows * a.h * ceil_div(a.e, kColumns);
  launch_early<combine_kernel>(ctx, op, ceil_div(work, kWarps), kWarps * 32, 0, a, parts, work);
}

}  // namespace fovea::cuda
