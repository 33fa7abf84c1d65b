// SPDX-License-Identifier: Apache-2.0
// The choice among the Hopper instances of kl_backward, and the pass before each: the values of its
// rows.  A gradient of both distributions is two launches, each with the products of both.
#include <algorithm>
#include <numeric>
#include <vector>

#include "core/chunk.h"
#include "core/dtype.h"
#include "core/reasons.h"
#include "cuda/block/softmax.cuh"
#include "cuda/loop/hopper.h"
#include "cuda/loop/key_terms.cuh"
#include "cuda/loop/row_tile.cuh"
#include "cuda/tile/mma_sm80.cuh"
#include "ops/kl/backward.cuh"

namespace fovea {
namespace {

using namespace cuda;

constexpr int kThreads = 256;

// A block owns a row tile of a head: the values of its rows (KlDscores), turns and sums of 0.
__global__ void __launch_bounds__(kThreads)
    kl_side_kernel(const __grid_constant__ KlGradient b, const __grid_constant__ BackwardWork work,
                   int64_t row_tiles) {
  const Attend& a = b.call.forward;
  const int64_t h = blockIdx.x % a.h, m = blockIdx.x / a.h % row_tiles,
                r = blockIdx.x / a.h / row_tiles;
  const Sequence q = a.sequences[r];
  const int rows = work.tiles.rows;
  if (m * rows >= q.rows) return;
  const int64_t tile = h * work.tiles.total + work.tiles.first(q, r) + m;
  float* side = work.lse(tile);
  for (int i = threadIdx.x; i < rows; i += kThreads) {
    const int64_t row = q.row_begin + m * rows + i;
    const auto at = [&](const View<3>& x) {
      return x.as()[q.batch * x.stride[0] + h * x.stride[1] + row * x.stride[2]];
    };
    const bool there = m * rows + i < q.rows;
    const float gain = there ? b.gain[(q.batch * a.h + h) * a.s + row] : 0.f;
    const bool any = gain != 0.f;
    side[i] = any ? at(b.lse) * kLog2E : 1e30f;
    side[rows + i] = any ? at(b.other_lse) * kLog2E : 1e30f;
    side[2 * rows + i] = gain;
    if (work.stats > 3) side[3 * rows + i] = any ? at(b.kl) : 0.f;
  }
  if (!work.dq) return;
  if (threadIdx.x == 0) work.dq_order[tile].added = 0;
  if (!work.ordered) {
    float4* dq = reinterpret_cast<float4*>(work.dq + tile * work.tiles.floats());
    for (int i = threadIdx.x; i < work.tiles.floats() / 4; i += kThreads)
      dq[i] = make_float4(0.f, 0.f, 0.f, 0.f);
  }
}

// Every row of backward.inc in this build, narrow widths first.
const std::vector<KlBackwardInstance90>& instances() {
  static const std::vector<KlBackwardInstance90> rows = {
#define FOVEA_INSTANCE(...) kl_backward_sm90_instance<KlBackwardConfig90 __VA_ARGS__>(),
#include "instances/kl_backward_sm90.inc"
#undef FOVEA_INSTANCE
  };
  return rows;
}

const KlBackwardInstance90* find(const Attend& a) {
  for (const KlBackwardInstance90& row : instances())
    if (row.dtype == a.dtype && a.d <= row.d && a.e <= row.e) return &row;
  return nullptr;
}

// Each key head of the call is of one of the own and of one of the other: an own one may be
// several, as where a student with one key head learns from a teacher with many, or where `shares`
// blocks share a key block.
KlGradient cut_gradient_of(const KlBackward& b, KlOwn own, const float* gain, int64_t shares) {
  KlGradient gradient = gradient_of(b, own, gain);
  gradient.call.forward.g = shares * std::lcm(gradient.own_heads, gradient.other_heads);
  return gradient;
}

struct Operands {
  MapOf q, k, v, dout;
  Operands(const KlGradient& gradient, const KlBackwardInstance90& row) {
    const AttendBackward& call = gradient.call;
    const Attend& a = call.forward;
    const int64_t caches = a.sequences.caches;
    q = {a.q, a.dtype, a.b, a.s, a.h, a.d, row.rows};
    k = {a.k, a.dtype, caches, a.t, gradient.own_heads, a.d, row.keys};
    v = {a.v, a.dtype, caches, a.t, gradient.other_heads, a.e, row.keys};
    dout = {call.dout, a.dtype, a.b, a.s, a.h, a.e, row.rows};
  }
};

// Elements of dk by key heads of the call, where those are more than k's.
int64_t parts_of(const KlGradient& gradient) {
  const Attend& a = gradient.call.forward;
  return gradient.call.dk && a.g > gradient.own_heads ? a.sequences.caches * a.t * a.g * a.d : 0;
}

// The workspace of one gradient; both use the same room, one after the other.
struct OwnSlots {
  Slot<float> side, dq, dk;
  Slot<DqOrder> dq_order;
};

struct OwnPlan {
  KlOwn own;
  int64_t shares;
  const KlBackwardInstance90* row;
  RowTiles tiles;
  BackwardGrid90 grid;
  BackwardMaps maps;
};

// Adds the plan of one distribution's gradient, if it is wanted, and cuts the gradient by its
// shares: "" or why there is none.
Text add_plan(const DeviceInfo& device, KlOwn own, KlGradient& gradient,
              std::vector<OwnPlan>& plans) {
  const AttendBackward& call = gradient.call;
  if (!call.dq && !call.dk) return "";
  Attend& a = gradient.call.forward;
  const KlBackwardInstance90* row = find(a);
  if (!row) return no_instance(a.dtype, "width", a.d, "other width", a.e);
  for (const View<4>* out : {&call.dq, &call.dk})
    if (*out && !chunked(*out, 2, 8))
      return reason_rows(out == &call.dq ? "a side's dq" : "a side's dk");
  const Sequences& q = a.sequences;
  const int64_t row_tiles = ceil_div(q.query_start ? a.s : q.query_max, row->rows);
  if (q.count * std::max(a.h * ceil_div(q.key_max, row->keys), a.h * (row_tiles + 1)) > kIndexMax)
    return "more than 2^30 blocks of work";
  const int64_t shares = key_shares(a, row->rows, row->keys, true, device);
  a.g *= shares;
  plans.push_back({own,
                   shares,
                   row,
                   RowTiles(a, row->rows, row->panels),
                   {a, row->rows, row->keys, row->panels, static_cast<bool>(call.dq), device, 1},
                   {}});
  BackwardMaps& maps = plans.back().maps;
  const Operands of(gradient, *row);
  return map_each({{"own q", of.q, maps.q},
                   {"own k", of.k, maps.k},
                   {"other k", of.v, maps.v},
                   {"other q", of.dout, maps.dout}});
}

void enqueue(Context& ctx, const KlBackward& b, const OwnPlan& plan, const float* gain,
             const OwnSlots& slots, void* base) {
  const KlGradient gradient = cut_gradient_of(b, plan.own, gain, plan.shares);
  const AttendBackward& call = gradient.call;
  const Attend& a = call.forward;
  const BackwardWork work{plan.tiles,
                          gradient.own == KlOwn::second ? 3 : 4,
                          slots.side.at(base),
                          call.dq ? slots.dq.at(base) : nullptr,
                          slots.dq_order.at(base),
                          call.dq && !call.nondeterministic,
                          parts_of(gradient) ? slots.dk.at(base) : nullptr};
  const int64_t row_tiles = ceil_div(a.sequences.query_max, plan.row->rows);
  launch<kl_side_kernel>(ctx, gradient.op, a.sequences.count * row_tiles * a.h, kThreads, 0,
                         gradient, work, row_tiles);
  plan.row->launch(ctx, gradient, plan.maps, work, plan.grid);
  if (work.dk) sum_key_terms(ctx, gradient.op, a, call.dk, work.dk, gradient.own_heads, a.d);
}

Text offer(const Context& ctx, const KlBackward& b, Plan& plan) {
  const Kl& a = b.forward;
  if (a.first.dtype != a.second.dtype) return reason_sides(a.first, a.second);
  if (Text why = hopper_refuses(ctx, a.first.dtype, a.sequences); !why.empty()) return why;
  if (const char* field = attend_of(a, a.first, a.second).not_plain()) return reason_given(field);
  if (Text why = refuse_sides(a.first, a.second, 8); !why.empty()) return why;
  if (!a.h || !a.sequences.count || !a.t || !a.s) return "there are no rows, keys or heads";
  const GainSlots gains(plan.workspace, b);
  std::vector<OwnPlan> plans;
  int64_t side = 0, dq = 0, dk = 0, dq_order = 0;
  for (KlOwn own : {KlOwn::first, KlOwn::second}) {
    KlGradient gradient = cut_gradient_of(b, own, nullptr, 1);
    const AttendBackward& call = gradient.call;
    if (Text why = add_plan(device_info(ctx), own, gradient, plans); !why.empty()) return why;
    if (!call.dq && !call.dk) continue;
    dk = std::max(dk, parts_of(gradient));
    const RowTiles& tiles = plans.back().tiles;
    const int64_t all = a.h * tiles.total;
    side = std::max(side, all * 4 * tiles.rows);
    if (call.dq) dq = std::max(dq, all * tiles.floats()), dq_order = std::max(dq_order, all);
  }
  plan.kernel += Text(".") + dtype_name(a.first.dtype);
  if (!plans.empty())
    plan.kernel +=
        ".d" + Text::number(plans.back().row->d) + "." + Text::number(plans.back().row->e);
  const OwnSlots slots{plan.workspace.add<float>(side), plan.workspace.add<float>(dq),
                       plan.workspace.add<float>(dk), plan.workspace.add<DqOrder>(dq_order)};
  plan.launch = [=](Context& ctx, void* base) {
    const float* gain = gains.fill(ctx, b, base);
    for (const OwnPlan& own : plans) enqueue(ctx, b, own, gain, slots, base);
  };
  return "";
}

}  // namespace

extern const Kernel<KlBackward> kl_backward_sm90 = {"sm90", offer};
extern const Kernel<KlBackward> kl_jensen_shannon_backward_sm90 = {"sm90", offer};

}  // namespace fovea
