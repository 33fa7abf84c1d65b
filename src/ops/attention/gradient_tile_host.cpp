// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/gradient_tile_host.h"

#include <algorithm>

namespace fovea::attend_host {
namespace {

constexpr float kLog2E = 1.44269504088896341f;

}  // namespace

GradientRoom::GradientRoom(const Call& call, bool softcap, Layout& layout) {
  q = layout.add<float>(kRows * call.d_pad);
  q_columns = layout.add<float>(kRows * call.a.d);
  dout = layout.add<float>(kRows * call.e_pad);
  dout_columns = layout.add<float>(kRows * call.a.e);
  o = layout.add<float>(call.e_pad);
  p = layout.add<float>(kRows * kKeys);
  ds = layout.add<float>(kRows * kKeys);
  slope = layout.add<float>(softcap ? kRows * kKeys : 0);
  k = layout.add<float>(kKeys * call.d_pad);
  v = layout.add<float>(kKeys * call.e_pad);
  seen = layout.add<unsigned char>(kRows * kKeys);
}

GradientTile::GradientTile(const Call& call, const AttendBackward& request,
                           const GradientRoom& room, void* base)
    : call_(call),
      request_(request),
      q_(room.q.at(base)),
      q_columns_(room.q_columns.at(base)),
      dout_(room.dout.at(base)),
      dout_columns_(room.dout_columns.at(base)),
      o_(room.o.at(base)),
      p_(room.p.at(base)),
      ds_(room.ds.at(base)),
      slope_(room.slope.at(base)),
      seen_(room.seen.at(base)),
      room_{room.k.at(base), room.v.at(base)} {
  q = q_, dout = dout_, p = p_, ds = ds_, seen = seen_;
}

void GradientTile::load(const Sequence& q, const RowTile& rows) {
  const Attend& a = call_.a;
  for (int r = 0; r < rows.count; ++r) {
    const int64_t h = rows.head[r], row = rows.row[r];
    host::load_query(call_.simd, a.q, a.dtype, row_offset(a.q, q, row, h), a.d, call_.d_pad,
                     a.score.scale, q_ + r * call_.d_pad);
    float* to = dout_ + r * call_.e_pad;
    delta_[r] = host::delta_of(call_.simd, request_, q, row, h, o_, to);
    std::fill(to + a.e, to + call_.e_pad, 0.0f);
    const float lse = row_value(a.lse, q, h, row);
    // An empty row: 2^(x - inf) is 0 for every score.
    lse2_[r] = lse == -kInf ? kInf : lse * kLog2E;
  }
  for (int r = rows.count; r < rows.lanes; ++r) lse2_[r] = kInf, delta_[r] = 0;
  transpose(q_, call_.d_pad, rows.count, a.d, rows.lanes, q_columns_);
  transpose(dout_, call_.e_pad, rows.count, a.e, rows.lanes, dout_columns_);
  rows_finite_ = call_.simd.finite(rows.count, a.d, q_, call_.d_pad) &&
                 call_.simd.finite(rows.count, a.e, dout_, call_.e_pad);
}

bool GradientTile::step(int64_t sequence, const Sequence& q, const RowTile& rows, int64_t begin,
                        int64_t count, Cover cover, bool k_wide) {
  const Attend& a = call_.a;
  const int64_t lanes = rows.lanes;
  load_keys(call_, q, rows.key_head, begin, count, {k_wide}, {false}, room_, keys_);
  call_.simd.gemm({count, lanes, a.d, keys_.k, keys_.k_row, q_columns_, lanes, p_, lanes, nullptr,
                   false, false});
  const bool masked = finish_scores(call_, sequence, q, rows, keys_, cover, p_, slope_);
  call_.simd.gemm({count, lanes, a.e, keys_.v, keys_.v_row, dout_columns_, lanes, ds_, lanes,
                   nullptr, false, false});
  const bool finite =
      !masked || (rows_finite_ && call_.simd.finite(count, a.d, keys_.k, keys_.k_row) &&
                  call_.simd.finite(count, a.e, keys_.v, keys_.v_row));
  if (!finite)
    for (int64_t i = 0; i < count * lanes; ++i)
      seen_[i] = p_[i] != -kInf && lse2_[i % lanes] != kInf;
  call_.simd.softmax_backward(count, lanes, p_, ds_, lse2_, delta_);
  return finite;
}

void GradientTile::through_softcap(const RowTile& rows) {
  // Where a row does not see a key, ds is 0 and the slope may be NaN.
  for (int64_t i = 0; i < static_cast<int64_t>(keys_.count) * rows.lanes; ++i)
    ds_[i] = ds_[i] == 0 ? 0 : ds_[i] * slope_[i];
}

}  // namespace fovea::attend_host
