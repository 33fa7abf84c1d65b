// SPDX-License-Identifier: Apache-2.0
// The logits of a group of heads on the host: tile_host.h for each head, then the group mixed.
#pragma once
#include <array>
#include <optional>

#include "ops/conv_attention/mixed.h"
#include "ops/conv_attention/tile_host.h"

namespace fovea::conv_host {

// Tiles of the heads of a group lie `pitch` floats apart.
struct Tiles {
  float* data;
  int64_t pitch;
  float* operator[](int64_t n) const { return data + n * pitch; }
};

// The (group, group) weights of the heads from `base` on; not given: copies.
class Mixer {
 public:
  Mixer(const Call& call, const View<2>& mix, int64_t group, int64_t base);
  // to[a] = sum_n w[a][n] from[n], transposed: w[n][a]; `count` floats each, whole vectors.
  void operator()(bool transposed, int64_t count, const Tiles& from, const Tiles& to) const;

 private:
  const host::Simd& simd_;
  const int64_t group_;
  const bool given_;
  float weight_[kGroupHeadsMost * kGroupHeadsMost];
};

struct GroupRoom {
  GroupRoom() = default;
  GroupRoom(const Call& call, int64_t group, Layout& layout);
  LogitRoom head;     // within a head's bytes
  size_t head_bytes;  // of each head
  Slot<unsigned char> heads;
  Slot<float> a, b;
};

class GroupLogits {
 public:
  GroupLogits(const Call& call, const View<2>& before, int64_t group, const GroupRoom& room,
              void* base);

  // Heads from `head` on.
  void load(const Sequence& q, int64_t head, const Strip& halo);
  // B of the rows, [key][rows.lanes], of keys that lie at or behind those of the last call.
  Tiles tile(int64_t begin, int64_t count, const Strip& rows);

 private:
  const Call& call_;
  const View<2>& before_;
  const int64_t group_;
  const Tiles a_, b_;
  std::optional<Mixer> mixer_;
  std::array<std::optional<Logits>, kGroupHeadsMost> heads_;
};

}  // namespace fovea::conv_host
