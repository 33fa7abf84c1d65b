// SPDX-License-Identifier: Apache-2.0
#include "ops/kl_experimental/pool_tile_host.h"

#include <algorithm>
#include <cmath>

namespace fovea::kl_host {

PoolTile::PoolTile(const KlPool& request, const PoolRoom& room, void* base)
    : teacher(request.kl, request.kl.first, room.teacher, base),
      student(request.kl, request.kl.second, room.student, base),
      x(room.x.at(base)),
      a_(request) {}

RowTile PoolTile::blocks_of(const RowTile& rows) const {
  RowTile blocks = rows;
  const int64_t size = a_.block_keys;
  for (int r = 0; r < blocks.lanes; ++r) {
    KeyRange& at = blocks.seen[r];
    at = {at.low / size, at.low < at.high ? (at.high - 1) / size + 1 : at.low / size,
          at.first_low / size,
          at.first_low < at.first_high ? (at.first_high - 1) / size + 1 : at.first_low / size};
  }
  blocks.bound();
  return blocks;
}

Sequence PoolTile::blocks_of(const KlPool& a, const Sequence& q, int64_t r) {
  Sequence blocks = q;
  blocks.keys = q.keys > 0 ? (q.keys - 1) / a.block_keys + 1 : 0;
  blocks.key_begin = a.kl.sequences.key_start ? q.key_begin / a.block_keys + r : 0;
  return blocks;
}

void PoolTile::load_rows(const Sequence& q, const RowTile& rows) {
  teacher.load_rows(q, rows), student.load_rows(q, rows);
}

void PoolTile::step(const Sequence& q, const Sequence& units, const RowTile& rows, int64_t begin,
                    int64_t count, bool wide) {
  for (int64_t u = 0; u < count; ++u) pool(q, rows, begin + u, x + u * rows.lanes);
  student.load_keys(units, rows.head, begin, count, wide);
  student.score(rows.lanes);
}

void PoolTile::pool(const Sequence& q, const RowTile& rows, int64_t block, float* to) {
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

}  // namespace fovea::kl_host
