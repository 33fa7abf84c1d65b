// SPDX-License-Identifier: Apache-2.0
// x_kl_indexer_forward on the CPU.  An item of work is a row tile, all heads; it walks its key
// tiles twice:
//   lse of every teacher head and of the student's logits b = sum_n w_n max(z_n, 0)
//   P = 1/h sum_m e^(a^m - lse^m),  kl = sum_j P (ln P - (b - lse))
// What an item does depends on shapes and lengths alone: any number of threads gives the same bits.
#include <cmath>

#include "ops/kl_experimental/indexer_tile_host.h"

namespace fovea {
namespace {

using namespace kl_host;

struct ForwardPlan : SweepPlan {
  KlIndexer a;
  Kl rows_of;
  IndexerRoom room;  // within a worker's bytes
  ForwardPlan(const KlIndexer& request, Layout& worker)
      : a(request), rows_of(IndexerTile::rows_of(request)), room(request, worker) {}
};

class Forward {
 public:
  Forward(const ForwardPlan& plan, void* base)
      : plan_(plan), a_(plan.a), simd_(host::simd()), base_(base) {}

  void run(Context& ctx) {
    const RowPlaces tiles = plan_.find(a_.teacher.sequences, base_);
    const double width = static_cast<double>(a_.teacher.h * a_.teacher.first.width) +
                         static_cast<double>(a_.heads * a_.student.width);
    host::pool(ctx).run(tiles.count(),
                        4 * host::pairs_of(a_.teacher.sequences) * width / kFlopsPerNanosecond,
                        [&](int64_t item, int32_t worker) { compute(tiles[item], worker); });
  }

 private:
  void compute(const RowPlaces::Place& at, int32_t worker) const {
    const Sequence q = a_.teacher.sequences[at.sequence];
    RowTile rows(plan_.rows_of, q, at);
    void* room = plan_.scratch.at(base_, worker);
    IndexerTile tile(a_, plan_.rows_of, plan_.room, room);
    float lse[kRows], kl[kRows] = {};
    const bool pairs = IndexerTile::has_pairs(a_);
    if (pairs) tile.load_weights(q, rows), tile.statistics(q, rows);
    std::fill_n(lse, kRows, 0.0f);
    for (int r = 0; pairs && r < rows.lanes; ++r) {
      const bool any = r < rows.count && rows.sees_any(r);
      lse[r] = any ? tile.student_top[r] + std::log(tile.student_sum[r]) : 0;
      for (int64_t head = 0; head < a_.teacher.h; ++head) {
        const int64_t n = head * kRows + r;
        tile.lse[n] = any ? tile.top[n] + std::log(tile.sum[n]) : 0;
      }
    }
    if (a_.kl)
      IndexerTile::each_tile(
          q, rows, 0, q.keys, [&](int64_t j, int64_t count, bool masked, const LocalSeen& seen) {
            tile.step(q, rows, j, count, masked ? seen.view() : host::Seen{}, false);
            simd_.divergence(count, rows.lanes, tile.p, tile.b, lse, kl);
          });
    for (int r = 0; r < rows.count; ++r) finish(q, rows, r, tile, lse[r], kl[r]);
  }

  void finish(const Sequence& q, const RowTile& rows, int r, const IndexerTile& tile, float lse,
              float kl) const {
    const int64_t row = rows.first + r;
    const bool any = rows.sees_any(r);
    const auto slot = [&](const View<2>& x) -> float& {
      return x.as()[q.batch * x.stride[0] + (q.row_begin + row) * x.stride[1]];
    };
    if (a_.kl) slot(a_.kl) = any ? kl : 0;
    if (a_.lse) slot(a_.lse) = any ? lse : -kInf;
    if (!a_.teacher.first.lse) return;
    for (int64_t head = 0; head < a_.teacher.h; ++head)
      row_slot(a_.teacher.first.lse, q, head, row) = any ? tile.lse[head * kRows + r] : -kInf;
  }

  const ForwardPlan& plan_;
  const KlIndexer& a_;
  const host::Simd& simd_;
  void* base_;
};

std::string offer(const Context& ctx, const KlIndexer& a, Plan& plan) {
  Layout worker;
  ForwardPlan p(a, worker);
  p.lay_out(ctx, p.rows_of, 0, worker, plan);
  host::host_plan<Forward>(plan, p, shape_name(a.teacher.first, a.student));
  return "";
}

}  // namespace

extern const Kernel<KlIndexer> kl_indexer_forward_host = {"", offer};

}  // namespace fovea
