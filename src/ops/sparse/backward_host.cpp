// SPDX-License-Identifier: Apache-2.0
// x_sparse_backward on the CPU.  An item of work is (sequence, key head, part of the row tiles): it
// walks the lists of its rows as the forward does, and has sums of dk and dv of all keys to itself:
//   x = k q', p = 2^(x - lse), dp = v dout', ds = p (dp - delta), delta = <dout, o> - dlse
//   dv += p dout,  dk += ds q,  dq += ds' k
// So no list has to be turned round.  The parts' sums are added in order by a second pass.  Parts
// depend on shapes alone: the bits do not change with the number of threads.
#include "ops/sparse/kernels.h"
#include "ops/sparse/tile_host.h"

namespace fovea {
namespace {

using namespace sparse_host;

constexpr float kLog2E = 1.44269504088896341f;

struct BackwardPlan {
  AttendBackward b;
  SparseAttend s;
  int64_t parts;
  ScoreRoom room;  // this and dout .. temporary: within a worker's bytes
  Slot<float> dout, dout_columns, o, ds, slope, dq, sums;
  Slot<unsigned char> seen;
  Slot<float> dk, dv;  // (r, g, parts, key_max, width)
  Slot<double> sink;   // (r, h)
  host::WorkerScratch scratch;
};

class Backward {
 public:
  Backward(const BackwardPlan& plan, void* base)
      : plan_(plan), b_(plan.b), call_(plan.s), a_(call_.a()), base_(base) {}

  void run(Context& ctx) {
    host::Pool& pool = host::pool(ctx);
    const Sequences& q = a_.sequences;
    const double cost = static_cast<double>(q.count) * static_cast<double>(q.query_max) *
                        (static_cast<double>(call_.s.keys_bound()) + 16) *
                        static_cast<double>(a_.h * (a_.d + a_.e)) / host::kFlopsPerNanosecond;
    host::zero_rows(pool, b_.dq, a_.dtype, q, a_.b, a_.h, a_.d);
    host::zero_keys(pool, b_.dk, a_.dtype, q, a_.t, a_.g, a_.d);
    host::zero_keys(pool, b_.dv, a_.dtype, q, a_.t, a_.g, a_.e);
    if (b_.dq || b_.dk || b_.dv)
      pool.run(q.count * a_.g * plan_.parts, 3 * cost,
               [&](int64_t item, int32_t worker) { sweep(item, worker); });
    if (b_.dk || b_.dv)
      pool.run(q.count * a_.g, cost / 8, [&](int64_t item, int32_t) { combine(item); });
    if (!b_.dsink_logit) return;
    pool.run(q.count * a_.h, cost / 16, [&](int64_t item, int32_t worker) {
      void* room = plan_.scratch.at(base_, worker);
      plan_.sink.at(base_)[item] = host::sink_sum(call_.simd, b_, q[item / a_.h], item % a_.h,
                                                  plan_.o.at(room), plan_.dout.at(room));
    });
    for (int64_t h = 0; h < a_.h; ++h) {
      double sum = 0;
      for (int64_t r = 0; r < q.count; ++r) sum += plan_.sink.at(base_)[r * a_.h + h];
      *b_.dsink_logit.at(h) = static_cast<float>(-sum);
    }
  }

 private:
  struct Tile {
    const RowTile& rows;
    ScoreTile scores;
    float *dout, *dout_columns, *ds, *slope, *dq, *sums;
    unsigned char* seen;
    float lse2[kRows], delta[kRows];
    bool finite;
  };

  float* key_sums(const Slot<float>& slot, int64_t item, int64_t pad) const {
    float* at = slot.at(base_);
    return at ? at + item * a_.sequences.key_max * pad : nullptr;
  }

  void sweep(int64_t item, int32_t worker) const {
    const int64_t part = item % plan_.parts, key_head = item / plan_.parts % a_.g;
    const int64_t sequence = item / plan_.parts / a_.g;
    const Sequence q = a_.sequences[sequence];
    float *dk = key_sums(plan_.dk, item, call_.d_pad), *dv = key_sums(plan_.dv, item, call_.e_pad);
    if (dk) std::fill_n(dk, q.keys * call_.d_pad, 0.0f);
    if (dv) std::fill_n(dv, q.keys * call_.e_pad, 0.0f);
    const int64_t units = a_.h / a_.g / call_.heads, slots = call_.slots(q);
    for (int64_t slot = slots * part / plan_.parts; slot < slots * (part + 1) / plan_.parts; ++slot)
      for (int64_t unit = key_head * units; unit < (key_head + 1) * units; ++unit) {
        const SparseList::Tile tile =
            call_.s.tile_at(q, sequence, call_.list_head(unit), call_.heads, kRows, slot);
        if (tile.begin < tile.end)
          sweep_tile(q, RowTile(call_, q, tile, unit * call_.heads),
                     plan_.scratch.at(base_, worker), dk, dv);
      }
  }

  void sweep_tile(const Sequence& q, const RowTile& rows, void* room, float* dk, float* dv) const {
    Tile t{rows,
           ScoreTile(call_, q, rows, plan_.room, room),
           plan_.dout.at(room),
           plan_.dout_columns.at(room),
           plan_.ds.at(room),
           plan_.slope.at(room),
           plan_.dq.at(room),
           plan_.sums.at(room),
           plan_.seen.at(room),
           {},
           {},
           false};
    load(q, plan_.o.at(room), t);
    if (b_.dq) std::fill_n(t.dq, rows.count * call_.d_pad, 0.0f);
    KeySteps(call_, q, rows).each([&](const KeyStep& step) {
      const bool finite = weigh(step, t);
      add(step, t, finite, dk, dv);
    });
    for (int r = 0; b_.dq && r < rows.count; ++r)
      host::store_row(b_.dq.data, a_.dtype, host::row_offset(b_.dq, q, rows.row[r], rows.head[r]),
                      b_.dq.stride[3], a_.d, t.dq + r * call_.d_pad, a_.score.scale);
  }

  void load(const Sequence& q, float* o, Tile& t) const {
    const RowTile& rows = t.rows;
    for (int r = 0; r < rows.count; ++r) {
      float* to = t.dout + r * call_.e_pad;
      t.delta[r] = host::delta_of(call_.simd, b_, q, rows.row[r], rows.head[r], o, to);
      std::fill(to + a_.e, to + call_.e_pad, 0.0f);
      const float lse = host::row_value(a_.lse, q, rows.head[r], rows.row[r]);
      // An empty row: 2^(x - inf) is 0 for every score.
      t.lse2[r] = lse == -kInf ? kInf : lse * kLog2E;
    }
    for (int r = rows.count; r < rows.lanes; ++r) t.lse2[r] = kInf, t.delta[r] = 0;
    host::transpose(t.dout, call_.e_pad, rows.count, a_.e, rows.lanes, t.dout_columns);
    t.finite = call_.simd.finite(rows.count, a_.d, t.scores.q, call_.d_pad) &&
               call_.simd.finite(rows.count, a_.e, t.dout, call_.e_pad);
  }

  // p and ds of a step.  False: only pairs with seen() may be multiplied, since some factor is not
  // finite though a row may not see it.
  bool weigh(const KeyStep& step, Tile& t) const {
    ScoreTile& x = t.scores;
    const int64_t lanes = t.rows.lanes, count = step.count;
    x.load(step, static_cast<bool>(b_.dq));
    const bool masked = x.score(step, t.slope);
    call_.simd.gemm({count, lanes, a_.e, x.v.x, x.v.row, t.dout_columns, lanes, t.ds, lanes,
                     nullptr, false, false});
    const bool finite = !masked || (t.finite && call_.simd.finite(count, a_.d, x.k.x, x.k.row) &&
                                    call_.simd.finite(count, a_.e, x.v.x, x.v.row));
    if (!finite)
      for (int64_t i = 0; i < count * lanes; ++i)
        t.seen[i] = x.x[i] != -kInf && t.lse2[i % lanes] != kInf;
    call_.simd.softmax_backward(count, lanes, x.x, t.ds, t.lse2, t.delta);
    // Where a row does not see a key, ds is 0 and the slope may be NaN.
    for (int64_t i = 0; t.slope && i < count * lanes; ++i)
      t.ds[i] = t.ds[i] == 0 ? 0 : t.ds[i] * t.slope[i];
    return finite;
  }

  void add(const KeyStep& step, Tile& t, bool finite, float* dk, float* dv) const {
    const host::Simd& simd = call_.simd;
    const ScoreTile& x = t.scores;
    const int64_t lanes = t.rows.lanes, d_pad = call_.d_pad;
    if (dv) add_keys(step, t, finite, x.x, t.dout, a_.e, call_.e_pad, dv);
    if (dk) add_keys(step, t, finite, t.ds, x.q, a_.d, d_pad, dk);
    if (!b_.dq) return;
    if (finite)
      return simd.gemm({t.rows.count, d_pad, step.count, t.ds, lanes, x.k.x, x.k.row, t.dq, d_pad,
                        nullptr, true, true});
    for (int64_t j = 0; j < step.count; ++j)
      for (int64_t r = 0; r < t.rows.count; ++r)
        if (t.seen[j * lanes + r])
          host::add_row(a_.d, t.ds[j * lanes + r], x.k.x + j * x.k.row, t.dq + r * d_pad);
  }

  // sums of the step's keys += weights rows.
  void add_keys(const KeyStep& step, const Tile& t, bool finite, const float* weights,
                const float* rows, int64_t width, int64_t pad, float* sums) const {
    const int64_t lanes = t.rows.lanes;
    if (!finite) {
      for (int64_t j = 0; j < step.count; ++j)
        for (int64_t r = 0; r < t.rows.count; ++r)
          if (t.seen[j * lanes + r])
            host::add_row(width, weights[j * lanes + r], rows + r * pad, sums + step.key[j] * pad);
      return;
    }
    float* to = step.run ? sums + step.key[0] * pad : t.sums;
    call_.simd.gemm({step.count, pad, t.rows.count, weights, lanes, rows, pad, to, pad, nullptr,
                     false, step.run});
    for (int64_t j = 0; !step.run && j < step.count; ++j)
      host::add_row(pad, 1, to + j * pad, sums + step.key[j] * pad);
  }

  void combine(int64_t item) const {
    const int64_t key_head = item % a_.g;
    const Sequence q = a_.sequences[item / a_.g];
    const auto store = [&](const Slot<float>& slot, const View<4>& to, int64_t width, int64_t pad) {
      float* sums = key_sums(slot, item * plan_.parts, pad);
      if (!sums) return;
      for (int64_t part = 1; part < plan_.parts; ++part)
        host::add_row(q.keys * pad, 1, key_sums(slot, item * plan_.parts + part, pad), sums);
      host::store_keys(to, a_.dtype, a_.sequences, q, 0, q.keys, key_head, width, sums, pad);
    };
    store(plan_.dk, b_.dk, a_.d, call_.d_pad), store(plan_.dv, b_.dv, a_.e, call_.e_pad);
  }

  const BackwardPlan& plan_;
  const AttendBackward& b_;
  const Call call_;
  const Attend& a_;
  void* base_;
};

Text offer(const Context& ctx, const SparseBackward& request, Plan& plan) {
  const Call call(request.forward());
  const Attend& a = call.a();
  BackwardPlan p{};
  p.b = request.attend, p.s = call.s;
  const AttendBackward& b = p.b;
  // Parts cost memory: few (sequence, key head) pairs have them.
  constexpr int64_t items_wanted = 16, most = 8;
  const int64_t pairs = a.sequences.count * a.g;
  p.parts =
      pairs > 0 && pairs < items_wanted ? std::min(most, host::ceil_div(items_wanted, pairs)) : 1;
  p.parts = std::min(p.parts,
                     std::max<int64_t>(1, host::ceil_div(a.sequences.query_max * a.h, 16 * kRows)));

  Layout worker;
  p.room = ScoreRoom(call, worker);
  p.dout = worker.add<float>(kRows * call.e_pad);
  p.dout_columns = worker.add<float>(kRows * a.e);
  p.o = worker.add<float>(call.e_pad);
  p.ds = worker.add<float>(kRows * kKeys);
  p.slope = worker.add<float>(a.score.softcap > 0 ? kRows * kKeys : 0);
  p.dq = worker.add<float>(b.dq ? kRows * call.d_pad : 0);
  p.sums = worker.add<float>(kKeys * std::max(call.d_pad, call.e_pad));
  p.seen = worker.add<unsigned char>(kRows * kKeys);
  const auto sums = [&](const View<4>& to, int64_t pad) {
    return plan.workspace.add<float>(to ? a.sequences.count : 0, a.g, p.parts, a.sequences.key_max,
                                     pad);
  };
  p.dk = sums(b.dk, call.d_pad), p.dv = sums(b.dv, call.e_pad);
  p.sink = plan.workspace.add<double>(b.dsink_logit ? a.sequences.count : 0, a.h);
  const double sequences = static_cast<double>(a.sequences.count);
  p.scratch = host::WorkerScratch(
      ctx, sequences * static_cast<double>(std::max(a.g * p.parts, a.h)), worker, plan.workspace);
  host::host_plan<Backward>(plan, p, host::shape_name(a.dtype, a.d));
  return "";
}

}  // namespace

extern const Kernel<SparseBackward> x_sparse_backward_host = {"", offer};

}  // namespace fovea
