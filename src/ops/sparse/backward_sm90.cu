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

// Where the entries of each block of keys start, and the list row of each sorted entry, if wanted.
__global__ void __launch_bounds__(kThreads)
    list_starts_kernel(const __grid_constant__ ListTranspose order, const uint64_t* entries,
                       int32_t* row, int32_t* start, int64_t work) {
  for (int64_t w = int64_t{blockIdx.x} * kThreads + threadIdx.x; w < work;
       w += int64_t{gridDim.x} * kThreads) {
    if (row && w < order.entries) row[w] = static_cast<int32_t>(order.row_of(entries[w]));
    if (w > static_cast<int64_t>(order.none)) continue;
    start[w] = static_cast<int32_t>(order.start_of(entries, w));
  }
}

// What is written in the order of the lists by block of keys, at padded(); what is not wanted is
// nullptr.
struct GatherOrder {
  int32_t *row, *slot, *chunk;  // chunk: ListChunks90::list
  float *lse, *delta;           // ListKeys90's
  int64_t places;
  int32_t group, sharing, blocks;  // query heads of a key head; key heads of a list head
};

// A block owns a list.
__global__ void __launch_bounds__(kThreads)
    list_order_kernel(const __grid_constant__ Attend a, const __grid_constant__ ListTranspose order,
                      const uint64_t* entries, const int32_t* start,
                      const __grid_constant__ ListStats stats,
                      const __grid_constant__ GatherOrder to, int64_t keep) {
  const int64_t lists = static_cast<int64_t>(order.none);
  for (int64_t t = blockIdx.x; t < lists; t += gridDim.x) {
    const int64_t begin = start[t], count = start[t + 1] - begin, first = padded(begin, t);
    const int64_t end = t + 1 == lists ? to.places : padded(begin + count, t + 1);
    const int64_t r = t / to.blocks / order.heads, head = t / to.blocks % order.heads;
    const Sequence seq = a.sequences[r];
    const int64_t tokens = seq.batch * a.s + seq.row_begin, each = kListPad / to.group;
    for (int64_t i = threadIdx.x; first + i < end; i += kThreads) {
      const bool there = i < count;
      const uint64_t entry = count > 0 ? entries[begin + (there ? i : 0)] : 0;
      const int64_t row = count > 0 ? order.row_of(entry) : 0;
      to.row[first + i] = static_cast<int32_t>(row);
      if (to.slot)
        to.slot[first + i] =
            there ? static_cast<int32_t>((tokens + row) * keep + order.place_of(entry)) : -1;
      if (to.chunk && i % each == 0)
        to.chunk[(first + i) / each] = there ? static_cast<int32_t>(t) : -1;
      if (!to.lse) continue;
      for (int64_t unit = 0; unit < to.sharing; ++unit)
        for (int64_t c = 0; c < to.group; ++c) {
          const int64_t h = (head * to.sharing + unit) * to.group + c;
          const int64_t from = stats.first(a, seq, r) + h * stats.by_head + row * stats.by_row;
          const int64_t at = (unit * to.places + first + i) * to.group + c;
          to.lse[at] = there ? stats.lse[from] : -kNegativeInfinity;
          to.delta[at] = there ? stats.delta[from] : 0.f;
        }
    }
  }
}

// dq of a row and head: the sum over the places of its list.  A warp owns one.
template <int Dtype>
__global__ void __launch_bounds__(kThreads)
    list_sum_kernel(const __grid_constant__ AttendBackward b,
                    const __grid_constant__ BlockLists lists, const float* sums, int64_t work) {
  const Attend& a = b.forward;
  const int64_t keep = lists.list.keep;
  const int column = threadIdx.x % 32 * 4;
  for (int64_t w = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32; w < work;
       w += int64_t{gridDim.x} * (kThreads / 32)) {
    const int64_t h = w % a.h, i = w / a.h % a.sequences.query_max,
                  r = w / a.h / a.sequences.query_max;
    const Sequence seq = a.sequences[r];
    if (i >= seq.rows || column >= a.d) continue;
    float4 sum = {};
    const int64_t first = (seq.batch * a.s + seq.row_begin + i) * keep;
    for (int64_t m = 0; m < keep; ++m) {
      if (lists.key(seq, r, lists.list.head_of(h), i, m) < 0) continue;
      const float4 x =
          *reinterpret_cast<const float4*>(sums + ((first + m) * a.h + h) * a.d + column);
      sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
    }
    uint16_t* to = static_cast<uint16_t*>(b.dq.data) + row_offset(seq, i, h, b.dq.stride) + column;
    *reinterpret_cast<uint2*>(to) =
        make_uint2(pack<Dtype>(sum.x, sum.y), pack<Dtype>(sum.z, sum.w));
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

// Parts of dq in f32, of lists of one row and few heads.
constexpr double kSumFloats = double{1 << 30} * 4;
bool gathers_rows(const SparseBackward& call) {
  const Attend& a = call.attend.forward;
  return call.list.block_rows == 1 && a.h / a.g < 8 && call.attend.dq;
}
double sum_floats(const SparseBackward& call) {
  const Attend& a = call.attend.forward;
  return static_cast<double>(a.b * a.s) * static_cast<double>(call.list.keep) *
         static_cast<double>(a.h * a.d);
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
  const Attend& a = call.attend.forward;
  const int64_t group = a.h / a.g;
  if (forward.shared_heads() != group)
    return reason("x", list.x, "one list for all heads of a group, with block_rows = 1");
  if (kListLines % group) return reason("h / g", group, "a divisor of 64 with block_rows = 1");
  if (gathers_rows(call) && !(sum_floats(call) <= kSumFloats))
    return "more than 2^34 bytes of sums: a part of dq for each place of a list of one row";
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
  const int64_t rows[3] = {a.b, a.s, a.h};
  for (const View<4>* x : {&a.o, &call.dout})
    if (*x && !in_pieces(*x, rows, 8)) return reason_rows(x == &a.o ? "o" : "dout");
  return gradients_refuse(call);
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

// A call's tiles, its lists by block of keys, and what the passes are given but for pointers.
struct Cut {
  ListCut90 tiles;
  RowCut row;
  BlockLists lists;
  ListTranspose order;
  int64_t places;  // of the order of gathered rows; 0: none are
  ListRows90 rows;
  ListKeys90 keys;

  explicit Cut(const SparseBackward& call)
      : row(row_cut(call)),
        lists{call.list, call.attend.forward.sequences, call.list.keep},
        order(lists, 0),
        places(0),
        rows{{}, ListStats(call.attend.forward, call.list.block_rows == 1), {}, 0, {}},
        keys{{}, rows.stats} {
    const Attend& a = call.attend.forward;
    const SparseList& list = call.list;
    const bool one = list.block_rows == 1, gathers = gathers_rows(call);
    const bool odd_keys = list.block_keys % (2 * kListLines) > 0,
               odd_rows = list.block_rows % (2 * kListLines) > 0;
    tiles = {odd_keys ? 2 : 1, odd_rows ? 2 : 1, one ? ListLines::gathered : ListLines::rows,
             gathers ? ListLines::gathered
             : one   ? ListLines::packed
                     : ListLines::rows};
    if (one) places = padded(order.entries, static_cast<int64_t>(order.none));
    const int32_t group = static_cast<int32_t>(a.h / a.g),
                  shift = std::bit_width(static_cast<uint32_t>(group)) - 1;
    const int32_t sharing = static_cast<int32_t>(one ? list.group / group : 1);
    rows.items.group = keys.items.group = group, rows.items.shift = keys.items.shift = shift;
    rows.items.owners = static_cast<int32_t>(gathers ? sharing : a.h / row.heads);
    rows.items.reversed = !gathers && a.mask.window.right > 0;
    rows.rows = static_cast<int32_t>(row.rows);
    rows.chunks.heads = keys.heads = static_cast<int32_t>(list.x);
    rows.chunks.blocks = keys.blocks = static_cast<int32_t>(order.tiles);
    rows.chunks.block_keys = keys.block_keys = static_cast<int32_t>(list.block_keys);
    keys.items.owners = static_cast<int32_t>(a.g);
    keys.group = static_cast<int32_t>(list.group);
    keys.row_tiles = static_cast<int32_t>(one ? 1 : list.block_rows / kListLines);
    keys.sharing = sharing, keys.floats = places * group;
  }
  // False: there are too many work items.
  bool count_items(const Attend& a) {
    const Sequences& q = a.sequences;
    const bool gathers = tiles.rows == ListLines::gathered;
    const int64_t of_rows = gathers ? places / (kListPad / rows.items.group)
                                    : ceil_div(q.query_max, row.rows),
                  of_keys = ceil_div(q.key_max, kListLines * (tiles.key_rings > 1 ? 1 : 2));
    const int64_t rows_all = of_rows * rows.items.owners * (gathers ? 1 : q.count),
                  keys_all = of_keys * a.g * q.count;
    const int64_t most =
        std::max({order.entries, static_cast<int64_t>(order.none), rows_all, keys_all,
                  places * keys.sharing, a.b * a.s * (gathers ? lists.list.keep : 1),
                  q.count * a.h * ceil_div(q.query_max, kListLines)});
    if (most > kIndexMax) return false;
    rows.items.tiles = static_cast<int32_t>(of_rows);
    rows.items.count = static_cast<int32_t>(rows_all);
    keys.items.tiles = static_cast<int32_t>(of_keys);
    keys.items.count = static_cast<int32_t>(keys_all);
    return true;
  }
};

struct ListMaps {
  BackwardMaps rows, keys;
};

Text map_operands(const AttendBackward& call, const Cut& cut, ListMaps& to) {
  const Attend& a = call.forward;
  const auto of_rows = [&](const View<4>& x, int64_t width, ListLines lines) {
    const int heads = lines == ListLines::rows ? 1 : cut.rows.items.group;
    const int rows = lines == ListLines::rows       ? kListLines
                     : lines == ListLines::gathered ? 1
                                                    : cut.rows.rows;
    return MapOf{x, a.dtype, a.b, a.s, a.h, width, rows, heads};
  };
  const auto of_keys = [&](const View<4>& x, int64_t width) {
    return MapOf{x, a.dtype, a.sequences.caches, a.t, a.g, width, kListLines};
  };
  const ListLines rows = cut.tiles.rows, keys = cut.tiles.keys;
  return map_each({{"q", of_rows(a.q, a.d, rows), to.rows.q},
                   {"k", of_keys(a.k, a.d), to.rows.k},
                   {"v", of_keys(a.v, a.e), to.rows.v},
                   {"dout", of_rows(call.dout, a.e, rows), to.rows.dout},
                   {"q", of_rows(a.q, a.d, keys), to.keys.q},
                   {"k", of_keys(a.k, a.d), to.keys.k},
                   {"v", of_keys(a.v, a.e), to.keys.v},
                   {"dout", of_rows(call.dout, a.e, keys), to.keys.dout}});
}

// The call's workspace.
struct Slots {
  Slot<float> lse, delta, deltas;
  Slot<int32_t> taken, start, row, slot, chunk;
  Slot<float> row_lse, row_delta, sums;
  TileListSlots tiles;
  ListTransposeSlots<BlockLists> entries;

  Slots(Layout& room, const SparseBackward& request, const Cut& cut, bool by_key)
      : entries(room, kOp, cut.lists, 0, by_key) {
    const AttendBackward& call = request.attend;
    const Attend& a = call.forward;
    const bool gathers = cut.tiles.rows == ListLines::gathered;
    const int64_t floats = cut.rows.stats.floats(a),
                  ordered = cut.places && cut.rows.items.group < 4
                                ? cut.keys.floats * cut.keys.sharing
                                : 0;
    lse = room.add<float>(floats), delta = room.add<float>(floats);
    deltas = room.add<float>(call.dsink_logit ? a.b * a.s * a.h : 0);
    taken = room.add<int32_t>(2);
    start = room.add<int32_t>(by_key ? static_cast<int64_t>(cut.order.none) + 1 : 0);
    row = room.add<int32_t>(!by_key ? 0 : cut.places ? cut.places : cut.order.entries);
    slot = room.add<int32_t>(gathers ? cut.places : 0);
    chunk = room.add<int32_t>(gathers ? cut.rows.items.tiles : 0);
    row_lse = room.add<float>(ordered), row_delta = room.add<float>(ordered);
    sums = room.add<float>(gathers ? a.b * a.s : 0, cut.lists.list.keep, a.h, a.d);
    if (call.dq && !gathers)
      tiles = TileListSlots(room, request.forward(), kListLines, cut.row.heads,
                            cut.row.rows * cut.row.heads, cut.row.lists);
  }
};

template <int Dtype>
void launch_stats(Context& ctx, const AttendBackward& call, float* deltas, const ListStats& stats,
                  int32_t* taken) {
  const Attend& a = call.forward;
  const int64_t row_tiles = ceil_div(a.sequences.query_max, kListLines);
  launch<list_stats_kernel<Dtype, 16>>(ctx, kOp, a.sequences.count * row_tiles * a.h, kThreads, 0,
                                       call, deltas, stats, taken, row_tiles);
}

// Lists by block of keys, for both passes.
void order_lists(Context& ctx, const Attend& a, const Cut& cut, const Slots& slots, void* base) {
  const uint64_t* sorted = slots.entries.sort(ctx, kOp, base).entries;
  const int64_t lists = static_cast<int64_t>(cut.order.none),
                work = std::max(cut.order.entries, lists + 1);
  ListTranspose order = cut.order;
  if (!sorted) order.entries = 0;
  int32_t *row = slots.row.at(base), *start = slots.start.at(base);
  launch<list_starts_kernel>(ctx, kOp, ceil_div(work, kThreads), kThreads, 0, order, sorted,
                             cut.places ? nullptr : row, start, work);
  if (!cut.places) return;
  const GatherOrder to{row,
                       slots.slot.at(base),
                       slots.chunk.at(base),
                       slots.row_lse.at(base),
                       slots.row_delta.at(base),
                       cut.places,
                       cut.rows.items.group,
                       cut.keys.sharing,
                       cut.keys.blocks};
  launch<list_order_kernel>(ctx, kOp, lists, kThreads, 0, a, order, sorted, start, cut.rows.stats,
                            to, cut.lists.list.keep);
}

template <int Dtype>
void enqueue(Context& ctx, const SparseBackward90& instance, const SparseBackward& request, Cut cut,
             const ListMaps& maps, const Slots& slots, void* base) {
  const AttendBackward& call = request.attend;
  ListRows90& rows = cut.rows;
  ListKeys90& keys = cut.keys;
  rows.stats.lse = slots.lse.at(base), rows.stats.delta = slots.delta.at(base);
  keys.stats = rows.stats;
  rows.items.taken = slots.taken.at(base), keys.items.taken = slots.taken.at(base) + 1;
  keys.row = rows.chunks.row = slots.row.at(base), keys.start = slots.start.at(base);
  keys.lse = slots.row_lse.at(base), keys.delta = slots.row_delta.at(base);
  rows.chunks.slot = slots.slot.at(base), rows.chunks.list = slots.chunk.at(base);
  rows.chunks.sums = slots.sums.at(base);
  clear_gradients(ctx, kOp, call);
  launch_stats<Dtype>(ctx, call, slots.deltas.at(base), rows.stats, rows.items.taken);
  if (slots.start.count) order_lists(ctx, call.forward, cut, slots, base);
  if (call.dk || call.dv) instance.keys(ctx, cut.tiles, call, maps.keys, keys);
  if (call.dq) {
    const bool gathers = cut.tiles.rows == ListLines::gathered;
    if (!gathers) rows.lists = slots.tiles.make(ctx, kOp, request.forward(), base);
    instance.rows(ctx, cut.tiles, call, maps.rows, rows);
    const Attend& a = call.forward;
    const int64_t work = a.sequences.count * a.sequences.query_max * a.h;
    if (gathers)
      launch<list_sum_kernel<Dtype>>(ctx, kOp, ceil_div(work, kThreads / 32), kThreads, 0, call,
                                     cut.lists, rows.chunks.sums, work);
  }
  BackwardSimt sinks{};
  sinks.call = call, sinks.delta = slots.deltas.at(base);
  sum_sinks(ctx, kOp, sinks);
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
  Cut cut(request);
  if (const char* why = cut.order.refuses(); *why) return why;
  if (!cut.count_items(a)) return "more than 2^30 blocks of work or entries";
  ListMaps maps;
  if (Text why = map_operands(call, cut, maps); !why.empty()) return why;
  plan.kernel += Text(".") + dtype_name(a.dtype) + ".d" + Text::number(instance.d);
  if (cut.places) plan.kernel += gathers_rows(request) ? ".gathered" : ".packed";
  const Slots slots(plan.workspace, request, cut,
                    call.dk || call.dv || cut.tiles.rows == ListLines::gathered);
  plan.launch = [=](Context& ctx, void* base) {
    if (request.attend.forward.dtype == FOVEA_BF16)
      enqueue<FOVEA_BF16>(ctx, instance, request, cut, maps, slots, base);
    else
      enqueue<FOVEA_F16>(ctx, instance, request, cut, maps, slots, base);
  };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<SparseBackward> x_sparse_backward_sm90 = {"sm90", cuda::offer};

}  // namespace fovea
