// SPDX-License-Identifier: Apache-2.0
// trace_forward with Hopper's stages: the choice of an instance for each, and the tile order.
#include <algorithm>
#include <vector>

#include "core/chunk.h"
#include "core/dtype.h"
#include "core/reasons.h"
#include "cuda/loop/hopper.h"
#include "ops/trace/item.cuh"
#include "ops/trace/rows.cuh"
#include "ops/trace/workspace.cuh"

namespace fovea {
namespace {

using namespace cuda;

// Every row of select.inc, weigh.inc and rows.inc in this build, narrow widths first.
const std::vector<ItemInstance90>& select_instances() {
  static const std::vector<ItemInstance90> rows = {
#define FOVEA_INSTANCE(...) select_sm90_instance<SelectConfig90 __VA_ARGS__>(),
#include "instances/trace_select_sm90.inc"
#undef FOVEA_INSTANCE
  };
  return rows;
}
const std::vector<ItemInstance90>& weigh_instances() {
  static const std::vector<ItemInstance90> rows = {
#define FOVEA_INSTANCE(...) weigh_sm90_instance<WeighConfig90 __VA_ARGS__>(),
#include "instances/trace_weigh_sm90.inc"
#undef FOVEA_INSTANCE
  };
  return rows;
}
const std::vector<RowsInstance90>& rows_instances() {
  static const std::vector<RowsInstance90> rows = {
#define FOVEA_INSTANCE(...) rows_sm90_instance<RowsConfig90 __VA_ARGS__>(),
#include "instances/trace_rows_sm90.inc"
#undef FOVEA_INSTANCE
  };
  return rows;
}

MapOf rows_of(const Attend& a, int rows) {
  return {a.q, a.dtype, a.b, a.s, a.h, a.d, rows};
}
MapOf keys_of(const Attend& a, const View<4>& x, int64_t width, int64_t keys) {
  const Sequences& q = a.sequences;
  return {x,
          a.dtype,
          q.page ? q.pool : q.caches,
          q.page ? q.page : a.t,
          a.g,
          width,
          static_cast<int>(q.page ? std::min(q.page, keys) : keys)};
}

Text refuses(const Context& ctx, const Trace& trace) {
  const Attend& a = trace.attend;
  if (Text why = hopper_refuses(ctx, a.dtype, a.sequences); !why.empty()) return why;
  if (Text why = refuse_width("d", a.d, 8); !why.empty()) return why;
  const Sequences& of = a.sequences;
  if (!a.b || !a.h || !a.s || !a.g || !of.key_max || !of.caches || (of.page && !of.pool))
    return "there are no rows, keys or heads";
  if (a.s > kIndexMax) return "more than 2^30 rows in a sequence";
  if (a.b * a.h > kIndexMax / trace.n) return "more than 2^30 row blocks";
  return "";
}

const ItemInstance90* find_item(const Trace& a, const std::vector<ItemInstance90>& rows) {
  for (const ItemInstance90& row : rows)
    if (row.dtype == a.attend.dtype && a.attend.d <= row.d && a.keep <= row.keep &&
        a.block_rows <= row.block_rows)
      return &row;
  return nullptr;
}

const RowsInstance90* find_rows(const Attend& a, RowsKind kind, int64_t rows) {
  for (const RowsInstance90& row : rows_instances())
    if (row.dtype == a.dtype && row.kind == kind && a.d <= row.d && a.e <= row.e &&
        (!rows || row.rows == rows))
      return &row;
  return nullptr;
}

// The call as the sweep sees it.  Without o no value is read, and v is k.
Attend listed_of(const Trace& trace) {
  Attend a = trace.attend;
  if (!a.o) a.v = a.k, a.e = a.d;
  return a;
}
Attend dense_of(const Trace& trace) {
  Attend a = trace.attend;
  a.o = {}, a.lse = trace.lse_dense;
  a.v = a.k, a.e = a.d;
  return a;
}

const RowsInstance90* find_listed(const Trace& trace) {
  const Attend a = listed_of(trace);
  if (!trace.wants_rows() || trace.block_keys < 64 || a.e % 8 || (a.o && !trace.attend.v))
    return nullptr;
  const bool wide = a.o_dtype == FOVEA_F32;
  if (a.o && !chunked(a.o, wide ? 4 : 2, wide ? 4 : 8)) return nullptr;
  return find_rows(a, RowsKind::listed, trace.block_rows);
}

const RowsInstance90* find_dense(const Trace& trace) {
  const Attend a = dense_of(trace);
  if (!trace.lse_dense || trace.block_mask || (a.sequences.page && a.sequences.page < 64))
    return nullptr;
  return find_rows(a, RowsKind::dense, 0);
}

Text no_stage(const Trace& a) {
  const Attend& of = a.attend;
  return no_instance(of.dtype, "d", of.d, "e", of.e) + ", keep = " + Text::number(a.keep) +
         ", block_rows = " + Text::number(a.block_rows) +
         ", block_keys = " + Text::number(a.block_keys) + ", exact = " + Text::number(a.exact);
}

// One sweep over rows.  No instance: a portable stage takes its place.
struct Sweep {
  const RowsInstance90* instance;
  Attend call;
  RowsWork90 work{};

  // A listed instance reads `list`.
  void run(Context& ctx, const BlockList& list, TraceRow* row) const {
    RowsWork90 now = work;
    now.list = list, now.row = row, now.schedule.counters = counters(ctx);
    instance->launch(ctx, call, now);
  }
};

Sweep sweep_of(const DeviceInfo& device, const Attend& a, const RowsInstance90* instance) {
  Sweep sweep{instance, a};
  if (!instance) return sweep;
  const bool masked = a.mask.window.right > 0;
  const bool uneven = masked && instance->kind == RowsKind::dense;  // lists are of one length
  const int64_t row_tiles = ceil_div(a.s, instance->rows), heads = a.b * a.h;
  const int64_t head_bytes = a.sequences.key_max * (a.d + a.e) * 2;
  const int64_t section = clamp_i64(device.l2_bytes / 2 / (head_bytes + 1), 1, 64) * (a.h / a.g);
  RowsWork90& work = sweep.work;
  work.grid = {row_tiles, a.h, 1, 1, masked};
  work.order = {static_cast<int32_t>(row_tiles),
                static_cast<int32_t>(heads),
                1,
                static_cast<int32_t>(std::min(section, heads)),
                static_cast<int32_t>(uneven ? row_tiles / 4 : 0),
                masked};
  work.schedule.items = static_cast<int32_t>(work.order.items());
  if (!map_sweep(rows_of(a, instance->rows), keys_of(a, a.k, a.d, instance->keys),
                 keys_of(a, a.v, a.e, instance->keys), instance->keys, work.maps)
           .empty())
    sweep.instance = nullptr;
  return sweep;
}

Text offer(const Context& ctx, const Trace& a, Plan& plan) {
  if (Text why = refuses(ctx, a); !why.empty()) return why;
  ItemWork90 item{{}, {}, static_cast<int>(ceil_div(a.block_rows, 64)), 4};
  while (1 << item.shift < a.block_keys) ++item.shift;
  const Attend& call = a.attend;
  const int64_t keys = std::min<int64_t>(a.block_keys, 64);
  if (Text why = map_each({{"q", rows_of(call, 64), item.maps.q},
                           {"k", keys_of(call, call.k, call.d, keys), item.maps.k}});
      !why.empty())
    return why;
  const DeviceInfo& device = device_info(ctx);
  const ItemInstance90 *select = a.exact ? nullptr : find_item(a, select_instances()),
                       *weigh = a.wants_mass() ? find_item(a, weigh_instances()) : nullptr;
  const Sweep listed = sweep_of(device, listed_of(a), find_listed(a)),
              dense = sweep_of(device, dense_of(a), find_dense(a));
  if (!select && !weigh && !listed.instance && !dense.instance) return no_stage(a);
  const TraceWorkspace slots(a, plan.workspace, listed.instance);
  const int width = select            ? select->d
                    : listed.instance ? listed.instance->d
                    : weigh           ? weigh->d
                                      : dense.instance->d;
  plan.kernel += Text(".") + dtype_name(a.attend.dtype) + ".d" + Text::number(width);
  if (select) plan.kernel += ".select" + Text::number(select->keep);
  if (listed.instance) plan.kernel += ".rows" + Text::number(listed.instance->rows);
  if (weigh) plan.kernel += ".weigh";
  if (dense.instance) plan.kernel += ".dense";
  plan.launch = [=](Context& ctx, void* base) {
    ItemWork90 now = item;
    const TraceCall& call = now.call = slots.at(a, base);
    if (select)
      select->launch(ctx, now);
    else
      select_simt(ctx, call);
    if (listed.instance) {
      const BlockList list{call.slots.list,
                           call.slots.count,
                           a.n,
                           a.keep,
                           static_cast<int32_t>(a.block_rows),
                           static_cast<int32_t>(a.block_keys)};
      listed.run(ctx, list, call.slots.row);
    } else if (a.wants_rows()) {
      rows_simt(ctx, call);
    }
    if (weigh)
      weigh->launch(ctx, now);
    else if (a.wants_mass())
      weigh_simt(ctx, call);
    if (dense.instance)
      dense.run(ctx, {}, nullptr);
    else if (a.lse_dense)
      dense_simt(ctx, call);
    if (a.wants_edges()) edges(ctx, call);
  };
  return "";
}

}  // namespace

extern const Kernel<Trace> trace_forward_sm90 = {"sm90", offer};

}  // namespace fovea
