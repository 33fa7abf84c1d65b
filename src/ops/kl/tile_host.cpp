// SPDX-License-Identifier: Apache-2.0
#include "ops/kl/tile_host.h"

#include <cmath>

namespace fovea::kl_host {

RowTile::RowTile(const Kl& a, const Sequence& q, int64_t query_head, int64_t first_row)
    : host::RowTile(std::min<int64_t>(kRows, q.rows - first_row)),
      head(query_head),
      first(first_row) {
  const Window window = a.mask.of_head(head);
  for (int r = 0; r < count; ++r)
    seen[r] = window.range(a.mask.query_at(q, head, first + r), q.keys);
  bound();
}

void SweepPlan::lay_out(const Context& ctx, const Kl& rows_of, double items, const Layout& worker,
                        Plan& plan) {
  const Sequences& q = rows_of.sequences;
  const int64_t most = RowTiles::most(q, rows_of.h);
  tiles = RowTiles(q.count, rows_of.h, plan.workspace, rows_of.h ? most / rows_of.h : 0);
  scratch =
      host::WorkerScratch(ctx, std::max(items, static_cast<double>(most)), worker, plan.workspace);
}

RowPlaces SweepPlan::find(const Sequences& sequences, void* base) const {
  return tiles.find(base, [&](int64_t r) { return ceil_div(sequences[r].rows, kRows); });
}

SideRoom::SideRoom(const KlSide& side, Layout& layout) {
  rows = layout.add<float>(kRows * padded(side.width));
  columns = layout.add<float>(kRows * side.width);
  x = layout.add<float>(kRows * kKeys);
  k = layout.add<float>(kKeys * padded(side.width));
}

SideTile::SideTile(const Kl& a, const KlSide& of, const SideRoom& room, void* base)
    : side(of),
      pad(padded(of.width)),
      rows(room.rows.at(base)),
      x(room.x.at(base)),
      k(nullptr),
      k_row(0),
      keys(0),
      a_(a),
      simd_(host::simd()),
      columns_(room.columns.at(base)),
      k_room_(room.k.at(base)),
      rows_finite_(true) {}

void SideTile::load_rows(const Sequence& q, const RowTile& tile) {
  for (int r = 0; r < tile.count; ++r) {
    float* to = rows + r * pad;
    if (!tile.sees_any(r)) {
      std::fill_n(to, pad, 0.0f);
      continue;
    }
    host::load_query(simd_, side.q, side.dtype,
                     host::row_offset(side.q, q, tile.first + r, tile.head), side.width, pad,
                     side.scale, to);
  }
  host::transpose(rows, pad, tile.count, side.width, tile.lanes, columns_);
  rows_finite_ = simd_.finite(tile.count, side.width, rows, pad);
}

void SideTile::load_keys(const Sequence& q, int64_t query_head, int64_t begin, int64_t count,
                         bool wide) {
  const host::KeyRows rows_of =
      host::load_keys({simd_, a_.sequences, side.k, side.dtype, side.width}, q,
                      query_head / (a_.h / side.key_heads), begin, count, {wide}, nullptr, k_room_);
  k = rows_of.x, k_row = rows_of.row, keys = count;
}

void SideTile::score(int64_t lanes) {
  simd_.gemm({keys, lanes, side.width, k, k_row, columns_, lanes, x, lanes, nullptr, false, false});
}

bool SideTile::finite() const {
  return rows_finite_ && simd_.finite(keys, side.width, k, k_row);
}

DualRows::Row DualRows::row(int r, bool any) const {
  if (!any) return {0, -kInf, -kInf};
  const double l_x = sum_x[r], log_x = std::log(l_x);
  const double log_y = std::log(static_cast<double>(sum_y[r]));
  return {cross[r] / l_x - log_x + log_y, top_x[r] + log_x, top_y[r] + log_y};
}

void zero_gradients(host::Pool& pool, const Kl& a, const KlSide& side) {
  host::zero_rows(pool, side.dq, side.dtype, a.sequences, a.b, a.h, side.width);
  host::zero_keys(pool, side.dk, side.dtype, a.sequences, a.t, side.key_heads, side.width);
}

void store_dq(const KlSide& side, const Sequence& q, const RowTile& rows, const float* sums,
              int64_t pad) {
  host::store_rows(side.dq, side.dtype, q, rows.first, rows.count, rows.head, side.width, sums, pad,
                   side.scale);
}

void store_dk(const Kl& a, const KlSide& side, const Sequence& q, int64_t begin, int64_t end,
              int64_t key_head, const float* sums, int64_t pad) {
  host::store_keys(side.dk, side.dtype, a.sequences, q, begin, end, key_head, side.width, sums,
                   pad);
}

Totals add_up(const Totals* tiles, int64_t count) {
  if (count == 0) return {0, 0};
  if (count == 1) return tiles[0];
  const int64_t half = count / 2;
  const Totals x = add_up(tiles, half), y = add_up(tiles + half, count - half);
  return {x.value + y.value, x.weight + y.weight};
}

}  // namespace fovea::kl_host
