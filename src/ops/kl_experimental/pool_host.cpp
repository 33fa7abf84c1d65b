// SPDX-License-Identifier: Apache-2.0
// x_kl_pool on the CPU.  The pooled distribution renormalised is the softmax of A_u = ln sum or max
// over a block's keys of e^a, so that a block stands where kl has a key, and the steps of
// kl_forward and kl_backward serve.  The backward pools anew, in two sweeps, db = dkl (R - P):
//   rows: an item is a row tile, dq = db' k over its tiles of blocks
//   keys: an item owns a tile of blocks of one of the student's key heads, dk = db q over the row
//         tiles of the query heads that read it, head after head
// Tiles and the order of sums follow from shapes and lengths alone: any number of threads gives the
// same bits.
#include <algorithm>
#include <cmath>

#include "ops/kl/dual_softmax_host.h"
#include "ops/kl/gradient_tile_host.h"
#include "ops/kl_experimental/pool.h"

namespace fovea {
namespace {

using namespace kl_host;

struct PoolRoom {
  SideRoom teacher, student;
  Slot<float> x;
  PoolRoom(const KlPool& a, Layout& layout)
      : teacher(a.kl.first, layout),
        student(a.kl.second, layout),
        x(layout.add<float>(kRows * kKeys)) {}
};

// A row tile against a tile of blocks: x[block][lane] = A, student.x its logits.
class PoolTile {
 public:
  using Room = PoolRoom;
  SideTile teacher, student;
  float* x;

  PoolTile(const KlPool& a, const PoolRoom& room, void* base)
      : teacher(a.kl, a.kl.first, room.teacher, base),
        student(a.kl, a.kl.second, room.student, base),
        x(room.x.at(base)),
        a_(a) {}

  // The row tile with blocks in place of keys.
  RowTile blocks_of(const RowTile& rows) const {
    RowTile blocks = rows;
    const auto past = [&](int64_t low, int64_t high) {
      return low < high ? (high - 1) / a_.block_keys + 1 : low / a_.block_keys;
    };
    for (int r = 0; r < blocks.lanes; ++r) {
      KeyRange& at = blocks.seen[r];
      at = {at.low / a_.block_keys, past(at.low, at.high), at.first_low / a_.block_keys,
            past(at.first_low, at.first_high)};
    }
    blocks.bound();
    return blocks;
  }
  // Sequence number r with blocks in place of keys, for the student.
  static Sequence blocks_of(const KlPool& a, const Sequence& q, int64_t r) {
    Sequence blocks = q;
    blocks.keys = q.keys > 0 ? (q.keys - 1) / a.block_keys + 1 : 0;
    blocks.key_begin = a.kl.sequences.key_start ? q.key_begin / a.block_keys + r : 0;
    return blocks;
  }
  void load_rows(const Sequence& q, const RowTile& rows) {
    teacher.load_rows(q, rows), student.load_rows(q, rows);
  }
  // x and student.x of the blocks [begin, begin + count); `rows` and q are of keys, `units` of
  // blocks.
  void step(const Sequence& q, const Sequence& units, const RowTile& rows, int64_t begin,
            int64_t count, bool wide) {
    for (int64_t u = 0; u < count; ++u) pool(q, rows, begin + u, x + u * rows.lanes);
    student.load_keys(units, rows.head, begin, count, wide);
    student.score(rows.lanes);
  }

  // All blocks, for dual_softmax_host.h.
  template <class Visit>
  void forward(const Sequence& q, int64_t sequence, const RowTile& rows, Visit visit) {
    const Sequence units = blocks_of(a_, q, sequence);
    const RowTile blocks = blocks_of(rows);
    if (rows.begin < rows.end) load_rows(q, rows);
    KeyWalk::grid(0, units.keys, units.keys).each(blocks, [&](const KeySpan& span) {
      step(q, units, rows, span.begin, span.count, false);
      const LocalSeen seen(blocks, span.begin, span.count);
      visit(span.count, x, student.x, span.masked() ? seen.view() : host::Seen{});
    });
  }
  bool any(const RowTile& rows, int r) const { return rows.sees_any(r); }

 private:
  void pool(const Sequence& q, const RowTile& rows, int64_t block, float* to) {
    float top[kRows], sum[kRows];
    std::fill_n(top, kRows, -kInf), std::fill_n(sum, kRows, 0.0f);
    const int64_t begin = block * a_.block_keys;
    const int64_t end = q.keys - begin > a_.block_keys ? begin + a_.block_keys : q.keys;
    KeyWalk::grid(begin, end, end, begin).each(rows, [&](const KeySpan& span) {
      teacher.load_keys(q, rows.head, span.begin, span.count, false);
      teacher.score(rows.lanes);
      const LocalSeen seen(rows, span.begin, span.count);
      host::simd().softmax_sums(span.count, rows.lanes, teacher.x,
                                span.masked() ? seen.view() : host::Seen{}, top, sum);
    });
    for (int r = 0; r < rows.lanes; ++r)
      to[r] = a_.max && !std::isnan(sum[r]) ? top[r] : top[r] + std::log(sum[r]);
  }

  const KlPool& a_;
};

struct BackwardPlan : SweepPlan {
  KlPool a;
  PoolRoom room;  // this and the sums: within a worker's bytes
  Slot<float> sums;
  BackwardPlan(const KlPool& request, Layout& worker) : a(request), room(request, worker) {
    sums = worker.add<float>(std::max(kRows, kKeys) * padded(a.kl.second.width));
  }
};

class Backward {
 public:
  Backward(const BackwardPlan& plan, void* base)
      : plan_(plan), a_(plan.a), kl_(plan.a.kl), side_(plan.a.kl.second), base_(base) {}

  void run(Context& ctx) {
    host::Pool& pool = host::pool(ctx);
    const RowPlaces tiles = plan_.find(kl_.sequences, base_);
    const Sequences& q = kl_.sequences;
    host::zero_rows(pool, side_.dq, side_.dtype, q, kl_.b, kl_.h, side_.width);
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
  void* room_of(int32_t worker) const { return plan_.scratch.at(base_, worker); }

  // visit(masked, what is seen) with db in student.x, for the tiles of blocks in
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
    KeyWalk::grid(begin, end, units.keys).each(blocks, [&](const KeySpan& span) {
      const LocalSeen seen(blocks, span.begin, span.count);
      tile.step(q, units, rows, span.begin, span.count, true);
      host::simd().dual_backward(span.count, rows.lanes, tile.x, tile.student.x,
                                 span.masked() ? seen.view() : host::Seen{}, lse_x, lse_y, kl,
                                 grad);
      visit(span.masked(), seen);
    });
  }

  void sweep_rows(const RowPlaces::Place& at, void* room) const {
    const Sequence q = kl_.sequences[at.sequence];
    const Sequence units = PoolTile::blocks_of(a_, q, at.sequence);
    RowTile rows(kl_, q, at);
    PoolTile tile(a_, plan_.room, room);
    float* const dq = plan_.sums.at(room);
    const int64_t pad = tile.student.pad;
    std::fill_n(dq, kRows * pad, 0.0f);
    walk(q, units, rows, tile, 0, units.keys,
         [&](bool masked, const LocalSeen& seen) { add_dq(tile.student, rows, seen, masked, dq); });
    store_dq(side_, q, rows, dq, pad);
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
        walk(q, units, rows, tile, begin, end, [&](bool masked, const LocalSeen& seen) {
          add_dk(tile.student, rows, seen, masked, dk);
        });
      }
    store_dk(kl_, side_, units, begin, end, key_head, dk, pad);
  }

  const BackwardPlan& plan_;
  const KlPool& a_;
  const Kl& kl_;
  const KlSide& side_;
  void* base_;
};

Text offer_forward(const Context& ctx, const KlPool& a, Plan& plan) {
  const double cost = static_cast<double>(a.kl.sequences.key_max + 16) *
                      static_cast<double>(2 * a.kl.first.width + 32);
  plan_dual<PoolTile>(ctx, a, cost / kFlopsPerNanosecond, plan);
  return "";
}

Text offer_backward(const Context& ctx, const KlPool& a, Plan& plan) {
  Layout worker;
  BackwardPlan p(a, worker);
  const double items = static_cast<double>(a.kl.sequences.count) *
                       static_cast<double>(a.kl.second.key_heads) *
                       static_cast<double>(ceil_div(a.kl.sequences.key_max, kKeys));
  p.lay_out(ctx, a.kl, items, worker, plan);
  host::host_plan<Backward>(plan, p, shape_name(a.kl.first, a.kl.second));
  return "";
}

}  // namespace

extern const Kernel<KlPool> kl_pool_forward_host = {"", offer_forward};
extern const Kernel<KlPool> kl_pool_backward_host = {"", offer_backward};

}  // namespace fovea
