// SPDX-License-Identifier: Apache-2.0
// The choice among the Hopper instances of attention_forward, their tile order and their splits.
#include <algorithm>
#include <vector>

#include "core/dtype.h"
#include "core/pieces.h"
#include "core/reasons.h"
#include "cuda/launch.h"
#include "cuda/loop/hopper.h"
#include "cuda/loop/tile_policy.cuh"
#include "ops/attention/forward.cuh"
#include "ops/attention/kernels.h"

namespace fovea {
namespace {

using namespace cuda;

// Every row of forward.inc in this build, narrow widths first.
const std::vector<ForwardInstance90>& instances() {
  static const std::vector<ForwardInstance90> rows = {
#define FOVEA_INSTANCE(...) forward_sm90_instance<ForwardConfig90 __VA_ARGS__>(),
#include "instances/attention_forward_sm90.inc"
#undef FOVEA_INSTANCE
  };
  return rows;
}

// How pages of both k and v are interleaved boxes, or none.
Interleave interleave(const Attend& a, const ForwardInstance90& row) {
  const int64_t page = a.sequences.page;
  if (!row.interleaved || page % 8 || a.d != row.d || a.e != row.e) return Interleave::none;
  const auto follow = [&](int64_t k, int64_t v) {
    return a.g == 1 || (a.k.stride[2] == k && a.v.stride[2] == v);
  };
  if (a.d == a.e && follow(a.d, a.e)) return Interleave::heads_as_panels;
  if (follow(page * a.k.stride[1], page * a.v.stride[1])) return Interleave::heads_as_octets;
  return Interleave::none;
}

// The instance of a kind:
//   1. the narrowest width;
//   2. of two row tiles the first, since warpgroups without rows cost nothing.  Under a causal mask
//      the last rows have the most keys: the one that leaves clearly fewer rows empty;
//   3. of two key tiles the first, of splits with more than one row tile the wider one.
const ForwardInstance90* find(const Attend& a, ForwardKind kind) {
  const int64_t queries = a.sequences.query_max;
  const bool split = kind == ForwardKind::split || kind == ForwardKind::span_split;
  const auto wider = [&](const ForwardInstance90& row, const ForwardInstance90& than) {
    return split && queries * (a.h / a.g) > row.rows && row.keys > than.keys;
  };
  const auto padded = [&](const ForwardInstance90& row) {
    return ceil_div(queries, row.rows) * row.rows;
  };
  const ForwardInstance90* found = nullptr;
  for (const ForwardInstance90& row : instances()) {
    if (row.dtype != a.dtype || row.kind != kind || a.d > row.d || a.e > row.e) continue;
    if (a.sequences.page && !row.paged && interleave(a, row) == Interleave::none) continue;
    if (found && (found->d != row.d || found->e != row.e)) break;
    if (!found || (a.mask.window.right > 0 && padded(row) * 20 < padded(*found) * 19) ||
        wider(row, *found))
      found = &row;
  }
  return found;
}

// Boxes of fewer tokens cost more than their bytes.  At width 128, pages of 16 tokens read 4.1 to
// 4.3 TB/s on an H200; the sm_80 kernel reads 3.5 to 3.9.
constexpr int64_t kLeastPage = 16;

struct Choice {
  const ForwardInstance90* instance = nullptr;
  AttendGrid grid{};
  TileOrder order{};
};

Choice choice(const DeviceInfo& device, const Attend& a) {
  const int64_t queries = a.sequences.query_max, count = a.sequences.count, group = a.h / a.g;
  const bool masked = a.mask.window.right > 0 || a.mask.head_window || a.mask.window.chunk;
  Choice c;
  const bool capped = a.score.softcap > 0, page = a.sequences.page, spans = a.spans(),
             keyed = static_cast<bool>(a.score.bias);
  const ForwardInstance90 *whole =
                              find(a, capped  ? ForwardKind::capped
                                      : keyed ? ForwardKind::keyed
                                      : spans ? (page ? ForwardKind::span_paged : ForwardKind::span)
                                      : page  ? ForwardKind::paged
                                              : ForwardKind::whole),
                          *split = find(a, spans ? ForwardKind::span_split : ForwardKind::split);
  if (!whole || !split) return c;
  // Heads packed into rows would differ in the bias of a key.
  const int64_t packed =
      !keyed && std::min<int64_t>(whole->rows, group) == group ? pack_gqa_heads(a, whole->rows) : 1;
  const auto items = [&](int64_t heads, int64_t rows, int64_t step) {
    return count * heads * ceil_div(rows, step);
  };
  const int64_t split_step = split->rows / group * group;
  // Few items leave multiprocessors idle: take smaller row tiles, and splits.
  const bool few = items(a.h / packed, queries * packed, whole->rows / packed * packed) * 10 <
                   device.multiprocessors * 8;
  int64_t splits = a.splits;
  if (!splits) {
    const bool small = queries * group <= split->rows;
    splits = split_step && (few || small)
                 ? splits_of(items(a.g, queries * group, split_step),
                             key_tiles_bound(a, ceil_div(split_step, group), split->keys),
                             device.multiprocessors)
                 : 1;
  }
  const bool small =
      splits > 1 || queries * group <= split->rows || (few && !a.splits && split_step);
  if (small && (capped || keyed || !split_step)) return c;
  c.instance = small ? split : whole;
  const int64_t width = small ? group : packed, step = c.instance->rows / width * width;
  const int64_t most = key_tiles_bound(a, ceil_div(step, width), c.instance->keys);
  splits = clamp_i64(splits, 1, std::max<int64_t>(most, 1));
  c.grid = {ceil_div(queries * width, step), a.h / width, static_cast<int32_t>(splits),
            static_cast<int32_t>(width), masked};
  const int64_t heads = count * c.grid.heads;
  if (heads * c.grid.row_tiles * splits > INT_MAX || heads > INT_MAX) return {};
  c.order = {static_cast<int32_t>(c.grid.row_tiles),
             static_cast<int32_t>(heads),
             static_cast<int32_t>(splits),
             section_of(heads, group / width, a.sequences.key_max * (a.d + a.e) * 2,
                        device.l2_bytes, masked),
             static_cast<int32_t>(masked                   ? c.grid.row_tiles / 4
                                  : queries * width % step ? 1
                                                           : 0),
             masked};
  return c;
}

// q, k, v as boxes of a row tile and of a key tile, o of a warpgroup's rows.
struct Operands {
  MapOf q, k, v, o;
  Operands(const Attend& a, const Choice& c) {
    const int64_t group = c.grid.group, page = a.sequences.page;
    const int64_t caches = page ? a.sequences.pool : a.sequences.caches, tokens = page ? page : a.t;
    const int keys =
        static_cast<int>(page ? std::min<int64_t>(page, c.instance->keys) : c.instance->keys);
    q = {a.q,
         a.dtype,
         a.b,
         a.s,
         a.h,
         a.d,
         static_cast<int>(c.instance->rows / group),
         static_cast<int>(group)};
    k = {a.k, a.dtype, caches, tokens, a.g, a.d, keys};
    v = {a.v, a.dtype, caches, tokens, a.g, a.e, keys};
    if (page) k.interleave = v.interleave = interleave(a, *c.instance);
    o = {a.o, a.dtype, a.b, a.s, a.h, a.e, 64};
  }
};

// Of a bias: it must be of keys alone.
Text refuse_bias(const Attend& a) {
  const View<4>& bias = a.score.bias;
  if (a.s > 1 && bias.stride[2]) return "bias has a stride over rows";
  if (a.score.bias_dtype != FOVEA_F32)
    return Text("bias is ") + dtype_name(a.score.bias_dtype) + ", wanted f32";
  if (bias.stride[3] != 1) return reason("bias.stride[3]", bias.stride[3], "1");
  if (a.score.softcap > 0 || a.sequences.page || a.spans())
    return Text("bias is given with ") +
           (a.score.softcap > 0 ? "softcap"
            : a.sequences.page  ? "page_table"
                                : "sink keys, chunks or an axis") +
           ", wanted one of them";
  return "";
}

Text refuses(const Context& ctx, const Attend& a) {
  if (Text why = hopper_refuses(ctx, a); !why.empty()) return why;
  Attend rest = a.without_spans();
  rest.score.bias = {};
  if (const char* field = rest.not_plain()) return reason_given(field);
  if (a.score.bias)
    if (Text why = refuse_bias(a); !why.empty()) return why;
  if (a.score.softcap > 0 && a.spans())
    return Text("softcap is given with ") +
           (a.mask.head_window        ? "head_window"
            : a.mask.window.sink      ? "sink_keys"
            : a.mask.window.chunk     ? "local_chunk"
            : a.sequences.context_len ? "context_len"
                                      : "key_step or key_shift") +
           ", wanted one of them";
  if (Text why = spans_refuse(a); !why.empty()) return why;
  if (a.sequences.page && (a.score.softcap > 0 || a.sequences.key_first))
    return Text(a.score.softcap > 0 ? "softcap" : "key_first") +
           " is given with page_table, wanted one of them";
  // TMA has no empty tensor: it would read one row.
  const Sequences& q = a.sequences;
  if (!q.capacity || !q.caches || (q.page && !q.pool)) return "there are no keys";
  if (q.query_max * (a.h / a.g) > kIndexMax) return "more than 2^30 rows of a key head";
  const int64_t o_piece = a.o_dtype == FOVEA_F32 ? 4 : 8, extent[3] = {a.b, a.s, a.h};
  if (!in_pieces(a.o, extent, o_piece)) return reason_rows("o");
  return "";
}

// Whether the last split of a row tile merges all, or a kernel of its own.  Its four warps load a
// row's columns in rounds, a microsecond each, while the rest of the device waits.
bool merges_by_last(const Attend& a, const Choice& c) {
  constexpr int64_t kRounds = 4, kWarps = 4, kColumns = 128;
  const int64_t at_once = c.instance->e > kColumns ? 8 : 16;
  const int64_t rows = std::min<int64_t>(a.sequences.query_max * c.grid.group, c.instance->rows);
  return ceil_div(rows, kWarps) * ceil_div(a.e, kColumns) * ceil_div(c.order.splits, at_once) <=
         kRounds;
}

Text offer(const Context& ctx, const Attend& a, Plan& plan) {
  if (Text why = refuses(ctx, a); !why.empty()) return why;
  const Choice c = choice(device_info(ctx), a);
  if (!c.instance)
    return no_instance(a.dtype, "d", a.d, "e", a.e) + ", " + Text::number(a.h / a.g) +
           " query heads a key head, " + Text::number(a.sequences.query_max) + " rows" +
           (a.score.softcap > 0 ? ", softcap"
            : a.score.bias      ? ", bias"
            : a.spans()         ? ", spans"
                                : "");
  if (const int64_t page = a.sequences.page, keys = c.instance->keys; page)
    if (page < kLeastPage || (page < keys ? keys % page : page % keys))
      return reason("k.shape[1] (page)", page,
                    "at least " + Text::number(kLeastPage) + ", and a divisor or a multiple of " +
                        Text::number(keys));
  const Operands of(a, c);
  ForwardWork90 work{};
  if (Text why = map_sweep(of.q, of.k, of.v, c.instance->keys, work.maps); !why.empty()) return why;
  work.o_given =
      c.grid.group == 1 && a.o_dtype == a.dtype && !*map_refuses(of.o) && make_map(of.o, work.o);
  const int64_t items = c.order.items();
  work.grid = c.grid, work.order = c.order, work.schedule.items = static_cast<int32_t>(items);
  plan.kernel += Text(".") + dtype_name(a.dtype) + ".d" + Text::number(c.instance->d) + "." +
                 name_of(c.instance->kind) + "." + Text::number(c.instance->rows) + "x" +
                 Text::number(c.instance->keys);
  PartialSlots slots;
  if (c.order.splits > 1) slots = PartialSlots(plan.workspace, a, c.order.splits);
  const bool by_last = merges_by_last(a, c);
  plan.launch = [=, instance = c.instance](Context& ctx, void* workspace) {
    ForwardWork90 now = work;
    if (items > device_info(ctx).multiprocessors) now.schedule.counters = counters(ctx);
    const int splits = now.order.splits;
    if (splits > 1) now.parts = slots.at(workspace, a, splits);
    // The scheduler's counters come first.
    constexpr int kFirst = 2;
    if (splits > 1 && by_last && items / splits <= kCounters - kFirst)
      now.arrived = counters(ctx) + kFirst;
    instance->launch(ctx, a, now);
    if (splits > 1 && !now.arrived) combine(ctx, "attention_forward", a, now.parts);
  };
  return "";
}

}  // namespace

extern const Kernel<Attend> attention_forward_sm90 = {"sm90", offer};

}  // namespace fovea
