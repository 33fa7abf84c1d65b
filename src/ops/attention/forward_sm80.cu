// SPDX-License-Identifier: Apache-2.0
// The choice among the sm_80 instances of attention_forward, and their grids.
#include <algorithm>
#include <vector>

#include "core/dtype.h"
#include "core/reasons.h"
#include "cuda/loop/mma_refuses.h"
#include "ops/attention/forward_codes.cuh"
#include "ops/attention/kernels.h"

namespace fovea {
namespace {

using namespace cuda;

const ForwardInstance kNone{};

// Every row of forward.inc in this build, narrow widths first.
const std::vector<ForwardInstance>& instances() {
  static const std::vector<ForwardInstance> rows = {
#define FOVEA_INSTANCE(...) forward_sm80_instance<ForwardConfig80 __VA_ARGS__>(),
#include "instances/attention_forward_sm80.inc"
#undef FOVEA_INSTANCE
#define FOVEA_INSTANCE(...) forward_sm89_instance<ForwardConfig80 __VA_ARGS__>(),
#include "instances/attention_forward_sm89.inc"
#undef FOVEA_INSTANCE
  };
  return rows;
}

constexpr int kReservedBytes = 1024;  // of shared memory in every block, by the system

const ForwardInstance& find(const DeviceInfo& device, const Attend& a, ForwardKind kind) {
  const ForwardInstance* found = &kNone;
  for (const ForwardInstance& row : instances()) {
    if (row.dtype != a.dtype || row.kind != kind || a.d > row.d || a.e > row.e) continue;
    if (found->launch && (found->d != row.d || found->e != row.e)) break;
    found = &row;
    if (row.blocks * (row.shared_bytes + kReservedBytes) <= device.shared_sm_bytes) break;
  }
  return *found;
}

struct Choice {
  const ForwardInstance* instance = &kNone;
  AttendGrid grid{};
  int64_t blocks = 0;
};

// Caches of codes: every split reads its keys once, so that many blocks pull at memory.
Choice choice_of_codes(const DeviceInfo& device, const Attend& a) {
  Choice c;
  const bool plain = a.plain();
  const ForwardInstance& found =
      find(device, a, plain ? ForwardKind::codes : ForwardKind::rich_codes);
  if (!found.launch) return c;
  const int64_t queries = a.sequences.query_max, group = a.h / a.g;
  const int64_t row_tiles = ceil_div(queries * group, found.rows);
  const int64_t items = a.sequences.count * a.g * row_tiles;
  const int64_t most =
      std::max<int64_t>(key_tiles_bound(a, ceil_div(found.rows, group), codes_step(found.d)), 1);
  const int64_t splits =
      a.splits ? a.splits : splits_of(items, most, device.multiprocessors * found.blocks);
  c.instance = &found;
  c.grid = {row_tiles, a.g, static_cast<int32_t>(clamp_i64(splits, 1, most)),
            static_cast<int32_t>(group), a.mask.window.right > 0};
  c.blocks = items * c.grid.splits;
  return c;
}

Choice choice(const DeviceInfo& device, const Attend& a) {
  if (a.codes()) return choice_of_codes(device, a);
  const bool plain = a.plain();
  const int64_t queries = a.sequences.query_max, count = a.sequences.count, group = a.h / a.g;
  const bool causal = a.mask.window.right > 0;
  Choice c;
  const ForwardInstance& whole = find(device, a,
                                      !plain             ? ForwardKind::rich
                                      : a.sequences.page ? ForwardKind::paged
                                                         : ForwardKind::whole);
  const ForwardInstance& split = find(device, a, plain ? ForwardKind::split : ForwardKind::rich);
  if (!whole.launch || !split.launch) return c;

  const int64_t packed = pack_gqa_heads(a, whole.rows);
  const int64_t tiles = count * (a.h / packed) * ceil_div(queries * packed, whole.rows);
  const int64_t split_tiles = count * a.g * ceil_div(queries * group, split.rows);
  int64_t splits = a.splits;
  const int64_t most = key_tiles_bound(a, ceil_div(split.rows, group), kTileKeys);
  if (!splits) {
    DeviceInfo slots = device;
    slots.multiprocessors *= split.blocks;
    // The split kernel takes short rows anyhow: they should fill all its resident blocks.
    const bool few = queries * group <= split.rows ? split_tiles * 10 < slots.multiprocessors * 8
                                                   : tiles * 10 < device.multiprocessors * 8;
    const int64_t head_bytes = a.sequences.key_max * (a.d + a.e) * dtype_bytes(a.dtype);
    splits =
        few ? auto_splits(split_tiles, most, head_bytes, causal || a.mask.window.left > 0, slots)
            : 1;
  }
  splits = clamp_i64(splits, 1, std::max<int64_t>(most, 1));
  const bool small = splits > 1 || queries * group <= split.rows;
  c.instance = small ? &split : &whole;
  const int64_t width = small ? group : packed;
  c.grid = {ceil_div(queries * width, c.instance->rows), a.h / width, static_cast<int32_t>(splits),
            static_cast<int32_t>(width), causal};
  c.blocks = count * c.grid.heads * c.grid.row_tiles * splits;
  return c;
}

Text refuses(const Context& ctx, const Attend& a) {
  if (Text why = mma_refuses(a); !why.empty()) return why;
  if (!a.h || !a.g) return "";
  const Choice c = choice(device_info(ctx), a);
  if (!c.instance->launch) return no_instance(a.dtype, "d", a.d, "e", a.e);
  if (c.instance->shared_bytes > device_info(ctx).shared_block_bytes)
    return reason_shared(c.instance->shared_bytes, device_info(ctx).shared_block_bytes);
  if (c.blocks > INT_MAX) return "more than 2^31 blocks of work";
  return "";
}

Text offer(const Context& ctx, const Attend& a, Plan& plan) {
  if (Text why = refuses(ctx, a); !why.empty()) return why;
  plan.kernel += Text(".") + dtype_name(a.dtype);
  if (!a.h || !a.g) {
    plan.launch = [](Context&, void*) {};
    return "";
  }
  const Choice c = choice(device_info(ctx), a);
  plan.kernel += ".d" + Text::number(c.instance->d) + "." + name_of(c.instance->kind);
  PartialSlots slots;
  if (c.grid.splits > 1) slots = PartialSlots(plan.workspace, a, c.grid.splits);
  plan.launch = [a, c, slots](Context& ctx, void* workspace) {
    ForwardWork work{c.grid, c.blocks, {}, nullptr};
    const int32_t splits = c.grid.splits;
    if (splits > 1) work.parts = slots.at(workspace, a, splits);
    if (a.codes() && splits > 1 && c.blocks / splits <= kCounters) work.arrived = counters(ctx);
    c.instance->launch(ctx, a, work);
    if (splits > 1 && !work.arrived) combine(ctx, "attention_forward", a, work.parts);
  };
  return "";
}

}  // namespace

extern const Kernel<Attend> attention_forward_sm80 = {"sm80", offer};

}  // namespace fovea
