// SPDX-License-Identifier: Apache-2.0
#include "ops/conv_attention/mixed_tile_host.h"

#include <algorithm>

namespace fovea::conv_host {

Mixer::Mixer(const Call& call, const View<2>& mix, int64_t group, int64_t base)
    : simd_(call.simd), group_(group), given_(mix) {
  if (!given_) return;
  for (int64_t a = 0; a < group; ++a)
    for (int64_t n = 0; n < group; ++n) weight_[a * group + n] = mix_of(mix, base + a, n);
}

void Mixer::operator()(bool transposed, int64_t count, const Tiles& from, const Tiles& to) const {
  if (given_)
    return simd_.gemm({group_, count, group_, weight_, group_, from.data, from.pitch, to.data,
                       to.pitch, nullptr, transposed, false});
  if (from.data == to.data) return;
  for (int64_t n = 0; n < group_; ++n) std::copy_n(from[n], count, to[n]);
}

GroupRoom::GroupRoom(const Call& call, int64_t group, Layout& layout) {
  Layout one;
  head = LogitRoom(call, one);
  head_bytes = one.bytes();
  heads = layout.add_all(one, group);
  a = layout.add<float>(group * kKeys * kLanes);
  b = layout.add<float>(group * kKeys * kLanes);
}

GroupLogits::GroupLogits(const Call& call, const View<2>& before, int64_t group,
                         const GroupRoom& room, void* base)
    : call_(call),
      before_(before),
      group_(group),
      a_{room.a.at(base), kKeys * kLanes},
      b_{room.b.at(base), kKeys * kLanes} {
  for (int64_t n = 0; n < group; ++n)
    heads_[n].emplace(call, room.head,
                      room.heads.at(base) + static_cast<size_t>(n) * room.head_bytes);
}

void GroupLogits::load(const Sequence& q, int64_t head, const Strip& halo) {
  mixer_.emplace(call_, before_, group_, head);
  for (int64_t n = 0; n < group_; ++n) heads_[n]->load(q, head + n, halo);
}

Tiles GroupLogits::tile(int64_t begin, int64_t count, const Strip& rows) {
  for (int64_t n = 0; n < group_; ++n) {
    heads_[n]->slide(begin, count);
    heads_[n]->convolve(count, rows, a_[n]);
  }
  if (!before_) return a_;
  (*mixer_)(false, count * rows.lanes, a_, b_);
  return b_;
}

}  // namespace fovea::conv_host
