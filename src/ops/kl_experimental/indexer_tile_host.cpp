// SPDX-License-Identifier: Apache-2.0
#include "ops/kl_experimental/indexer_tile_host.h"

namespace fovea::kl_host {

IndexerRoom::IndexerRoom(const KlIndexer& a, Layout& layout)
    : teacher(a.teacher.first, layout), student(a.student, layout) {
  p = layout.add<float>(kRows * kKeys), b = layout.add<float>(kRows * kKeys);
  const bool pairs = IndexerTile::has_pairs(a);
  weight = layout.add<float>(pairs ? kRows : 0, a.heads);
  for (Slot<float>* each : {&top, &sum, &lse})
    *each = layout.add<float>(pairs ? kRows : 0, a.teacher.h);
}

IndexerTile::IndexerTile(const KlIndexer& request, const Kl& rows_of, const IndexerRoom& room,
                         void* base)
    : teacher(request.teacher, request.teacher.first, room.teacher, base),
      student(rows_of, request.student, room.student, base),
      p(room.p.at(base)),
      b(room.b.at(base)),
      weight(room.weight.at(base)),
      top(room.top.at(base)),
      sum(room.sum.at(base)),
      lse(room.lse.at(base)),
      a_(request),
      simd_(host::simd()) {}

Kl IndexerTile::rows_of(const KlIndexer& a) {
  Kl one = a.teacher;
  one.h = 1;
  return one;
}

void IndexerTile::load_weights(const Sequence& q, const RowTile& rows) {
  const View<3>& from = a_.weight;
  for (int64_t n = 0; n < a_.heads; ++n)
    for (int r = 0; r < rows.lanes; ++r)
      weight[n * kRows + r] =
          r < rows.count && rows.sees_any(r)
              ? from.as()[q.batch * from.stride[0] +
                          (q.row_begin + rows.first + r) * from.stride[1] + n * from.stride[2]]
              : 0;
}

void IndexerTile::statistics(const Sequence& q, RowTile& rows) {
  std::fill_n(top, kRows * a_.teacher.h, -kInf), std::fill_n(sum, kRows * a_.teacher.h, 0.0f);
  std::fill_n(student_top, kRows, -kInf), std::fill_n(student_sum, kRows, 0.0f);
  for (int64_t head = 0; head < a_.teacher.h; ++head) {
    rows.head = head;
    teacher.load_rows(q, rows);
    each_tile(
        q, rows, 0, q.keys, [&](int64_t j, int64_t count, bool masked, const LocalSeen& seen) {
          teacher.load_keys(q, head, j, count, false);
          teacher.score(rows.lanes);
          simd_.softmax_sums(count, rows.lanes, teacher.x, masked ? seen.view() : host::Seen{},
                             top + head * kRows, sum + head * kRows);
        });
  }
  each_tile(q, rows, 0, q.keys, [&](int64_t j, int64_t count, bool masked, const LocalSeen& seen) {
    student_logits(q, rows, j, count, false);
    simd_.softmax_sums(count, rows.lanes, b, masked ? seen.view() : host::Seen{}, student_top,
                       student_sum);
  });
}

void IndexerTile::student_logits(const Sequence& q, RowTile& rows, int64_t begin, int64_t count,
                                 bool wide) {
  std::fill_n(b, count * rows.lanes, 0.0f);
  student.load_keys(q, 0, begin, count, wide);
  for (int64_t n = 0; n < a_.heads; ++n) {
    rectified(q, rows, n);
    simd_.add_relu(count, rows.lanes, student.x, weight + n * kRows, b);
  }
}

void IndexerTile::rectified(const Sequence& q, RowTile& rows, int64_t n) {
  rows.head = n;
  student.load_rows(q, rows);
  student.score(rows.lanes);
}

void IndexerTile::step(const Sequence& q, RowTile& rows, int64_t begin, int64_t count,
                       const host::Seen& seen, bool wide) {
  std::fill_n(p, count * rows.lanes, 0.0f);
  const float share = 1.0f / static_cast<float>(a_.teacher.h);
  for (int64_t head = 0; head < a_.teacher.h; ++head) {
    rows.head = head;
    teacher.load_rows(q, rows);
    if (head % (a_.teacher.h / a_.teacher.first.key_heads) == 0)
      teacher.load_keys(q, head, begin, count, false);
    teacher.score(rows.lanes);
    simd_.add_softmax(count, rows.lanes, teacher.x, seen, lse + head * kRows, share, p);
  }
  student_logits(q, rows, begin, count, wide);
}

}  // namespace fovea::kl_host
