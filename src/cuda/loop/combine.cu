// SPDX-License-Identifier: Apache-2.0
// The merge of split-K (combine.cuh).  A warp owns 128 columns of a row; no shared memory.
#include "core/locate.h"
#include "cuda/loop/combine_row.cuh"
#include "cuda/loop/source.cuh"
#include "cuda/tile/order.cuh"

namespace fovea::cuda {
namespace {

constexpr int kWarps = 4;

__global__ void __launch_bounds__(kWarps * 32)
    combine_kernel(Attend a, Partials parts, int64_t work) {
  const int64_t chunks = (a.e + kMergeColumns - 1) / kMergeColumns;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t w = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; w < work;
       w += stride) {
    int64_t rest = w;
    const auto digit = [&](int64_t n) {
      const int64_t all = rest;
      rest = quotient(all, n);
      return all - rest * n;
    };
    const int64_t chunk = digit(chunks), h = digit(a.h);
    const int64_t i = digit(a.sequences.query_max - parts.out.history);
    const Sequence seq = a.sequences[rest];
    const OutRows::Place out = parts.out.of(a.sequences, seq, rest);
    if (i >= out.count || (parts.skip_head && parts.skip_head[h])) continue;
    pdl_wait();
    combine_row(a, parts, seq.batch, out.begin + i, h, chunk);
  }
}

}  // namespace

void combine(Context& ctx, const char* op, const Attend& a, const Partials& parts) {
  const int64_t rows = a.sequences.query_max - parts.out.history;
  if (rows <= 0) return;
  const int64_t work = a.sequences.count * rows * a.h * ceil_div(a.e, kMergeColumns);
  launch_pdl<combine_kernel>(ctx, op, ceil_div(work, kWarps), kWarps * 32, 0, a, parts, work);
}

}  // namespace fovea::cuda
