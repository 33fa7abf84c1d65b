// SPDX-License-Identifier: Apache-2.0
// target[pair[i][1]] = source[pair[i][0]]: one item is one pair.
#include <cstring>

#include "host/device.h"
#include "ops/cache/kernels.h"

namespace fovea {
namespace {

void copy_page(const CacheCopy& a, int64_t i) {
  const int32_t* pair = a.pair.as<int32_t>() + i * a.pair.stride[0];
  const int64_t from = pair[0], to = pair[a.pair.stride[1]];
  if (from < 0 || to < 0 || from >= a.source_pages || to >= a.target_pages) return;
  for (int64_t slot = 0; slot < a.shape[0]; ++slot)
    for (int64_t head = 0; head < a.shape[1]; ++head) {
      const auto* x = a.source.as<unsigned char>() +
                      a.bytes * (from * a.source.stride[0] + slot * a.source.stride[1] +
                                 head * a.source.stride[2]);
      auto* y = a.target.as<unsigned char>() +
                a.bytes * (to * a.target.stride[0] + slot * a.target.stride[1] +
                           head * a.target.stride[2]);
      if (a.source.stride[3] == 1 && a.target.stride[3] == 1) {
        std::memcpy(y, x, static_cast<size_t>(a.bytes * a.shape[2]));
        continue;
      }
      for (int64_t c = 0; c < a.shape[2]; ++c)
        std::memcpy(y + a.bytes * c * a.target.stride[3], x + a.bytes * c * a.source.stride[3],
                    static_cast<size_t>(a.bytes));
    }
}

Text offer(const Context&, const CacheCopy& a, Plan& plan) {
  plan.launch = [a](Context& ctx, void*) {
    const int64_t page = a.shape[0] * a.shape[1] * a.shape[2];
    if (!page) return;
    host::pool(ctx).run(a.pairs, 0.2 * static_cast<double>(a.pairs * page * a.bytes),
                        [&](int64_t i, int32_t) { copy_page(a, i); });
  };
  return "";
}

}  // namespace

extern const Kernel<CacheCopy> cache_copy_host = {"", offer};

}  // namespace fovea
