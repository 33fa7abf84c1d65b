// SPDX-License-Identifier: Apache-2.0
// x_kl_gather_forward on the CPU.  An item of work is a row tile; entry n of every row's list
// stands in line n of a tile of logits, rows in lanes, so that the steps of kl_forward serve: both
// online softmaxes and c = sum_n e^(x - X) ((x - X) - (y - Y)),  kl = c / l_x - ln l_x + ln l_y.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/dtype.h"
#include "host/device.h"
#include "ops/kl/gather_tile_host.h"

namespace fovea {
namespace {

using namespace kl_host;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr double kFlopsPerNanosecond = 4;  // of single products

struct ForwardPlan {
  KlGather a;
  size_t worker_bytes;
  GatherRoom room;  // within a worker's bytes
  Slot<int64_t> tile_first;
  Slot<unsigned char> scratch;
  ForwardPlan(const KlGather& request, Layout& worker)
      : a(request), worker_bytes(0), room(request, worker) {
    worker_bytes = worker.bytes();
  }
};

struct RowState {
  float top_x[kRows], top_y[kRows], sum_x[kRows], sum_y[kRows], cross[kRows];
};

void compute(const ForwardPlan& plan, const RowTiles::Place& at, void* room) {
  const Kl& a = plan.a.kl;
  const Sequence q = a.sequences[at.sequence];
  const RowTile rows(a, q, at.head, at.first);
  GatherTile tile(plan.a, plan.room, room);
  RowState state;
  std::fill_n(state.top_x, kRows, -kInf), std::fill_n(state.top_y, kRows, -kInf);
  for (float* sum : {state.sum_x, state.sum_y, state.cross}) std::fill_n(sum, kRows, 0.0f);
  if (tile.load(q, rows, 0, q.keys, [](int) { return true; }))
    for (int64_t entry = 0; entry < tile.longest; entry += kKeys) {
      tile.score(q, rows, entry);
      host::simd().coupled_softmax(
          tile.count, rows.lanes, tile.first.x, tile.second.x, tile.seen(),
          {state.top_x, state.top_y, state.sum_x, state.sum_y, state.cross});
    }
  for (int r = 0; r < rows.count; ++r) {
    double kl = 0, lse_x = -kInf, lse_y = -kInf;
    if (tile.length[r]) {
      const double l_x = state.sum_x[r], log_x = std::log(l_x);
      const double log_y = std::log(static_cast<double>(state.sum_y[r]));
      kl = state.cross[r] / l_x - log_x + log_y;
      lse_x = state.top_x[r] + log_x, lse_y = state.top_y[r] + log_y;
    }
    const auto put = [&](const View<3>& to, double x) {
      if (to) row_slot(to, q, rows.head, rows.first + r) = static_cast<float>(x);
    };
    put(a.kl, kl), put(a.first.lse, lse_x), put(a.second.lse, lse_y);
  }
}

std::string offer(const Context& ctx, const KlGather& a, Plan& plan) {
  Layout worker;
  ForwardPlan p(a, worker);
  const int64_t tiles = RowTiles::most(a.kl);
  const int64_t workers = host::workers_for(ctx, static_cast<double>(tiles));
  p.tile_first = plan.workspace.add<int64_t>(a.kl.sequences.count + 1);
  p.scratch = plan.workspace.add_all(worker, workers);
  plan.kernel += std::string(".") + host::simd().name + "." + dtype_name(a.kl.first.dtype) + ".d" +
                 std::to_string(a.kl.first.width) + "." + dtype_name(a.kl.second.dtype) + ".d" +
                 std::to_string(a.kl.second.width);
  plan.launch = [p](Context& context, void* base) {
    const Kl& kl = p.a.kl;
    RowTiles tiles(kl, p.tile_first.at(base));
    tiles.find();
    const double cost = static_cast<double>(tiles.count() * kRows) * static_cast<double>(p.a.n) *
                        static_cast<double>(2 * (kl.first.width + kl.second.width) + 32);
    host::pool(context).run(
        tiles.count(), cost / kFlopsPerNanosecond, [&](int64_t item, int32_t id) {
          compute(p, tiles[item], p.scratch.at(base) + static_cast<size_t>(id) * p.worker_bytes);
        });
  };
  return "";
}

}  // namespace

extern const Kernel<KlGather> kl_gather_forward_host = {"", offer};

}  // namespace fovea
