// SPDX-License-Identifier: Apache-2.0
// The choice among the Hopper instances of x_sparse_forward over blocks at any key and single keys.
#include <algorithm>
#include <vector>

#include "core/dtype.h"
#include "core/pieces.h"
#include "core/reasons.h"
#include "cuda/launch.h"
#include "cuda/loop/hopper.h"
#include "ops/sparse/forward.cuh"
#include "ops/sparse/kernels.h"

namespace fovea {
namespace {

using namespace cuda;

constexpr char kOp[] = "x_sparse_forward";
// Of a row tile; fewer rows leave most of it empty.
constexpr int64_t kRowTile = 128, kLeastRows = 16;
// A piece of an entry is at most a TMA box of these keys.
constexpr int64_t kPiece = 64, kLeastPiece = 16;
// Places of all lists, in the workspace.
constexpr double kPlacesMost = 1 << 30;

// Every row of columns.inc in this build, narrow widths first.
const std::vector<ColumnInstance90>& instances() {
  static const std::vector<ColumnInstance90> rows = {
#define FOVEA_INSTANCE(...) columns_sm90_instance<SparseConfig90 __VA_ARGS__>(),
#include "instances/sparse_columns_sm90.inc"
#undef FOVEA_INSTANCE
  };
  return rows;
}

const ColumnInstance90* find(const Attend& a) {
  for (const ColumnInstance90& row : instances())
    if (row.dtype == a.dtype && a.d <= row.d && a.e <= row.e) return &row;
  return nullptr;
}

// Two list rows that fit share a row tile, and so do heads that share a list.
SparseRows90 rows_of(const SparseAttend& call) {
  const int64_t block = call.list.block_rows, shared = call.shared_heads();
  const int64_t heads = block * shared <= kRowTile ? shared : 1;
  const int64_t lists = 2 * block * heads <= kRowTile ? 2 : 1;
  return {heads, kRowTile, lists * block * heads, lists};
}

Text refuses_list(const SparseAttend& call) {
  const SparseList& list = call.list;
  if (!list.listed()) return "index and column are absent, wanted one";
  SparseAttend others = call;
  others.list.column = {};
  if (const char* field = others.other_list()) return reason_given(field);
  if (list.row_begin) return reason_given("row_begin");
  if (list.index_bias) return reason_given("index_bias");
  if (list.index && list.block_keys % kPiece &&
      (kPiece % list.block_keys || list.block_keys < kLeastPiece))
    return reason("block_keys", list.block_keys, "16, 32, or a multiple of 64");
  if (list.first_keys > kAlwaysMost)
    return reason("first_keys", list.first_keys, "at most " + Text::number(kAlwaysMost));
  if (list.last_keys > kAlwaysMost)
    return reason("last_keys", list.last_keys, "at most " + Text::number(kAlwaysMost));
  if (list.index && list.keep > kTimesMost)
    return reason("index.shape[3] (keep)", list.keep, "at most " + Text::number(kTimesMost));
  if (list.column && list.columns > kTimesMost)
    return reason("column.shape[3] (columns)", list.columns, "at most " + Text::number(kTimesMost));
  if (rows_of(call).step < 2 * kLeastRows)
    return reason("block_rows", list.block_rows,
                  "at least " + Text::number(kLeastRows) + " rows of the heads that share a list");
  return "";
}

// Places that the lists of a call have room for.
double places_of(const SparseAttend& call) {
  const SparseList& list = call.list;
  const int64_t pieces = list.index ? list.keep * ceil_div(list.block_keys, kPiece) : 0;
  const int64_t each = pieces + list.columns + list.first_keys + list.last_keys + kRowTile;
  return static_cast<double>(call.attend.b) * static_cast<double>(list.x * list.n) *
         static_cast<double>(each);
}

Text refuses(const Context& ctx, const SparseAttend& call) {
  const Attend& a = call.attend;
  if (Text why = hopper_refuses(ctx, a); !why.empty()) return why;
  if (const char* field = a.not_plain()) return reason_given(field);
  if (Text why = refuses_list(call); !why.empty()) return why;
  const Sequences& q = a.sequences;
  if (q.page) return reason_given("page_table");
  if (a.splits > 1) return reason("splits", a.splits, "0 or 1");
  // TMA has no empty tensor: it would read one row.
  if (!q.capacity || !q.caches) return "there are no keys";
  if (!a.b || !a.s || !q.count) return "there are no rows";
  // A key and the next ones of its piece have numbers.
  if (q.key_max > (1 << kPlaceTileBits) - kPiece)
    return "more than 2^" + Text::number(kPlaceTileBits) + " - 64 keys in a sequence";
  if (places_of(call) > kPlacesMost) return "the lists have more than 2^30 places";
  if (q.query_max * (a.h / a.g) > kIndexMax) return "more than 2^30 rows of a key head";
  const int64_t o_piece = a.o_dtype == FOVEA_F32 ? 4 : 8, extent[3] = {a.b, a.s, a.h};
  if (!in_pieces(a.o, extent, o_piece)) return reason_rows("o");
  return "";
}

Text offer(const Context& ctx, const SparseAttend& call, Plan& plan) {
  if (Text why = refuses(ctx, call); !why.empty()) return why;
  const Attend& a = call.attend;
  const ColumnInstance90* instance = find(a);
  if (!instance) return no_instance(a.dtype, "d", a.d, "e", a.e);
  const SparseRows90 rows = rows_of(call);
  const int64_t width = call.list.index ? std::min(call.list.block_keys, kPiece) : kPiece;
  ColumnWork90 work{};
  if (Text why = map_operands(a, rows, width, instance->keys, work); !why.empty()) return why;
  if (!order_of(device_info(ctx), a, rows, 1, work)) return "more than 2^31 row tiles";
  plan.kernel += Text(".") + dtype_name(a.dtype) + ".d" + Text::number(instance->d) +
                 (rows.heads > 1 ? ".packed" : "") + (rows.lists > 1 ? ".union" : "");
  const ColumnListSlots slots(plan.workspace, call, width, rows.heads, rows.lists);
  plan.launch = [=](Context& ctx, void* base) {
    ColumnWork90 now = work;
    now.lists = slots.make(ctx, kOp, call, base);
    now.schedule.counters = counters(ctx);
    instance->launch(ctx, call.attend, now);
  };
  return "";
}

}  // namespace

extern const Kernel<SparseAttend> x_sparse_columns_sm90 = {"sm90.columns", offer};

}  // namespace fovea
