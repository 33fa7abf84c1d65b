// SPDX-License-Identifier: Apache-2.0
// x_kl_indexer_backward on the CPU, by two sweeps that compute both distributions anew:
//   db = dkl (R - P),  z_n = <q_n, k>,  dz_n = db w_n where z_n > 0
//   rows: an item is a row tile, dq_n = dz_n' k and dw_n = sum_j db max(z_n, 0) over its key tiles
//   keys: an item owns a block of keys, dk = sum_n dz_n q_n over the row tiles, head after head
// Tiles and the order of sums follow from shapes and lengths alone: any number of threads gives the
// same bits.
#include "ops/kl/gradient_tile_host.h"
#include "ops/kl_experimental/indexer_tile_host.h"

namespace fovea {
namespace {

using namespace kl_host;

constexpr int64_t kBlockKeys = 4 * kKeys;  // of an item of the sweep over keys

struct BackwardPlan : SweepPlan {
  KlIndexer a;
  Kl rows_of;
  IndexerRoom room;  // this and the sums: within a worker's bytes
  Slot<float> dq, dk, dweight;
  BackwardPlan(const KlIndexer& request, Layout& worker)
      : a(request), rows_of(IndexerTile::rows_of(request)), room(request, worker) {
    const int64_t pad = padded(a.student.width);
    dq = worker.add<float>(a.student.dq ? a.heads : 0, kRows, pad);
    dk = worker.add<float>(a.student.dk ? kBlockKeys * pad : 0);
    dweight = worker.add<float>(a.teacher.sequences.query_max ? a.heads : 0, kRows);
  }
};

class Backward {
 public:
  Backward(const BackwardPlan& plan, void* base)
      : plan_(plan), a_(plan.a), t_(plan.a.teacher), simd_(host::simd()), base_(base) {}

  void run(Context& ctx) {
    host::Pool& pool = host::pool(ctx);
    const RowPlaces tiles = plan_.find(t_.sequences, base_);
    clear(pool);
    const double width = static_cast<double>(t_.h * t_.first.width) +
                         3.0 * static_cast<double>(a_.heads * a_.student.width);
    const double cost = 2 * host::pairs_of(t_.sequences) * width / kFlopsPerNanosecond;
    if (a_.student.dq || a_.dweight)
      pool.run(tiles.count(), cost,
               [&](int64_t item, int32_t worker) { sweep_rows(tiles[item], worker); });
    if (a_.student.dk)
      pool.run(t_.sequences.count * blocks(), cost,
               [&](int64_t item, int32_t worker) { sweep_keys(item, worker); });
  }

 private:
  int64_t blocks() const { return ceil_div(t_.sequences.key_max, kBlockKeys); }

  // Zeros for what no sequence reaches.
  void clear(host::Pool& pool) const {
    const Sequences& q = t_.sequences;
    const KlSide& student = a_.student;
    const View<3>& w = a_.dweight;
    host::zero_rows(pool, student.dq, student.dtype, q, t_.b, a_.heads, student.width);
    host::zero_rows(pool, {w.data, {w.stride[0], w.stride[1], w.stride[2], 1}}, FOVEA_F32, q, t_.b,
                    a_.heads, 1);
    host::zero_keys(pool, student.dk, student.dtype, q, t_.t, 1, student.width);
  }

  // The gradient and statistics of the rows; rows without a gradient are dropped.  False: none is
  // left.
  struct Given {
    float lse[kRows], grad[kRows];
  };
  bool load(const Sequence& q, RowTile& rows, IndexerTile& tile, Given& given) const {
    const auto value = [&](const View<2>& x, int r) {
      return x.as()[q.batch * x.stride[0] + (q.row_begin + rows.first + r) * x.stride[1]];
    };
    if (!IndexerTile::has_pairs(a_)) return false;
    for (int r = 0; r < rows.lanes; ++r) {
      given.grad[r] = given.lse[r] = 0;
      for (int64_t head = 0; head < t_.h; ++head) tile.lse[head * kRows + r] = 0;
      if (r >= rows.count || !rows.sees_any(r)) continue;
      given.grad[r] = value(a_.dkl, r);
      if (given.grad[r] == 0) {
        rows.drop(r);
        continue;
      }
      given.lse[r] = value(a_.lse, r);
      for (int64_t head = 0; head < t_.h; ++head)
        tile.lse[head * kRows + r] = row_value(t_.first.lse, q, head, rows.first + r);
    }
    rows.bound();
    tile.load_weights(q, rows);
    return rows.begin < rows.end;
  }

  // visit(head, first key, masked, what is seen) with dz of the head in student.x.
  template <class Visit>
  void walk(const Sequence& q, RowTile& rows, IndexerTile& tile, const Given& given, int64_t begin,
            int64_t end, float* dweight, Visit visit) const {
    IndexerTile::each_tile(
        q, rows, begin, end, [&](int64_t j, int64_t count, bool masked, const LocalSeen& local) {
          const host::Seen seen = masked ? local.view() : host::Seen{};
          tile.step(q, rows, j, count, seen, true);
          simd_.divergence_backward(count, rows.lanes, tile.p, tile.b, seen, given.lse, given.grad);
          for (int64_t n = 0; n < a_.heads; ++n) {
            tile.rectified(q, rows, n);
            simd_.relu_backward(count, rows.lanes, tile.b, tile.student.x, tile.weight + n * kRows,
                                dweight + n * kRows);
            visit(n, j, masked, local);
          }
        });
  }

  void sweep_rows(const RowPlaces::Place& at, int32_t worker) const {
    const Sequence q = t_.sequences[at.sequence];
    void* room = plan_.scratch.at(base_, worker);
    IndexerTile tile(a_, plan_.rows_of, plan_.room, room);
    RowTile rows(plan_.rows_of, q, at);
    float *dq = plan_.dq.at(room), *dweight = plan_.dweight.at(room);
    const int64_t pad = tile.student.pad;
    if (dq) std::fill_n(dq, a_.heads * kRows * pad, 0.0f);
    std::fill_n(dweight, a_.heads * kRows, 0.0f);
    Given given;
    if (load(q, rows, tile, given))
      walk(q, rows, tile, given, 0, q.keys, dweight,
           [&](int64_t n, int64_t, bool masked, const LocalSeen& seen) {
             if (dq) add_dq(tile.student, rows, seen, masked, dq + n * kRows * pad);
           });
    const View<3>& w = a_.dweight;
    for (int64_t n = 0; n < a_.heads; ++n) {
      host::store_rows(a_.student.dq, a_.student.dtype, q, rows.first, rows.count, n,
                       a_.student.width, dq + n * kRows * pad, pad, 1);
      for (int r = 0; w && r < rows.count; ++r)
        w.as()[q.batch * w.stride[0] + (q.row_begin + rows.first + r) * w.stride[1] +
               n * w.stride[2]] = dweight[n * kRows + r];
    }
  }

  void sweep_keys(int64_t item, int32_t worker) const {
    const Sequence q = t_.sequences[item / blocks()];
    const int64_t begin = item % blocks() * kBlockKeys;
    const int64_t end = std::min(q.keys, begin + kBlockKeys);
    if (begin >= end) return;
    void* room = plan_.scratch.at(base_, worker);
    IndexerTile tile(a_, plan_.rows_of, plan_.room, room);
    float *dk = plan_.dk.at(room), *dweight = plan_.dweight.at(room);
    const int64_t pad = tile.student.pad;
    std::fill_n(dk, kBlockKeys * pad, 0.0f);
    for (int64_t row = 0; row < q.rows; row += kRows) {
      RowTile rows(plan_.rows_of, q, 0, row);
      if (rows.begin >= end || rows.end <= begin) continue;
      Given given;
      if (!load(q, rows, tile, given)) continue;
      walk(q, rows, tile, given, begin, end, dweight,
           [&](int64_t, int64_t j, bool masked, const LocalSeen& seen) {
             add_dk(tile.student, rows, seen, masked, dk + (j - begin) * pad);
           });
    }
    store_dk(t_, a_.student, q, begin, end, 0, dk, pad);
  }

  const BackwardPlan& plan_;
  const KlIndexer& a_;
  const Kl& t_;
  const host::Simd& simd_;
  void* base_;
};

std::string offer(const Context& ctx, const KlIndexer& a, Plan& plan) {
  Layout worker;
  BackwardPlan p(a, worker);
  const double items = static_cast<double>(a.teacher.sequences.count) *
                       static_cast<double>(ceil_div(a.teacher.sequences.key_max, kBlockKeys));
  p.lay_out(ctx, p.rows_of, items, worker, plan);
  host::host_plan<Backward>(plan, p, shape_name(a.teacher.first, a.student));
  return "";
}

}  // namespace

extern const Kernel<KlIndexer> kl_indexer_backward_host = {"", offer};

}  // namespace fovea
