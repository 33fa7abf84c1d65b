// SPDX-License-Identifier: Apache-2.0
// What the host's gathered forward and backward share: the lists of a row tile, and of each side
// the logits x[entry][lane] of a chunk of them.  A list is compacted to the entries that name a
// key, so lane r has entries 0 .. length[r] - 1.
#pragma once
#include "ops/kl/tile_host.h"
#include "ops/kl_experimental/gather.h"

namespace fovea::kl_host {

struct GatherRoom {
  GatherRoom(const KlGather& a, Layout& layout);
  struct Side {
    Slot<float> rows, x, key;
  };
  Side first, second;
  Slot<int32_t> list;  // [lane][n]
};

// One side of a row tile.
class GatherSide {
 public:
  GatherSide(const Kl& a, const KlSide& side, const GatherRoom::Side& room, void* base);
  void load_rows(const Sequence& q, const RowTile& rows);
  // Key j of the head, valid until the next call.
  const float* key(const Sequence& q, int64_t query_head, int64_t j) const;

  const KlSide& side;
  const int64_t pad;
  float *rows, *x;

 private:
  const Kl& a_;
  float* key_;
};

class GatherTile {
 public:
  using Room = GatherRoom;
  GatherTile(const KlGather& request, const GatherRoom& room, void* base);

  // The entries that name keys in [begin, end), of the rows for which wanted(r) holds.  False:
  // none.
  template <class Wanted>
  bool load(const Sequence& q, const RowTile& rows, int64_t begin, int64_t end, Wanted wanted) {
    longest = 0;
    for (int r = 0; r < rows.lanes; ++r) {
      length[r] = 0;
      if (begin < end && r < rows.count && wanted(r)) find(q, rows, r, begin, end);
      longest = std::max<int64_t>(longest, length[r]);
    }
    if (longest == 0) return false;
    first.load_rows(q, rows), second.load_rows(q, rows);
    return true;
  }
  // Logits of the entries from `entry` on, at most kKeys of each row; how many are in `count`.
  void score(const Sequence& q, const RowTile& rows, int64_t entry);
  host::Seen seen() const { return {zero_, high_, zero_, zero_}; }

  // visit(lane, entry of the chunk, key) for the chunk, row after row.
  template <class Visit>
  void each(const RowTile& rows, Visit visit) const {
    for (int r = 0; r < rows.count; ++r)
      for (int32_t e = 0; e < high_[r]; ++e) visit(r, e, list_[r * a_.n + entry_ + e]);
  }

  // Every entry, for coupled_host.h.
  template <class Visit>
  void forward(const Sequence& q, int64_t, const RowTile& rows, Visit visit) {
    if (!load(q, rows, 0, q.keys, [](int) { return true; })) return;
    for (int64_t entry = 0; entry < longest; entry += kKeys) {
      score(q, rows, entry);
      visit(count, first.x, second.x, seen());
    }
  }
  bool any(const RowTile&, int r) const { return length[r] > 0; }

  GatherSide first, second;
  int64_t length[kRows], longest, count;

 private:
  void find(const Sequence& q, const RowTile& rows, int r, int64_t begin, int64_t end);

  const KlGather& a_;
  int32_t* list_;
  int64_t entry_;
  int32_t zero_[kRows], high_[kRows];
};

}  // namespace fovea::kl_host
