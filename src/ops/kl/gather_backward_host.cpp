// SPDX-License-Identifier: Apache-2.0
// x_kl_gather_backward on the CPU, by sweeps that compute the logits anew: an entry's gradient
// needs no other entry.
//   rows: an item is a row tile, dq = sum dx k over its entries
//   keys: an item owns the keys of a block and of one group of key heads, dk = sum dx q over the
//         entries that name them: head after head, row after row
// Tiles and the order of sums follow from shapes, lengths and lists alone: any number of threads
// gives the same bits.
#include <algorithm>
#include <numeric>

#include "core/dtype.h"
#include "host/device.h"
#include "ops/kl/gather_tile_host.h"

namespace fovea {
namespace {

using namespace kl_host;

constexpr int64_t kBlockKeys = 1024;       // of an item of the sweep over keys
constexpr double kFlopsPerNanosecond = 4;  // of single products

struct BackwardPlan {
  KlGather a;
  int64_t groups;  // of key heads that are summed over together
  size_t worker_bytes;
  GatherRoom room;  // this and the sums: within a worker's bytes
  Slot<float> dq, first_dk, second_dk;
  Slot<int64_t> tile_first;
  Slot<unsigned char> scratch;
  BackwardPlan(const KlGather& request, Layout& worker)
      : a(request), groups(1), worker_bytes(0), room(request, worker) {
    const KlSide &x = a.kl.first, &y = a.kl.second;
    groups = std::max<int64_t>(1, std::gcd(x.key_heads, y.key_heads));
    dq = worker.add<float>(kRows * std::max(padded(x.width), padded(y.width)) * 2);
    const auto keys = [&](const KlSide& side) {
      return worker.add<float>(side.dk ? side.key_heads / groups : 0, kBlockKeys,
                               padded(side.width));
    };
    first_dk = keys(x), second_dk = keys(y);
    worker_bytes = worker.bytes();
  }
};

void add_row(int64_t width, float factor, const float* from, float* sum) {
  for (int64_t c = 0; c < width; ++c) sum[c] += factor * from[c];
}

class Backward {
 public:
  Backward(const BackwardPlan& plan, void* base)
      : plan_(plan), a_(plan.a), kl_(plan.a.kl), base_(base) {}

  void run(Context& ctx) {
    host::Pool& pool = host::pool(ctx);
    RowTiles tiles(kl_, plan_.tile_first.at(base_));
    tiles.find();
    clear(pool);
    const double cost = static_cast<double>(tiles.count() * kRows) * static_cast<double>(a_.n) *
                        static_cast<double>(4 * (kl_.first.width + kl_.second.width) + 64) /
                        kFlopsPerNanosecond;
    if (kl_.first.dq || kl_.second.dq)
      pool.run(tiles.count(), cost,
               [&](int64_t item, int32_t worker) { sweep_rows(tiles[item], room_of(worker)); });
    if (kl_.first.dk || kl_.second.dk)
      pool.run(kl_.sequences.count * plan_.groups * blocks(), cost,
               [&](int64_t item, int32_t worker) { sweep_keys(item, room_of(worker)); });
  }

 private:
  int64_t blocks() const { return ceil_div(kl_.sequences.key_max, kBlockKeys); }
  void* room_of(int32_t worker) const {
    return plan_.scratch.at(base_) + static_cast<size_t>(worker) * plan_.worker_bytes;
  }

  // Zeros for what no sequence reaches.
  void clear(host::Pool& pool) const {
    const Sequences& q = kl_.sequences;
    for (const KlSide* side : {&kl_.first, &kl_.second}) {
      if (q.query_start || q.query_len || q.query_max < kl_.s)
        host::zero(pool, side->dq, side->dtype, kl_.b, kl_.s, kl_.h, side->width);
      if (q.key_start || q.key_len || q.key_max < q.capacity)
        host::zero(pool, side->dk, side->dtype, q.key_start ? 1 : q.count, kl_.t, side->key_heads,
                   side->width);
    }
  }

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

  void sweep_rows(const RowTiles::Place& at, void* room) const {
    const Sequence q = kl_.sequences[at.sequence];
    const RowTile rows(kl_, q, at.head, at.first);
    GatherTile tile(a_, plan_.room, room);
    const int64_t half = static_cast<int64_t>(plan_.dq.count) / 2;
    float* const dq = plan_.dq.at(room);
    std::fill_n(dq, 2 * half, 0.0f);
    const auto sums = [&](const GatherSide& side, int r) {
      return dq + (&side == &tile.second ? half : 0) + r * side.pad;
    };
    walk(q, rows, tile, 0, q.keys, [&](const GatherSide& side, int r, float dx, int64_t j) {
      if (side.side.dq) add_row(side.side.width, dx, side.key(q, rows.head, j), sums(side, r));
    });
    for (const GatherSide* side : {&tile.first, &tile.second}) {
      const View<4>& to = side->side.dq;
      for (int r = 0; to && r < rows.count; ++r)
        host::store_row(to.data, side->side.dtype,
                        q.batch * to.stride[0] + (q.row_begin + rows.first + r) * to.stride[1] +
                            rows.head * to.stride[2],
                        to.stride[3], side->side.width, sums(*side, r), side->side.scale);
    }
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
            add_row(side.side.width, dx, side.rows + r * side.pad,
                    sums(side, head / (kl_.h / side.side.key_heads), j));
        });
      }
    for (const GatherSide* side : {&tile.first, &tile.second}) {
      const View<4>& to = side->side.dk;
      const int64_t each = side->side.key_heads / plan_.groups;
      for (int64_t head = group * each; to && head < (group + 1) * each; ++head)
        for (int64_t j = begin; j < end; ++j)
          host::store_row(to.data, side->side.dtype,
                          kl_.sequences.key_offset(q, j, to.stride) + head * to.stride[2],
                          to.stride[3], side->side.width, sums(*side, head, j), 1);
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
  const int64_t tiles = RowTiles::most(a.kl);
  const double items = static_cast<double>(a.kl.sequences.count) * static_cast<double>(p.groups) *
                       static_cast<double>(ceil_div(a.kl.sequences.key_max, kBlockKeys));
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

extern const Kernel<KlGather> kl_gather_backward_host = {"", offer};

}  // namespace fovea
