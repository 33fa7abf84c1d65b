// SPDX-License-Identifier: Apache-2.0
// x_kl_indexer_backward on the CPU, by two sweeps that compute both distributions anew:
//   db = dkl (R - P),  z_n = <q_n, k>,  dz_n = db w_n where z_n > 0
//   rows: an item is a row tile, dq_n = dz_n' k and dw_n = sum_j db max(z_n, 0) over its key tiles
//   keys: an item owns a block of keys, dk = sum_n dz_n q_n over the row tiles, head after head
// Tiles and the order of sums follow from shapes and lengths alone: any number of threads gives the
// same bits.
#include <algorithm>

#include "core/dtype.h"
#include "host/device.h"
#include "ops/kl/gradient_tile_host.h"
#include "ops/kl/indexer_tile_host.h"

namespace fovea {
namespace {

using namespace kl_host;

constexpr int64_t kBlockKeys = 4 * kKeys;   // of an item of the sweep over keys
constexpr double kFlopsPerNanosecond = 25;  // low enough for the slowest instruction set

struct BackwardPlan {
  KlIndexer a;
  Kl rows_of;
  size_t worker_bytes;
  IndexerRoom room;  // this and the sums: within a worker's bytes
  Slot<float> dq, dk, dweight;
  Slot<int64_t> tile_first;
  Slot<unsigned char> scratch;
  BackwardPlan(const KlIndexer& request, Layout& worker)
      : a(request), rows_of(IndexerTile::rows_of(request)), worker_bytes(0), room(request, worker) {
    const int64_t pad = padded(a.student.width);
    dq = worker.add<float>(a.student.dq ? a.heads : 0, kRows, pad);
    dk = worker.add<float>(a.student.dk ? kBlockKeys * pad : 0);
    dweight = worker.add<float>(a.teacher.sequences.query_max ? a.heads : 0, kRows);
    worker_bytes = worker.bytes();
  }
};

class Backward {
 public:
  Backward(const BackwardPlan& plan, void* base)
      : plan_(plan), a_(plan.a), t_(plan.a.teacher), simd_(host::simd()), base_(base) {}

  void run(Context& ctx) {
    host::Pool& pool = host::pool(ctx);
    RowTiles tiles(plan_.rows_of, plan_.tile_first.at(base_));
    tiles.find();
    clear(pool);
    const double width = static_cast<double>(t_.h * t_.first.width) +
                         3.0 * static_cast<double>(a_.heads * a_.student.width);
    double pairs = 0;
    for (int64_t r = 0; r < t_.sequences.count; ++r)
      pairs += static_cast<double>(t_.sequences[r].rows) *
               (static_cast<double>(t_.sequences[r].keys) + 16);
    const double cost = 2 * pairs * width / kFlopsPerNanosecond;
    if (a_.student.dq || a_.dweight)
      pool.run(tiles.count(), cost,
               [&](int64_t item, int32_t worker) { sweep_rows(tiles[item], worker); });
    if (a_.student.dk)
      pool.run(t_.sequences.count * blocks(), cost,
               [&](int64_t item, int32_t worker) { sweep_keys(item, worker); });
  }

 private:
  int64_t blocks() const { return ceil_div(t_.sequences.key_max, kBlockKeys); }
  void* room_of(int32_t worker) const {
    return plan_.scratch.at(base_) + static_cast<size_t>(worker) * plan_.worker_bytes;
  }

  // Zeros for what no sequence reaches.
  void clear(host::Pool& pool) const {
    const Sequences& q = t_.sequences;
    if (q.query_start || q.query_len || q.query_max < t_.s) {
      host::zero(pool, a_.student.dq, a_.student.dtype, t_.b, t_.s, a_.heads, a_.student.width);
      const View<3>& w = a_.dweight;
      host::zero(pool, {w.data, {w.stride[0], w.stride[1], w.stride[2], 1}}, FOVEA_F32, t_.b, t_.s,
                 a_.heads, 1);
    }
    if (q.key_start || q.key_len || q.key_max < q.capacity)
      host::zero(pool, a_.student.dk, a_.student.dtype, q.key_start ? 1 : q.count, t_.t, 1,
                 a_.student.width);
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

  void sweep_rows(const RowTiles::Place& at, int32_t worker) const {
    const Sequence q = t_.sequences[at.sequence];
    void* room = room_of(worker);
    IndexerTile tile(a_, plan_.rows_of, plan_.room, room);
    RowTile rows(plan_.rows_of, q, 0, at.first);
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
    const View<4>& to = a_.student.dq;
    const View<3>& w = a_.dweight;
    for (int r = 0; r < rows.count; ++r)
      for (int64_t n = 0; n < a_.heads; ++n) {
        const int64_t row = q.row_begin + rows.first + r;
        if (to)
          host::store_row(to.data, a_.student.dtype,
                          q.batch * to.stride[0] + row * to.stride[1] + n * to.stride[2],
                          to.stride[3], a_.student.width, dq + (n * kRows + r) * pad, 1);
        if (w)
          w.as()[q.batch * w.stride[0] + row * w.stride[1] + n * w.stride[2]] =
              dweight[n * kRows + r];
      }
  }

  void sweep_keys(int64_t item, int32_t worker) const {
    const Sequence q = t_.sequences[item / blocks()];
    const int64_t begin = item % blocks() * kBlockKeys;
    const int64_t end = std::min(q.keys, begin + kBlockKeys);
    if (begin >= end) return;
    void* room = room_of(worker);
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
    const View<4>& to = a_.student.dk;
    for (int64_t j = begin; j < end; ++j)
      host::store_row(to.data, a_.student.dtype, t_.sequences.key_offset(q, j, to.stride),
                      to.stride[3], a_.student.width, dk + (j - begin) * pad, 1);
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
  const int64_t tiles = RowTiles::most(p.rows_of);
  const double items = static_cast<double>(a.teacher.sequences.count) *
                       static_cast<double>(ceil_div(a.teacher.sequences.key_max, kBlockKeys));
  const int64_t workers = host::workers_for(ctx, std::max(items, static_cast<double>(tiles)));
  p.tile_first = plan.workspace.add<int64_t>(a.teacher.sequences.count + 1);
  p.scratch = plan.workspace.add_all(worker, workers);
  plan.kernel += std::string(".") + host::simd().name + "." + dtype_name(a.teacher.first.dtype) +
                 ".d" + std::to_string(a.teacher.first.width) + "." + dtype_name(a.student.dtype) +
                 ".d" + std::to_string(a.student.width);
  plan.launch = [p](Context& context, void* base) { Backward(p, base).run(context); };
  return "";
}

}  // namespace

extern const Kernel<KlIndexer> kl_indexer_backward_host = {"", offer};

}  // namespace fovea
