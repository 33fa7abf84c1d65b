// SPDX-License-Identifier: Apache-2.0
// The choice among the Hopper instances of conv_attention_forward, their order of work items and
// their splits.
#include <algorithm>
#include <vector>

#include "core/reasons.h"
#include "ops/conv_attention/forward.cuh"
#include "ops/conv_attention/plan_sm90.cuh"

namespace fovea {
namespace {

using namespace cuda;

constexpr char kOp[] = "conv_attention_forward";

// Every row of forward.inc in this build, narrow widths and few taps first.
const std::vector<ConvInstance90>& instances() {
  static const std::vector<ConvInstance90> rows = {
#define FOVEA_INSTANCE(...) conv_sm90_instance<ConvConfig90 __VA_ARGS__>(),
#include "instances/conv_attention_forward_sm90.inc"
#undef FOVEA_INSTANCE
  };
  return rows;
}

// Few rows are packed, so that a group's heads read their keys once.  nullptr: none.
const ConvInstance90* find(const ConvAttend& c, int groups) {
  const Attend& a = c.attend;
  const int64_t longest = a.sequences.query_max - c.history;
  const ConvKind kind = longest + c.above() <= 16 ? ConvKind::packed : ConvKind::whole;
  for (const ConvInstance90& row : instances())
    if (row.dtype == a.dtype && row.kind == kind && a.d <= row.d && a.e <= row.e &&
        c.kernel_rows <= row.rows() && c.kernel_columns <= row.columns() &&
        (kind == ConvKind::packed || row.groups == groups))
      return &row;
  return nullptr;
}

// "" or why TMA cannot read an operand.
Text map_operands(const Attend& a, const ConvInstance90& row, ConvWork90& work) {
  const int64_t caches = a.sequences.caches;
  const MapOf q{a.q, a.dtype, a.b, a.s, a.h, a.d, static_cast<int>(row.slot())},
      k{a.k, a.dtype, caches, a.t, a.g, a.d, row.keys},
      v{a.v, a.dtype, caches, a.t, a.g, a.e, row.keys},
      halo{a.k, a.dtype, caches, a.t, a.g, a.d, kHaloKeys};
  if (Text why = map_sweep(q, k, v, row.keys, work.maps); !why.empty()) return why;
  return map_each({{"k", halo, work.halo}});
}

// How rows and heads become work items, splits aside.
struct Grid {
  int64_t heads, packs, row_tiles;
  int64_t longest, own;  // rows: of a sequence, of a tile
  Grid(const ConvAttend& c, const ConvInstance90& row) {
    const Attend& a = c.attend;
    longest = std::max<int64_t>(a.sequences.query_max - c.history, 0);
    const int64_t group = a.h / a.g;
    const bool packed = row.kind == ConvKind::packed;
    own = (packed ? row.slot() : row.slot() * row.slots()) - c.above();
    packs = packed ? ceil_div(group, row.slots()) : 1;
    heads = packed ? a.g * packs : a.h;
    row_tiles = ceil_div(longest, own);
  }
};

// What work items of three warpgroups and of two take: 1.35 times as long over 1.5 times the rows.
constexpr int64_t kHigh = 27, kLow = 20;

// When `high` work items and then `low` ones are done.
int64_t time_of(int64_t high, int64_t low, int64_t blocks) {
  const int64_t ahead = high % blocks, begin = high / blocks * kHigh,
                least = ahead ? begin + kHigh : begin;
  const auto done = [&](int64_t end) {
    const int64_t time = end - begin;
    return (blocks - ahead) * (time / kLow) + ahead * (std::max<int64_t>(time - kHigh, 0) / kLow) >=
           low;
  };
  for (int64_t end = begin + low / blocks * kLow;; end += kLow)
    for (int64_t late : {int64_t{0}, kHigh - kLow})
      if (done(end + late)) return std::max(least, end + late);
}

// The row tiles of a call, their work items and the time these take.
struct Tiling {
  TileParts tiles;
  int64_t items, time;
};

// Without a causal mask work items of a height are alike, and the last of a few waves may be mostly
// empty.  Row tiles of two heights, not as many in each head, even it out.
Tiling tiling_of(const DeviceInfo& device, const ConvAttend& c, const ConvInstance90& row) {
  const Grid grid(c, row);
  const int64_t blocks = device.multiprocessors, heads = c.attend.sequences.count * grid.heads,
                all = grid.row_tiles, items = heads * all;
  if (row.groups != 3) return {{}, items, time_of(0, items, blocks)};
  Tiling best{{}, items, time_of(items, 0, blocks)};
  if (c.causal || items > 16 * blocks) return best;
  const auto rest = [&](int64_t high) {
    return ceil_div(std::max<int64_t>(grid.longest - high * grid.own, 0), grid.own - 64);
  };
  for (int64_t high = 0; high < all; ++high)
    for (int64_t quarter = 0; quarter < (high + 2 > all ? 1 : 4); ++quarter) {
      const int64_t more = heads * quarter / 4, tall = heads * high + 2 * more,
                    low = more * rest(high + 2) + (heads - more) * rest(high),
                    time = time_of(tall, low, blocks);
      if (!tall || time >= best.time) continue;
      best = {{}, tall + low, time};
      const int64_t tiles[] = {high + 2, high, rest(high + 2), rest(high)};
      int64_t begin = 0;
      for (int part = 0; part < 4; ++part) {
        const bool others = part % 2;
        best.tiles.begin[part] = static_cast<int32_t>(begin);
        best.tiles.heads[part] = static_cast<int32_t>(others ? heads - more : more);
        best.tiles.head[part] = static_cast<int32_t>(others ? more : 0);
        best.tiles.row[part] = static_cast<int32_t>(part < 2 ? 0 : tiles[part - 2] * grid.own);
        begin += best.tiles.heads[part] * tiles[part];
      }
    }
  return best;
}

// Of causal work items, which even out by themselves, those of three warpgroups pay where there are
// many.
const ConvInstance90* choose(const DeviceInfo& device, const ConvAttend& c) {
  const ConvInstance90 *two = find(c, 2), *three = find(c, 3);
  if (!two || !three || two->kind == ConvKind::packed) return two;
  if (c.causal) {
    const Grid grid(c, *three);
    const int64_t items = c.attend.sequences.count * grid.heads * grid.row_tiles;
    return 2 * items >= (c.attend.d > 64 ? 5 : 8) * int64_t{device.multiprocessors} ? three : two;
  }
  return tiling_of(device, c, *three).time < tiling_of(device, c, *two).time ? three : two;
}

Text refuses(const Context& ctx, const ConvAttend& c) {
  const Attend& a = c.attend;
  if (Text why = hopper_refuses(ctx, a); !why.empty()) return why;
  if (a.sequences.page) return reason_given("page_table");
  if (!a.sequences.capacity || !a.sequences.caches) return "there are no keys";
  const int64_t o_piece = a.o_dtype == FOVEA_F32 ? 4 : 8, extent[3] = {a.b, c.rows_out, a.h};
  if (!in_pieces(a.o, extent, o_piece)) return reason_rows("o");
  return "";
}

ConvWork90 work_of(const DeviceInfo& device, const ConvAttend& c, const ConvInstance90& row,
                   const Grid& grid) {
  const Attend& a = c.attend;
  const int64_t heads = a.sequences.count * grid.heads, items = heads * grid.row_tiles;
  const int64_t tiles = ceil_div(a.sequences.key_max, row.keys);
  const int64_t blocks = int64_t{device.multiprocessors} * row.blocks;
  int64_t splits = a.splits;
  if (!splits) splits = items * 10 < blocks * 8 ? splits_of(items, tiles, blocks) : 1;
  splits = clamp_i64(splits, 1, std::max<int64_t>(tiles, 1));
  splits = std::min(splits, kIndexMax / std::max<int64_t>(items, 1));
  ConvWork90 work{};
  work.heads = static_cast<int32_t>(grid.heads), work.packs = static_cast<int32_t>(grid.packs);
  work.group = static_cast<int32_t>(a.h / a.g);
  work.order = conv_order(device, grid.row_tiles, heads, splits, grid.heads / a.g,
                          a.sequences.key_max * (a.d + a.e) * 2, c.causal, c.causal);
  work.schedule.items = static_cast<int32_t>(work.order.items());
  if (splits == 1) {
    const Tiling tiling = tiling_of(device, c, row);
    work.tiles = tiling.tiles;
    if (work.tiles.begin[2]) work.schedule.items = static_cast<int32_t>(tiling.items);
  }
  return work;
}

Text offer(const Context& ctx, const ConvAttend& c, Plan& plan) {
  if (Text why = refuses(ctx, c); !why.empty()) return why;
  const Attend& a = c.attend;
  const DeviceInfo& device = device_info(ctx);
  const ConvInstance90* found = choose(device, c);
  if (!found) return no_taps(c);
  const ConvInstance90& row = *found;
  const Grid grid(c, row);
  if (a.sequences.count * grid.heads * grid.row_tiles > kIndexMax)
    return "more than 2^30 work items";
  ConvWork90 work = work_of(device, c, row, grid);
  if (Text why = map_operands(a, row, work); !why.empty()) return why;
  plan.kernel += Text(".") + dtype_name(a.dtype) + ".d" + Text::number(row.d) + "." +
                 Text::number(row.rows()) + "x" + Text::number(row.columns()) + "." +
                 name_of(row.kind);
  if (row.kind == ConvKind::whole)
    plan.kernel += Text(".") + Text::number(64 * row.groups) + "x" + Text::number(row.keys);
  PartialSlots slots;
  if (work.order.splits > 1) slots = PartialSlots(plan.workspace, a, work.order.splits, c.out());
  plan.launch = [=](Context& ctx, void* base) {
    if (!work.schedule.items) return;
    ConvWork90 now = work;
    if (work.schedule.items > device_info(ctx).multiprocessors * row.blocks)
      now.schedule.counters = counters(ctx);
    const bool split = work.order.splits > 1;
    if (split) now.parts = slots.at(base, a, work.order.splits, c.out());
    // The few rows of a head are merged by its last split; the work items' counters come first.
    constexpr int kFirst = 2;
    if (split && row.kind == ConvKind::packed &&
        work.schedule.items / work.order.splits * row.slots() <= kCounters - kFirst)
      now.arrived = counters(ctx) + kFirst;
    row.launch(ctx, c, now);
    if (split && !now.arrived) combine(ctx, kOp, a, now.parts);
  };
  return "";
}

}  // namespace

extern const Kernel<ConvAttend> conv_attention_forward_sm90 = {"sm90", offer};

}  // namespace fovea
