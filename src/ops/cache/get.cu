// SPDX-License-Identifier: Apache-2.0
// k_out[i, j] = k of sequence i, token j.  A thread owns V columns of one head row: 16 bytes of the
// wider type where layout and alignment allow, else one element.
#include "core/dtype.h"
#include "cuda/launch.h"
#include "ops/cache/get_row.h"

namespace fovea {
namespace {

constexpr int kThreads = 256;

template <class Cache, class Out, int V>
__global__ void __launch_bounds__(kThreads) cache_get_kernel(CacheGet a) {
  const int64_t units = a.d / V, work = token_slots(a.sequences) * a.g * units;
  for (int64_t w = blockIdx.x * int64_t{kThreads} + threadIdx.x; w < work;
       w += int64_t{gridDim.x} * kThreads) {
    const Token token = get_token(a, w / units / a.g);
    if (token.number >= 0) get_unit<V, Cache, Out>(a, token, w / units % a.g, w % units);
  }
}

std::string refuses(const Context&, const CacheGet&) {
  return "";
}

void prepare(const Context&, const CacheGet& a, Plan& plan) {
  plan.kernel += std::string(".") + dtype_name(a.k_dtype) + "." + dtype_name(a.out_dtype);
  plan.launch = [a](Context& ctx, void*) {
    with_cache_type(a.k_dtype, [&](auto cache) {
      with_fp(a.out_dtype, [&](auto out) {
        using Cache = decltype(cache);
        using Out = decltype(out);
        constexpr char op[] = "cache_get";
        constexpr int kV = kWide<Cache, Out>;
        const bool is_wide = wide<Cache, Out>(a);
        const int64_t work = token_slots(a.sequences) * a.g * (a.d / (is_wide ? kV : 1));
        const int64_t blocks = cuda::ceil_div(work, int64_t{kThreads});
        if (is_wide)
          cuda::launch<cache_get_kernel<Cache, Out, kV>>(ctx, op, blocks, kThreads, 0, a);
        else
          cuda::launch<cache_get_kernel<Cache, Out, 1>>(ctx, op, blocks, kThreads, 0, a);
      });
    });
  };
}

}  // namespace

const Kernel<CacheGet> cache_get_cuda = {"cache_get.cuda", refuses, prepare};

}  // namespace fovea
