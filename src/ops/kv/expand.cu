// SPDX-License-Identifier: Apache-2.0
// Keys and values of x_kv_decode as numbers: a warp owns a token's head.
#include <algorithm>

#include "cuda/launch.h"
#include "ops/kv/expand_item.h"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "x_kv_decode";
constexpr int kThreads = 256, kRows = kThreads / 32;

__global__ void __launch_bounds__(kThreads)
    form_kernel(const __grid_constant__ KvExpand x, int64_t tiles, int64_t work) {
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t r = w / tiles, row = w % tiles * kRows + threadIdx.x / 32;
    if (row < x.tokens * x.cache.g)
      kv::form_token(x, r, row / x.cache.g, row % x.cache.g, threadIdx.x % 32, 32);
  }
}

__global__ void __launch_bounds__(kThreads)
    place_kernel(const __grid_constant__ KvExpand x, int64_t blocks) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < x.count * blocks;
       i += int64_t{gridDim.x} * kThreads)
    kv::form_place(x, i / blocks, i % blocks);
}

void expand(Context& ctx, const KvExpand& x) {
  const int64_t blocks = std::max<int64_t>(x.tokens / x.cache.group, 1);
  launch<place_kernel>(ctx, kOp, ceil_div(x.count * blocks, int64_t{kThreads}), kThreads, 0, x,
                       blocks);
  const int64_t tiles = ceil_div(x.tokens * x.cache.g, int64_t{kRows});
  launch<form_kernel>(ctx, kOp, x.count * tiles, kThreads, 0, x, tiles, x.count * tiles);
}

}  // namespace
}  // namespace cuda

extern const Kernel<KvExpand> kv_expand_simt = {
    "simt", [](const Context&, const KvExpand& x, Plan& plan) {
      plan.launch = [x](Context& ctx, void*) { cuda::expand(ctx, x); };
      return Text();
    }};

}  // namespace fovea
