// SPDX-License-Identifier: Apache-2.0
// x_select_heads: a block owns a batch.
//   features    a thread owns a row of a head's matrix
//   distances   a thread owns a pair of heads
//   merges      every thread looks at some pairs of clusters; the best of the block is found in the
//               order of ClusterPair, which no two pairs share
// Features and distances are in the workspace.
#include "core/dtype.h"
#include "cuda/launch.h"
#include "cuda/tile/convert.cuh"
#include "ops/select/heads.h"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "x_select_heads";
constexpr int kThreads = 256;

struct HeadsShared {
  int32_t first[kClusterHeadsMost], size[kClusterHeadsMost];
  ClusterPair best[kThreads / 32];
};

__device__ __forceinline__ ClusterPair best_of_warp(ClusterPair own) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const ClusterPair other{__shfl_xor_sync(~0u, own.distance, step),
                            __shfl_xor_sync(~0u, own.i, step), __shfl_xor_sync(~0u, own.j, step)};
    if (other.before(own)) own = other;
  }
  return own;
}

// The two clusters that are closest become one.
__device__ __forceinline__ void merge(const SelectHeads& a, HeadsShared& s, float* distance) {
  const int h = static_cast<int>(a.h);
  ClusterPair own{INFINITY, INT32_MAX, INT32_MAX};
  for (int e = threadIdx.x; e < h * h; e += kThreads) {
    const int i = e / h, j = e % h;
    if (j <= i || !s.size[i] || !s.size[j]) continue;
    const ClusterPair pair{__fdiv_rn(distance[e], static_cast<float>(s.size[i] * s.size[j])), i, j};
    if (pair.before(own)) own = pair;
  }
  own = best_of_warp(own);
  if (threadIdx.x % 32 == 0) s.best[threadIdx.x / 32] = own;
  __syncthreads();
  ClusterPair best = s.best[0];
  for (int w = 1; w < kThreads / 32; ++w)
    if (s.best[w].before(best)) best = s.best[w];
  // The diagonal of best.i is added to by its own column alone, so every sum has one writer.
  for (int c = threadIdx.x; c < h; c += kThreads) {
    if (s.first[c] == best.j) s.first[c] = best.i;
    const float sum = distance[best.i * h + c] + distance[best.j * h + c];
    distance[best.i * h + c] = sum;
  }
  __syncthreads();
  for (int c = threadIdx.x; c < h; c += kThreads)
    distance[c * h + best.i] = distance[best.i * h + c];
  if (threadIdx.x == 0) s.size[best.i] += s.size[best.j], s.size[best.j] = 0;
  __syncthreads();
}

__global__ void __launch_bounds__(kThreads)
    heads_kernel(const __grid_constant__ SelectHeads a, float* features, float* distances) {
  __shared__ HeadsShared s;
  const int64_t each = a.s * a.s;
  for (int64_t batch = blockIdx.x; batch < a.b; batch += gridDim.x) {
    const int64_t tokens = a.tokens(batch);
    float* const feature = features + batch * a.h * each;
    float* const distance = distances + batch * a.h * a.h;
    for (int64_t e = threadIdx.x; e < a.h * tokens; e += kThreads) {
      const int64_t head = e / tokens, i = e % tokens;
      const int64_t q = batch * a.q.stride[0] + i * a.q.stride[1] + head * a.q.stride[2];
      for (int64_t j = 0; j < tokens; ++j) {
        const int64_t k =
            batch * a.k.stride[0] + j * a.k.stride[1] + head / (a.h / a.g) * a.k.stride[2];
        float sum = 0;
        for (int64_t c = 0; c < a.d; ++c)
          sum = fmaf(load_float(a.q.data, a.q_dtype, q + c * a.q.stride[3]),
                     load_float(a.k.data, a.k_dtype, k + c * a.k.stride[3]), sum);
        feature[head * each + i * a.s + j] = a.scale * sum;
      }
      a.soften(feature + head * each, i, tokens);
    }
    for (int i = threadIdx.x; i < a.h; i += kThreads) s.first[i] = i, s.size[i] = 1;
    __syncthreads();
    // Squares first: on the diagonal, which no distance is read from.
    const auto product = [&](int64_t i, int64_t j) {
      return a.product(feature + i * each, feature + j * each, tokens);
    };
    for (int64_t i = threadIdx.x; i < a.h; i += kThreads) distance[i * a.h + i] = product(i, i);
    __syncthreads();
    for (int64_t e = threadIdx.x; e < a.h * a.h; e += kThreads) {
      const int64_t i = e / a.h, j = e % a.h;
      if (i == j) continue;
      distance[e] = a.distance(product(i < j ? i : j, i < j ? j : i), distance[i * a.h + i],
                               distance[j * a.h + j]);
    }
    __syncthreads();
    for (int64_t left = a.h; left > a.wanted(batch); --left) merge(a, s, distance);
    if (threadIdx.x == 0) {
      int32_t count = 0;
      for (int i = 0; i < a.h; ++i)
        if (s.first[i] == i) s.size[i] = count++;
      if (a.count) *a.count.at<int32_t>(batch) = count;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < a.h; i += kThreads) {
      *a.head_map.at<int32_t>(batch, i) = s.first[i];
      if (a.label) *a.label.at<int32_t>(batch, i) = s.size[s.first[i]];
    }
    __syncthreads();
  }
}

}  // namespace
}  // namespace cuda

extern const Kernel<SelectHeads> x_select_heads_simt = {
    "simt", [](const Context&, const SelectHeads& a, Plan& plan) {
      const auto feature = plan.workspace.add<float>(a.b, a.h, a.s, a.s);
      const auto distance = plan.workspace.add<float>(a.b, a.h, a.h);
      plan.kernel += Text(".") + dtype_name(a.q_dtype);
      plan.launch = [=](Context& ctx, void* base) {
        if (a.h)
          cuda::launch<cuda::heads_kernel>(ctx, cuda::kOp, a.b, cuda::kThreads, 0, a,
                                           feature.at(base), distance.at(base));
      };
      return Text();
    }};

}  // namespace fovea
