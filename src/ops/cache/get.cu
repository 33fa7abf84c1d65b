// SPDX-License-Identifier: Apache-2.0
// k_out[i, j] = k of sequence i, token j.  `lanes` threads own one token, about four units of V
// columns each: 16 bytes of the wider type where layout and alignment allow, else one element.
#include "core/dtype.h"
#include "cuda/launch.h"
#include "ops/cache/get_row.h"

namespace fovea {
namespace {

constexpr int kThreads = 256;

template <class Cache, class Out, int V>
__global__ void __launch_bounds__(kThreads)
    cache_get_kernel(const __grid_constant__ CacheGet a, int lanes) {
  const int64_t slots = token_slots(a.sequences), tokens = kThreads / lanes, units = a.d / V;
  for (int64_t slot = blockIdx.x * tokens + threadIdx.x / lanes; slot < slots;
       slot += gridDim.x * tokens) {
    const Token token = get_token(a, slot);
    if (token.number < 0) continue;
    const int64_t offset = a.sequences.key_offset(token.sequence, token.index, a.k.stride);
    for (int64_t w = threadIdx.x % lanes; w < a.g * units; w += lanes) {
      const int64_t head = quotient(w, units);
      get_unit<V, Cache, Out>(a, token, offset, head, w - head * units);
    }
  }
}

Text offer(const Context&, const CacheGet& a, Plan& plan) {
  plan.kernel += Text(".") + dtype_name(a.k_dtype) + "." + dtype_name(a.out_dtype);
  plan.launch = [a](Context& ctx, void*) {
    with_cache_type(a.k_dtype, [&](auto cache) {
      with_fp(a.out_dtype, [&](auto out) {
        using Cache = decltype(cache);
        using Out = decltype(out);
        constexpr char op[] = "cache_get";
        constexpr int kV = kWide<Cache, Out>;
        const bool is_wide = wide<Cache, Out>(a);
        const int64_t work = a.g * (a.d / (is_wide ? kV : 1));
        if (!work) return;
        const int lanes = lanes_of((work + 3) / 4, kThreads);
        const int64_t blocks = cuda::ceil_div(token_slots(a.sequences), int64_t{kThreads / lanes});
        if (is_wide)
          cuda::launch<cache_get_kernel<Cache, Out, kV>>(ctx, op, blocks, kThreads, 0, a, lanes);
        else
          cuda::launch<cache_get_kernel<Cache, Out, 1>>(ctx, op, blocks, kThreads, 0, a, lanes);
      });
    });
  };
  return "";
}

}  // namespace

extern const Kernel<CacheGet> cache_get_cuda = {"", offer};

}  // namespace fovea
