// SPDX-License-Identifier: Apache-2.0
// The choice among the Hopper instances of kl_forward, and their order of work items.
#include <algorithm>
#include <vector>

#include "core/dtype.h"
#include "core/reasons.h"
#include "ops/kl/forward.cuh"
#include "ops/kl/maps.cuh"

namespace fovea {
namespace {

using namespace cuda;

// Every row of forward.inc in this build, narrow widths first.
const std::vector<KlInstance90>& instances() {
  static const std::vector<KlInstance90> rows = {
#define FOVEA_INSTANCE(...) kl_sm90_instance<KlConfig90 __VA_ARGS__>(),
#include "instances/kl_forward_sm90.inc"
#undef FOVEA_INSTANCE
  };
  return rows;
}

// Whether row tiles as long as the instance's suit the call.  64 rows: where 128 would leave
// multiprocessors without work.  256 rows, of which a pair takes 7/8 of the time: where every row
// has many keys and enough multiprocessors have work to the end; mixtures keep to 128.
bool suits(const DeviceInfo& device, const Kl& a, const KlInstance90& row) {
  constexpr int64_t kLong = 2048, kLongMasked = 4096;
  const Window& window = a.mask.window;
  const Sequences& of = a.sequences;
  const int64_t all = device.multiprocessors;
  const auto items = [&](int64_t rows) { return of.count * a.h * ceil_div(of.query_max, rows); };
  const auto waves = [&](int64_t rows) { return ceil_div(items(rows), all); };
  const bool masked = window.right > 0;
  if (row.rows == 64) return items(128) <= (masked ? 2 * all : all);
  if (row.rows < 256) return true;
  if (a.share > 0 || window.left > 0) return false;
  const int64_t keys = std::min(of.key_max, of.query_max);
  return masked ? keys >= kLongMasked && 2 * items(256) >= 3 * all
                : keys >= kLong && 7 * waves(256) * 2 <= 8 * waves(128);
}

const KlInstance90* find(const DeviceInfo& device, const Kl& a) {
  for (const KlInstance90& row : instances())
    if (row.dtype == a.first.dtype && a.first.width <= row.d && a.second.width <= row.e &&
        suits(device, a, row))
      return &row;
  return nullptr;
}

KlWork90 work_of(const DeviceInfo& device, const Kl& a, const KlInstance90& row) {
  const bool masked = a.mask.window.right > 0;
  const int64_t row_tiles = ceil_div(a.sequences.query_max, row.rows);
  const int64_t heads = a.sequences.count * a.h;
  const int64_t group = a.h / std::max(a.first.key_heads, a.second.key_heads);
  const int64_t head_bytes = a.sequences.key_max * (a.first.width + a.second.width) * 2;
  KlWork90 work{};
  work.grid = {row_tiles, a.h, 1, 1, masked};
  work.order = {static_cast<int32_t>(row_tiles),
                static_cast<int32_t>(heads),
                1,
                section_of(heads, group, head_bytes, device.l2_bytes, masked),
                static_cast<int32_t>(masked ? row_tiles / 2 : 0),
                masked};
  work.schedule.items = static_cast<int32_t>(work.order.items());
  return work;
}

Text offer(const Context& ctx, const Kl& a, Plan& plan) {
  if (a.first.dtype != a.second.dtype) return reason_sides(a.first, a.second);
  if (Text why = hopper_refuses(ctx, a.first.dtype, a.sequences); !why.empty()) return why;
  if (const char* field = attend_of(a, a.first, a.second).not_plain()) return reason_given(field);
  if (Text why = refuse_sides(a.first, a.second, 8); !why.empty()) return why;
  if (!a.h || !a.sequences.count || !a.t || !a.s) return "there are no rows, keys or heads";
  const DeviceInfo& device = device_info(ctx);
  const KlInstance90* found = find(device, a);
  if (!found)
    return no_instance(a.first.dtype, "width", a.first.width, "other width", a.second.width);
  const KlInstance90& row = *found;
  const Sequences& q = a.sequences;
  if (q.count * a.h * ceil_div(q.query_max, row.rows) > kIndexMax)
    return "more than 2^30 blocks of work";
  KlWork90 work = work_of(device, a, row);
  if (Text why = map_each({{"q_teacher", rows_of(a, a.first, a.h, row.rows), work.maps.q},
                           {"k_teacher", keys_of(a, a.first, a.t, row.keys), work.maps.k},
                           {"q_student", rows_of(a, a.second, a.h, row.rows), work.maps.q2},
                           {"k_student", keys_of(a, a.second, a.t, row.keys), work.maps.v}});
      !why.empty())
    return why;
  work.maps.group = static_cast<int32_t>(a.h / a.second.key_heads);
  plan.kernel += Text(".") + dtype_name(a.first.dtype) + ".d" + Text::number(row.d) + "." +
                 Text::number(row.e) +
                 (row.rows == 256  ? ".long"
                  : row.rows == 64 ? ".short"
                                   : "");
  const bool total = static_cast<bool>(a.total);
  const bool mixed = a.share > 0;
  const RowSlot kl(plan.workspace, a, a.kl, total),
      lse(plan.workspace, a, a.first.lse, total || mixed),
      second(plan.workspace, a, a.second.lse, mixed);
  const TotalSlots totals(plan.workspace, a, total);
  plan.launch = [=](Context& ctx, void* base) {
    KlWork90 now = work;
    if (now.schedule.items > device_info(ctx).multiprocessors)
      now.schedule.counters = counters(ctx);
    now.op = op_of(a), now.first = lse.at(base), now.second = second.at(base);
    const auto sweep = [&] {
      row.launch(ctx, attend_of(a, a.first, a.second), a.second.scale, now);
    };
    if (!mixed) now.kl = kl.at(base);
    sweep();
    if (mixed && (a.js || a.kl || a.kl_second)) {
      now.share = a.share, now.js = a.js, now.kl = a.kl, now.kl_second = a.kl_second;
      sweep();
    }
    if (total) add_up(ctx, now.op, a, now.kl, now.first, totals.parts.at(base));
  };
  return "";
}

}  // namespace

extern const Kernel<Kl> kl_forward_sm90 = {"sm90", offer};
extern const Kernel<Kl> kl_jensen_shannon_forward_sm90 = {"sm90", offer};

}  // namespace fovea
