// SPDX-License-Identifier: Apache-2.0
// The choice among the Hopper instances of x_sparse_forward, row tiles and their order.
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/dtype.h"
#include "core/pieces.h"
#include "core/reasons.h"
#include "cuda/launch.h"
#include "cuda/loop/hopper.h"
#include "ops/sparse/forward.cuh"
#include "ops/sparse/gathered_rows.cuh"
#include "ops/sparse/kernels.h"

namespace fovea {
namespace cuda {

Text map_operands(const Attend& a, const SparseRows90& rows, int64_t box, int keys,
                  SweepWork90& work) {
  const int64_t page = a.sequences.page;
  const int64_t caches = page ? a.sequences.pool : a.sequences.caches, tokens = page ? page : a.t;
  const int key_rows = static_cast<int>(box);
  const int64_t q_rows = rows.heads == 1 ? rows.rows : rows.step / rows.heads;
  const MapOf q{
      a.q, a.dtype, a.b, a.s, a.h, a.d, static_cast<int>(q_rows), static_cast<int>(rows.heads)};
  const MapOf o{a.o, a.dtype, a.b, a.s, a.h, a.e, 64};
  work.o_given = rows.heads == 1 && rows.step == rows.rows && a.o_dtype == a.dtype &&
                 !*map_refuses(o) && make_map(o, work.o);
  return map_sweep(q, {a.k, a.dtype, caches, tokens, a.g, a.d, key_rows},
                   {a.v, a.dtype, caches, tokens, a.g, a.e, key_rows}, keys, work.maps);
}

bool order_of(const DeviceInfo& device, const Attend& a, const SparseRows90& rows, int64_t splits,
              SweepWork90& work) {
  const bool masked = a.mask.window.right > 0;
  const int64_t row_tiles = ceil_div(a.sequences.query_max * rows.heads, rows.step),
                heads = a.sequences.count * (a.h / rows.heads);
  if (heads > INT_MAX / splits / row_tiles) return false;
  work.grid = {row_tiles, a.h / rows.heads, static_cast<int32_t>(splits),
               static_cast<int32_t>(rows.heads), masked};
  work.order = {static_cast<int32_t>(row_tiles),
                static_cast<int32_t>(heads),
                static_cast<int32_t>(splits),
                section_of(heads, a.h / a.g / rows.heads, a.sequences.key_max * (a.d + a.e) * 2,
                           device.l2_bytes, masked),
                static_cast<int32_t>(masked ? row_tiles / 4 : 0),
                masked};
  work.schedule.items = static_cast<int32_t>(work.order.items());
  return true;
}

}  // namespace cuda

namespace {

using namespace cuda;

constexpr char kOp[] = "x_sparse_forward";
// Blocks of fewer keys, and boxes of fewer tokens, cost more than their bytes.
constexpr int64_t kLeastBlock = 16;
// A list names tiles one by one, and a block is at most two of them.
constexpr int64_t kMostBlock = 128;
// Row tiles and key tiles of unions of many rows.
constexpr int kUnitedRows = 128, kUnitedKeys = 128;

// Every row of forward.inc in this build, narrow widths first.
const std::vector<SparseInstance90>& instances() {
  static const std::vector<SparseInstance90> rows = {
#define FOVEA_INSTANCE(...) sparse_sm90_instance<SparseConfig90 __VA_ARGS__>(),
#include "instances/sparse_forward_sm90.inc"
#undef FOVEA_INSTANCE
  };
  return rows;
}

// Every row of skip.inc in this build, narrow widths first.
const std::vector<SparseInstance90>& skipping_instances() {
  static const std::vector<SparseInstance90> rows = {
#define FOVEA_INSTANCE(...) sparse_skip_sm90_instance<SparseConfig90 __VA_ARGS__>(),
#include "instances/sparse_skip_sm90.inc"
#undef FOVEA_INSTANCE
  };
  return rows;
}

using Rows = SparseRows90;

// A list row is a whole number of row tiles, or one that it leaves partly empty.  Of two that a
// list row fills alike, the larger: it reads its keys half as often.
Rows rows_of(const SparseAttend& call) {
  const Attend& a = call.attend;
  const int64_t group = a.h / a.g, block = call.list.block_rows;
  const bool short_rows = call.list.block_keys < 64 || a.splits > 1;  // no others have them
  Rows found{1, 0, 0};
  double best = 0;
  for (const int64_t heads : {int64_t{1}, call.list.group % group == 0 ? group : int64_t{1}})
    for (const int64_t rows : {128, 64}) {
      const bool whole = rows % heads == 0 && block * heads % rows == 0;
      if ((!whole && block * heads > rows) || (short_rows && rows > 64)) continue;
      const int64_t step = whole ? rows : block * heads;
      const double filled =
          static_cast<double>(step * (rows == 128 ? 10 : 8)) / static_cast<double>(rows);
      if (filled > best) best = filled, found = {heads, rows, step};
    }
  return found;
}

// List rows of one row, too short for a row tile: some share it, and the union of their lists.
void unite(const SparseAttend& call, int64_t splits, Rows& rows) {
  const SparseList& list = call.list;
  const int64_t lists =
      std::min<int64_t>({kUnionRows, 64 / rows.heads, call.attend.sequences.query_max});
  if (list.block_rows > 1 || list.block_keys < 64 || list.keep > kUnionKeep || splits > 1 ||
      rows.rows != 64 || lists < 2)
    return;
  rows.lists = lists, rows.step *= lists;
}

// How the lists are cut: tiles of `keys` keys, each of boxes of `box` keys.
struct Keys {
  const SparseInstance90* instance;
  int64_t width, box;
  bool blocks;  // that lie apart make a tile
};

Keys keys_of_union(const Attend& a) {
  for (const SparseInstance90& row : instances())
    if (row.dtype == a.dtype && a.d <= row.d && a.e <= row.e && row.rows == kUnitedRows &&
        row.keys == kUnitedKeys)
      return {&row, kUnitedKeys, kUnitedKeys, false};
  return {};
}

// List rows of one row and one head, whose blocks are large.  A row tile of them walks the union of
// their lists, at worst all keys.  Gathered one by one a row's keys cost 64 times as much each:
// they fill a sixteenth of a tile, at a quarter of the rate.
bool united(const SparseAttend& call) {
  const Attend& a = call.attend;
  const SparseList& list = call.list;
  const Sequences& q = a.sequences;
  const int64_t tiles = list.block_keys / kUnitedKeys;
  return list.block_rows == 1 && list.block_keys % kUnitedKeys == 0 && !(tiles & (tiles - 1)) &&
         list.keep <= 255 && !list.first_keys && !call.packed() && !q.page && a.splits <= 1 &&
         q.query_max >= 64 && ceil_div(q.key_max, list.block_keys) <= 64 * list.keep &&
         rows_of(call).heads == 1 && keys_of_union(a).instance;
}

// The same lists by gathered rows: each block of keys takes the rows that name it, and a row merges
// a part for each place.  A part costs as much as kPartKeys keys, a union's keys cost two thirds of
// dense's rate.  Lists that fill row tiles pay; where no union serves, they always do.
constexpr int64_t kPartKeys = 256, kPackedHeads = 4;
bool gathered(const SparseAttend& call) {
  const Attend& a = call.attend;
  const SparseList& list = call.list;
  const Sequences& q = a.sequences;
  if (list.block_rows != 1 || list.block_keys % kGatheredKeys || list.first_keys || q.page ||
      a.splits > 1 || list.keep < 1)
    return false;
  // Packed heads of a row fill a tile of their own, and few rows share one.
  if (list.block_keys <= kMostBlock && (rows_of(call).heads > kPackedHeads || q.query_max < 64))
    return false;
  const Keys keys = keys_of_union(a);
  const int64_t blocks = ceil_div(q.key_max, list.block_keys);
  if (!keys.instance || !keys.instance->gather ||
      q.query_max * list.keep < kGatheredRows * blocks || !GatheredSlots::fits(call))
    return false;
  const int64_t seen = a.mask.window.right > 0 ? q.key_max / 2 : q.key_max;
  return !united(call) || 2 * list.keep * (list.block_keys + kPartKeys) <= 3 * seen;
}

Keys keys_of(const SparseAttend& call, int64_t rows, bool split, bool few) {
  const Attend& a = call.attend;
  const int64_t page = a.sequences.page, block = call.list.block_keys;
  for (const SparseInstance90& row : instances()) {
    if (row.dtype != a.dtype || a.d > row.d || a.e > row.e || row.rows != rows) continue;
    const bool blocks = split || block < row.keys;
    if (blocks && !row.blocks) continue;
    // Few rows take boxes of 128 keys, where heads are narrow.
    for (const int64_t tile :
         {few && row.d + row.e <= 256 ? kMostBlock : int64_t{row.keys}, int64_t{row.keys}}) {
      const int64_t width = std::min(block, tile);
      const int64_t box = page && page < width ? page : width;
      const bool whole =
          call.list.first_keys % width == 0 || call.list.first_keys >= a.sequences.key_max;
      const bool fits = whole && tile % width == 0 && block % width == 0 && width % box == 0 &&
                        (!page || (page >= kLeastBlock && page % box == 0));
      if (fits) return {&row, width, box, blocks};
    }
  }
  return {};
}

// Few rows that alone have a list, which their blocks may read themselves.
bool few_rows(const SparseAttend& call, const Rows& rows) {
  const SparseList& list = call.list;
  return rows.rows == 64 && rows.step == list.block_rows * rows.heads &&
         (rows.step <= 16 || call.attend.sequences.query_max == 1) &&
         list.keep <= kIndexMax / list.block_keys;
}

int64_t splits_of(const DeviceInfo& device, const SparseAttend& call, const Rows& rows) {
  const Attend& a = call.attend;
  const bool few = few_rows(call, rows);
  const int64_t items = a.sequences.count * (a.h / rows.heads) *
                        ceil_div(a.sequences.query_max * rows.heads, rows.step);
  const int64_t tiles = std::max<int64_t>(ceil_div(call.keys_bound(), few ? 128 : 64), 1);
  if (a.splits) return std::min<int64_t>(a.splits, tiles);
  // Two blocks share a multiprocessor, but for those that read lists, in two steps at least.
  if (rows.rows > 64 || items * 10 >= device.multiprocessors * 16) return 1;
  if (few) return cuda::splits_of(items, ceil_div(tiles, 2), device.multiprocessors);
  return cuda::splits_of(items, tiles, 2 * device.multiprocessors);
}

Text refuses_list(const SparseAttend& call) {
  const SparseList& list = call.list;
  if (const char* field = call.other_list()) return reason_given(field);
  if (list.row_begin) return reason_given("row_begin");
  if (list.index_bias) return reason_given("index_bias");
  if (!list.index) return "index is absent, wanted one";
  if (list.block_keys % 64 && 64 % list.block_keys)
    return reason("block_keys", list.block_keys, "16, 32, or a multiple of 64");
  if (list.block_keys > kMostBlock && !united(call) && !gathered(call))
    return reason("block_keys", list.block_keys, "at most " + Text::number(kMostBlock));
  if (list.block_keys < kLeastBlock)
    return reason("block_keys", list.block_keys, "at least " + Text::number(kLeastBlock));
  if (list.entry_keys != list.block_keys)
    return reason("entry_keys", list.entry_keys, "block_keys");
  if (list.last_keys) return reason("last_keys", list.last_keys, "0");
  const int64_t unit = std::min<int64_t>(list.block_keys, 64);
  if (list.first_keys % unit && list.first_keys < call.attend.sequences.key_max)
    return reason("first_keys", list.first_keys, "a multiple of " + Text::number(unit));
  return "";
}

// Of a call without a list.
Text refuses_margin(const SparseAttend& call) {
  SparseAttend other = call;
  other.skip_margin = 0, other.skipped = nullptr;
  if (const char* field = other.other_list()) return reason_given(field);
  // Tiles are met in order, by one block.
  if (call.attend.splits > 1) return reason("splits", call.attend.splits, "at most 1");
  return "";
}

Text refuses(const Context& ctx, const SparseAttend& call) {
  const Attend& a = call.attend;
  if (Text why = hopper_refuses(ctx, a); !why.empty()) return why;
  if (const char* field = a.not_plain()) return reason_given(field);
  if (Text why = call.list.listed() ? refuses_list(call) : refuses_margin(call); !why.empty())
    return why;
  // TMA has no empty tensor: it would read one row.
  const Sequences& q = a.sequences;
  if (!q.capacity || !q.caches || (q.page && !q.pool)) return "there are no keys";
  if (!a.b || !a.s || !q.count) return "there are no rows";
  if (q.query_max * (a.h / a.g) > kIndexMax) return "more than 2^30 rows of a key head";
  const int64_t o_piece = a.o_dtype == FOVEA_F32 ? 4 : 8, extent[3] = {a.b, a.s, a.h};
  if (!in_pieces(a.o, extent, o_piece)) return reason_rows("o");
  return "";
}

// ".bf16.d128.128x128"
Text name_of(const SparseInstance90& instance) {
  return Text(".") + dtype_name(instance.dtype) + ".d" + Text::number(instance.d) + "." +
         Text::number(instance.rows) + "x" + Text::number(instance.keys);
}

// Without a list: tiles of 64 keys that groups of 64 rows skip (loop/skips_sm90.cuh).
Text offer_margin(const Context& ctx, const SparseAttend& call, Plan& plan) {
  const Attend& a = call.attend;
  const int64_t page = a.sequences.page;
  const SparseInstance90* instance = nullptr;
  for (const SparseInstance90& row : skipping_instances())
    if (!instance && row.dtype == a.dtype && a.d <= row.d && a.e <= row.e) instance = &row;
  if (!instance) return no_instance(a.dtype, "d", a.d, "e", a.e) + ", skip_margin";
  const int64_t keys = instance->keys;
  if (page && (page < kLeastBlock || (page < keys ? keys % page : page % keys)))
    return reason("k.shape[1] (page)", page,
                  "at least " + Text::number(kLeastBlock) + ", and a divisor or a multiple of " +
                      Text::number(keys));
  const Rows rows{1, instance->rows, instance->rows};
  SparseWork90 work{};
  const int64_t box = page && page < keys ? page : keys;
  if (Text why = map_operands(a, rows, box, instance->keys, work); !why.empty()) return why;
  if (!order_of(device_info(ctx), a, rows, 1, work)) return "more than 2^31 row tiles";
  work.drop = call.skip_margin > 0 ? call.skip_margin / a.score.scale : INFINITY;
  work.skipped = call.skipped;
  plan.kernel += name_of(*instance) + ".skip";
  plan.launch = [=](Context& ctx, void*) {
    SparseWork90 now = work;
    if (work.schedule.items > device_info(ctx).multiprocessors)
      now.schedule.counters = counters(ctx);
    if (work.skipped) check(cudaMemsetAsync(work.skipped, 0, sizeof(int64_t), stream(ctx)), kOp);
    instance->launch(ctx, call.attend, now);
  };
  return "";
}

// Rows by the blocks of keys that their lists name.
Text offer_gathered(const SparseAttend& call, Plan& plan) {
  const Attend& a = call.attend;
  const Keys keys = keys_of_union(a);
  const SparseInstance90 instance = *keys.instance;
  SparseWork90 work{};
  const Rows rows_each{1, kGatheredRows, kGatheredRows};
  if (Text why = map_operands(a, rows_each, keys.box, instance.keys, work); !why.empty())
    return why;
  plan.kernel += name_of(instance) + ".gathered";
  const GatheredSlots slots(plan.workspace, kOp, call);
  plan.launch = [=, maps = work.maps](Context& ctx, void* base) {
    const GatheredRows rows = slots.make(ctx, kOp, call, base);
    slots.each_phase([&](const GatherPhase& phase) {
      const int64_t items = slots.chunks(phase.units) * phase.heads;
      instance.gather(ctx, call.attend,
                      {rows, phase, {static_cast<int32_t>(items), counters(ctx)}, maps});
      merge_places(ctx, kOp, call, rows, phase);
    });
  };
  return "";
}

Text offer(const Context& ctx, const SparseAttend& call, Plan& plan) {
  if (Text why = refuses(ctx, call); !why.empty()) return why;
  if (!call.list.listed()) return offer_margin(ctx, call, plan);
  if (gathered(call)) return offer_gathered(call, plan);
  const Attend& a = call.attend;
  Rows rows = rows_of(call);
  const bool many = united(call);
  if (many) rows = {1, kUnitedRows, kUnitedRows};
  if (!rows.rows)
    return reason("block_rows", call.list.block_rows,
                  "a multiple of 64, or at most 128 rows of "
                  "the heads that share a list");
  const int64_t splits = many ? 1 : splits_of(device_info(ctx), call, rows);
  const bool few = !many && few_rows(call, rows) && (splits > 1 || a.sequences.query_max == 1);
  if (!many && !few) unite(call, splits, rows);
  const Keys keys = many ? keys_of_union(a) : keys_of(call, rows.rows, few || splits > 1, few);
  const SparseInstance90* instance = keys.instance;
  if (!instance)
    return no_instance(a.dtype, "d", a.d, "e", a.e) + ", tiles of " + Text::number(rows.rows) +
           " rows, block_keys = " + Text::number(call.list.block_keys) +
           ", page = " + Text::number(a.sequences.page) + ", splits = " + Text::number(splits);
  SparseWork90 work{};
  work.blocks = keys.blocks;
  if (Text why = map_operands(a, rows, keys.box, instance->keys, work); !why.empty()) return why;
  if (!order_of(device_info(ctx), a, rows, splits, work)) return "more than 2^31 row tiles";
  plan.kernel += name_of(*instance);
  if (few) plan.kernel += ".list";
  if (rows.heads > 1) plan.kernel += ".packed";
  if (rows.lists > 1 || many)
    plan.kernel += ".union";
  else if (splits > 1)
    plan.kernel += ".split";
  else if (keys.blocks && !few)
    plan.kernel += ".blocks";
  TileListSlots slots;
  TileUnionSlots unions;
  if (many)
    unions = TileUnionSlots(plan.workspace, call, kUnitedRows, kUnitedKeys);
  else if (!few)
    slots = TileListSlots(plan.workspace, call, keys.width, rows.heads, rows.step, rows.lists);
  PartialSlots partial;
  if (splits > 1) partial = PartialSlots(plan.workspace, a, splits);
  plan.launch = [=](Context& ctx, void* base) {
    SparseWork90 now = work;
    if (many)
      now.unions = unions.make(ctx, kOp, call, base);
    else if (!few)
      now.lists = slots.make(ctx, kOp, call, base);
    now.schedule.counters = counters(ctx);
    if (splits > 1) now.parts = partial.at(base, call.attend, splits);
    // The scheduler's counters come first.
    constexpr int kFirst = 2;
    if (splits > 1 && now.schedule.items / splits <= kCounters - kFirst)
      now.arrived = counters(ctx) + kFirst;
    few ? instance->few(ctx, call, now) : instance->launch(ctx, call.attend, now);
    if (splits > 1 && !now.arrived) combine(ctx, kOp, call.attend, now.parts);
  };
  return "";
}

}  // namespace

extern const Kernel<SparseAttend> x_sparse_forward_sm90 = {"sm90", offer};

}  // namespace fovea
