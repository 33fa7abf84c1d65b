// SPDX-License-Identifier: Apache-2.0
// What the indexer's forward and backward share on the host: a row tile (rows in lanes) against a
// key tile, the mean of the teacher's heads p[key][lane] and the student's logits b[key][lane].
//   Rows are loaded anew for each head: heads times rows would not fit the cache that keys need.
#pragma once
#include "ops/kl/tile_host.h"
#include "ops/kl_experimental/indexer.h"

namespace fovea::kl_host {

// Room for a worker.
struct IndexerRoom {
  IndexerRoom(const KlIndexer& a, Layout& layout);
  SideRoom teacher, student;
  Slot<float> p, b;           // [key][lane]
  Slot<float> weight;         // [student head][lane]
  Slot<float> top, sum, lse;  // [teacher head][lane]
};

class IndexerTile {
 public:
  // `rows_of` is the call with one head: a row tile belongs to all heads.
  IndexerTile(const KlIndexer& request, const Kl& rows_of, const IndexerRoom& room, void* base);

  static Kl rows_of(const KlIndexer& a);
  // Whether there are both rows and keys; else there is no room for what heads have of each row.
  static bool has_pairs(const KlIndexer& a) {
    return a.teacher.sequences.query_max && a.teacher.sequences.key_max;
  }

  void load_weights(const Sequence& q, const RowTile& rows);
  // The statistics of every teacher head and of the student, over all keys.
  void statistics(const Sequence& q, RowTile& rows);
  // p and b of a key tile, p 0 where a row does not see a key.  `wide` as in SideTile.
  void step(const Sequence& q, RowTile& rows, int64_t begin, int64_t count, const host::Seen& seen,
            bool wide);
  // z of student head n in student.x, after step.
  void rectified(const Sequence& q, RowTile& rows, int64_t n);

  // visit(first key, keys, masked, what is seen) for the key tiles in [begin, end) that some row
  // sees.
  template <class Visit>
  static void each_tile(const Sequence& q, const RowTile& rows, int64_t begin, int64_t end,
                        Visit visit) {
    KeyWalk::grid(begin, end, q.keys).each(rows, [&](const KeySpan& span) {
      visit(span.begin, span.count, span.masked(), LocalSeen(rows, span.begin, span.count));
    });
  }

  SideTile teacher, student;
  float *p, *b, *weight, *top, *sum, *lse;
  float student_top[kRows], student_sum[kRows];

 private:
  void student_logits(const Sequence& q, RowTile& rows, int64_t begin, int64_t count, bool wide);

  const KlIndexer& a_;
  const host::Simd& simd_;
};

}  // namespace fovea::kl_host
