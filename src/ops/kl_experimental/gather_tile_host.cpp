// SPDX-License-Identifier: Apache-2.0
#include "ops/kl_experimental/gather_tile_host.h"

#include <algorithm>

namespace fovea::kl_host {

GatherRoom::GatherRoom(const KlGather& a, Layout& layout) {
  const auto side = [&](const KlSide& of) {
    return Side{layout.add<float>(kRows * padded(of.width)), layout.add<float>(kRows * kKeys),
                layout.add<float>(padded(of.width))};
  };
  first = side(a.kl.first), second = side(a.kl.second);
  const Sequences& q = a.kl.sequences;
  list = layout.add<int32_t>(q.query_max && q.key_max ? kRows : 0, a.n);
}

GatherSide::GatherSide(const Kl& a, const KlSide& of, const GatherRoom::Side& room, void* base)
    : side(of),
      pad(padded(of.width)),
      rows(room.rows.at(base)),
      x(room.x.at(base)),
      a_(a),
      key_(room.key.at(base)) {}

void GatherSide::load_rows(const Sequence& q, const RowTile& tile) {
  for (int r = 0; r < tile.count; ++r)
    host::load_query(host::simd(), side.q, side.dtype,
                     host::row_offset(side.q, q, tile.first + r, tile.head), side.width, pad,
                     side.scale, rows + r * pad);
}

const float* GatherSide::key(const Sequence& q, int64_t query_head, int64_t j) const {
  const View<4>& from = side.k;
  const int64_t at = a_.sequences.key_offset(q, j, from.stride) +
                     query_head / (a_.h / side.key_heads) * from.stride[2];
  if (side.dtype == FOVEA_F32 && from.stride[3] == 1) return from.as() + at;
  host::load_row(host::simd(), from.data, side.dtype, at, from.stride[3], side.width, key_);
  return key_;
}

GatherTile::GatherTile(const KlGather& request, const GatherRoom& room, void* base)
    : first(request.kl, request.kl.first, room.first, base),
      second(request.kl, request.kl.second, room.second, base),
      longest(0),
      count(0),
      a_(request),
      list_(room.list.at(base)),
      entry_(0) {
  std::fill_n(zero_, kRows, 0);
}

void GatherTile::find(const Sequence& q, const RowTile& rows, int r, int64_t begin, int64_t end) {
  const View<4>& from = a_.index;
  const int32_t* entry = from.as<int32_t>() + q.batch * from.stride[0] +
                         rows.head * from.stride[1] +
                         (q.row_begin + rows.first + r) * from.stride[2];
  for (int64_t n = 0; n < a_.n; ++n) {
    const int32_t j = entry[n * from.stride[3]];
    if (j >= begin && j < end) list_[r * a_.n + length[r]++] = j;
  }
}

void GatherTile::score(const Sequence& q, const RowTile& rows, int64_t entry) {
  entry_ = entry;
  count = std::min<int64_t>(kKeys, longest - entry);
  for (int r = 0; r < rows.lanes; ++r)
    high_[r] = static_cast<int32_t>(clamp_i64(length[r] - entry, 0, count));
  for (GatherSide* side : {&first, &second}) {
    std::fill_n(side->x, count * rows.lanes, 0.0f);
    each(rows, [&](int r, int32_t e, int64_t j) {
      side->x[e * rows.lanes + r] = host::simd().dot(side->side.width, side->rows + r * side->pad,
                                                     side->key(q, rows.head, j));
    });
  }
}

}  // namespace fovea::kl_host
