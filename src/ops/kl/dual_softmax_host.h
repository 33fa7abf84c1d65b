// SPDX-License-Identifier: Apache-2.0
// The forward of a divergence whose logits come tile by tile: both online softmaxes and
// c = sum e^(x - X) ((x - X) - (y - Y)),  kl = c / l_x - ln l_x + ln l_y.  An item of work is a row
// tile.  A Tile has
//   Room                               what it needs of a worker, Room(request, layout)
//   forward(q, sequence, rows, visit)  visit(lines, x, y, what is seen) for each tile of logits
//   any(rows, r)                       whether row r had a line
#pragma once
#include "ops/kl/tile_host.h"

namespace fovea::kl_host {

template <class Request, class Tile>
struct DualPlan : SweepPlan {
  Request a;
  double row_cost;
  typename Tile::Room room;
  DualPlan(const Request& request, double cost, Layout& worker)
      : a(request), row_cost(cost), room(request, worker) {}
};

template <class Request, class Tile>
class DualForward {
 public:
  DualForward(const DualPlan<Request, Tile>& plan, void* base)
      : plan_(plan), a_(plan.a.kl), base_(base) {}

  void run(Context& ctx) const {
    const RowPlaces tiles = plan_.find(a_.sequences, base_);
    host::pool(ctx).run(tiles.count(), static_cast<double>(tiles.count() * kRows) * plan_.row_cost,
                        [&](int64_t item, int32_t worker) { compute(tiles[item], worker); });
  }

 private:
  void compute(const RowPlaces::Place& at, int32_t worker) const {
    const Sequence q = a_.sequences[at.sequence];
    const RowTile rows(a_, q, at);
    Tile tile(plan_.a, plan_.room, plan_.scratch.at(base_, worker));
    DualRows state;
    tile.forward(q, at.sequence, rows,
                 [&](int64_t lines, float* x, float* y, const host::Seen& seen) {
                   host::simd().dual_softmax(lines, rows.lanes, x, y, seen, state.view());
                 });
    for (int r = 0; r < rows.count; ++r) {
      const DualRows::Row row = state.row(r, tile.any(rows, r));
      const auto put = [&](const View<3>& to, double x) {
        if (to) row_slot(to, q, rows.head, rows.first + r) = static_cast<float>(x);
      };
      put(a_.kl, row.kl), put(a_.first.lse, row.lse_x), put(a_.second.lse, row.lse_y);
    }
  }

  const DualPlan<Request, Tile>& plan_;
  const Kl& a_;
  void* base_;
};

// row_cost: about nanoseconds of one core.
template <class Tile, class Request>
void plan_dual(const Context& ctx, const Request& a, double row_cost, Plan& plan) {
  Layout worker;
  DualPlan<Request, Tile> p(a, row_cost, worker);
  p.lay_out(ctx, a.kl, 0, worker, plan);
  host::host_plan<DualForward<Request, Tile>>(plan, p, shape_name(a.kl.first, a.kl.second));
}

}  // namespace fovea::kl_host
