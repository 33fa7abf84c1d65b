// SPDX-License-Identifier: Apache-2.0
// New rows into the cache: one item is one token, its key heads and then its value heads.
#include "core/dtype.h"
#include "host/device.h"
#include "ops/cache/append_row.h"

namespace fovea {
namespace {

template <class New>
double factor_of(const AppendPart& part, const New* x) {
  double sum[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) sum[lane] = lane_squares(part, x, lane);
  for (int step = kLanes / 2; step; step /= 2)
    for (int lane = 0; lane < step; ++lane) sum[lane] += sum[lane + step];
  return norm_factor(part, sum[0]);
}

template <int V, class New, class Cache>
void append_rows(const Append& a, const AppendPart& part, const AppendToken& to) {
  Turn turn{};
  if (part.rope.cos) turn = turn_at(part.rope, to.position, 1);
  const int64_t units = row_units(part.rope, part.width, V), offset = cache_offset(a, part, to);
  if (offset < 0) return;
  for (int64_t head = 0; head < part.heads; ++head) {
    const New* x = part.fresh.as<New>() + fresh_offset(part, to) + head * part.fresh.stride[2];
    Cache* y = part.cache.as<Cache>() + offset + head * part.cache.stride[2];
    const double factor = part.norm_weight ? factor_of(part, x) : 1;
    if (part.scale_out) {
      const auto read = [&](int64_t c, float(&value)[1]) {
        value[0] = normed(part, to_float(x[c * part.fresh.stride[3]]), c, factor);
      };
      const auto put = [&](int64_t c, float value) {
        y[c * part.cache.stride[3]] = from_float<Cache>(value);
      };
      append_scaled(
          part, turn, 0, 1, scale_row(a, part, to, head), read, [](float amax) { return amax; },
          put);
      continue;
    }
    for (int64_t unit = 0; unit < units; ++unit)
      append_unit<V, true>(part, turn, unit, x, y, factor, scale_of(part, head));
  }
}

void append_part(Context& ctx, const Append& a, const AppendPart& part) {
  // Rows without columns have scales still.
  if (!part || !part.heads || (!part.width && !part.scale_out)) return;
  const int64_t slots = a.slots;
  const double cost = 2.0 * static_cast<double>(slots * part.heads * (part.width + 1));
  with_fp(part.fresh_dtype, [&](auto fresh) {
    with_cache_type(part.cache_dtype, [&](auto cache) {
      using New = decltype(fresh);
      using Cache = decltype(cache);
      const bool is_wide = wide<New, Cache>(part);
      host::pool(ctx).run(slots, cost, [&](int64_t slot, int32_t) {
        const AppendToken to = append_token(a, slot);
        if (to.number < 0) return;
        if (is_wide && !part.scale_out)
          append_rows<kWide<New, Cache>, New, Cache>(a, part, to);
        else
          append_rows<1, New, Cache>(a, part, to);
      });
    });
  });
}

Text offer(const Context&, const Append& a, Plan& plan) {
  const AppendPart& part = a.k ? a.k : a.v;
  plan.kernel += Text(".") + dtype_name(part.fresh_dtype) + "." + dtype_name(part.cache_dtype);
  plan.launch = [a](Context& ctx, void*) {
    append_part(ctx, a, a.k);
    append_part(ctx, a, a.v);
    // Last, for it may be key_len.
    for (int64_t r = 0; a.key_len_out && r < a.sequences.count; ++r)
      a.key_len_out.as<int32_t>()[r * a.key_len_out.stride[0]] =
          static_cast<int32_t>(a.length_after(r));
  };
  return "";
}

}  // namespace

extern const Kernel<Append> cache_append_host = {"", offer};

}  // namespace fovea
