// SPDX-License-Identifier: Apache-2.0
// What the host's pooled forward and backward share: a row tile against a tile of key blocks.  The
// pooled distribution renormalised is the softmax of A_u = ln sum or max over a block's keys of
// e^a, so that a block stands where kl has a key: x[block][lane] = A, student.x its logits.
#pragma once
#include "ops/kl/tile_host.h"
#include "ops/kl_experimental/pool.h"

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
  using Room = PoolRoom;
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

  // All blocks, for coupled_host.h.
  template <class Visit>
  void forward(const Sequence& q, int64_t sequence, const RowTile& rows, Visit visit) {
    const Sequence units = blocks_of(a_, q, sequence);
    const RowTile blocks = blocks_of(rows);
    if (rows.begin < rows.end) load_rows(q, rows);
    KeyWalk::grid(0, units.keys, units.keys).each(blocks, [&](const KeySpan& span) {
      step(q, units, rows, span.begin, span.count, false);
      const LocalSeen seen(blocks, span.begin, span.count);
      visit(span.count, x, student.x, span.masked() ? seen.view() : host::Seen{});
    });
  }
  bool any(const RowTile& rows, int r) const { return rows.sees_any(r); }

  SideTile teacher, student;
  float* x;

 private:
  void pool(const Sequence& q, const RowTile& rows, int64_t block, float* to);

  const KlPool& a_;
};

}  // namespace fovea::kl_host
