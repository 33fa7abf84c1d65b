// SPDX-License-Identifier: Apache-2.0
// x_group_norm_forward and _backward: every dtype, width and stride.
//   y = factor gain x z, z = 1 / sqrt(mean(x^2) + eps)
//   dx = factor z (gain dy - x z^2 mean(gain dy x)),  dgain = factor sum dy x z
// A warp owns a row of a head.  dgain has two passes.  A block owns 32 columns of a head and a part
// of all batches' rows, whose z it reads.  Then a thread owns an element and adds parts in order.
#include "core/dtype.h"
#include "cuda/block/reduce.cuh"
#include "cuda/launch.h"
#include "cuda/tile/convert.cuh"
#include "ops/norm/kernels.h"

namespace fovea {
namespace cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

struct NormCall {
  GroupNormBackward b;
  float* z;       // (b, s, h): factor z, of the backward
  double* parts;  // (parts, h, e) of dgain
};

__device__ __forceinline__ int64_t offset(const View<4>& x, int64_t batch, int64_t i,
                                          int64_t head) {
  return batch * x.stride[0] + i * x.stride[1] + head * x.stride[2];
}

__device__ __forceinline__ float gain_of(const GroupNorm& n, int64_t head, int64_t c) {
  return n.gain
             ? load_float(n.gain.data, n.gain_dtype, head * n.gain.stride[0] + c * n.gain.stride[1])
             : 1.f;
}

template <bool Backward>
__global__ void __launch_bounds__(kThreads)
    norm_rows_kernel(const __grid_constant__ NormCall call, int64_t work) {
  const GroupNorm& n = call.b.forward;
  const int lane = threadIdx.x % 32;
  for (int64_t w = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32; w < work;
       w += gridDim.x * int64_t{kWarps}) {
    const int64_t head = w % n.h, i = w / n.h % n.s, batch = w / n.h / n.s;
    const bool there = i < n.rows(batch);
    const int64_t x_at = offset(n.x, batch, i, head), y_at = offset(n.y, batch, i, head);
    const auto x = [&](int64_t c) {
      return load_float(n.x.data, n.dtype, x_at + c * n.x.stride[3]);
    };
    const auto dy = [&](int64_t c) {
      return load_float(n.y.data, n.y_dtype, y_at + c * n.y.stride[3]);
    };
    float squares = 0.f, pull = 0.f, z = 0.f;
    if (there) {
      for (int64_t c = lane; c < n.e; c += 32) squares = fmaf(x(c), x(c), squares);
      squares = lanes_sum<32>(squares);
      z = 1.f / sqrtf(squares / static_cast<float>(n.e) + n.eps);
    }
    if (!Backward) {
      if (there)
        for (int64_t c = lane; c < n.e; c += 32)
          store_float(n.y.data, n.y_dtype, y_at + c * n.y.stride[3],
                      gain_of(n, head, c) * (x(c) * (n.factor * z)));
      continue;
    }
    if (call.z && lane == 0) call.z[w] = n.factor * z;
    if (!call.b.dx) continue;
    if (there) {
      for (int64_t c = lane; c < n.e; c += 32)
        pull = fmaf(gain_of(n, head, c) * dy(c), x(c) * z, pull);
      pull = lanes_sum<32>(pull) / static_cast<float>(n.e);
    }
    const View<4>& dx = call.b.dx;
    for (int64_t c = lane; c < n.e; c += 32)
      store_float(dx.data, n.dtype, offset(dx, batch, i, head) + c * dx.stride[3],
                  there ? n.factor * z * (gain_of(n, head, c) * dy(c) - x(c) * z * pull) : 0.f);
  }
}

__global__ void __launch_bounds__(kThreads)
    norm_gain_kernel(const __grid_constant__ NormCall call, int64_t work) {
  __shared__ double s_sum[kWarps][32];
  const GroupNorm& n = call.b.forward;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t chunks = (n.e + 31) / 32, parts = call.b.parts(), rows = n.b * n.s;
  const int64_t each = (rows + parts - 1) / parts;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t c = w % chunks * 32 + lane, head = w / chunks % n.h, part = w / chunks / n.h;
    double sum = 0;
    if (c < n.e)
      for (int64_t row = part * each + warp; row < min(rows, (part + 1) * each); row += kWarps) {
        const int64_t batch = row / n.s, i = row % n.s;
        if (i >= n.rows(batch)) continue;
        const float x =
            load_float(n.x.data, n.dtype, offset(n.x, batch, i, head) + c * n.x.stride[3]);
        const float dy =
            load_float(n.y.data, n.y_dtype, offset(n.y, batch, i, head) + c * n.y.stride[3]);
        sum += static_cast<double>(dy) * (x * call.z[row * n.h + head]);
      }
    __syncthreads();
    s_sum[warp][lane] = sum;
    __syncthreads();
    if (warp == 0 && c < n.e) {
      sum = 0;
      for (int k = 0; k < kWarps; ++k) sum += s_sum[k][lane];
      call.parts[(part * n.h + head) * n.e + c] = sum;
    }
  }
}

// A stride of 0 makes one element of its dimension.
__global__ void __launch_bounds__(kThreads)
    norm_add_kernel(const __grid_constant__ NormCall call, int64_t work) {
  const GroupNorm& n = call.b.forward;
  const View<2>& to = call.b.dgain;
  const int64_t columns = to.stride[1] ? n.e : 1, parts = call.b.parts();
  for (int64_t w = blockIdx.x * int64_t{kThreads} + threadIdx.x; w < work;
       w += gridDim.x * int64_t{kThreads}) {
    const int64_t c = w % columns, head = w / columns;
    float all = 0.f;
    for (int64_t h = head; h < (to.stride[0] ? head + 1 : n.h); ++h)
      for (int64_t k = c; k < (to.stride[1] ? c + 1 : n.e); ++k) {
        double sum = 0;
        for (int64_t part = 0; part < parts; ++part) sum += call.parts[(part * n.h + h) * n.e + k];
        all += static_cast<float>(sum);
      }
    to.as()[head * to.stride[0] + c * to.stride[1]] = all;
  }
}

void enqueue_backward(Context& ctx, const NormCall& call) {
  constexpr char op[] = "x_group_norm_backward";
  const GroupNorm& n = call.b.forward;
  const int64_t rows = n.b * n.s * n.h;
  launch<norm_rows_kernel<true>>(ctx, op, ceil_div(rows, kWarps), kThreads, 0, call, rows);
  const View<2>& to = call.b.dgain;
  if (!to) return;
  const int64_t work = ceil_div(n.e, 32) * n.h * call.b.parts();
  launch<norm_gain_kernel>(ctx, op, work, kThreads, 0, call, work);
  const int64_t sums = n.h ? (to.stride[0] ? n.h : 1) * (to.stride[1] ? n.e : 1) : 0;
  launch<norm_add_kernel>(ctx, op, ceil_div(sums, kThreads), kThreads, 0, call, sums);
}

}  // namespace
}  // namespace cuda

extern const Kernel<GroupNorm> group_norm_forward_simt = {
    "simt", [](const Context&, const GroupNorm& n, Plan& plan) {
      plan.kernel += Text(".") + dtype_name(n.dtype);
      plan.launch = [n](Context& ctx, void*) {
        cuda::NormCall call{};
        call.b.forward = n;
        const int64_t rows = n.b * n.s * n.h;
        cuda::launch<cuda::norm_rows_kernel<false>>(ctx, "x_group_norm_forward",
                                                    cuda::ceil_div(rows, cuda::kWarps),
                                                    cuda::kThreads, 0, call, rows);
      };
      return Text();
    }};

extern const Kernel<GroupNormBackward> group_norm_backward_simt = {
    "simt", [](const Context&, const GroupNormBackward& b, Plan& plan) {
      const GroupNorm& n = b.forward;
      plan.kernel += Text(".") + dtype_name(n.dtype);
      const auto z = plan.workspace.add<float>(b.dgain ? n.b * n.s * n.h : 0);
      const auto parts = plan.workspace.add<double>(b.dgain ? b.parts() * n.h * n.e : 0);
      plan.launch = [=](Context& ctx, void* base) {
        cuda::enqueue_backward(ctx, {b, z.at(base), parts.at(base)});
      };
      return Text();
    }};

}  // namespace fovea
