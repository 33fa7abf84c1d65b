// SPDX-License-Identifier: Apache-2.0
// x_kl_indexer_forward on Hopper: the teacher's lse by the sweep of kl_forward, which takes half of
// its heads as one distribution and half as the other, then all heads of each tile
// (indexer_scores_sm90.cuh), whose sums over parts of the keys are joined here in order:
//   kl = c + W ln l,  lse = Y + ln l
#include <algorithm>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "cuda/block/softmax.cuh"
#include "cuda/loop/row_tile.cuh"
#include "cuda/tensor_map.h"
#include "ops/kl_experimental/indexer_calls.cuh"

namespace fovea {

namespace cuda {
namespace {

constexpr const char* kOp = kIndexerForward;
constexpr int kThreads = 256;

// Every row of indexer.inc in this build.
const std::vector<IndexerInstance90>& instances() {
  static const std::vector<IndexerInstance90> rows = {
#define FOVEA_INSTANCE(dtype, width) kl_indexer_sm90_instance<dtype, width>(),
#include "instances/kl_experimental_indexer_sm90.inc"
#undef FOVEA_INSTANCE
  };
  return rows;
}

struct Operands {
  MapOf q[2], k[2];
  explicit Operands(const KlIndexer& a) {
    const Kl& t = a.teacher;
    const KlSide* side[2] = {&t.first, &a.student};
    for (int i = 0; i < 2; ++i) {
      q[i] = {side[i]->q, side[i]->dtype, t.b, t.s, i ? a.heads : t.h, side[i]->width, kHeadsTile};
      k[i] = {side[i]->k,         side[i]->dtype, t.sequences.caches, t.t,
              side[i]->key_heads, side[i]->width, kHeadsTile};
    }
  }
};

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

}  // namespace

const IndexerInstance90* indexer_instance(const KlIndexer& a) {
  const int64_t width = std::max(a.student.width, a.teacher.first.width);
  for (const IndexerInstance90& row : instances())
    if (row.dtype == a.student.dtype && width <= row.width) return &row;
  return nullptr;
}

std::string indexer_sm90_refuses(const Context& ctx, const KlIndexer& a) {
  const Kl& t = a.teacher;
  if (t.first.dtype != a.student.dtype) return "teacher and student differ in dtype";
  // Its answer says what devices, dtypes and layouts there are.
  Plan lse;
  if (const std::string why = kl_forward_sm90.offer(ctx, lse_call(a, {}), lse); !why.empty())
    return why;
  if (a.student.width % 8) return "a width that is not a multiple of 8";
  if (!indexer_instance(a)) return "no instance for this dtype and these widths in this build";
  const Operands of(a);
  for (int i = 0; i < 2; ++i)
    for (const MapOf* x : {&of.q[i], &of.k[i]})
      if (const char* why = map_refuses(*x); *why) return std::string("a q or k has ") + why;
  if (t.sequences.count * ceil_div(t.sequences.query_max, kHeadsTile) > kIndexMax / 64)
    return "more than 2^24 tiles of rows";
  return "";
}

HeadsWork indexer_work(const KlIndexer& a) {
  const Kl& t = a.teacher;
  HeadsWork work{};
  work.a = attend_of(t, t.first, t.first);
  work.heads[0] = static_cast<int32_t>(t.h), work.heads[1] = static_cast<int32_t>(a.heads);
  work.group[0] = static_cast<int32_t>(t.h / t.first.key_heads), work.group[1] = work.heads[1];
  work.row_tiles = static_cast<int32_t>(ceil_div(t.sequences.query_max, kHeadsTile));
  work.count = static_cast<int32_t>(t.sequences.count) * work.row_tiles;
  work.parts = work.lead = 1;
  return work;
}

int32_t indexer_parts(const DeviceInfo& device, const KlIndexer& a, int32_t row_tiles) {
  constexpr int64_t kWorksEach = 6, kPartsMost = 32;
  const int64_t key_tiles = std::max<int64_t>(ceil_div(a.teacher.sequences.key_max, kHeadsTile), 1);
  return static_cast<int32_t>(
      clamp_i64(ceil_div(kWorksEach * device.multiprocessors, std::max(row_tiles, 1)), 1,
                std::min(key_tiles, kPartsMost)));
}

HeadsMaps indexer_maps(const KlIndexer& a, const char* op) {
  const Operands of(a);
  HeadsMaps maps;
  for (int i = 0; i < 2; ++i)
    if (!make_map(of.q[i], maps.q[i]) || !make_map(of.k[i], maps.k[i]))
      fail(FOVEA_DEVICE_ERROR, "%s: the driver makes no tensor map", op);
  return maps;
}

namespace {

// A thread joins the parts of a row.
__global__ void __launch_bounds__(kThreads)
    indexer_join_kernel(const __grid_constant__ KlIndexer a, const IndexerSums* sums, int row_tiles,
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

std::string offer(const Context& ctx, const KlIndexer& a, Plan& plan) {
  if (std::string why = indexer_sm90_refuses(ctx, a); !why.empty()) return why;
  const IndexerInstance90& row = *indexer_instance(a);
  plan.kernel += std::string(".") + dtype_name(a.student.dtype) + ".d" + std::to_string(row.width);
  HeadsWork work = indexer_work(a);
  work.parts = indexer_parts(device_info(ctx), a, work.count);
  const bool heads = a.kl || a.lse, teacher = static_cast<bool>(a.kl);
  const RowSlot lse(plan.workspace, a.teacher, a.teacher.first.lse, teacher);
  const auto sums = plan.workspace.add<IndexerSums>(heads ? work.works() * int64_t{kHeadsTile} : 0);
  plan.launch = [=](Context& ctx, void* base) {
    const View<3> at = lse.at(base);
    if (at) {
      Plan inner;
      if (!kl_forward_sm90.offer(ctx, lse_call(a, at), inner).empty())
        fail(FOVEA_INTERNAL_ERROR, "%s: the kernel of lse is refused at the launch alone", kOp);
      inner.launch(ctx, nullptr);
    }
    if (!heads) return;
    row.forward(ctx, work, indexer_maps(a, kOp), {at, a.weight, sums.at(base), teacher});
    const int64_t rows = int64_t{work.count} * kHeadsTile;
    launch<indexer_join_kernel>(ctx, kOp, ceil_div(rows, kThreads), kThreads, 0, a, sums.at(base),
                                work.row_tiles, work.parts, rows);
  };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<KlIndexer> kl_indexer_forward_sm90 = {"sm90", cuda::offer};

}  // namespace fovea
