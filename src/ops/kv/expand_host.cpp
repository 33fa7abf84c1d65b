// SPDX-License-Identifier: Apache-2.0
// Keys and values of x_kv_decode as numbers, on the CPU.  An item is a group of tokens.
#include <algorithm>

#include "host/device.h"
#include "ops/kv/expand_item.h"

namespace fovea {
namespace {

void expand(Context& ctx, const KvExpand& x) {
  const kv::Cache& c = x.cache;
  const int64_t blocks = std::max<int64_t>(x.tokens / c.group, 1), items = x.count * blocks;
  const double numbers = static_cast<double>(c.group * c.g) * static_cast<double>(c.d + c.e);
  host::pool(ctx).run(items, static_cast<double>(items) * numbers * 2, [&](int64_t n, int32_t) {
    const int64_t r = n / blocks, first = n % blocks * c.group;
    kv::form_place(x, r, n % blocks);
    for (int64_t j = first; j < std::min(x.tokens, first + c.group); ++j)
      for (int64_t head = 0; head < c.g; ++head) kv::form_token(x, r, j, head, 0, 1);
  });
}

}  // namespace

extern const Kernel<KvExpand> kv_expand_host = {
    "", [](const Context&, const KvExpand& x, Plan& plan) {
      plan.launch = [x](Context& ctx, void*) { expand(ctx, x); };
      return Text();
    }};

}  // namespace fovea
