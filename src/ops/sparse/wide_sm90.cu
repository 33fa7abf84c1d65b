// SPDX-License-Identifier: Apache-2.0
// The choice among the instances of x_sparse_forward for single keys of wide heads, and their
// splits.
#include <algorithm>
#include <vector>

#include "core/dtype.h"
#include "core/pieces.h"
#include "core/reasons.h"
#include "cuda/launch.h"
#include "cuda/loop/hopper.h"
#include "cuda/loop/wide_codes.h"
#include "ops/sparse/kernels.h"
#include "ops/sparse/wide.cuh"

namespace fovea {
namespace {

using namespace cuda;

constexpr char kOp[] = "x_sparse_forward";
constexpr int64_t kRows = 64, kKeys = 64, kNarrow = 256, kValues = 512, kWidest = 576;
// Of a row tile; fewer rows leave most of it empty.
constexpr int64_t kLeastHeads = 8;
constexpr int kPiece = 16;  // codes of a copy

// Every row of wide.inc in this build.
const std::vector<WideListInstance90>& instances() {
  static const std::vector<WideListInstance90> rows = {
#define FOVEA_INSTANCE(...) wide_list_sm90_instance<WideListConfig90 __VA_ARGS__>(),
#include "instances/sparse_wide_sm90.inc"
#undef FOVEA_INSTANCE
  };
  return rows;
}

const WideListInstance90* find(const Attend& a) {
  const bool joined = a.q_value && !a.codes(), softcap = a.score.softcap > 0;
  const bool shared = joined || v_in_k(a);
  for (const WideListInstance90& row : instances()) {
    const WideListConfig90& c = row.config;
    if (c.dtype != a.dtype || c.codes != a.codes() || c.joined != joined) continue;
    if (c.codes || (a.d <= c.d && c.v_in_k == shared && c.softcap == softcap)) return &row;
  }
  return nullptr;
}

// Heads of a row that share its list and its keys, and those of them that share a row tile: as many
// as fit and divide them.
struct Heads {
  int64_t all, tile;
  explicit Heads(const SparseAttend& call) {
    const int64_t group = call.attend.h / call.attend.g, list = call.list.group;
    all = list % group == 0 ? group : group % list == 0 ? list : 1;
    tile = std::min(all, kRows);
    while (all % tile) --tile;
  }
};

Text refuses_list(const SparseAttend& call) {
  const SparseList& list = call.list;
  if (const char* field = call.other_list()) return reason_given(field);
  if (list.row_begin) return reason_given("row_begin");
  if (list.index_bias) return reason_given("index_bias");
  if (!list.index) return "index is absent, wanted one";
  if (list.block_rows != 1) return reason("block_rows", list.block_rows, "1");
  if (list.block_keys != 1) return reason("block_keys", list.block_keys, "1");
  if (list.first_keys) return reason("first_keys", list.first_keys, "0");
  if (list.last_keys) return reason("last_keys", list.last_keys, "0");
  if (list.keep > kIndexMax) return "more than 2^30 keys in a list";
  return "";
}

Text refuses(const Context& ctx, const SparseAttend& call) {
  const Attend &given = call.attend, a = given.q_value || given.codes() ? uncoded(given) : given;
  if (Text why = hopper_refuses(ctx, a); !why.empty()) return why;
  if (given.q_value) {
    if (Text why = joined_refuses(given); !why.empty()) return why;
  } else if (!given.codes() && a.d <= kNarrow && a.e <= kNarrow) {
    return Text("d is ") + Text::number(a.d) + " and e is " + Text::number(a.e) +
           ", wanted one above " + Text::number(kNarrow) + ", or q_value";
  }
  if (given.codes())
    if (Text why = codes_refuse(given); !why.empty()) return why;
  if ((given.q_value || given.codes()) && given.score.softcap != 0) return reason_given("softcap");
  if (a.d > kWidest) return reason("d", a.d, "at most " + Text::number(kWidest));
  if (a.e > kValues) return reason("e", a.e, "at most " + Text::number(kValues));
  if (Text why = refuses_list(call); !why.empty()) return why;
  if (const char* field = a.without_spans().not_plain()) return reason_given(field);
  const int64_t heads = Heads(call).tile;
  if (heads < kLeastHeads)
    return "row tiles of " + Text::number(heads) + " heads that share a list, wanted at least " +
           Text::number(kLeastHeads);
  const Sequences& s = a.sequences;
  if (!s.capacity || !s.caches || (s.page && !s.pool)) return "there are no keys";
  if (!a.b || !a.s || !s.count) return "there are no rows";
  if (s.query_max * (a.h / a.g) > kIndexMax) return "more than 2^30 rows of a key head";
  if (s.capacity > kIndexMax || s.pool > INT_MAX || s.caches > INT_MAX)
    return "more than 2^30 keys in a sequence";
  const int64_t rows[3] = {a.b, a.s, a.h};
  if (!in_pieces(a.q, rows, 8)) return reason_rows("q");
  if (!in_pieces(a.o, rows, a.o_dtype == FOVEA_F32 ? 4 : 8)) return reason_rows("o");
  const int64_t keys[3] = {s.page ? s.pool : s.caches, s.page ? s.page : a.t, a.g};
  if (!in_pieces(a.k, keys, given.k_dtype == a.dtype ? 8 : kPiece)) return reason_rows("k");
  if (!in_pieces(a.v, keys, given.v_dtype == a.dtype ? 8 : kPiece)) return reason_rows("v");
  return "";
}

// The splits that end soonest.  Of many work items they are long: the merge reads each split's
// sums, which splits_of() does not count.
int64_t list_splits(int64_t items, int64_t key_tiles, int64_t multiprocessors) {
  constexpr int64_t kMany = 8, kLeastTiles = 2;
  const int64_t splits = splits_of(items, key_tiles, multiprocessors);
  return items < kMany ? splits : std::min(splits, ceil_div(key_tiles, kLeastTiles));
}

// The row tiles of the rows of each list head, and the splits of their lists.
Text arrange(const Context& ctx, const SparseAttend& call, const Heads& heads,
             WideListWork90& work) {
  const Attend& a = call.attend;
  const DeviceInfo& device = device_info(ctx);
  const int64_t each = a.h / heads.all, row_tiles = a.sequences.query_max * heads.all / heads.tile;
  const int64_t items = a.sequences.count * each * row_tiles;
  const int64_t most = std::max<int64_t>(ceil_div(call.list.keep, kKeys), 1);
  const int64_t wanted = a.splits ? a.splits : list_splits(items, most, device.multiprocessors);
  const int64_t splits = clamp_i64(wanted, 1, most);
  if (items * splits > INT_MAX) return "more than 2^31 work items";
  work.grid = {row_tiles, each, static_cast<int32_t>(splits), static_cast<int32_t>(heads.all),
               false};
  const int64_t values = !a.q_value && v_in_k(a) ? 0 : a.e * dtype_bytes(a.v_dtype),
                bytes = a.sequences.key_max * (a.d * dtype_bytes(a.k_dtype) + values);
  work.order = {static_cast<int32_t>(row_tiles),
                static_cast<int32_t>(a.sequences.count * each),
                static_cast<int32_t>(splits),
                section_of(a.sequences.count * each, 1, bytes, device.l2_bytes, false),
                0,
                false};
  work.schedule.items = static_cast<int32_t>(work.order.items());
  work.columns = {code_shift(a)};
  return "";
}

Text offer(const Context& ctx, const SparseAttend& call, Plan& plan) {
  if (Text why = refuses(ctx, call); !why.empty()) return why;
  const Attend& a = call.attend;
  const WideListInstance90* instance = find(a);
  if (!instance) return no_instance(a.dtype, "d", a.d, "e", a.e);
  const Heads heads(call);
  WideListWork90 work{};
  if (Text why = arrange(ctx, call, heads, work); !why.empty()) return why;
  const int splits = work.order.splits;
  const WideListConfig90& config = instance->config;
  plan.kernel += Text(".") + dtype_name(a.dtype) + ".d" + Text::number(config.d) +
                 (a.q_value       ? ".q_value"
                  : config.v_in_k ? ".v_in_k"
                                  : "") +
                 (config.codes ? Text(".") + dtype_name(a.v_dtype) : Text()) +
                 (config.softcap ? ".softcap" : "") + (splits > 1 ? ".split" : "");
  PartialSlots slots;
  if (splits > 1) slots = PartialSlots(plan.workspace, a, splits);
  const KeyListAttend lists{a, {call.list, static_cast<int32_t>(heads.tile)}};
  plan.launch = [=](Context& ctx, void* workspace) {
    WideListWork90 now = work;
    if (now.schedule.items > device_info(ctx).multiprocessors)
      now.schedule.counters = counters(ctx);
    if (splits > 1) now.parts = slots.at(workspace, lists.attend, splits);
    instance->launch(ctx, lists, now);
    if (splits > 1) combine(ctx, kOp, lists.attend, now.parts);
  };
  return "";
}

}  // namespace

extern const Kernel<SparseAttend> x_sparse_wide_sm90 = {"sm90_wide", offer};

}  // namespace fovea
