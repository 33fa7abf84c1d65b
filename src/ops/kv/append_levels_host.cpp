// SPDX-License-Identifier: Apache-2.0
// x_kv_append in the formats of levels on the CPU: an item is a token, then a group of keys of a
// channel.
#include <algorithm>

#include "host/device.h"
#include "ops/kv/append_levels_item.h"

namespace fovea {
namespace {

void append(Context& ctx, const KvAppend& a) {
  const kv::Cache& c = a.cache;
  const int64_t count = a.sequences.count, tokens = a.sequences.query_max;
  host::Pool& pool = host::pool(ctx);
  const auto each = [&](int64_t items, double cost, const auto& part) {
    pool.run(count * items, static_cast<double>(count * items) * cost, [&](int64_t n, int32_t) {
      const KvAppend::Turn t = a.turn(n / items);
      if (t.row >= 0) part(t, n % items);
    });
  };
  const auto outliers = static_cast<double>(c.k_outliers + c.v_outliers);
  const auto columns = static_cast<double>(c.g * (c.d + c.e));
  if (tokens)
    each(tokens, columns * (8 + 2 * outliers),
         [&](const auto& t, int64_t n) { kv::append_token(a, t, n, kv::Alone()); });
  if (const int64_t keys = a.level_items(); tokens && keys)
    each(keys, 16.0 * c.group, [&](const auto& t, int64_t n) { kv::append_keys(a, t, n); });
  for (int64_t r = 0; r < count; ++r)
    if (const KvAppend::Turn t = a.turn(r); t.row >= 0) kv::count(a, t);
}

}  // namespace

extern const Kernel<KvAppend> kv_append_levels_host = {
    "", [](const Context&, const KvAppend& a, Plan& plan) {
      plan.launch = [a](Context& ctx, void*) { append(ctx, a); };
      return Text();
    }};

}  // namespace fovea
