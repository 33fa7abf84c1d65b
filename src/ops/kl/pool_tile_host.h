// SPDX-License-Identifier: Apache-2.0
// What the host's pooled forward and backward share: a row tile against a tile of key blocks.  The
// pooled distribution renormalised is the softmax of A_u = ln sum or max over a block's keys of
// e^a, so that a block stands where kl has a key: x[block][lane] = A, student.x its logits.
#pragma once
#include "ops/kl/tile_host.h"

namespace fovea::kl_host {

struct PoolRoom {
  PoolRoom(const KlPool& a, Layout& layout)
      : teacher(a.kl.first, layout),
        student(a.kl.second, layout),
        x(layout.add<float>(kRows * kKeys)) {}
  SideRoom teacher, student;
  Slot<float> x;
};

class PoolTile {
 public:
  PoolTile(const KlPool& request, const PoolRoom& room, void* base);

  // The row tile with blocks in place of keys.
  RowTile blocks_of(const RowTile& rows) const;
  // Sequence number r with blocks in place of keys, for the student.
  static Sequence blocks_of(const KlPool& a, const Sequence& q, int64_t r);

  void load_rows(const Sequence& q, const RowTile& rows);
  // x and student.x of the blocks [begin, begin + count); `rows` and q are of keys, `units` of
  // blocks.
  void step(const Sequence& q, const Sequence& units, const RowTile& rows, int64_t begin,
            int64_t count, bool wide);

  // visit(first block, blocks, masked, what is seen) for the tiles in [begin, end) that some row
  // sees.  Tiles start at multiples of kKeys.
  template <class Visit>
  static void each_tile(const Sequence& units, const RowTile& blocks, int64_t begin, int64_t end,
                        Visit visit) {
    end = std::min(end, blocks.end);
    for (int64_t u = std::max(begin, blocks.begin) / kKeys * kKeys; u < end; u += kKeys) {
      const int64_t count = std::min<int64_t>(kKeys, units.keys - u);
      const Cover cover = blocks.cover(u, u + count);
      if (cover != Cover::none) visit(u, count, cover == Cover::part, LocalSeen(blocks, u, count));
    }
  }

  SideTile teacher, student;
  float* x;

 private:
  void pool(const Sequence& q, const RowTile& rows, int64_t block, float* to);

  const KlPool& a_;
};

}  // namespace fovea::kl_host
