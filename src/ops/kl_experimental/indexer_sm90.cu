// SPDX-License-Identifier: Apache-2.0
// The indexer's divergence on Hopper.
//   forward   the teacher's lse by the sweep of kl_forward, which takes half of its heads as one
//             distribution and half as the other; then all heads of each tile
//             (indexer_scores_sm90.cuh), whose sums over parts of the keys are joined here in
//             order: kl = c + W ln l, lse = Y + ln l
//   backward  for some row tiles at a time db of all their pairs (indexer_scores_sm90.cuh), then
//             the gradients of the student's rows and keys from it (indexer_gradient_sm90.cuh),
//             whose parts are added up here in order
#include <algorithm>
#include <vector>

#include "core/chunk.h"
#include "core/dtype.h"
#include "core/reasons.h"
#include "cuda/block/softmax.cuh"
#include "cuda/loop/row_tile.cuh"
#include "ops/kl/maps.cuh"
#include "ops/kl_experimental/indexer.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr int kThreads = 256;

// nullptr: no row of indexer.inc in this build.
const IndexerInstance90* instance_of(const KlIndexer& a) {
  static const std::vector<IndexerInstance90> rows = {
#define FOVEA_INSTANCE(dtype, width) kl_indexer_sm90_instance<dtype, width>(),
#include "instances/kl_experimental_indexer_sm90.inc"
#undef FOVEA_INSTANCE
  };
  const int64_t width = std::max(a.student.width, a.teacher.first.width);
  for (const IndexerInstance90& row : rows)
    if (row.dtype == a.student.dtype && width <= row.width) return &row;
  return nullptr;
}

// The teacher's lse as a call of kl_forward: of its heads, the second half beside the first where
// both have key heads of their own; else all of them twice.
Kl lse_call(const KlIndexer& a, const View<3>& lse) {
  Kl x = a.teacher;
  KlSide &first = x.first, &second = x.second;
  first.lse = lse, second = first;
  const int64_t groups = first.key_heads;
  if (x.h % 2 == 0 && (groups == 1 || groups % 2 == 0)) {
    x.h /= 2;
    first.key_heads = second.key_heads = groups == 1 ? 1 : groups / 2;
    second.q.data = second.q.as<uint16_t>() + x.h * second.q.stride[2];
    if (groups > 1) second.k.data = second.k.as<uint16_t>() + second.key_heads * second.k.stride[2];
    if (lse) second.lse.data = lse.as() + x.h * lse.stride[1];
  } else {
    second.lse = {};
  }
  return x;
}

// "", the maps, and the row that serves the call in the kernel's name; or why none does.
Text refuses(const Context& ctx, const KlIndexer& a, Plan& plan, IndexerMaps90& maps) {
  const Kl& t = a.teacher;
  const KlSide& x = a.student;
  if (t.first.dtype != x.dtype) return reason_sides(t.first, x);
  // Its answer says what devices, dtypes and layouts there are.
  Plan lse;
  if (const Text why = kl_forward_sm90.offer(ctx, lse_call(a, {}), lse); !why.empty()) return why;
  if (Text why = refuse_width("f", x.width, 8); !why.empty()) return why;
  const IndexerInstance90* row = instance_of(a);
  if (!row) return no_instance(x.dtype, "d", t.first.width, "f", x.width);
  if (t.sequences.count * ceil_div(t.sequences.query_max, kHeadsTile) > kIndexMax / 64)
    return "more than 2^24 tiles of rows";
  plan.kernel += Text(".") + dtype_name(x.dtype) + ".d" + Text::number(row->width);
  return map_each({{"q_teacher", rows_of(t, t.first, t.h, kHeadsTile), maps.q[0]},
                   {"k_teacher", keys_of(t, t.first, t.t, kHeadsTile), maps.k[0]},
                   {"q_student", rows_of(t, x, a.heads, kHeadsTile), maps.q[1]},
                   {"k_student", keys_of(t, x, t.t, kHeadsTile), maps.k[1]},
                   {"q_student", rows_of(t, x, a.heads, kDscoreRows), maps.q_part}});
}

// All row tiles in one launch; one part.
HeadsWork work_of(const KlIndexer& a) {
  const Kl& t = a.teacher;
  HeadsWork work{};
  work.a = attend_of(t, t.first, t.first);
  work.heads[0] = static_cast<int32_t>(t.h), work.heads[1] = static_cast<int32_t>(a.heads);
  work.group[0] = static_cast<int32_t>(t.h / t.first.key_heads), work.group[1] = work.heads[1];
  work.row_tiles = static_cast<int32_t>(ceil_div(t.sequences.query_max, kHeadsTile));
  work.count = static_cast<int32_t>(t.sequences.count) * work.row_tiles;
  work.parts = 1;
  return work;
}

int64_t key_tiles_of(const KlIndexer& a) {
  return std::max<int64_t>(ceil_div(a.teacher.sequences.key_max, kHeadsTile), 1);
}

// Parts of the keys of so many row tiles: enough for every multiprocessor to take several work
// items.
int32_t parts_of(const Context& ctx, const KlIndexer& a, int32_t row_tiles) {
  constexpr int64_t kItemsEach = 6, kPartsMost = 32;
  return static_cast<int32_t>(
      clamp_i64(ceil_div(kItemsEach * device_info(ctx).multiprocessors, std::max(row_tiles, 1)), 1,
                std::min(key_tiles_of(a), kPartsMost)));
}

// A thread joins the parts of a row.
__global__ void __launch_bounds__(kThreads)
    join_rows_kernel(const __grid_constant__ KlIndexer a, const IndexerSums* sums, int row_tiles,
                     int parts, int64_t rows) {
  const int64_t w = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (w >= rows) return;
  const Sequence seq = a.teacher.sequences[w / kHeadsTile / row_tiles];
  const int64_t i = w % (int64_t{row_tiles} * kHeadsTile);
  if (i >= seq.rows) return;
  IndexerSums all{kNegativeInfinity, 0.f, 0.f, 0.f};
  for (int part = 0; part < parts; ++part) {
    const IndexerSums x = sums[w * parts + part];
    // A part that saw nothing; a sum of NaN is one that did.
    if (x.sum == 0.f) continue;
    const float base = fmaxf(all.top, x.top), at = base == kNegativeInfinity ? 0.f : base;
    const auto moved = [&](const IndexerSums& y) {
      const float rise = y.top == kNegativeInfinity ? 0.f : at - y.top;
      return IndexerSums{base, y.sum * expf(-rise), y.weight, fmaf(y.weight, rise, y.cross)};
    };
    const IndexerSums u = moved(all), v = moved(x);
    all = {base, u.sum + v.sum, u.weight + v.weight, u.cross + v.cross};
  }
  const float log = logf(all.sum);
  const auto put = [&](const View<2>& to, float value) {
    if (to) to.as()[seq.batch * to.stride[0] + (seq.row_begin + i) * to.stride[1]] = value;
  };
  put(a.kl, all.sum == 0.f ? 0.f : fmaf(all.weight, log, all.cross));
  put(a.lse, all.sum == 0.f ? kNegativeInfinity : all.top + log);
}

Text offer_forward(const Context& ctx, const KlIndexer& a, Plan& plan) {
  IndexerMaps90 maps;
  if (Text why = refuses(ctx, a, plan, maps); !why.empty()) return why;
  constexpr const char* kOp = kIndexerForward;
  HeadsWork work = work_of(a);
  work.parts = parts_of(ctx, a, work.count);
  const bool heads = a.kl || a.lse, teacher = static_cast<bool>(a.kl);
  const RowSlot lse(plan.workspace, a.teacher, a.teacher.first.lse, teacher);
  const auto sums = plan.workspace.add<IndexerSums>(heads ? work.items() * int64_t{kHeadsTile} : 0);
  plan.launch = [=](Context& ctx, void* base) {
    const View<3> at = lse.at(base);
    if (at) {
      Plan inner;
      if (!kl_forward_sm90.offer(ctx, lse_call(a, at), inner).empty())
        fail(FOVEA_INTERNAL_ERROR, "%s: the kernel of lse is refused at the launch alone", kOp);
      inner.launch(ctx, nullptr);
    }
    if (!heads) return;
    instance_of(a)->forward(ctx, work, maps, {at, a.weight, sums.at(base), teacher});
    const int64_t rows = int64_t{work.count} * kHeadsTile;
    launch<join_rows_kernel>(ctx, kOp, ceil_div(rows, kThreads), kThreads, 0, a, sums.at(base),
                             work.row_tiles, work.parts, rows);
  };
  return "";
}

// What a backward takes, and its room.
struct BackwardSlots {
  HeadsWork work;
  IndexerArgs90 args{};
  int32_t band;  // row tiles of a launch
  Slot<float> db, sums;

  BackwardSlots(Layout& layout, const DeviceInfo& device, const KlIndexer& a, int width)
      : work(work_of(a)) {
    constexpr int64_t kItemsEach = 3, kPartsMost = 64;
    const Sequences& q = a.teacher.sequences;
    const int64_t tiles = key_tiles_of(a), columns = tiles * kHeadsTile;
    band = static_cast<int32_t>(
        clamp_i64(kPairsMost / (kHeadsTile * columns), 1, std::max(work.count, 1)));
    const int64_t parts = clamp_i64(
        ceil_div(kItemsEach * device.multiprocessors, std::max<int64_t>(q.count, 1) * tiles), 1,
        kPartsMost);
    const int64_t row_parts =
        std::max<int64_t>(std::min<int64_t>({parts, band, work.row_tiles}), 1);
    const int64_t head_parts = clamp_i64(ceil_div(parts, row_parts), 1, a.heads);
    args.lse = a.teacher.first.lse, args.weight = a.weight;
    args.gain = a.dkl, args.lse_student = a.lse;
    args.dweight = a.dweight, args.dq = a.student.dq;
    args.columns = columns, args.width = static_cast<int32_t>(a.student.width);
    args.parts = {nullptr, row_parts * head_parts, tiles, width, kHeadsTile};
    args.row_parts = static_cast<int32_t>(row_parts);
    args.head_parts = static_cast<int32_t>(head_parts);
    db = layout.add<float>(band * kHeadsTile * columns);
    sums = layout.add<float>(a.student.dk ? args.parts.floats(q, 1) : 0);
  }
};

void enqueue(Context& ctx, const KlIndexer& a, const IndexerMaps90& maps,
             const BackwardSlots& slots, void* base) {
  const IndexerInstance90& row = *instance_of(a);
  clear_unreached(ctx, a);
  IndexerArgs90 args = slots.args;
  args.db = slots.db.at(base), args.parts.sums = slots.sums.at(base);
  HeadsWork work = slots.work;
  for (const int all = work.count; work.first < all; work.first += slots.band) {
    work.count = std::min(slots.band, all - work.first);
    HeadsWork cut = work;
    cut.parts = parts_of(ctx, a, work.count);
    row.dscores(ctx, cut, maps, args);
    if (args.dq || args.dweight) row.rows(ctx, work, maps, args);
    if (a.student.dk) row.keys(ctx, work, maps, args);
  }
  if (a.student.dk)
    join_parts(ctx, kIndexerBackward, a.student, a.teacher.sequences, args.parts, OwnKeys());
}

Text offer_backward(const Context& ctx, const KlIndexer& a, Plan& plan) {
  IndexerMaps90 maps;
  if (Text why = refuses(ctx, a, plan, maps); !why.empty()) return why;
  if (a.student.dq && !chunked(a.student.dq, 2, 8)) return reason_rows("dq_student");
  const Sequences& q = a.teacher.sequences;
  if (q.count * ceil_div(q.key_max, kHeadsTile) > kIndexMax / 256)
    return "more than 2^22 tiles of keys";
  const BackwardSlots slots(plan.workspace, device_info(ctx), a, instance_of(a)->width);
  plan.launch = [=](Context& ctx, void* base) { enqueue(ctx, a, maps, slots, base); };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<KlIndexer> kl_indexer_forward_sm90 = {"sm90", cuda::offer_forward};
extern const Kernel<KlIndexer> kl_indexer_backward_sm90 = {"sm90", cuda::offer_backward};

}  // namespace fovea
