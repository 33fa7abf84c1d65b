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

#include "core/dtype.h"
#include "host/device.h"
#include "ops/kl/tile_host.h"

namespace fovea {
namespace {

using namespace kl_host;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr double kFlopsPerNanosecond = 25;  // low enough for the slowest instruction set

struct ForwardPlan {
  Kl a;
  size_t worker_bytes;
  SideRoom first, second;  // within a worker's bytes
  Slot<int64_t> tile_first;
  Slot<Totals> totals;
  Slot<unsigned char> scratch;
  ForwardPlan(const Kl& request, Layout& worker)
      : a(request), worker_bytes(0), first(request.first, worker), second(request.second, worker) {}
};

struct RowState {
  float top_x[kRows], top_y[kRows], sum_x[kRows], sum_y[kRows], cross[kRows];
  float lse_x[kRows], lse_y[kRows], kl_x[kRows], kl_y[kRows];  // share > 0
  RowState() {
    std::fill_n(top_x, kRows, -kInf), std::fill_n(top_y, kRows, -kInf);
    for (float* sum : {sum_x, sum_y, cross}) std::fill_n(sum, kRows, 0.0f);
  }
  host::Coupled view() { return {top_x, top_y, sum_x, sum_y, cross}; }
};

class Forward {
 public:
  Forward(const ForwardPlan& plan, void* base)
      : plan_(plan), a_(plan.a), simd_(host::simd()), base_(base) {}

  void run(Context& ctx) {
    RowTiles tiles(a_, plan_.tile_first.at(base_));
    tiles.find();
    double pairs = 0;
    for (int64_t r = 0; r < a_.sequences.count; ++r) {
      const Sequence q = a_.sequences[r];
      pairs += static_cast<double>(q.rows) * static_cast<double>(a_.h) *
               (static_cast<double>(q.keys) + 16);
    }
    const auto widths = static_cast<double>(a_.first.width + a_.second.width + 32);
    host::pool(ctx).run(tiles.count(), pairs * widths / kFlopsPerNanosecond,
                        [&](int64_t item, int32_t worker) { compute(tiles[item], item, worker); });
    if (!a_.total) return;
    const Totals sum = add_up(plan_.totals.at(base_), tiles.count());
    double total = sum.value;
    if (a_.mean) total = sum.weight == 0 ? 0 : sum.value / sum.weight;
    *a_.total.as() = static_cast<float>(total);
  }

 private:
  void compute(const RowTiles::Place& at, int64_t item, int32_t worker) const {
    const Sequence q = a_.sequences[at.sequence];
    const RowTile rows(a_, q, at.head, at.first);
    void* room = plan_.scratch.at(base_) + static_cast<size_t>(worker) * plan_.worker_bytes;
    SideTile x(a_, a_.first, plan_.first, room), y(a_, a_.second, plan_.second, room);
    RowState state;
    if (rows.begin < rows.end) x.load_rows(q, rows), y.load_rows(q, rows);
    each_tile(q, rows, x, y, [&](int64_t count, const host::Seen& seen) {
      simd_.coupled_softmax(count, rows.lanes, x.x, y.x, seen, state.view());
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
    for (int64_t j = rows.begin; j < rows.end; j += kKeys) {
      const int64_t count = std::min<int64_t>(kKeys, rows.end - j);
      const Cover cover = rows.cover(j, j + count);
      if (cover == Cover::none) continue;
      for (SideTile* side : {&x, &y}) {
        side->load_keys(q, rows.head, j, count, false);
        side->score(rows.lanes);
      }
      if (cover == Cover::full) {
        visit(count, host::Seen{});
      } else {
        const LocalSeen seen(rows, j, count);
        visit(count, seen.view());
      }
    }
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
    double kl = 0, kl_second = 0, lse_x = -kInf, lse_y = -kInf;
    if (rows.sees_any(r)) {
      const double l_x = state.sum_x[r], log_x = std::log(l_x);
      const double log_y = std::log(static_cast<double>(state.sum_y[r]));
      kl = state.cross[r] / l_x - log_x + log_y;
      lse_x = state.top_x[r] + log_x, lse_y = state.top_y[r] + log_y;
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

std::string offer(const Context& ctx, const Kl& a, Plan& plan) {
  Layout worker;
  ForwardPlan p(a, worker);
  p.worker_bytes = worker.bytes();
  const int64_t tiles = RowTiles::most(a);
  const int64_t workers = host::workers_for(ctx, static_cast<double>(tiles));
  p.tile_first = plan.workspace.add<int64_t>(a.sequences.count + 1);
  p.totals = plan.workspace.add<Totals>(a.total ? tiles : 0);
  p.scratch = plan.workspace.add_all(worker, workers);
  plan.kernel += std::string(".") + host::simd().name + "." + dtype_name(a.first.dtype) + ".d" +
                 std::to_string(a.first.width) + "." + dtype_name(a.second.dtype) + ".d" +
                 std::to_string(a.second.width);
  plan.launch = [p](Context& context, void* base) { Forward(p, base).run(context); };
  return "";
}

}  // namespace

extern const Kernel<Kl> kl_forward_host = {"", offer};
extern const Kernel<Kl> kl_jensen_shannon_forward_host = {"", offer};

}  // namespace fovea
