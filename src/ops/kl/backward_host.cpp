// SPDX-License-Identifier: Apache-2.0
// kl_backward on the CPU, by sweeps that compute the logits anew.  x, p are the distribution that
// weighs, y, r the other:
//   dx = grad p ((x - lse_x) - (y - lse_y) - kl),  dy = grad (r - p)
// and with share > 0, m = share p + (1 - share) r:
//   dx = grad share p (ln(p / m) - kl),  dy = grad (1 - share) r (ln(r / m) - kl_second)
//   rows: an item is a row tile, dq = dx' k over its key tiles
//   keys: an item owns the keys of a block and of one group of key heads, dk = dx q over the row
//         tiles of all query heads that read them, head after head
//   both: where groups keep all threads busy, a block is all keys and that sweep gives dq too
// The tiles and the order of every sum are the same in each way: any number of threads gives the
// same bits.  The workspace is each worker's room.  StreamKL (2606.20005).
#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/kl/gradient_tile_host.h"

namespace fovea {
namespace {

using namespace kl_host;

constexpr int64_t kItemsWanted = 32;  // items of the sweep over keys that keep a large machine busy
constexpr int64_t kBlockTiles = 4;    // key tiles of a block: rows are loaded once for all of them

struct BackwardPlan : SweepPlan {
  KlBackward b;
  int64_t groups;          // of key heads that are summed over together
  int64_t block_keys;      // keys of an item of the sweep over keys
  bool both;               // that sweep gives dq too
  SideRoom first, second;  // this and the sums: within a worker's bytes
  Slot<float> first_rows, second_rows, first_keys, second_keys;
  Slot<Totals> weights;
  BackwardPlan(const KlBackward& request, Layout& worker)
      : b(request),
        groups(1),
        block_keys(0),
        both(false),
        first(request.forward.first, worker),
        second(request.forward.second, worker) {}
  bool sweeps_rows() const { return b.forward.first.dq || b.forward.second.dq; }
  bool sweeps_keys() const { return b.forward.first.dk || b.forward.second.dk; }
};

class Backward {
 public:
  Backward(const BackwardPlan& plan, void* base)
      : plan_(plan),
        b_(plan.b),
        a_(plan.b.forward),
        base_(base),
        tiles_(plan.find(plan.b.forward.sequences, base)) {}

  void run(Context& ctx) {
    host::Pool& pool = host::pool(ctx);
    const double cost = 2 * host::pairs_of(a_.sequences) * static_cast<double>(a_.h) *
                        static_cast<double>(a_.first.width + a_.second.width) / kFlopsPerNanosecond;
    for (const KlSide* side : {&a_.first, &a_.second}) zero_gradients(pool, a_, *side);
    find_factor(pool);
    if (plan_.sweeps_rows() && !plan_.both)
      pool.run(tiles_.count(), cost,
               [&](int64_t item, int32_t worker) { sweep_rows(tiles_[item], worker); });
    if (plan_.sweeps_keys())
      pool.run(a_.sequences.count * plan_.groups * blocks(), cost,
               [&](int64_t item, int32_t worker) { sweep_keys(item, worker); });
  }

 private:
  int64_t blocks() const {
    return std::max<int64_t>(1, ceil_div(a_.sequences.key_max, plan_.block_keys));
  }

  // What a row's weight is multiplied with: dtotal, or with mean its share.
  void find_factor(host::Pool& pool) {
    total_factor_ = b_.dtotal ? *b_.dtotal.as() : 0;
    if (!b_.dtotal || !a_.mean) return;
    Totals* sums = plan_.weights.at(base_);
    pool.run(tiles_.count(), 5.0 * static_cast<double>(tiles_.count() * kRows),
             [&](int64_t item, int32_t) {
               const RowPlaces::Place at = tiles_[item];
               const Sequence q = a_.sequences[at.sequence];
               const RowTile rows(a_, q, at);
               sums[item] = {0, 0};
               for (int r = 0; r < rows.count; ++r)
                 if (rows.sees_any(r))
                   sums[item].weight += weight_of(a_, q, at.head, rows.first + r);
             });
    const double weight = add_up(sums, tiles_.count()).weight;
    total_factor_ = weight == 0 ? 0 : total_factor_ / weight;
  }

  void sweep_rows(const RowPlaces::Place& at, int32_t worker) const {
    const Sequence q = a_.sequences[at.sequence];
    void* room = plan_.scratch.at(base_, worker);
    GradientTile tile(b_, plan_.first, plan_.second, room);
    RowTile rows(a_, q, at);
    const RowSums sums = clear_rows(rows, tile, room);
    if (tile.load(q, rows, total_factor_)) visit(q, rows, tile, 0, q.keys, sums, nullptr);
    save_rows(q, rows, sums);
  }

  // dq of a row tile, where it is wanted.
  struct RowSums {
    float *x, *y;
  };
  RowSums clear_rows(const RowTile& rows, const GradientTile& tile, void* room) const {
    const RowSums to{plan_.first_rows.at(room), plan_.second_rows.at(room)};
    if (to.x) std::fill_n(to.x, rows.count * tile.x.pad, 0.0f);
    if (to.y) std::fill_n(to.y, rows.count * tile.y.pad, 0.0f);
    return to;
  }
  void save_rows(const Sequence& q, const RowTile& rows, const RowSums& from) const {
    store_dq(a_.first, q, rows, from.x, padded(a_.first.width));
    store_dq(a_.second, q, rows, from.y, padded(a_.second.width));
  }

  // dk of a block: of all key heads of a group, on one side.
  struct KeySums {
    const KlSide* side;
    float* sums;  // nullptr: not wanted
    int64_t heads, pad, block, begin;
    float* of(int64_t key_head, int64_t j) const {
      return sums + (key_head % heads * block + j - begin) * pad;
    }
  };
  struct BothKeySums {
    KeySums x, y;
  };
  BothKeySums clear_keys(int64_t begin, const GradientTile& tile, void* room) const {
    const auto side = [&](const SideTile& of, const Slot<float>& sums) {
      const KeySums to{&of.side, sums.at(room),    of.side.key_heads / plan_.groups,
                       of.pad,   plan_.block_keys, begin};
      if (to.sums) std::fill_n(to.sums, to.heads * to.block * to.pad, 0.0f);
      return to;
    };
    return {side(tile.x, plan_.first_keys), side(tile.y, plan_.second_keys)};
  }

  void sweep_keys(int64_t item, int32_t worker) const {
    const int64_t block = item % blocks(), group = item / blocks() % plan_.groups;
    const Sequence q = a_.sequences[item / blocks() / plan_.groups];
    const int64_t begin = block * plan_.block_keys;
    const int64_t end = std::min(q.keys, begin + plan_.block_keys);
    if (begin >= end && !plan_.both) return;
    void* room = plan_.scratch.at(base_, worker);
    GradientTile tile(b_, plan_.first, plan_.second, room);
    const BothKeySums keys = clear_keys(begin, tile, room);
    const int64_t heads = a_.h / plan_.groups;
    for (int64_t head = group * heads; q.rows && head < (group + 1) * heads; ++head)
      for (int64_t row = 0; row < q.rows; row += kRows) {
        RowTile rows(a_, q, head, row);
        const bool seen = rows.begin < end && rows.end > begin;
        RowSums sums{nullptr, nullptr};
        if (plan_.both) sums = clear_rows(rows, tile, room);
        if (seen && tile.load(q, rows, total_factor_))
          visit(q, rows, tile, begin, end, sums, &keys);
        if (plan_.both) save_rows(q, rows, sums);
      }
    save_keys(keys.x, q, group, begin, end);
    save_keys(keys.y, q, group, begin, end);
  }

  // The grid of every sweep is the same, so gradients of a tile and the order of their sums are.
  void visit(const Sequence& q, const RowTile& rows, GradientTile& tile, int64_t begin, int64_t end,
             const RowSums& row_sums, const BothKeySums* key_sums) const {
    KeyWalk::grid(begin, end, q.keys).each(rows, [&](const KeySpan& span) {
      const bool masked = span.masked();
      const LocalSeen seen(rows, span.begin, span.count);
      tile.step(q, rows, span.begin, span.count, masked, row_sums.x || row_sums.y, seen);
      if (row_sums.x) add_dq(tile.x, rows, seen, masked, row_sums.x);
      if (row_sums.y) add_dq(tile.y, rows, seen, masked, row_sums.y);
      if (!key_sums) return;
      const auto add = [&](const SideTile& side, const KeySums& to) {
        if (to.sums)
          add_dk(side, rows, seen, masked,
                 to.of(rows.head / (a_.h / side.side.key_heads), span.begin));
      };
      add(tile.x, key_sums->x), add(tile.y, key_sums->y);
    });
  }

  void save_keys(const KeySums& from, const Sequence& q, int64_t group, int64_t begin,
                 int64_t end) const {
    if (!from.sums) return;
    for (int64_t head = group * from.heads; head < (group + 1) * from.heads; ++head)
      store_dk(a_, *from.side, q, begin, end, head, from.of(head, begin), from.pad);
  }

  const BackwardPlan& plan_;
  const KlBackward& b_;
  const Kl& a_;
  void* base_;
  const RowPlaces tiles_;
  double total_factor_ = 0;
};

// Key heads whose sums some query head feeds at once.
int64_t groups_of(const Kl& a) {
  if (!a.first.dk) return a.second.key_heads;
  if (!a.second.dk) return a.first.key_heads;
  return std::gcd(a.first.key_heads, a.second.key_heads);
}

// Whether one item a group keeps the threads busy: they are equally long, or many.
bool groups_suffice(const Kl& a, int64_t groups, int32_t threads) {
  const double items = static_cast<double>(a.sequences.count) * static_cast<double>(groups);
  if (a.sequences.count == 1 && groups % threads == 0) return true;
  return items >= 4.0 * threads;
}

Text offer(const Context& ctx, const KlBackward& b, Plan& plan) {
  const Kl& a = b.forward;
  Layout worker;
  BackwardPlan p(b, worker);
  p.groups = std::max<int64_t>(1, groups_of(a));
  p.both = p.sweeps_rows() && p.sweeps_keys() && groups_suffice(a, p.groups, ctx.threads);
  p.block_keys = kBlockTiles * kKeys;
  double items = static_cast<double>(a.sequences.count) * static_cast<double>(p.groups) *
                 static_cast<double>(ceil_div(a.sequences.key_max, p.block_keys));
  if (items < kItemsWanted) p.block_keys = kKeys, items *= kBlockTiles;
  if (p.both) p.block_keys = std::max<int64_t>(1, ceil_div(a.sequences.key_max, kKeys)) * kKeys;
  const auto rows_of = [&](const KlSide& side) {
    return worker.add<float>(side.dq ? kRows * padded(side.width) : 0);
  };
  const auto keys_of = [&](const KlSide& side) {
    return worker.add<float>(side.dk ? side.key_heads / p.groups : 0, p.block_keys,
                             padded(side.width));
  };
  p.first_rows = rows_of(a.first), p.second_rows = rows_of(a.second);
  p.first_keys = keys_of(a.first), p.second_keys = keys_of(a.second);
  p.lay_out(ctx, a, items, worker, plan);
  p.weights = plan.workspace.add<Totals>(b.dtotal && a.mean ? RowTiles::most(a.sequences, a.h) : 0);
  host::host_plan<Backward>(plan, p, shape_name(a.first, a.second));
  return "";
}

}  // namespace

extern const Kernel<KlBackward> kl_backward_host = {"", offer};
extern const Kernel<KlBackward> kl_jensen_shannon_backward_host = {"", offer};

}  // namespace fovea
