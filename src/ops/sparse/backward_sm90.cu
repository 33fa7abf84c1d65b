// SPDX-License-Identifier: Apache-2.0
// The choice among the Hopper instances of x_sparse_backward, and what they are given: row
// statistics, the lists of rows as tiles of keys, and the lists by block of keys.
#include <algorithm>
#include <bit>
#include <vector>

#include "core/dtype.h"
#include "core/pieces.h"
#include "core/reasons.h"
#include "cuda/block/softmax.cuh"
#include "cuda/loop/backward_rows.cuh"
#include "cuda/loop/hopper.h"
#include "cuda/loop/list_transpose.cuh"
#include "cuda/tile/mma_sm80.cuh"
#include "ops/sparse/backward_lists.cuh"
#include "ops/sparse/kernels.h"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "x_sparse_backward";
constexpr int kThreads = 256;

// A block owns 64 rows of a head, `Lanes` lanes own a row.  Row statistics, and delta to `deltas`,
// if given.  Counters of work items are reset.
template <int Dtype, int Lanes>
__global__ void __launch_bounds__(kThreads)
    list_stats_kernel(const __grid_constant__ AttendBackward b, float* deltas,
                      const __grid_constant__ ListStats stats, int32_t* taken, int64_t row_tiles) {
  const Attend& a = b.forward;
  if (blockIdx.x == 0 && threadIdx.x < 2) taken[threadIdx.x] = 0;
  const int64_t h = blockIdx.x % a.h, m = blockIdx.x / a.h % row_tiles,
                r = blockIdx.x / a.h / row_tiles;
  const Sequence seq = a.sequences[r];
  if (m * kListLines >= seq.rows) return;
  const int64_t first = stats.first(a, seq, r) + h * stats.by_head;
  const int column = threadIdx.x % Lanes * 8;
  const auto line = [&](const View<4>& x, int64_t i) {
    return static_cast<const uint16_t*>(x.data) + seq.batch * x.stride[0] +
           (seq.row_begin + i) * x.stride[1] + h * x.stride[2];
  };
#pragma unroll 4
  for (int i = threadIdx.x / Lanes; i < kListLines; i += kThreads / Lanes) {
    const int64_t row = m * kListLines + i;
    const bool there = row < seq.rows;
    uint4 o = {}, dout = {};
    float lse = kNegativeInfinity, dlse = 0.f;
    if (there) {
      if (column < a.e) {
        o = *reinterpret_cast<const uint4*>(line(a.o, row) + column);
        dout = *reinterpret_cast<const uint4*>(line(b.dout, row) + column);
      }
      lse = a.lse.as()[lse_offset(seq, row, h, a.lse.stride)];
      if (b.dlse) dlse = b.dlse.as()[lse_offset(seq, row, h, b.dlse.stride)];
    }
    float sum = 0.f;
    const uint32_t* x = &o.x;
    const uint32_t* y = &dout.x;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float2 u = pair_of<Dtype>(x[c]), v = pair_of<Dtype>(y[c]);
      sum = fmaf(u.x, v.x, fmaf(u.y, v.y, sum));
    }
    sum = lanes_sum<Lanes>(sum) - dlse;
    if (threadIdx.x % Lanes || (stats.by_token && !there)) continue;
    const bool empty = lse == kNegativeInfinity;
    const int64_t at = first + row * stats.by_row;
    stats.lse[at] = empty ? -kNegativeInfinity : lse * kLog2E;
    stats.delta[at] = empty ? 0.f : sum;
    if (deltas && there) deltas[row_stats_offset(a, seq, h, row)] = sum;
  }
}

// The list row of each sorted entry, and where the entries of each block of keys start.
__global__ void __launch_bounds__(kThreads)
    list_starts_kernel(const __grid_constant__ ListTranspose order, const uint64_t* entries,
                       int32_t* row, int32_t* start, int64_t work) {
  for (int64_t w = int64_t{blockIdx.x} * kThreads + threadIdx.x; w < work;
       w += int64_t{gridDim.x} * kThreads) {
    if (w < order.entries) row[w] = static_cast<int32_t>(order.row_of(entries[w]));
    if (w > static_cast<int64_t>(order.none)) continue;
    const uint64_t bound = order.from(static_cast<uint64_t>(w), 0);
    int64_t low = 0, high = order.entries;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (entries[middle] < bound)
        low = middle + 1;
      else
        high = middle;
    }
    start[w] = static_cast<int32_t>(low);
  }
}

// Every row of backward.inc in this build, narrow widths first.
const std::vector<SparseBackward90>& instances() {
  static const std::vector<SparseBackward90> rows = {
#define FOVEA_INSTANCE(...) sparse_backward_sm90_instance<SparseBackwardConfig90 __VA_ARGS__>(),
#include "instances/sparse_backward_sm90.inc"
#undef FOVEA_INSTANCE
  };
  return rows;
}

Text refuses_list(const SparseBackward& call) {
  const SparseList& list = call.list;
  const SparseAttend forward = call.forward();
  if (const char* field = forward.other_list()) return reason_given(field);
  if (list.row_begin) return reason_given("row_begin");
  if (list.block_keys % kListLines)
    return reason("block_keys", list.block_keys, "a multiple of 64");
  if (list.entry_keys != list.block_keys)
    return reason("entry_keys", list.entry_keys, "block_keys");
  if (list.first_keys) return reason("first_keys", list.first_keys, "0");
  if (list.last_keys) return reason("last_keys", list.last_keys, "0");
  if (list.block_rows % kListLines == 0) return "";
  if (list.block_rows != 1) return reason("block_rows", list.block_rows, "1 or a multiple of 64");
  const int64_t heads = forward.shared_heads();
  if (heads < kListLines / kListGathered || kListLines % heads)
    return reason("h / g of a list of one row that these heads share", heads, "8, 16, 32 or 64");
  return "";
}

Text refuses(const Context& ctx, const SparseBackward& request) {
  const AttendBackward& call = request.attend;
  const Attend& a = call.forward;
  if (Text why = hopper_refuses(ctx, a); !why.empty()) return why;
  if (a.o_dtype != a.dtype) return reason_dtype("o.dtype", a.o_dtype, a.dtype, "q");
  if (const char* field = a.not_plain()) return reason_given(field);
  if (Text why = refuses_list(request); !why.empty()) return why;
  const Sequences& q = a.sequences;
  // TMA has no empty tensor: it would read one row.
  if (!q.capacity || !q.caches || !a.t) return "there are no keys";
  if (!a.b || !a.s || !q.count || !q.query_max) return "there are no rows";
  const int64_t rows[3] = {a.b, a.s, a.h}, keys[3] = {q.key_start ? 1 : q.count, a.t, a.g};
  for (const View<4>* x : {&a.o, &call.dout, &call.dq})
    if (*x && !in_pieces(*x, rows, 8))
      return reason_rows(x == &a.o ? "o" : x == &call.dq ? "dq" : "dout");
  for (const View<4>* x : {&call.dk, &call.dv})
    if (*x && !in_pieces(*x, keys, 8)) return reason_rows(x == &call.dk ? "dk" : "dv");
  return "";
}

// Rows and heads that a row tile of dq has, and its list rows.
struct RowCut {
  int64_t heads, rows, lists;
};
RowCut row_cut(const SparseBackward& call) {
  const Attend& a = call.attend.forward;
  if (call.list.block_rows > 1) return {1, call.list.block_rows, 1};
  const int64_t group = a.h / a.g;
  const int64_t lists =
      call.list.keep > kUnionKeep
          ? 1
          : std::min<int64_t>({kUnionRows, kListLines / group, a.sequences.query_max});
  return {group, lists, lists};
}

struct ListMaps {
  BackwardMaps rows, keys;
};

Text map_operands(const AttendBackward& call, const RowCut& cut, bool packed, ListMaps& to) {
  const Attend& a = call.forward;
  const int lines = kListLines, heads = static_cast<int>(packed ? cut.heads : 1);
  const auto of_rows = [&](const View<4>& x, int64_t width, int rows) {
    return MapOf{x, a.dtype, a.b, a.s, a.h, width, rows, heads};
  };
  const auto of_keys = [&](const View<4>& x, int64_t width) {
    return MapOf{x, a.dtype, a.sequences.caches, a.t, a.g, width, lines};
  };
  const int own = packed ? static_cast<int>(cut.rows) : lines, gathered = packed ? 1 : lines;
  return map_each({{"q", of_rows(a.q, a.d, own), to.rows.q},
                   {"k", of_keys(a.k, a.d), to.rows.k},
                   {"v", of_keys(a.v, a.e), to.rows.v},
                   {"dout", of_rows(call.dout, a.e, own), to.rows.dout},
                   {"q", of_rows(a.q, a.d, gathered), to.keys.q},
                   {"k", of_keys(a.k, a.d), to.keys.k},
                   {"v", of_keys(a.v, a.e), to.keys.v},
                   {"dout", of_rows(call.dout, a.e, gathered), to.keys.dout}});
}

template <int Dtype>
void launch_stats(Context& ctx, const AttendBackward& call, float* deltas, const ListStats& stats,
                  int32_t* taken) {
  const Attend& a = call.forward;
  const int64_t row_tiles = ceil_div(a.sequences.query_max, kListLines);
  launch<list_stats_kernel<Dtype, 16>>(ctx, kOp, a.sequences.count * row_tiles * a.h, kThreads, 0,
                                       call, deltas, stats, taken, row_tiles);
}

Text offer(const Context& ctx, const SparseBackward& request, Plan& plan) {
  if (Text why = refuses(ctx, request); !why.empty()) return why;
  const AttendBackward& call = request.attend;
  const Attend& a = call.forward;
  const SparseBackward90* found = nullptr;
  for (const SparseBackward90& row : instances())
    if (!found && row.dtype == a.dtype && a.d <= row.d && a.e <= row.d) found = &row;
  if (!found) return no_instance(a.dtype, "d", a.d, "e", a.e);
  const SparseBackward90 instance = *found;
  const SparseList& list = request.list;
  const Sequences& q = a.sequences;
  const bool packed = list.block_rows == 1;
  const ListCut90 cut{packed || list.block_keys % (2 * kListLines) ? 2 : 1,
                      packed || list.block_rows % (2 * kListLines) ? 2 : 1, packed};
  const RowCut row = row_cut(request);
  const BlockLists lists{list, q, list.keep};
  const ListTranspose order(lists, 0);
  if (const char* why = order.refuses(); *why) return why;
  const int32_t group = static_cast<int32_t>(a.h / a.g),
                shift = std::bit_width(static_cast<uint32_t>(group)) - 1;
  ListRows90 rows{.items = {.taken = nullptr,
                            .count = 0,
                            .owners = static_cast<int32_t>(a.h / row.heads),
                            .tiles = static_cast<int32_t>(ceil_div(q.query_max, row.rows)),
                            .group = group,
                            .shift = shift,
                            .reversed = a.mask.window.right > 0},
                  .stats = ListStats(a, packed),
                  .lists = {},
                  .rows = static_cast<int32_t>(row.rows)};
  const int64_t key_lines = kListLines * (cut.key_rings > 1 ? 1 : 2);
  ListKeys90 keys{.items = {.taken = nullptr,
                            .count = 0,
                            .owners = static_cast<int32_t>(a.g),
                            .tiles = static_cast<int32_t>(ceil_div(q.key_max, key_lines)),
                            .group = group,
                            .shift = shift,
                            .reversed = false},
                  .stats = rows.stats,
                  .row = nullptr,
                  .start = nullptr,
                  .heads = static_cast<int32_t>(list.x),
                  .blocks = static_cast<int32_t>(order.tiles),
                  .group = static_cast<int32_t>(list.group),
                  .row_tiles = static_cast<int32_t>(std::max<int64_t>(list.block_rows / 64, 1)),
                  .block_keys = static_cast<int32_t>(list.block_keys)};
  const int64_t most = std::max({order.entries, static_cast<int64_t>(order.none),
                                 q.count * a.h * rows.items.tiles, q.count * a.g * keys.items.tiles,
                                 q.count * a.h * ceil_div(q.query_max, kListLines)});
  if (most > kIndexMax) return "more than 2^30 blocks of work or entries";
  rows.items.count = static_cast<int32_t>(q.count) * rows.items.owners * rows.items.tiles;
  keys.items.count = static_cast<int32_t>(q.count) * keys.items.owners * keys.items.tiles;
  ListMaps maps;
  if (Text why = map_operands(call, row, packed, maps); !why.empty()) return why;
  plan.kernel += Text(".") + dtype_name(a.dtype) + ".d" + Text::number(instance.d);
  if (packed) plan.kernel += ".packed";
  Layout& room = plan.workspace;
  const bool by_key = call.dk || call.dv;
  const auto lse = room.add<float>(rows.stats.floats(a)),
             delta = room.add<float>(rows.stats.floats(a));
  const auto deltas = room.add<float>(call.dsink_logit ? a.b * a.s * a.h : 0);
  const auto taken = room.add<int32_t>(2);
  const TileListSlots tiles(room, request.forward(), kListLines, row.heads, row.rows * row.heads,
                            row.lists);
  const ListTransposeSlots<BlockLists> entries(room, kOp, lists, 0, by_key);
  const auto entry_row = room.add<int32_t>(by_key ? order.entries : 0);
  const auto start = room.add<int32_t>(by_key ? static_cast<int64_t>(order.none) + 1 : 0);
  plan.launch = [=](Context& ctx, void* base) {
    const AttendBackward& call = request.attend;
    ListRows90 by_row = rows;
    ListKeys90 of_keys = keys;
    by_row.stats.lse = of_keys.stats.lse = lse.at(base);
    by_row.stats.delta = of_keys.stats.delta = delta.at(base);
    by_row.items.taken = taken.at(base), of_keys.items.taken = taken.at(base) + 1;
    clear_gradients(ctx, kOp, call);
    if (call.forward.dtype == FOVEA_BF16)
      launch_stats<FOVEA_BF16>(ctx, call, deltas.at(base), by_row.stats, taken.at(base));
    else
      launch_stats<FOVEA_F16>(ctx, call, deltas.at(base), by_row.stats, taken.at(base));
    if (by_key) {
      const uint64_t* sorted = entries.sort(ctx, kOp, base).entries;
      const int64_t work = std::max(order.entries, static_cast<int64_t>(order.none) + 1);
      ListTranspose made = order;
      if (!sorted) made.entries = 0;
      launch<list_starts_kernel>(ctx, kOp, ceil_div(work, kThreads), kThreads, 0, made, sorted,
                                 entry_row.at(base), start.at(base), work);
      of_keys.row = entry_row.at(base), of_keys.start = start.at(base);
      instance.keys(ctx, cut, call, maps.keys, of_keys);
    }
    if (call.dq) {
      by_row.lists = tiles.make(ctx, kOp, request.forward(), base);
      instance.rows(ctx, cut, call, maps.rows, by_row);
    }
    BackwardSimt sinks{};
    sinks.call = call, sinks.delta = deltas.at(base);
    sum_sinks(ctx, kOp, sinks);
  };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<SparseBackward> x_sparse_backward_sm90 = {"sm90", cuda::offer};

}  // namespace fovea
