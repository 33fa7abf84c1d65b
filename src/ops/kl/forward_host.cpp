// SPDX-License-Identifier: Apache-2.0
// kl_forward on the CPU.  An item of work is a row tile; it walks its key tiles:
//   x = k q' of the first distribution, y of the second (rows in lanes), then one step of both
//   online softmaxes and of c = sum_j e^(x - X) ((x - X) - (y - Y)), X and Y the maxima kl = c /
//   l_x - ln l_x + ln l_y,  lse = X + ln l_x
// The maxima never meet, so large logits cost no digit.  What an item does depends on shapes and
// lengths alone, and the tiles' shares of total are added in a tree: any number of threads gives
// the same bits.  StreamKL (2606.20005).
//   The Jensen-Shannon divergence needs both lse first: the item walks its key tiles once more.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/kl/tile_host.h"

namespace fovea {
namespace {

using namespace kl_host;

struct ForwardPlan : SweepPlan {
  Kl a;
  SideRoom first, second;  // within a worker's bytes
  Slot<Totals> totals;
  ForwardPlan(const Kl& request, Layout& worker)
      : a(request), first(request.first, worker), second(request.second, worker) {}
};

struct RowState : DualRows {
  float lse_x[kRows], lse_y[kRows], kl_x[kRows], kl_y[kRows];  // share > 0
};

class Forward {
 public:
  Forward(const ForwardPlan& plan, void* base)
      : plan_(plan), a_(plan.a), simd_(host::simd()), base_(base) {}

  void run(Context& ctx) {
    const RowPlaces tiles = plan_.find(a_.sequences, base_);
    const double cost = host::pairs_of(a_.sequences) * static_cast<double>(a_.h) *
                        static_cast<double>(a_.first.width + a_.second.width + 32);
    host::pool(ctx).run(tiles.count(), cost / kFlopsPerNanosecond,
                        [&](int64_t item, int32_t worker) { compute(tiles[item], item, worker); });
    if (!a_.total) return;
    const Totals sum = add_up(plan_.totals.at(base_), tiles.count());
    double total = sum.value;
    if (a_.mean) total = sum.weight == 0 ? 0 : sum.value / sum.weight;
    *a_.total.as() = static_cast<float>(total);
  }

 private:
  void compute(const RowPlaces::Place& at, int64_t item, int32_t worker) const {
    const Sequence q = a_.sequences[at.sequence];
    const RowTile rows(a_, q, at);
    void* room = plan_.scratch.at(base_, worker);
    SideTile x(a_, a_.first, plan_.first, room), y(a_, a_.second, plan_.second, room);
    RowState state;
    if (rows.begin < rows.end) x.load_rows(q, rows), y.load_rows(q, rows);
    each_tile(q, rows, x, y, [&](int64_t count, const host::Seen& seen) {
      simd_.dual_softmax(count, rows.lanes, x.x, y.x, seen, state.view());
    });
    if (a_.share > 0) mix(q, rows, x, y, state);
    Totals sum{0, 0};
    for (int r = 0; r < rows.count; ++r) finish(q, rows, r, state, sum);
    if (a_.total) plan_.totals.at(base_)[item] = sum;
  }

  // visit(keys, what is seen) for the key tiles that some row sees, with their logits.
  template <class Visit>
  void each_tile(const Sequence& q, const RowTile& rows, SideTile& x, SideTile& y,
                 Visit visit) const {
    KeyWalk::range(0, q.keys).each(rows, [&](const KeySpan& span) {
      for (SideTile* side : {&x, &y}) {
        side->load_keys(q, rows.head, span.begin, span.count, false);
        side->score(rows.lanes);
      }
      if (!span.masked()) return visit(span.count, host::Seen{});
      const LocalSeen seen(rows, span.begin, span.count);
      visit(span.count, seen.view());
    });
  }

  void mix(const Sequence& q, const RowTile& rows, SideTile& x, SideTile& y,
           RowState& state) const {
    for (int r = 0; r < rows.lanes; ++r) {
      const bool any = r < rows.count && rows.sees_any(r);
      state.kl_x[r] = state.kl_y[r] = 0;
      state.lse_x[r] = any ? state.top_x[r] + std::log(state.sum_x[r]) : 0;
      state.lse_y[r] = any ? state.top_y[r] + std::log(state.sum_y[r]) : 0;
    }
    const host::Mixture of{state.lse_x, state.lse_y, state.kl_x, state.kl_y, a_.share};
    each_tile(q, rows, x, y, [&](int64_t count, const host::Seen& seen) {
      simd_.mixture(count, rows.lanes, x.x, y.x, seen, of);
    });
  }

  void finish(const Sequence& q, const RowTile& rows, int r, const RowState& state,
              Totals& sum) const {
    const int64_t row = rows.first + r;
    auto [kl, lse_x, lse_y] = state.row(r, rows.sees_any(r));
    double kl_second = 0;
    if (rows.sees_any(r)) {
      if (a_.share > 0) kl = state.kl_x[r], kl_second = state.kl_y[r];
      const float weight = a_.total ? weight_of(a_, q, rows.head, row) : 0;
      if (weight != 0)
        sum.value += weight * static_cast<double>(static_cast<float>(kl)), sum.weight += weight;
    }
    if (a_.kl) row_slot(a_.kl, q, rows.head, row) = static_cast<float>(kl);
    if (a_.kl_second) row_slot(a_.kl_second, q, rows.head, row) = static_cast<float>(kl_second);
    if (a_.js)
      row_slot(a_.js, q, rows.head, row) =
          static_cast<float>(a_.share * kl + (1.0 - a_.share) * kl_second);
    if (a_.first.lse) row_slot(a_.first.lse, q, rows.head, row) = static_cast<float>(lse_x);
    if (a_.second.lse) row_slot(a_.second.lse, q, rows.head, row) = static_cast<float>(lse_y);
  }

  const ForwardPlan& plan_;
  const Kl& a_;
  const host::Simd& simd_;
  void* base_;
};

Text offer(const Context& ctx, const Kl& a, Plan& plan) {
  Layout worker;
  ForwardPlan p(a, worker);
  p.lay_out(ctx, a, 0, worker, plan);
  p.totals = plan.workspace.add<Totals>(a.total ? RowTiles::most(a.sequences, a.h) : 0);
  host::host_plan<Forward>(plan, p, shape_name(a.first, a.second));
  return "";
}

}  // namespace

extern const Kernel<Kl> kl_forward_host = {"", offer};
extern const Kernel<Kl> kl_jensen_shannon_forward_host = {"", offer};

}  // namespace fovea
