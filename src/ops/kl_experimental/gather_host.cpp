// SPDX-License-Identifier: Apache-2.0
// x_kl_gather on the CPU.  A list is compacted to the entries that name a key: entry n of every
// row's list stands in line n of a tile of logits, rows in lanes, so that the steps of kl_forward
// and kl_backward serve.  The backward computes the logits anew, in two sweeps:
//   rows: an item is a row tile, dq = sum dx k over its entries
//   keys: an item owns the keys of a block and of one group of key heads, dk = sum dx q over the
//         entries that name them: head after head, row after row
// Tiles and the order of sums follow from shapes, lengths and lists alone: any number of threads
// gives the same bits.
#include <algorithm>
#include <numeric>

#include "ops/kl/dual_softmax_host.h"
#include "ops/kl_experimental/gather.h"

namespace fovea {
namespace {

using namespace kl_host;

constexpr int64_t kBlockKeys = 1024;             // of an item of the sweep over keys
constexpr double kSingleFlopsPerNanosecond = 4;  // of single products

struct GatherRoom {
  struct Side {
    Slot<float> rows, x, key;
    Side(const KlSide& of, Layout& layout)
        : rows(layout.add<float>(kRows * padded(of.width))),
          x(layout.add<float>(kRows * kKeys)),
          key(layout.add<float>(padded(of.width))) {}
  };
  Side side[2];
  Slot<int32_t> list;  // [lane][n]
  GatherRoom(const KlGather& a, Layout& layout)
      : side{{a.kl.first, layout}, {a.kl.second, layout}},
        list(layout.add<int32_t>(a.kl.sequences.query_max && a.kl.sequences.key_max ? kRows : 0,
                                 a.n)) {}
};

// A row tile and a chunk of its lists: lane r has entries 0 .. length[r] - 1.
class Tile {
 public:
  using Room = GatherRoom;
  struct Side {
    const KlSide& of;
    int64_t pad;
    float *rows, *x, *key;  // q, scaled; logits [entry][lane]; one key
  };
  Side side[2];
  int64_t length[kRows], longest = 0, count = 0;

  Tile(const KlGather& a, const GatherRoom& room, void* base)
      : side{side_of(a.kl.first, room.side[0], base), side_of(a.kl.second, room.side[1], base)},
        a_(a),
        list_(room.list.at(base)) {}

  // The entries that name keys in [begin, end), of the rows for which wanted(r) holds.  False:
  // none.
  template <class Wanted>
  bool load(const Sequence& q, const RowTile& rows, int64_t begin, int64_t end, Wanted wanted) {
    const View<4>& from = a_.index;
    longest = 0;
    for (int r = 0; r < rows.lanes; ++r) {
      length[r] = 0;
      if (begin >= end || r >= rows.count || !wanted(r)) continue;
      const int32_t* entry = from.as<int32_t>() + q.batch * from.stride[0] +
                             rows.head * from.stride[1] +
                             (q.row_begin + rows.first + r) * from.stride[2];
      for (int64_t n = 0; n < a_.n; ++n)
        if (const int32_t j = entry[n * from.stride[3]]; j >= begin && j < end)
          list_[r * a_.n + length[r]++] = j;
      longest = std::max<int64_t>(longest, length[r]);
    }
    for (Side& s : side)
      for (int r = 0; longest && r < rows.count; ++r)
        host::load_query(host::simd(), s.of.q, s.of.dtype,
                         host::row_offset(s.of.q, q, rows.first + r, rows.head), s.of.width, s.pad,
                         s.of.scale, s.rows + r * s.pad);
    return longest != 0;
  }
  // Key j of the head, valid until the next call for the side.
  const float* key(const Side& s, const Sequence& q, int64_t query_head, int64_t j) const {
    const View<4>& from = s.of.k;
    const int64_t at = a_.kl.sequences.key_offset(q, j, from.stride) +
                       query_head / (a_.kl.h / s.of.key_heads) * from.stride[2];
    if (s.of.dtype == FOVEA_F32 && from.stride[3] == 1) return from.as() + at;
    host::load_row(host::simd(), from.data, s.of.dtype, at, from.stride[3], s.of.width, s.key);
    return s.key;
  }
  // Logits of the entries from `entry` on, at most kKeys of each row; how many are in `count`.
  void score(const Sequence& q, const RowTile& rows, int64_t entry) {
    entry_ = entry, count = std::min<int64_t>(kKeys, longest - entry);
    for (int r = 0; r < rows.lanes; ++r)
      high_[r] = static_cast<int32_t>(clamp_i64(length[r] - entry, 0, count));
    for (const Side& s : side) {
      std::fill_n(s.x, count * rows.lanes, 0.0f);
      each(rows, [&](int r, int32_t e, int64_t j) {
        s.x[e * rows.lanes + r] =
            host::simd().dot(s.of.width, s.rows + r * s.pad, key(s, q, rows.head, j));
      });
    }
  }
  host::Seen seen() const { return {zero_, high_, zero_, zero_}; }
  // visit(lane, entry of the chunk, key) for the chunk, row after row.
  template <class Visit>
  void each(const RowTile& rows, Visit visit) const {
    for (int r = 0; r < rows.count; ++r)
      for (int32_t e = 0; e < high_[r]; ++e) visit(r, e, list_[r * a_.n + entry_ + e]);
  }

  // Every entry, for dual_softmax_host.h.
  template <class Visit>
  void forward(const Sequence& q, int64_t, const RowTile& rows, Visit visit) {
    if (!load(q, rows, 0, q.keys, [](int) { return true; })) return;
    for (int64_t entry = 0; entry < longest; entry += kKeys) {
      score(q, rows, entry);
      visit(count, side[0].x, side[1].x, seen());
    }
  }
  bool any(const RowTile&, int r) const { return length[r] > 0; }

 private:
  static Side side_of(const KlSide& of, const GatherRoom::Side& room, void* base) {
    return {of, padded(of.width), room.rows.at(base), room.x.at(base), room.key.at(base)};
  }

  const KlGather& a_;
  int32_t* list_;
  int64_t entry_ = 0;
  int32_t zero_[kRows] = {}, high_[kRows];
};

struct BackwardPlan : SweepPlan {
  KlGather a;
  int64_t groups;   // of key heads that are summed over together
  GatherRoom room;  // this and the sums: within a worker's bytes
  Slot<float> dq, dk[2];
  BackwardPlan(const KlGather& request, Layout& worker)
      : a(request), groups(1), room(request, worker) {
    const KlSide* const side[2] = {&a.kl.first, &a.kl.second};
    groups = std::max<int64_t>(1, std::gcd(side[0]->key_heads, side[1]->key_heads));
    dq = worker.add<float>(kRows * std::max(padded(side[0]->width), padded(side[1]->width)) * 2);
    for (int s : {0, 1})
      dk[s] = worker.add<float>(side[s]->dk ? side[s]->key_heads / groups : 0, kBlockKeys,
                                padded(side[s]->width));
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
  void walk(const Sequence& q, const RowTile& rows, Tile& tile, int64_t begin, int64_t end,
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
      host::simd().dual_backward(tile.count, rows.lanes, tile.side[0].x, tile.side[1].x,
                                 tile.seen(), lse_x, lse_y, kl, grad);
      for (int s : {0, 1})
        tile.each(rows, [&](int r, int32_t e, int64_t j) {
          visit(s, r, tile.side[s].x[e * rows.lanes + r], j);
        });
    }
  }

  void sweep_rows(const RowPlaces::Place& at, void* room) const {
    const Sequence q = kl_.sequences[at.sequence];
    const RowTile rows(kl_, q, at);
    Tile tile(a_, plan_.room, room);
    const int64_t half = static_cast<int64_t>(plan_.dq.count) / 2;
    float* const dq = plan_.dq.at(room);
    std::fill_n(dq, 2 * half, 0.0f);
    walk(q, rows, tile, 0, q.keys, [&](int s, int r, float dx, int64_t j) {
      const Tile::Side& side = tile.side[s];
      if (side.of.dq)
        host::add_row(side.of.width, dx, tile.key(side, q, rows.head, j),
                      dq + s * half + r * side.pad);
    });
    for (int s : {0, 1}) store_dq(tile.side[s].of, q, rows, dq + s * half, tile.side[s].pad);
  }

  void sweep_keys(int64_t item, void* room) const {
    const int64_t group = item / blocks() % plan_.groups;
    const Sequence q = kl_.sequences[item / blocks() / plan_.groups];
    const int64_t begin = item % blocks() * kBlockKeys;
    const int64_t end = std::min(q.keys, begin + kBlockKeys);
    if (begin >= end) return;
    Tile tile(a_, plan_.room, room);
    for (const Slot<float>& sums : plan_.dk) std::fill_n(sums.at(room), sums.count, 0.0f);
    const auto sums = [&](int s, int64_t key_head, int64_t j) {
      const int64_t local = key_head % (tile.side[s].of.key_heads / plan_.groups);
      return plan_.dk[s].at(room) + (local * kBlockKeys + j - begin) * tile.side[s].pad;
    };
    const int64_t heads = kl_.h / plan_.groups;
    for (int64_t head = group * heads; q.rows && head < (group + 1) * heads; ++head)
      for (int64_t row = 0; row < q.rows; row += kRows) {
        const RowTile rows(kl_, q, head, row);
        walk(q, rows, tile, begin, end, [&](int s, int r, float dx, int64_t j) {
          const Tile::Side& side = tile.side[s];
          if (side.of.dk)
            host::add_row(side.of.width, dx, side.rows + r * side.pad,
                          sums(s, head / (kl_.h / side.of.key_heads), j));
        });
      }
    for (int s : {0, 1}) {
      const KlSide& side = tile.side[s].of;
      const int64_t each = side.key_heads / plan_.groups;
      for (int64_t key_head = group * each; side.dk && key_head < (group + 1) * each; ++key_head)
        store_dk(kl_, side, q, begin, end, key_head, sums(s, key_head, begin), tile.side[s].pad);
    }
  }

  const BackwardPlan& plan_;
  const KlGather& a_;
  const Kl& kl_;
  void* base_;
};

Text offer_forward(const Context& ctx, const KlGather& a, Plan& plan) {
  const double cost = static_cast<double>(a.n) *
                      static_cast<double>(2 * (a.kl.first.width + a.kl.second.width) + 32);
  plan_dual<Tile>(ctx, a, cost / kSingleFlopsPerNanosecond, plan);
  return "";
}

Text offer_backward(const Context& ctx, const KlGather& a, Plan& plan) {
  Layout worker;
  BackwardPlan p(a, worker);
  const double items = static_cast<double>(a.kl.sequences.count) * static_cast<double>(p.groups) *
                       static_cast<double>(ceil_div(a.kl.sequences.key_max, kBlockKeys));
  p.lay_out(ctx, a.kl, items, worker, plan);
  host::host_plan<Backward>(plan, p, shape_name(a.kl.first, a.kl.second));
  return "";
}

}  // namespace

extern const Kernel<KlGather> kl_gather_forward_host = {"", offer_forward};
extern const Kernel<KlGather> kl_gather_backward_host = {"", offer_backward};

}  // namespace fovea
