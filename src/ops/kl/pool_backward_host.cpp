// SPDX-License-Identifier: Apache-2.0
// x_kl_pool_backward on the CPU, by sweeps that compute the logits anew, db = dkl (R - P):
//   rows: an item is a row tile, dq = db' k over its tiles of blocks
//   keys: an item owns a tile of blocks of one of the student's key heads, dk = db q over the row
//         tiles of the query heads that read it, head after head
// Tiles and the order of sums follow from shapes and lengths alone: any number of threads gives the
// same bits.
#include <algorithm>

#include "core/dtype.h"
#include "host/device.h"
#include "ops/kl/gradient_tile_host.h"
#include "ops/kl/pool_tile_host.h"

namespace fovea {
namespace {

using namespace kl_host;

constexpr double kFlopsPerNanosecond = 25;  // low enough for the slowest instruction set

struct BackwardPlan {
  KlPool a;
  size_t worker_bytes;
  PoolRoom room;  // this and the sums: within a worker's bytes
  Slot<float> sums;
  Slot<int64_t> tile_first;
  Slot<unsigned char> scratch;
  BackwardPlan(const KlPool& request, Layout& worker)
      : a(request), worker_bytes(0), room(request, worker) {
    sums = worker.add<float>(std::max(kRows, kKeys) * padded(a.kl.second.width));
    worker_bytes = worker.bytes();
  }
};

class Backward {
 public:
  Backward(const BackwardPlan& plan, void* base)
      : plan_(plan), a_(plan.a), kl_(plan.a.kl), side_(plan.a.kl.second), base_(base) {}

  void run(Context& ctx) {
    host::Pool& pool = host::pool(ctx);
    RowTiles tiles(kl_, plan_.tile_first.at(base_));
    tiles.find();
    const Sequences& q = kl_.sequences;
    if (q.query_start || q.query_len || q.query_max < kl_.s)
      host::zero(pool, side_.dq, side_.dtype, kl_.b, kl_.s, kl_.h, side_.width);
    host::zero(pool, side_.dk, side_.dtype, q.key_start ? 1 : q.count, a_.u, side_.key_heads,
               side_.width);
    const double cost = static_cast<double>(tiles.count() * kRows) *
                        static_cast<double>(q.key_max + 16) *
                        static_cast<double>(2 * kl_.first.width + 32) / kFlopsPerNanosecond;
    if (side_.dq)
      pool.run(tiles.count(), cost,
               [&](int64_t item, int32_t worker) { sweep_rows(tiles[item], room_of(worker)); });
    if (side_.dk)
      pool.run(q.count * side_.key_heads * block_tiles(), cost,
               [&](int64_t item, int32_t worker) { sweep_keys(item, room_of(worker)); });
  }

 private:
  int64_t block_tiles() const {
    return ceil_div(kl_.sequences.key_max > 0 ? (kl_.sequences.key_max - 1) / a_.block_keys + 1 : 0,
                    kKeys);
  }
  void* room_of(int32_t worker) const {
    return plan_.scratch.at(base_) + static_cast<size_t>(worker) * plan_.worker_bytes;
  }

  // visit(first block, masked, what is seen) with db in student.x, for the tiles of blocks in
  // [begin, end); rows without a gradient are dropped.
  template <class Visit>
  void walk(const Sequence& q, const Sequence& units, RowTile& rows, PoolTile& tile, int64_t begin,
            int64_t end, Visit visit) const {
    float lse_x[kRows] = {}, lse_y[kRows] = {}, kl[kRows] = {}, grad[kRows] = {};
    for (int r = 0; r < rows.count; ++r) {
      if (!rows.sees_any(r)) continue;
      grad[r] = row_value(a_.dkl, q, rows.head, rows.first + r);
      if (grad[r] == 0) {
        rows.drop(r);
        continue;
      }
      lse_x[r] = row_value(kl_.first.lse, q, rows.head, rows.first + r);
      lse_y[r] = row_value(side_.lse, q, rows.head, rows.first + r);
    }
    rows.bound();
    const RowTile blocks = tile.blocks_of(rows);
    if (blocks.begin >= end || blocks.end <= begin) return;
    tile.load_rows(q, rows);
    PoolTile::each_tile(units, blocks, begin, end,
                        [&](int64_t u, int64_t count, bool masked, const LocalSeen& seen) {
                          tile.step(q, units, rows, u, count, true);
                          host::simd().coupled_backward(count, rows.lanes, tile.x, tile.student.x,
                                                        masked ? seen.view() : host::Seen{}, lse_x,
                                                        lse_y, kl, grad);
                          visit(u, masked, seen);
                        });
  }

  void sweep_rows(const RowTiles::Place& at, void* room) const {
    const Sequence q = kl_.sequences[at.sequence];
    const Sequence units = PoolTile::blocks_of(a_, q, at.sequence);
    RowTile rows(kl_, q, at.head, at.first);
    PoolTile tile(a_, plan_.room, room);
    float* const dq = plan_.sums.at(room);
    const int64_t pad = tile.student.pad;
    std::fill_n(dq, kRows * pad, 0.0f);
    walk(q, units, rows, tile, 0, units.keys, [&](int64_t, bool masked, const LocalSeen& seen) {
      add_dq(tile.student, rows, seen, masked, dq);
    });
    const View<4>& to = side_.dq;
    for (int r = 0; r < rows.count; ++r)
      host::store_row(to.data, side_.dtype,
                      q.batch * to.stride[0] + (q.row_begin + rows.first + r) * to.stride[1] +
                          rows.head * to.stride[2],
                      to.stride[3], side_.width, dq + r * pad, side_.scale);
  }

  void sweep_keys(int64_t item, void* room) const {
    const int64_t r = item / block_tiles() / side_.key_heads;
    const int64_t key_head = item / block_tiles() % side_.key_heads;
    const Sequence q = kl_.sequences[r];
    const Sequence units = PoolTile::blocks_of(a_, q, r);
    const int64_t begin = item % block_tiles() * kKeys;
    const int64_t end = std::min<int64_t>(units.keys, begin + kKeys);
    if (begin >= end) return;
    PoolTile tile(a_, plan_.room, room);
    float* const dk = plan_.sums.at(room);
    const int64_t pad = tile.student.pad, heads = kl_.h / side_.key_heads;
    std::fill_n(dk, kKeys * pad, 0.0f);
    for (int64_t head = key_head * heads; q.rows && head < (key_head + 1) * heads; ++head)
      for (int64_t row = 0; row < q.rows; row += kRows) {
        RowTile rows(kl_, q, head, row);
        walk(q, units, rows, tile, begin, end, [&](int64_t, bool masked, const LocalSeen& seen) {
          add_dk(tile.student, rows, seen, masked, dk);
        });
      }
    const View<4>& to = side_.dk;
    for (int64_t u = begin; u < end; ++u)
      host::store_row(to.data, side_.dtype,
                      kl_.sequences.key_offset(units, u, to.stride) + key_head * to.stride[2],
                      to.stride[3], side_.width, dk + (u - begin) * pad, 1);
  }

  const BackwardPlan& plan_;
  const KlPool& a_;
  const Kl& kl_;
  const KlSide& side_;
  void* base_;
};

std::string offer(const Context& ctx, const KlPool& a, Plan& plan) {
  Layout worker;
  BackwardPlan p(a, worker);
  const int64_t tiles = RowTiles::most(a.kl);
  const double items = static_cast<double>(a.kl.sequences.count) *
                       static_cast<double>(a.kl.second.key_heads) *
                       static_cast<double>(ceil_div(a.kl.sequences.key_max, kKeys));
  const int64_t workers = host::workers_for(ctx, std::max(items, static_cast<double>(tiles)));
  p.tile_first = plan.workspace.add<int64_t>(a.kl.sequences.count + 1);
  p.scratch = plan.workspace.add_all(worker, workers);
  plan.kernel += std::string(".") + host::simd().name + "." + dtype_name(a.kl.first.dtype) + ".d" +
                 std::to_string(a.kl.first.width) + "." + dtype_name(a.kl.second.dtype) + ".d" +
                 std::to_string(a.kl.second.width);
  plan.launch = [p](Context& context, void* base) { Backward(p, base).run(context); };
  return "";
}

}  // namespace

extern const Kernel<KlPool> kl_pool_backward_host = {"", offer};

}  // namespace fovea
