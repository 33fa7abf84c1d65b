// SPDX-License-Identifier: Apache-2.0
// x_combine and x_compare: every dtype, width and stride.
//   y = sum of coefficient act(gate) x
// Forward, and gradients that do not sum: a warp owns a row of a head, a lane every 32nd column.
// A gradient with axes of stride 0: a block owns an element and adds its terms in a fixed order.
// dcoarse: a thread owns a column of a block of rows.  x_compare: a block owns a candidate of a
// head, a warp every 8th row; then a thread owns a head and finds its best.
#include "core/dtype.h"
#include "cuda/block/reduce.cuh"
#include "cuda/launch.h"
#include "ops/summary/combine.h"

namespace fovea {
namespace cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

__global__ void __launch_bounds__(kThreads, 1)
    combine_kernel(const __grid_constant__ Combine a, int64_t work) {
  for (int64_t w = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32; w < work;
       w += gridDim.x * int64_t{kWarps}) {
    const int64_t head = w % a.h, i = w / a.h % a.s, batch = w / a.h / a.s;
    if (i >= a.rows(batch)) continue;
    const int64_t block = a.u ? a.block_of(batch, i) : -1;
    for (int64_t c = threadIdx.x % 32; c < a.e; c += 32) combine_store(a, batch, i, head, c, block);
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    combine_each_kernel(const __grid_constant__ Combine a, const __grid_constant__ CombineSum sum,
                        int64_t work) {
  for (int64_t w = blockIdx.x * int64_t{kThreads} + threadIdx.x; w < work;
       w += gridDim.x * int64_t{kThreads})
    sum.store(w, sum.value(a, w, 0));
}

__global__ void __launch_bounds__(kThreads, 1)
    combine_sum_kernel(const __grid_constant__ Combine a, const __grid_constant__ CombineSum sum,
                       int64_t work) {
  __shared__ double shared[kWarps];
  const int64_t terms = sum.terms();
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    double all = 0;
    for (int64_t term = threadIdx.x; term < terms; term += kThreads)
      all += static_cast<double>(sum.value(a, w, term));
    all = block_sum<kThreads>(all, shared);
    if (threadIdx.x == 0) sum.store(w, static_cast<float>(all));
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    combine_coarse_kernel(const __grid_constant__ Combine a, int64_t work) {
  const View<4>& to = a.term[kCombineTerms - 1].dx;
  for (int64_t w = blockIdx.x * int64_t{kThreads} + threadIdx.x; w < work;
       w += gridDim.x * int64_t{kThreads}) {
    const int64_t c = w % a.e, head = w / a.e % a.h, row = w / a.e / a.h % a.u;
    const int64_t batch = w / a.e / a.h / a.u;
    store_fp(to.data, a.dtype, combine_at(to, batch, row, head, c),
             combine_dcoarse(a, batch, row, head, c));
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    compare_kernel(const __grid_constant__ Compare a, float* distance, int64_t work) {
  __shared__ double shared[kWarps];
  const int lane = threadIdx.x % 32;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t h = w % a.h, b = w / a.h % a.b, n = w / a.h / a.b, rows = a.rows(b);
    double sum = 0;
    for (int64_t i = threadIdx.x / 32; i < rows; i += kWarps) {
      float own = 0, other = 0, part = 0;
      if (a.jsd) {
        for (int64_t c = lane; c < a.e; c += 32)
          own += a.own(b, i, h, c), other += a.other(n, b, i, h, c);
        own = lanes_sum<32>(own), other = lanes_sum<32>(other);
      }
      for (int64_t c = lane; c < a.e; c += 32) {
        const float x = a.own(b, i, h, c), y = a.other(n, b, i, h, c);
        part +=
            a.jsd ? compare_jsd(compare_share(x, own), compare_share(y, other)) : (y - x) * (y - x);
      }
      part = lanes_sum<32>(part);
      if (lane == 0) sum += static_cast<double>(a.jsd ? sqrtf(part < 0 ? 0.f : part) : part);
    }
    sum = block_sum<kThreads>(sum, shared);
    if (threadIdx.x) continue;
    const double count = static_cast<double>(a.jsd ? rows : rows * a.e);
    distance[w] = count > 0 ? static_cast<float>(sum / count) : 0;
    if (a.distance) *a.distance.at(n, b, h) = distance[w];
  }
}

__global__ void __launch_bounds__(kThreads)
    compare_best_kernel(const __grid_constant__ Compare a, const float* distance, int64_t heads) {
  for (int64_t w = blockIdx.x * int64_t{kThreads} + threadIdx.x; w < heads;
       w += gridDim.x * int64_t{kThreads}) {
    int32_t best = -1;
    float least = 0;
    for (int64_t n = 0; n < a.n; ++n)
      if (compare_better(distance[n * heads + w], least, best >= 0))
        best = static_cast<int32_t>(n), least = distance[n * heads + w];
    *a.best.at<int32_t>(w / a.h, w % a.h) = best;
  }
}

void enqueue_backward(Context& ctx, const Combine& a) {
  constexpr char op[] = "x_combine_backward";
  each_combine_sum(a, [&](const CombineSum& sum) {
    const int64_t work = sum.elements();
    if (sum.terms() == 1)
      launch<combine_each_kernel>(ctx, op, ceil_div(work, kThreads), kThreads, 0, a, sum, work);
    else
      launch<combine_sum_kernel>(ctx, op, work, kThreads, 0, a, sum, work);
  });
  if (!a.term[kCombineTerms - 1].dx) return;
  const int64_t work = a.b * a.u * a.h * a.e;
  launch<combine_coarse_kernel>(ctx, op, ceil_div(work, kThreads), kThreads, 0, a, work);
}

}  // namespace
}  // namespace cuda

extern const Kernel<Combine> combine_forward_simt = {
    "simt", [](const Context&, const Combine& a, Plan& plan) {
      plan.kernel += Text(".") + dtype_name(a.dtype);
      plan.launch = [a](Context& ctx, void*) {
        const int64_t rows = a.e ? a.b * a.s * a.h : 0;
        cuda::launch<cuda::combine_kernel>(ctx, "x_combine_forward",
                                           cuda::ceil_div(rows, cuda::kWarps), cuda::kThreads, 0, a,
                                           rows);
      };
      return Text();
    }};

extern const Kernel<Combine> combine_backward_simt = {
    "simt", [](const Context&, const Combine& a, Plan& plan) {
      plan.kernel += Text(".") + dtype_name(a.dtype);
      plan.launch = [a](Context& ctx, void*) { cuda::enqueue_backward(ctx, a); };
      return Text();
    }};

extern const Kernel<Compare> compare_forward_simt = {
    "simt", [](const Context&, const Compare& a, Plan& plan) {
      plan.kernel += Text(".") + dtype_name(a.dtype);
      const auto distance = plan.workspace.add<float>(a.n, a.b, a.h);
      plan.launch = [=](Context& ctx, void* base) {
        constexpr char op[] = "x_compare_forward";
        if (!a.distance && !a.best) return;
        const int64_t heads = a.b * a.h, work = a.n * heads;
        float* const to = distance.at(base);
        cuda::launch<cuda::compare_kernel>(ctx, op, work, cuda::kThreads, 0, a, to, work);
        if (a.best)
          cuda::launch<cuda::compare_best_kernel>(ctx, op, cuda::ceil_div(heads, cuda::kThreads),
                                                  cuda::kThreads, 0, a,
                                                  static_cast<const float*>(to), heads);
      };
      return Text();
    }};

}  // namespace fovea
