// SPDX-License-Identifier: Apache-2.0
// k_out[i, j] = k of sequence i, token j: one item is one row of k_out.
#include "core/dtype.h"
#include "host/device.h"
#include "ops/cache/get_row.h"

namespace fovea {
namespace {

template <int V, class Cache, class Out>
void get_rows(const CacheGet& a, int64_t slot) {
  const Token token = get_token(a, slot);
  if (token.number < 0) return;
  const int64_t offset = a.sequences.key_offset(token.sequence, token.index, a.k.stride);
  for (int64_t head = 0; head < a.g; ++head)
    for (int64_t unit = 0; unit < a.d / V; ++unit)
      get_unit<V, Cache, Out>(a, token, offset, head, unit);
}

Text offer(const Context&, const CacheGet& a, Plan& plan) {
  plan.kernel += Text(".") + dtype_name(a.k_dtype) + "." + dtype_name(a.out_dtype);
  plan.launch = [a](Context& ctx, void*) {
    with_cache_type(a.k_dtype, [&](auto cache) {
      with_fp(a.out_dtype, [&](auto out) {
        using Cache = decltype(cache);
        using Out = decltype(out);
        const bool is_wide = wide<Cache, Out>(a);
        const int64_t slots = token_slots(a.sequences);
        host::pool(ctx).run(slots, static_cast<double>(slots * a.g * a.d),
                            [&](int64_t slot, int32_t) {
                              if (is_wide)
                                get_rows<kWide<Cache, Out>, Cache, Out>(a, slot);
                              else
                                get_rows<1, Cache, Out>(a, slot);
                            });
      });
    });
  };
  return "";
}

}  // namespace

extern const Kernel<CacheGet> cache_get_host = {"", offer};

}  // namespace fovea
