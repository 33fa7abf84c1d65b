// SPDX-License-Identifier: Apache-2.0
// Inverts row: source[n][row[n][j]] = j.  The maximum makes the last of repeated rows win whatever
// the order of threads.
#include "ops/merge/source.cuh"

namespace fovea {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) merge_source_kernel(Merge a) {
  for (int64_t w = blockIdx.x * int64_t{kThreads} + threadIdx.x; w < a.n * a.u;
       w += int64_t{gridDim.x} * kThreads) {
    const int64_t part = w / a.u, j = w % a.u, i = a.row_of(part, j);
    if (i >= 0 && i < a.s) atomicMax(a.source + part * a.s + i, static_cast<int32_t>(j));
  }
}

}  // namespace

void build_source(Context& ctx, const char* op, const Merge& a) {
  if (!a.source) return;
  const size_t bytes = static_cast<size_t>(a.n * a.s) * sizeof(int32_t);
  cuda::check(cudaMemsetAsync(a.source, 0xff, bytes, cuda::stream(ctx)), op);
  cuda::launch<merge_source_kernel>(ctx, op, cuda::ceil_div(a.n * a.u, int64_t{kThreads}), kThreads,
                                    0, a);
}

}  // namespace fovea
