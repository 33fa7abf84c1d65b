// SPDX-License-Identifier: Apache-2.0
// x_sparse_forward on the CPU: o = softmax(scale q k') v over the keys that a row's list names, by
// the online softmax.
//   An item of work is (sequence, unit of heads, tile of packed rows, part of its steps).  It walks
//   the steps of keys: x = k q' (rows in lanes), masks, softmax, o = shrink o + x' v.  Parts are
//   combined in order by a second pass.
//   mass is a third pass over the finished lse, an item of which is (sequence, list head): it meets
//   rows in order, so the sums do not depend on the threads.
#include <cmath>

#include "ops/sparse/kernels.h"
#include "ops/sparse/tile_host.h"

namespace fovea {
namespace {

using namespace sparse_host;

constexpr float kLog2E = 1.44269504088896341f;

struct ForwardPlan {
  SparseAttend s;
  ScoreRoom room;  // this and o: within a worker's bytes
  Slot<float> o;
  host::RowTiles tiles;
  host::SplitRows split;
  Slot<float> lse, mass;  // (b, h, s), (r, x, key_max): with mass
  host::WorkerScratch scratch;
};

// top in units of log2.
struct RowState {
  float top[kRows], sum[kRows];
};

class Forward {
 public:
  Forward(const ForwardPlan& plan, void* base)
      : plan_(plan), call_(plan.s), a_(call_.a()), base_(base) {}

  void run(Context& ctx) {
    if (call_.s.skipped) *call_.s.skipped = 0;
    const host::RowPlaces tiles =
        plan_.tiles.find(base_, [&](int64_t r) { return call_.slots(a_.sequences[r]); });
    double rows = 0;
    for (int64_t r = 0; r < a_.sequences.count; ++r)
      rows += static_cast<double>(a_.sequences[r].rows);
    const double cost = rows * (static_cast<double>(call_.s.keys_bound()) + 16) *
                        static_cast<double>(a_.h * (a_.d + a_.e)) / host::kFlopsPerNanosecond;
    const int64_t parts = plan_.split.parts;
    host::Pool& pool = host::pool(ctx);
    pool.run(tiles.count() * parts, cost, [&](int64_t item, int32_t worker) {
      attend(tiles[item / parts], item % parts, worker);
    });
    if (parts > 1)
      pool.run(tiles.count(), static_cast<double>(tiles.tiles()) * a_.h * parts * a_.e,
               [&](int64_t item, int32_t worker) { combine(tiles[item], worker); });
    if (call_.s.mass)
      pool.run(a_.sequences.count * call_.list().x, cost,
               [&](int64_t item, int32_t worker) { add_mass(item, worker); });
  }

 private:
  // f(q, rows) with a tile's rows, unless there are none.
  template <class F>
  void with_rows(int64_t sequence, int64_t unit, int64_t slot, F f) const {
    const Sequence q = a_.sequences[sequence];
    const int64_t head = unit * call_.heads;
    if (!call_.s.computes(head)) return;
    const SparseList::Tile tile =
        call_.s.tile_at(q, sequence, call_.list_head(unit), call_.heads, kRows, slot);
    if (tile.begin < tile.end) f(q, RowTile(call_, q, tile, head));
  }

  int64_t row_index(const Sequence& q, const RowTile& rows, int r) const {
    return (q.batch * a_.s + q.row_begin + rows.row[r]) * a_.h + rows.head[r];
  }

  // take(step, scores, masked) for the steps of a part that are not skipped.  Counts the others.
  // top: of each lane so far, in units of log2; take() moves it on.
  template <class Take>
  int64_t sweep(const Sequence& q, const RowTile& rows, int64_t part, ScoreTile& scores,
                const float* top, Take take) const {
    const KeySteps steps(call_, q, rows);
    int64_t n = 0, skipped = 0;
    Interval own{0, INT64_MAX};
    if (const int64_t parts = plan_.split.parts; parts > 1 && part >= 0) {
      steps.each([&](const KeyStep&) { ++n; });
      own = {n * part / parts, n * (part + 1) / parts}, n = 0;
    }
    steps.each([&](const KeyStep& step) {
      const int64_t at = n++;
      if (at < own.begin || at >= own.end) return;
      scores.load(step, false);
      const bool masked = scores.score(step, nullptr);
      if (call_.s.skip_margin > 0 && step.kind == KeyStep::listed) {
        bool seen = false;
        if (host::skips(rows, step.count, scores.x, top, call_.s.skip_margin, seen)) {
          skipped += seen;
          return;
        }
      }
      take(step, masked);
    });
    return skipped;
  }

  void attend(const host::RowPlaces::Place& at, int64_t part, int32_t worker) {
    with_rows(at.sequence, at.head, at.tile, [&](const Sequence& q, const RowTile& rows) {
      void* room = plan_.scratch.at(base_, worker);
      float* o = plan_.o.at(room);
      RowState state;
      std::fill_n(state.top, kRows, -kInf);
      std::fill_n(state.sum, kRows, 0.0f);
      std::fill_n(o, rows.count * call_.e_pad, 0.0f);
      ScoreTile scores(call_, q, rows, plan_.room, room);
      const int64_t skipped = sweep(
          q, rows, part, scores, state.top,
          [&](const KeyStep& step, bool masked) { visit(rows, step, scores, masked, state, o); });
      if (call_.s.skipped && skipped)
        std::atomic_ref<int64_t>(*call_.s.skipped).fetch_add(skipped, std::memory_order_relaxed);
      for (int r = 0; r < rows.count; ++r, o += call_.e_pad) {
        if (plan_.split.parts == 1)
          finish(q, rows, r, o, {state.top[r], state.sum[r]});
        else
          plan_.split.save(base_, part, row_index(q, rows, r), o, {state.top[r], state.sum[r]});
      }
    });
  }

  void visit(const RowTile& rows, const KeyStep& step, const ScoreTile& scores, bool masked,
             RowState& state, float* o) const {
    const int64_t lanes = rows.lanes, count = step.count;
    float *x = scores.x, shrink[kRows];
    const host::KeyRows& v = scores.v;
    // 0 * NaN is NaN: a value no row may see has to stay out of the product.
    if (masked && !call_.simd.finite(count, a_.e, v.x, v.row)) {
      bool seen[kKeys * kRows];
      for (int64_t i = 0; i < count * lanes; ++i) seen[i] = x[i] != -kInf;
      call_.simd.softmax(count, lanes, x, state.top, state.sum, shrink);
      return host::add_values(call_.simd, rows.count, lanes, count, x, v, a_.e, shrink, o,
                              call_.e_pad,
                              [&](int64_t j, int64_t r) { return seen[j * lanes + r]; });
    }
    call_.simd.softmax(count, lanes, x, state.top, state.sum, shrink);
    call_.simd.gemm(
        {rows.count, call_.e_pad, count, x, lanes, v.x, v.row, o, call_.e_pad, shrink, true, true});
  }

  // The sink logit enters here, once.
  void finish(const Sequence& q, const RowTile& rows, int r, const float* o,
              host::SplitRows::State state) const {
    const int64_t h = rows.head[r];
    const host::RowEnd end(state, a_.score.sink_logit ? a_.score.sink_logit.at(h) : nullptr);
    host::store_row(a_.o.data, a_.o_dtype, host::row_offset(a_.o, q, rows.row[r], h),
                    a_.o.stride[3], a_.e, o, end.factor);
    if (a_.lse) host::row_slot(a_.lse, q, h, rows.row[r]) = end.lse;
    if (float* lse = plan_.lse.at(base_)) lse[row_index(q, rows, r)] = end.lse;
  }

  void combine(const host::RowPlaces::Place& at, int32_t worker) const {
    with_rows(at.sequence, at.head, at.tile, [&](const Sequence& q, const RowTile& rows) {
      float* o = plan_.o.at(plan_.scratch.at(base_, worker));
      for (int r = 0; r < rows.count; ++r)
        finish(q, rows, r, o, plan_.split.combine(base_, row_index(q, rows, r), o));
    });
  }

  void add_mass(int64_t item, int32_t worker) const {
    const int64_t list_head = item % call_.list().x, sequence = item / call_.list().x;
    const Sequence q = a_.sequences[sequence];
    float* mass = plan_.mass.at(base_) + item * a_.sequences.key_max;
    std::fill_n(mass, q.keys, 0.0f);
    const int64_t units = call_.list().group / call_.heads;
    for (int64_t unit = list_head * units; unit < (list_head + 1) * units; ++unit)
      for (int64_t slot = 0, slots = call_.slots(q); slot < slots; ++slot)
        with_rows(sequence, unit, slot, [&](const Sequence&, const RowTile& rows) {
          add_tile_mass(q, rows, worker, mass);
        });
    const View<3>& to = call_.s.mass;
    for (int64_t j = 0; j < q.keys; ++j)
      if (mass[j] != 0) *to.at(q.key_b, list_head, q.key_begin + j) += mass[j];
  }

  void add_tile_mass(const Sequence& q, const RowTile& rows, int32_t worker, float* mass) const {
    void* room = plan_.scratch.at(base_, worker);
    float lse[kRows], top[kRows];
    std::fill_n(top, kRows, -kInf);
    for (int r = 0; r < rows.count; ++r) lse[r] = plan_.lse.at(base_)[row_index(q, rows, r)];
    ScoreTile scores(call_, q, rows, plan_.room, room);
    sweep(q, rows, -1, scores, top, [&](const KeyStep& step, bool) {
      for (int i = 0; i < step.count; ++i) {
        double sum = 0;
        for (int r = 0; r < rows.count; ++r) {
          const float x = scores.x[i * rows.lanes + r];
          if (x == -kInf) continue;
          sum += std::exp(static_cast<double>(x) - static_cast<double>(lse[r]));
          top[r] = std::max(top[r], x * kLog2E);
        }
        mass[step.key[i]] += static_cast<float>(sum);
      }
    });
  }

  const ForwardPlan& plan_;
  const Call call_;
  const Attend& a_;
  void* base_;
};

Text offer(const Context& ctx, const SparseAttend& s, Plan& plan) {
  const Call call(s);
  const Attend& a = s.attend;
  ForwardPlan p{};
  p.s = s;
  Layout worker;
  p.room = ScoreRoom(call, worker);
  p.o = worker.add<float>(kRows * call.e_pad);
  const int64_t slots = call.list().most_slots(a.sequences.query_max, call.heads, kRows);
  p.tiles = host::RowTiles(a.sequences.count, call.units, plan.workspace);
  const int64_t parts = s.skip_margin > 0
                            ? 1
                            : host::forward_parts(a.splits, a.sequences.count * call.units * slots,
                                                  call.s.keys_bound());
  p.split = host::SplitRows(parts, a.b * a.s * a.h, a.e, plan.workspace);
  p.lse = plan.workspace.add<float>(s.mass ? a.b : 0, a.s, a.h);
  p.mass =
      plan.workspace.add<float>(s.mass ? a.sequences.count : 0, call.list().x, a.sequences.key_max);
  const double items = static_cast<double>(a.sequences.count) * static_cast<double>(call.units) *
                       static_cast<double>(slots * parts);
  p.scratch = host::WorkerScratch(ctx, items, worker, plan.workspace);
  host::host_plan<Forward>(plan, p, host::shape_name(a.dtype, a.d));
  return "";
}

}  // namespace

extern const Kernel<SparseAttend> x_sparse_forward_host = {"", offer};

}  // namespace fovea
