// SPDX-License-Identifier: Apache-2.0
// Zeroes outputs that no block of a sweep stores.
#pragma once
#include "core/attend.h"
#include "cuda/launch.h"
#include "cuda/tile/convert.cuh"

namespace fovea::cuda {

// Zeroes a tensor, whatever its strides; `extent` is 1 where the stride is 0.
struct Extents {
  int64_t x[4];
};
template <int Threads>
__global__ void __launch_bounds__(Threads)
    zero_kernel(View<4> out, int32_t dtype, Extents extent, int64_t work) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * Threads;
  for (int64_t w = static_cast<int64_t>(blockIdx.x) * Threads + threadIdx.x; w < work;
       w += stride) {
    int64_t rest = w, offset = 0;
    for (int i = 3; i >= 0; --i) offset += rest % extent.x[i] * out.stride[i], rest /= extent.x[i];
    store_float(out.data, dtype, offset, 0);
  }
}

inline void zero(Context& ctx, const char* op, View<4> out, int32_t dtype, Extents extent) {
  int64_t work = 1;
  for (int i = 0; i < 4; ++i) {
    work *= extent.x[i];
    if (!out.stride[i]) extent.x[i] = 1;
  }
  if (!work) return;
  work = extent.x[0] * extent.x[1] * extent.x[2] * extent.x[3];
  constexpr int kThreads = 256;
  launch<zero_kernel<kThreads>>(ctx, op, ceil_div(work, kThreads), kThreads, 0, out, dtype, extent,
                                work);
}

// Some element of an output may belong to no row or key that a block visits.
inline bool ragged(const Attend& a) {
  const Sequences& q = a.sequences;
  return q.query_start || q.key_start || q.query_len || q.key_len || q.key_first ||
         q.query_max < q.s || q.key_max < q.capacity;
}

}  // namespace fovea::cuda
