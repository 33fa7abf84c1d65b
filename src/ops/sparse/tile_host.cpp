// SPDX-License-Identifier: Apache-2.0
#include "ops/sparse/tile_host.h"

namespace fovea::sparse_host {

Call::Call(const SparseAttend& request)
    : s(request), simd(host::simd()), heads(request.shared_heads()) {
  units = request.attend.h / heads;
  d_pad = host::padded(request.attend.d), e_pad = host::padded(request.attend.e);
  limit = request.skip_margin > 0 ? 64 : kKeys;
}

RowTile::RowTile(const Call& call, const Sequence& q, const SparseList::Tile& tile,
                 int64_t first_head)
    : host::RowTile(tile.end - tile.begin), list(tile.list) {
  const Attend& a = call.a();
  const int64_t group = a.h / a.g;
  score_head = call.s.score_head(q, first_head);
  key_head = score_head / group, value_head = first_head / group;
  first_position = INT64_MAX, last_position = INT64_MIN;
  all = {0, q.keys};
  for (int r = 0; r < count; ++r) {
    row[r] = list.begin + (tile.begin + r) / call.heads;
    head[r] = first_head + (tile.begin + r) % call.heads;
    position[r] = a.mask.query_at(q, head[r], row[r]);
    first_position = std::min(first_position, position[r]);
    last_position = std::max(last_position, position[r]);
    seen[r] = a.mask.window.range(position[r], q.keys, a.mask.axis);
    all = {std::max(all.begin, seen[r].low), std::min(all.end, seen[r].high)};
  }
  bound();
  const int64_t most = call.list().last_keys;
  if (most)
    last = {std::max(int64_t{0}, a.mask.axis.from(first_position - most + 1)),
            std::min(q.keys, a.mask.axis.from(last_position + 1))};
}

ScoreRoom::ScoreRoom(const Call& call, Layout& worker) {
  const Attend& a = call.a();
  rows = worker.add<float>(kRows * std::max(call.d_pad, a.q_value ? call.e_pad : 0));
  q = worker.add<float>(kRows * a.d);
  q_value = worker.add<float>(a.q_value ? kRows * a.e : 0);
  x = worker.add<float>(kRows * kKeys);
  k = worker.add<float>(kKeys * call.d_pad);
  v = worker.add<float>(kKeys * call.e_pad);
}

ScoreTile::ScoreTile(const Call& call, const Sequence& of, const RowTile& rows,
                     const ScoreRoom& room, void* base)
    : x(room.x.at(base)),
      q(room.rows.at(base)),
      call_(call),
      q_(of),
      rows_(rows),
      q_columns_(room.q.at(base)),
      q_value_(room.q_value.at(base)),
      k_room_(room.k.at(base)),
      v_room_(room.v.at(base)) {
  const Attend& a = call.a();
  float* const staged = room.rows.at(base);
  const auto queries = [&](const View<4>& from, int64_t width, int64_t pad, float* columns) {
    for (int r = 0; r < rows.count; ++r) {
      const int64_t h = call.s.head_map ? rows.score_head : rows.head[r];
      host::load_query(call.simd, from, a.dtype, host::row_offset(from, of, rows.row[r], h), width,
                       pad, a.score.scale, staged + r * pad);
    }
    if (columns) host::transpose(staged, pad, rows.count, width, rows.lanes, columns);
  };
  if (a.q_value) queries(a.q_value, a.e, call.e_pad, q_value_);
  queries(a.q, a.d, call.d_pad, by_dots() ? nullptr : q_columns_);
}

void ScoreTile::side(const host::KeySide& side, int64_t head, const KeyStep& step, host::KeyUse use,
                     float* room, host::KeyRows& rows) const {
  const int64_t pad = host::padded(side.width);
  if (step.run) {
    rows = host::load_keys(side, q_, head, step.key[0], step.count, use, nullptr, room);
    return;
  }
  use.copy = true;
  for (int i = 0, n; i < step.count; i += n) {
    for (n = 1; i + n < step.count && step.key[i + n - 1] + 1 == step.key[i + n];) ++n;
    host::load_keys(side, q_, head, step.key[i], n, use, nullptr, room + i * pad);
  }
  rows = {room, pad};
}

void ScoreTile::load(const KeyStep& step, bool k_wide) {
  const Attend& a = call_.a();
  side({call_.simd, a.sequences, a.k, a.k_dtype, a.d, a.k_scale, a.groups}, rows_.key_head, step,
       {k_wide}, k_room_, k);
  side({call_.simd, a.sequences, a.v, a.v_dtype, a.e, a.v_scale, a.groups}, rows_.value_head, step,
       {true, rows_.count <= kDotRows}, v_room_, v);
}

bool ScoreTile::score(const KeyStep& step, float* slope) {
  const Attend& a = call_.a();
  const int64_t lanes = rows_.lanes, count = step.count;
  if (by_dots()) {
    std::fill_n(x, count * lanes, 0.0f);
    call_.simd.dots(count, rows_.count, a.d, k.x, k.row, q, call_.d_pad, x, lanes);
  } else {
    call_.simd.gemm(
        {count, lanes, a.d, k.x, k.row, q_columns_, lanes, x, lanes, nullptr, false, false});
  }
  if (a.q_value)
    call_.simd.gemm(
        {count, lanes, a.e, v.x, v.row, q_value_, lanes, x, lanes, nullptr, false, true});
  if (a.score.softcap > 0) call_.simd.softcap(count * lanes, x, a.score.softcap, slope);
  return mask(step);
}

// What one lane sees of one key.
bool ScoreTile::sees(const KeyStep& step, const ListEntry& entry, int r, int64_t j) const {
  const SparseList& list = call_.list();
  const KeyRange& range = rows_.seen[r];
  if (!(range.low <= j && j < range.high) && !(range.first_low <= j && j < range.first_high))
    return false;
  if (!list.listed()) return true;
  const bool always =
      list.always(rows_.position[r], j, call_.a().mask.key_at(q_, rows_.key_head, j));
  return always == (step.kind == KeyStep::always) && list.bit(rows_.list, entry, rows_.row[r], j);
}

bool ScoreTile::mask(const KeyStep& step) {
  const SparseList& list = call_.list();
  const int64_t lanes = rows_.lanes;
  const bool entries = step.kind == KeyStep::listed && list.listed();
  const bool bias = entries && list.index_bias, tiles = entries && list.tile;
  // Of these keys a lane may see one always.
  const auto near = [&](int64_t begin, int64_t end) {
    return list.listed() &&
           (begin < list.first_keys || (begin < rows_.last.end && end > rows_.last.begin));
  };
  const int64_t first = step.key[0];
  if (step.run && !bias && !tiles && step.kind != KeyStep::always &&
      !near(first, first + step.count)) {
    if (rows_.cover(first, first + step.count) == host::Cover::full) return false;
    const host::LocalSeen seen(rows_, first, step.count);
    call_.simd.mask(step.count, lanes, x, seen.low, seen.high, seen.first_low, seen.first_high);
    return true;
  }
  bool masked = false;
  for (int i = 0; i < step.count; ++i) {
    const int64_t j = step.key[i], place = step.place + step.at[i];
    if (step.kind != KeyStep::always && !bias && !tiles && rows_.all.begin <= j &&
        j < rows_.all.end && !near(j, j + 1))
      continue;
    masked = true;
    ListEntry entry{};
    entry.tile = -1;
    if (tiles) entry = list(q_, rows_.list, place);
    for (int r = 0; r < rows_.count; ++r) {
      float& score = x[i * lanes + r];
      float more = 0;
      if (bias) more = *list.index_bias.at(q_.batch, rows_.head[r], rows_.list.row, place);
      // A bias of -inf masks whatever the score is, NaN included.
      score = sees(step, entry, r, j) && more != -kInf ? score + more : -kInf;
    }
    std::fill_n(x + i * lanes + rows_.count, lanes - rows_.count, -kInf);
  }
  return masked;
}

}  // namespace fovea::sparse_host
