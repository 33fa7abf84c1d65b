// SPDX-License-Identifier: Apache-2.0
// x_kl_pool_forward on the CPU.  An item of work is a row tile; over its tiles of blocks it takes
// the steps of kl_forward with x the teacher's pooled logits and y the student's: both online
// softmaxes and c = sum_u e^(x - X) ((x - X) - (y - Y)),  kl = c / l_x - ln l_x + ln l_y.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/dtype.h"
#include "host/device.h"
#include "ops/kl/pool_tile_host.h"

namespace fovea {
namespace {

using namespace kl_host;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr double kFlopsPerNanosecond = 25;  // low enough for the slowest instruction set

struct ForwardPlan {
  KlPool a;
  size_t worker_bytes;
  PoolRoom room;  // within a worker's bytes
  Slot<int64_t> tile_first;
  Slot<unsigned char> scratch;
  ForwardPlan(const KlPool& request, Layout& worker)
      : a(request), worker_bytes(0), room(request, worker) {
    worker_bytes = worker.bytes();
  }
};

struct RowState {
  float top_x[kRows], top_y[kRows], sum_x[kRows], sum_y[kRows], cross[kRows];
  RowState() {
    std::fill_n(top_x, kRows, -kInf), std::fill_n(top_y, kRows, -kInf);
    for (float* sum : {sum_x, sum_y, cross}) std::fill_n(sum, kRows, 0.0f);
  }
};

void compute(const ForwardPlan& plan, const RowTiles::Place& at, void* room) {
  const Kl& a = plan.a.kl;
  const Sequence q = a.sequences[at.sequence];
  const Sequence units = PoolTile::blocks_of(plan.a, q, at.sequence);
  const RowTile rows(a, q, at.head, at.first);
  PoolTile tile(plan.a, plan.room, room);
  const RowTile blocks = tile.blocks_of(rows);
  RowState state;
  if (rows.begin < rows.end) tile.load_rows(q, rows);
  PoolTile::each_tile(units, blocks, 0, units.keys,
                      [&](int64_t u, int64_t count, bool masked, const LocalSeen& seen) {
                        tile.step(q, units, rows, u, count, false);
                        host::simd().coupled_softmax(
                            count, rows.lanes, tile.x, tile.student.x,
                            masked ? seen.view() : host::Seen{},
                            {state.top_x, state.top_y, state.sum_x, state.sum_y, state.cross});
                      });
  for (int r = 0; r < rows.count; ++r) {
    double kl = 0, lse_x = -kInf, lse_y = -kInf;
    if (rows.sees_any(r)) {
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

std::string offer(const Context& ctx, const KlPool& a, Plan& plan) {
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
    const double cost = static_cast<double>(tiles.count() * kRows) *
                        static_cast<double>(kl.sequences.key_max + 16) *
                        static_cast<double>(2 * kl.first.width + 32);
    host::pool(context).run(
        tiles.count(), cost / kFlopsPerNanosecond, [&](int64_t item, int32_t id) {
          compute(p, tiles[item], p.scratch.at(base) + static_cast<size_t>(id) * p.worker_bytes);
        });
  };
  return "";
}

}  // namespace

extern const Kernel<KlPool> kl_pool_forward_host = {"", offer};

}  // namespace fovea
