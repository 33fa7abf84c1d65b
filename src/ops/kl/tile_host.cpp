// SPDX-License-Identifier: Apache-2.0
#include "ops/kl/tile_host.h"

#include <algorithm>

namespace fovea::kl_host {
namespace {

// Rows so far apart that a tile of them falls into few cache sets are better copied together.
bool dense(int64_t row, int64_t width) {
  return row <= 2 * width;
}

}  // namespace

RowTile::RowTile(const Kl& a, const Sequence& q, int64_t query_head, int64_t first_row)
    : head(query_head),
      first(first_row),
      count(static_cast<int>(std::min<int64_t>(kRows, q.rows - first_row))),
      lanes(static_cast<int>(padded(count))) {
  const Window window = a.mask.of_head(head);
  for (int r = 0; r < lanes; ++r)
    seen[r] = r < count ? window.range(a.mask.query_at(q, head, first + r), q.keys) : KeyRange{};
  bound();
}

void RowTile::bound() {
  begin = INT64_MAX, end = 0;
  for (int r = 0; r < count; ++r) {
    const KeyRange& x = seen[r];
    if (x.low < x.high) begin = std::min(begin, x.low), end = std::max(end, x.high);
    if (x.first_low < x.first_high)
      begin = std::min(begin, x.first_low), end = std::max(end, x.first_high);
  }
  begin = std::min(begin, end);
}

Cover RowTile::cover(int64_t key_begin, int64_t key_end) const {
  bool some = false, all = true;
  for (int r = 0; r < count; ++r) {
    const KeyRange& x = seen[r];
    some |= std::max(x.low, key_begin) < std::min(x.high, key_end) ||
            std::max(x.first_low, key_begin) < std::min(x.first_high, key_end);
    all &= (x.low <= key_begin && x.high >= key_end) ||
           (x.first_low <= key_begin && x.first_high >= key_end);
  }
  return all ? Cover::full : some ? Cover::part : Cover::none;
}

LocalSeen::LocalSeen(const RowTile& rows, int64_t begin, int64_t count) {
  const auto local = [&](int64_t j) {
    return static_cast<int32_t>(clamp_i64(j - begin, 0, count));
  };
  for (int r = 0; r < rows.lanes; ++r) {
    const KeyRange& x = rows.seen[r];
    low[r] = local(x.low), high[r] = local(x.high);
    first_low[r] = local(x.first_low), first_high[r] = local(x.first_high);
  }
}

void RowTiles::find() {
  const int64_t limit = a_.h ? most(a_) / a_.h : 0;
  first_[0] = 0;
  for (int64_t r = 0; r < a_.sequences.count; ++r)
    first_[r + 1] = std::min(limit, first_[r] + ceil_div(a_.sequences[r].rows, kRows));
}

// Packed rows belong to one sequence each, where starts ascend as they have to.
int64_t RowTiles::most(const Kl& a) {
  const Sequences& q = a.sequences;
  __int128 tiles = static_cast<__int128>(q.count) * ceil_div(q.query_max, kRows);
  if (q.query_start) tiles = std::min<__int128>(tiles, a.s / kRows + q.count);
  return static_cast<int64_t>(std::min<__int128>(tiles * a.h, INT64_MAX));
}

RowTiles::Place RowTiles::operator[](int64_t item) const {
  const int64_t* found = std::upper_bound(first_, first_ + a_.sequences.count + 1, item / a_.h) - 1;
  const int64_t tiles = found[1] - found[0], within = item - found[0] * a_.h;
  return {found - first_, within / tiles, (tiles - 1 - within % tiles) * kRows};
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
      row_count(0),
      a_(a),
      simd_(host::simd()),
      columns_(room.columns.at(base)),
      k_room_(room.k.at(base)),
      rows_finite_(true) {}

void SideTile::load_rows(const Sequence& q, const RowTile& tile) {
  const View<4>& from = side.q;
  row_count = tile.count;
  for (int r = 0; r < tile.count; ++r) {
    float* to = rows + r * pad;
    if (!tile.sees_any(r)) {
      std::fill_n(to, pad, 0.0f);
      continue;
    }
    host::load_row(simd_, from.data, side.dtype,
                   q.batch * from.stride[0] + (q.row_begin + tile.first + r) * from.stride[1] +
                       tile.head * from.stride[2],
                   from.stride[3], side.width, to);
    simd_.scale(side.width, to, side.scale, to);
    std::fill(to + side.width, to + pad, 0.0f);
  }
  host::transpose(rows, pad, tile.count, side.width, tile.lanes, columns_);
  rows_finite_ = simd_.finite(tile.count, side.width, rows, pad);
}

void SideTile::load_keys(const Sequence& q, int64_t query_head, int64_t begin, int64_t count,
                         bool wide) {
  const View<4>& from = side.k;
  const int64_t head = query_head / (a_.h / side.key_heads);
  const int64_t start = a_.sequences.key_offset(q, begin, from.stride) + head * from.stride[2];
  keys = count;
  if (side.dtype == FOVEA_F32 && from.stride[3] == 1 &&
      (!wide || (side.width == pad && dense(from.stride[1], side.width)))) {
    k = from.as() + start, k_row = from.stride[1];
    return;
  }
  k = k_room_, k_row = pad;
  for (int64_t j = 0; j < count; ++j) {
    float* to = k_room_ + j * pad;
    host::load_row(simd_, from.data, side.dtype, start + j * from.stride[1], from.stride[3],
                   side.width, to);
    std::fill(to + side.width, to + pad, 0.0f);
  }
}

void SideTile::score(int64_t lanes) {
  simd_.gemm({keys, lanes, side.width, k, k_row, columns_, lanes, x, lanes, nullptr, false, false});
}

bool SideTile::finite() const {
  return rows_finite_ && simd_.finite(keys, side.width, k, k_row);
}

Totals add_up(const Totals* tiles, int64_t count) {
  if (count == 0) return {0, 0};
  if (count == 1) return tiles[0];
  const int64_t half = count / 2;
  const Totals x = add_up(tiles, half), y = add_up(tiles + half, count - half);
  return {x.value + y.value, x.weight + y.weight};
}

}  // namespace fovea::kl_host
