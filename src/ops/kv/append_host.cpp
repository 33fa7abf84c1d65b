// SPDX-License-Identifier: Apache-2.0
// x_kv_append on the CPU: an item is a group on its way into a page, or a token of the tails.
#include <algorithm>

#include "host/device.h"
#include "ops/kv/append_item.h"

namespace fovea {
namespace {

void append(Context& ctx, const KvAppend& a) {
  const kv::Cache& c = a.cache;
  const int64_t count = a.sequences.count, keys = a.key_items(), values = a.value_items();
  host::Pool& pool = host::pool(ctx);
  const auto each = [&](int64_t items, double cost, const auto& part) {
    pool.run(count * items, static_cast<double>(count * items) * cost, [&](int64_t n, int32_t) {
      const KvAppend::Turn t = a.turn(n / items);
      if (t.row >= 0) part(t, n % items);
    });
  };
  if (keys)
    each(keys, 4.0 * c.group, [&](const auto& t, int64_t n) { kv::quantise_keys(a, t, n); });
  if (values)
    each(values, 4.0 * c.group, [&](const auto& t, int64_t n) { kv::quantise_values(a, t, n); });
  const int64_t newest = std::min(a.sequences.query_max, c.ring());
  if (newest && c.g)
    each(newest * c.g, 2.0 * static_cast<double>(c.d + c.e), [&](const auto& t, int64_t n) {
      for (int64_t column = 0; column < std::max(c.d, c.e); ++column)
        kv::to_tails(a, t, n / c.g, n % c.g, column);
    });
  for (int64_t r = 0; r < count; ++r)
    if (const KvAppend::Turn t = a.turn(r); t.row >= 0) kv::count(a, t);
}

}  // namespace

extern const Kernel<KvAppend> kv_append_host = {
    "", [](const Context&, const KvAppend& a, Plan& plan) {
      plan.launch = [a](Context& ctx, void*) { append(ctx, a); };
      return Text();
    }};

}  // namespace fovea
