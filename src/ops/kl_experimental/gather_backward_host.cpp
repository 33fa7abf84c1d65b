// SPDX-License-Identifier: Apache-2.0
// x_kl_gather_backward on the CPU, by sweeps that compute the logits anew: an entry's gradient
// needs no other entry.
//   rows: an item is a row tile, dq = sum dx k over its entries
//   keys: an item owns the keys of a block and of one group of key heads, dk = sum dx q over the
//         entries that name them: head after head, row after row
// Tiles and the order of sums follow from shapes, lengths and lists alone: any number of threads
// gives the same bits.
#include <numeric>

#include "ops/kl_experimental/gather_tile_host.h"

namespace fovea {
namespace {

using namespace kl_host;

constexpr int64_t kBlockKeys = 1024;             // of an item of the sweep over keys
constexpr double kSingleFlopsPerNanosecond = 4;  // of single products

struct BackwardPlan : SweepPlan {
  KlGather a;
  int64_t groups;   // of key heads that are summed over together
  GatherRoom room;  // this and the sums: within a worker's bytes
  Slot<float> dq, first_dk, second_dk;
  BackwardPlan(const KlGather& request, Layout& worker)
      : a(request), groups(1), room(request, worker) {
    const KlSide &x = a.kl.first, &y = a.kl.second;
    groups = std::max<int64_t>(1, std::gcd(x.key_heads, y.key_heads));
    dq = worker.add<float>(kRows * std::max(padded(x.width), padded(y.width)) * 2);
    const auto keys = [&](const KlSide& side) {
      return worker.add<float>(side.dk ? side.key_heads / groups : 0, kBlockKeys,
                               padded(side.width));
    };
    first_dk = keys(x), second_dk = keys(y);
  }
};

class Backward {
 public:
  Backward(const BackwardPlan& plan, void* base)
      : plan_(plan), a_(plan.a), kl_(plan.a.kl), base_(base) {}

  void run(Context& ctx) {
    host::Pool& pool = host::pool(ctx);
    const RowPlaces tiles = plan_.find(kl_.sequences, base_);
    for (const KlSide* side : {&kl_.first, &kl_.second}) zero_gradients(pool, kl_, *side);
    const double cost = static_cast<double>(tiles.count() * kRows) * static_cast<double>(a_.n) *
                        static_cast<double>(4 * (kl_.first.width + kl_.second.width) + 64) /
                        kSingleFlopsPerNanosecond;
    if (kl_.first.dq || kl_.second.dq)
      pool.run(tiles.count(), cost,
               [&](int64_t item, int32_t worker) { sweep_rows(tiles[item], room_of(worker)); });
    if (kl_.first.dk || kl_.second.dk)
      pool.run(kl_.sequences.count * plan_.groups * blocks(), cost,
               [&](int64_t item, int32_t worker) { sweep_keys(item, room_of(worker)); });
  }

 private:
  int64_t blocks() const { return ceil_div(kl_.sequences.key_max, kBlockKeys); }
  void* room_of(int32_t worker) const { return plan_.scratch.at(base_, worker); }

  // visit(side, lane, dx, key) for each entry that names a key in [begin, end), with the gradients
  // of its logits.
  template <class Visit>
  void walk(const Sequence& q, const RowTile& rows, GatherTile& tile, int64_t begin, int64_t end,
            Visit visit) const {
    float lse_x[kRows] = {}, lse_y[kRows] = {}, kl[kRows] = {}, grad[kRows] = {};
    const auto given = [&](const View<3>& x, int r) {
      return row_value(x, q, rows.head, rows.first + r);
    };
    for (int r = 0; r < rows.count; ++r) grad[r] = given(a_.dkl, r);
    if (!tile.load(q, rows, begin, end, [&](int r) { return grad[r] != 0; })) return;
    for (int r = 0; r < rows.count; ++r)
      if (tile.length[r])
        lse_x[r] = given(kl_.first.lse, r), lse_y[r] = given(kl_.second.lse, r),
        kl[r] = given(kl_.kl, r);
    for (int64_t entry = 0; entry < tile.longest; entry += kKeys) {
      tile.score(q, rows, entry);
      host::simd().coupled_backward(tile.count, rows.lanes, tile.first.x, tile.second.x,
                                    tile.seen(), lse_x, lse_y, kl, grad);
      for (const GatherSide* side : {&tile.first, &tile.second})
        tile.each(rows, [&](int r, int32_t e, int64_t j) {
          visit(*side, r, side->x[e * rows.lanes + r], j);
        });
    }
  }

  void sweep_rows(const RowPlaces::Place& at, void* room) const {
    const Sequence q = kl_.sequences[at.sequence];
    const RowTile rows(kl_, q, at);
    GatherTile tile(a_, plan_.room, room);
    const int64_t half = static_cast<int64_t>(plan_.dq.count) / 2;
    float* const dq = plan_.dq.at(room);
    std::fill_n(dq, 2 * half, 0.0f);
    const auto sums = [&](const GatherSide& side, int r) {
      return dq + (&side == &tile.second ? half : 0) + r * side.pad;
    };
    walk(q, rows, tile, 0, q.keys, [&](const GatherSide& side, int r, float dx, int64_t j) {
      if (side.side.dq)
        host::add_row(side.side.width, dx, side.key(q, rows.head, j), sums(side, r));
    });
    for (const GatherSide* side : {&tile.first, &tile.second})
      store_dq(side->side, q, rows, sums(*side, 0), side->pad);
  }

  void sweep_keys(int64_t item, void* room) const {
    const int64_t group = item / blocks() % plan_.groups;
    const Sequence q = kl_.sequences[item / blocks() / plan_.groups];
    const int64_t begin = item % blocks() * kBlockKeys;
    const int64_t end = std::min(q.keys, begin + kBlockKeys);
    if (begin >= end) return;
    GatherTile tile(a_, plan_.room, room);
    float* const first = plan_.first_dk.at(room);
    float* const second = plan_.second_dk.at(room);
    std::fill_n(first, plan_.first_dk.count, 0.0f);
    std::fill_n(second, plan_.second_dk.count, 0.0f);
    const auto sums = [&](const GatherSide& side, int64_t key_head, int64_t j) {
      const int64_t local = key_head % (side.side.key_heads / plan_.groups);
      return (&side == &tile.second ? second : first) + (local * kBlockKeys + j - begin) * side.pad;
    };
    const int64_t heads = kl_.h / plan_.groups;
    for (int64_t head = group * heads; q.rows && head < (group + 1) * heads; ++head)
      for (int64_t row = 0; row < q.rows; row += kRows) {
        const RowTile rows(kl_, q, head, row);
        walk(q, rows, tile, begin, end, [&](const GatherSide& side, int r, float dx, int64_t j) {
          if (side.side.dk)
            host::add_row(side.side.width, dx, side.rows + r * side.pad,
                          sums(side, head / (kl_.h / side.side.key_heads), j));
        });
      }
    for (const GatherSide* side : {&tile.first, &tile.second}) {
      const int64_t each = side->side.key_heads / plan_.groups;
      for (int64_t key_head = group * each; side->side.dk && key_head < (group + 1) * each;
           ++key_head)
        store_dk(kl_, side->side, q, begin, end, key_head, sums(*side, key_head, begin), side->pad);
    }
  }

  const BackwardPlan& plan_;
  const KlGather& a_;
  const Kl& kl_;
  void* base_;
};

std::string offer(const Context& ctx, const KlGather& a, Plan& plan) {
  Layout worker;
  BackwardPlan p(a, worker);
  const double items = static_cast<double>(a.kl.sequences.count) * static_cast<double>(p.groups) *
                       static_cast<double>(ceil_div(a.kl.sequences.key_max, kBlockKeys));
  p.lay_out(ctx, a.kl, items, worker, plan);
  host::host_plan<Backward>(plan, p, shape_name(a.kl.first, a.kl.second));
  return "";
}

}  // namespace

extern const Kernel<KlGather> kl_gather_backward_host = {"", offer};

}  // namespace fovea
