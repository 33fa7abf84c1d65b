// SPDX-License-Identifier: Apache-2.0
// The indexer's divergence on the CPU.  A row tile (rows in lanes) walks key tiles; p[key][lane] is
// the mean of the teacher's heads and b[key][lane] the student's logits:
//   p = 1/h sum_m e^(a_m - lse_m),  b = sum_n w_n max(z_n, 0),  z_n = <q_n, k>
//   forward   an item is a row tile, which walks its key tiles twice: for the lse of every teacher
//             head and of b, then for kl = sum_j p (ln p - (b - lse))
//   backward  by two sweeps that compute both distributions anew: db = dkl (e^(b - lse) - p),
//             dz_n = db w_n where z_n > 0
//             rows: an item is a row tile, dq_n = dz_n' k and dw_n = sum_j db max(z_n, 0)
//             keys: an item owns a block of keys, dk = sum_n dz_n q_n over the row tiles, head
//             after head
// Rows are loaded anew for each head: heads times rows would not fit the cache that keys need.
// Tiles and the order of sums follow from shapes and lengths alone: any number of threads gives the
// same bits.
#include <cmath>

#include "ops/kl/gradient_tile_host.h"
#include "ops/kl_experimental/indexer.h"

namespace fovea {
namespace {

using namespace kl_host;

constexpr int64_t kBlockKeys = 4 * kKeys;  // of an item of the sweep over keys

struct IndexerPlan : SweepPlan {
  KlIndexer a;
  Kl rows_of;  // the call with one head: a row tile belongs to all heads
  bool pairs;  // there are both rows and keys; else there is no room for what heads have of a row
  SideRoom teacher, student;  // this and the rest: within a worker's bytes
  Slot<float> p, b;           // [key][lane]
  Slot<float> weight;         // [student head][lane]
  Slot<float> top, sum, lse;  // [teacher head][lane]
  Slot<float> dq, dk, dweight;

  IndexerPlan(const KlIndexer& request, Layout& worker)
      : a(request),
        rows_of(a.teacher),
        pairs(a.teacher.sequences.query_max && a.teacher.sequences.key_max),
        teacher(a.teacher.first, worker),
        student(a.student, worker) {
    rows_of.h = 1;
    p = worker.add<float>(kRows * kKeys), b = worker.add<float>(kRows * kKeys);
    weight = worker.add<float>(pairs ? kRows : 0, a.heads);
    for (Slot<float>* each : {&top, &sum, &lse})
      *each = worker.add<float>(pairs ? kRows : 0, a.teacher.h);
    const int64_t pad = padded(a.student.width);
    dq = worker.add<float>(a.student.dq ? a.heads : 0, kRows, pad);
    dk = worker.add<float>(a.student.dk ? kBlockKeys * pad : 0);
    dweight = worker.add<float>(a.dkl && a.teacher.sequences.query_max ? a.heads : 0, kRows);
  }
  // About nanoseconds of one core; `times`: the student's products of a pair.
  double cost(double flops, double times) const {
    const double width = static_cast<double>(a.teacher.h * a.teacher.first.width) +
                         times * static_cast<double>(a.heads * a.student.width);
    return flops * host::pairs_of(a.teacher.sequences) * width / kFlopsPerNanosecond;
  }
};

template <int N, class... Index>
float& element(const View<N>& x, const Sequence& q, int64_t row, Index... n) {
  return *x.at(q.batch, q.row_begin + row, n...);
}

// A row tile of a sequence against its key tiles, in a worker's room.
class IndexerTile {
 public:
  IndexerTile(const IndexerPlan& plan, const Sequence& sequence, RowTile& of, void* room)
      : a(plan.a),
        q(sequence),
        rows(of),
        teacher(a.teacher, a.teacher.first, plan.teacher, room),
        student(plan.rows_of, a.student, plan.student, room),
        p(plan.p.at(room)),
        b(plan.b.at(room)),
        weight(plan.weight.at(room)),
        top(plan.top.at(room)),
        sum(plan.sum.at(room)),
        lse(plan.lse.at(room)),
        simd(host::simd()) {}

  bool any(int r) const { return r < rows.count && rows.sees_any(r); }

  void load_weights() {
    for (int64_t n = 0; n < a.heads; ++n)
      for (int r = 0; r < rows.lanes; ++r)
        weight[n * kRows + r] = any(r) ? element(a.weight, q, rows.first + r, n) : 0;
  }

  // The statistics of every teacher head and of the student, over all keys.
  void statistics() {
    std::fill_n(top, kRows * a.teacher.h, -kInf), std::fill_n(sum, kRows * a.teacher.h, 0.0f);
    std::fill_n(student_top, kRows, -kInf), std::fill_n(student_sum, kRows, 0.0f);
    for (int64_t head = 0; head < a.teacher.h; ++head) {
      rows.head = head;
      teacher.load_rows(q, rows);
      each_tile(0, q.keys, [&](int64_t j, int64_t count, bool masked, const LocalSeen& seen) {
        teacher.load_keys(q, head, j, count, false);
        teacher.score(rows.lanes);
        simd.softmax_sums(count, rows.lanes, teacher.x, masked ? seen.view() : host::Seen{},
                          top + head * kRows, sum + head * kRows);
      });
    }
    each_tile(0, q.keys, [&](int64_t j, int64_t count, bool masked, const LocalSeen& seen) {
      student_logits(j, count, false);
      simd.softmax_sums(count, rows.lanes, b, masked ? seen.view() : host::Seen{}, student_top,
                        student_sum);
    });
  }

  // p and b of a key tile, p 0 where a row does not see a key.  `wide` as in SideTile.
  void step(int64_t begin, int64_t count, const host::Seen& seen, bool wide) {
    std::fill_n(p, count * rows.lanes, 0.0f);
    const float share = 1.0f / static_cast<float>(a.teacher.h);
    for (int64_t head = 0; head < a.teacher.h; ++head) {
      rows.head = head;
      teacher.load_rows(q, rows);
      if (head % (a.teacher.h / a.teacher.first.key_heads) == 0)
        teacher.load_keys(q, head, begin, count, false);
      teacher.score(rows.lanes);
      simd.add_softmax(count, rows.lanes, teacher.x, seen, lse + head * kRows, share, p);
    }
    student_logits(begin, count, wide);
  }

  // z of student head n in student.x, after step.
  void score(int64_t n) {
    rows.head = n;
    student.load_rows(q, rows);
    student.score(rows.lanes);
  }

  // visit(first key, keys, masked, what is seen) for the key tiles in [begin, end) that some row
  // sees.
  template <class Visit>
  void each_tile(int64_t begin, int64_t end, Visit visit) const {
    KeyWalk::grid(begin, end, q.keys).each(rows, [&](const KeySpan& span) {
      visit(span.begin, span.count, span.masked(), LocalSeen(rows, span.begin, span.count));
    });
  }

  const KlIndexer& a;
  const Sequence& q;
  RowTile& rows;
  SideTile teacher, student;
  float *p, *b, *weight, *top, *sum, *lse;
  float student_top[kRows], student_sum[kRows];
  const host::Simd& simd;

 private:
  void student_logits(int64_t begin, int64_t count, bool wide) {
    std::fill_n(b, count * rows.lanes, 0.0f);
    student.load_keys(q, 0, begin, count, wide);
    for (int64_t n = 0; n < a.heads; ++n) {
      score(n);
      simd.add_relu(count, rows.lanes, student.x, weight + n * kRows, b);
    }
  }
};

class Forward {
 public:
  Forward(const IndexerPlan& plan, void* base) : plan_(plan), a_(plan.a), base_(base) {}

  void run(Context& ctx) {
    const RowPlaces tiles = plan_.find(a_.teacher.sequences, base_);
    host::pool(ctx).run(tiles.count(), plan_.cost(4, 1),
                        [&](int64_t item, int32_t worker) { compute(tiles[item], worker); });
  }

 private:
  void compute(const RowPlaces::Place& at, int32_t worker) const {
    const Sequence q = a_.teacher.sequences[at.sequence];
    RowTile rows(plan_.rows_of, q, at);
    IndexerTile tile(plan_, q, rows, plan_.scratch.at(base_, worker));
    float lse[kRows] = {}, kl[kRows] = {};
    if (plan_.pairs) tile.load_weights(), tile.statistics();
    for (int r = 0; plan_.pairs && r < rows.lanes; ++r) {
      const bool any = tile.any(r);
      lse[r] = any ? tile.student_top[r] + std::log(tile.student_sum[r]) : 0;
      for (int64_t n = r; n < a_.teacher.h * kRows; n += kRows)
        tile.lse[n] = any ? tile.top[n] + std::log(tile.sum[n]) : 0;
    }
    if (a_.kl)
      tile.each_tile(0, q.keys, [&](int64_t j, int64_t count, bool masked, const LocalSeen& seen) {
        tile.step(j, count, masked ? seen.view() : host::Seen{}, false);
        tile.simd.divergence(count, rows.lanes, tile.p, tile.b, lse, kl);
      });
    for (int r = 0; r < rows.count; ++r) {
      const int64_t row = rows.first + r;
      const bool any = rows.sees_any(r);
      if (a_.kl) element(a_.kl, q, row) = any ? kl[r] : 0;
      if (a_.lse) element(a_.lse, q, row) = any ? lse[r] : -kInf;
      for (int64_t head = 0; a_.teacher.first.lse && head < a_.teacher.h; ++head)
        row_slot(a_.teacher.first.lse, q, head, row) = any ? tile.lse[head * kRows + r] : -kInf;
    }
  }

  const IndexerPlan& plan_;
  const KlIndexer& a_;
  void* base_;
};

class Backward {
 public:
  Backward(const IndexerPlan& plan, void* base)
      : plan_(plan), a_(plan.a), t_(plan.a.teacher), base_(base) {}

  void run(Context& ctx) {
    host::Pool& pool = host::pool(ctx);
    const RowPlaces tiles = plan_.find(t_.sequences, base_);
    clear(pool);
    const double cost = plan_.cost(2, 3);
    if (a_.student.dq || a_.dweight)
      pool.run(tiles.count(), cost,
               [&](int64_t item, int32_t worker) { sweep_rows(tiles[item], worker); });
    if (a_.student.dk)
      pool.run(t_.sequences.count * blocks(), cost,
               [&](int64_t item, int32_t worker) { sweep_keys(item, worker); });
  }

 private:
  int64_t blocks() const { return ceil_div(t_.sequences.key_max, kBlockKeys); }

  // Zeros for what no sequence reaches.
  void clear(host::Pool& pool) const {
    const Sequences& q = t_.sequences;
    const KlSide& student = a_.student;
    const View<3>& w = a_.dweight;
    host::zero_rows(pool, student.dq, student.dtype, q, t_.b, a_.heads, student.width);
    host::zero_rows(pool, {w.data, {w.stride[0], w.stride[1], w.stride[2], 1}}, FOVEA_F32, q, t_.b,
                    a_.heads, 1);
    host::zero_keys(pool, student.dk, student.dtype, q, t_.t, 1, student.width);
  }

  // visit(head, first key, masked, what is seen) for the key tiles in [begin, end), with dz of the
  // head in student.x.  Rows without a gradient are dropped.
  template <class Visit>
  void walk(IndexerTile& tile, int64_t begin, int64_t end, float* dweight, Visit visit) const {
    if (!plan_.pairs) return;
    RowTile& rows = tile.rows;
    float lse[kRows] = {}, grad[kRows] = {};
    for (int r = 0; r < rows.lanes; ++r) {
      for (int64_t head = 0; head < t_.h; ++head) tile.lse[head * kRows + r] = 0;
      if (!tile.any(r)) continue;
      const int64_t row = rows.first + r;
      grad[r] = element(a_.dkl, tile.q, row);
      if (grad[r] == 0) {
        rows.drop(r);
        continue;
      }
      lse[r] = element(a_.lse, tile.q, row);
      for (int64_t head = 0; head < t_.h; ++head)
        tile.lse[head * kRows + r] = row_value(t_.first.lse, tile.q, head, row);
    }
    rows.bound();
    tile.load_weights();
    if (rows.begin >= rows.end) return;
    tile.each_tile(begin, end, [&](int64_t j, int64_t count, bool masked, const LocalSeen& local) {
      const host::Seen seen = masked ? local.view() : host::Seen{};
      tile.step(j, count, seen, true);
      tile.simd.divergence_backward(count, rows.lanes, tile.p, tile.b, seen, lse, grad);
      for (int64_t n = 0; n < a_.heads; ++n) {
        tile.score(n);
        tile.simd.relu_backward(count, rows.lanes, tile.b, tile.student.x, tile.weight + n * kRows,
                                dweight + n * kRows);
        visit(n, j, masked, local);
      }
    });
  }

  void sweep_rows(const RowPlaces::Place& at, int32_t worker) const {
    const Sequence q = t_.sequences[at.sequence];
    void* room = plan_.scratch.at(base_, worker);
    RowTile rows(plan_.rows_of, q, at);
    IndexerTile tile(plan_, q, rows, room);
    float *dq = plan_.dq.at(room), *dweight = plan_.dweight.at(room);
    const int64_t pad = tile.student.pad;
    if (dq) std::fill_n(dq, a_.heads * kRows * pad, 0.0f);
    std::fill_n(dweight, a_.heads * kRows, 0.0f);
    walk(tile, 0, q.keys, dweight, [&](int64_t n, int64_t, bool masked, const LocalSeen& seen) {
      if (dq) add_dq(tile.student, rows, seen, masked, dq + n * kRows * pad);
    });
    for (int64_t n = 0; n < a_.heads; ++n) {
      host::store_rows(a_.student.dq, a_.student.dtype, q, rows.first, rows.count, n,
                       a_.student.width, dq + n * kRows * pad, pad, 1);
      for (int r = 0; a_.dweight && r < rows.count; ++r)
        element(a_.dweight, q, rows.first + r, n) = dweight[n * kRows + r];
    }
  }

  void sweep_keys(int64_t item, int32_t worker) const {
    const Sequence q = t_.sequences[item / blocks()];
    const int64_t begin = item % blocks() * kBlockKeys;
    const int64_t end = std::min(q.keys, begin + kBlockKeys);
    if (begin >= end) return;
    void* room = plan_.scratch.at(base_, worker);
    float *dk = plan_.dk.at(room), *dweight = plan_.dweight.at(room);
    const int64_t pad = padded(a_.student.width);
    std::fill_n(dk, kBlockKeys * pad, 0.0f);
    for (int64_t row = 0; row < q.rows; row += kRows) {
      RowTile rows(plan_.rows_of, q, 0, row);
      if (rows.begin >= end || rows.end <= begin) continue;
      IndexerTile tile(plan_, q, rows, room);
      walk(tile, begin, end, dweight, [&](int64_t, int64_t j, bool masked, const LocalSeen& seen) {
        add_dk(tile.student, rows, seen, masked, dk + (j - begin) * pad);
      });
    }
    store_dk(t_, a_.student, q, begin, end, 0, dk, pad);
  }

  const IndexerPlan& plan_;
  const KlIndexer& a_;
  const Kl& t_;
  void* base_;
};

template <class Sweep>
Text offer(const Context& ctx, const KlIndexer& a, Plan& plan) {
  Layout worker;
  IndexerPlan p(a, worker);
  const int64_t blocks = a.student.dk ? ceil_div(a.teacher.sequences.key_max, kBlockKeys) : 0;
  const double items = static_cast<double>(a.teacher.sequences.count) * static_cast<double>(blocks);
  p.lay_out(ctx, p.rows_of, items, worker, plan);
  host::host_plan<Sweep>(plan, p, shape_name(a.teacher.first, a.student));
  return "";
}

}  // namespace

extern const Kernel<KlIndexer> kl_indexer_forward_host = {"", offer<Forward>};
extern const Kernel<KlIndexer> kl_indexer_backward_host = {"", offer<Backward>};

}  // namespace fovea
