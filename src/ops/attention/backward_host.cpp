// SPDX-License-Identifier: Apache-2.0
// attention_backward on the CPU.  An item of work is (sequence, key head, part of the keys): it
// alone owns dk and dv of its keys, kept in f32 while it walks the packed rows of all query heads
// of the group, tile by tile:
//   x = k q', p = 2^(x - lse), dp = v dout', ds = p (dp - delta), delta = <dout, o> - dlse
//   dv += p dout,  dk += ds q,  dq += ds' k
// With one part dq is complete when the row tile is; else the parts' sums are added in order.
// Parts depend on shapes alone: the bits do not change with the number of threads.
#include <cmath>

#include "ops/attention/gradient_tile_host.h"
#include "ops/attention/kernels.h"

namespace fovea {
namespace {

using namespace attend_host;

struct BackwardPlan {
  AttendBackward b;
  int64_t parts;
  GradientRoom room;  // this and dq, dk, dv, sums: within a worker's bytes
  Slot<float> dq, dk, dv;
  Slot<double> sums;
  host::PartRows part_dq;
  Slot<double> part_alibi, part_sink;
  host::WorkerScratch scratch;

  BackwardPlan(const AttendBackward& request, const Call& call, Layout& worker)
      : b(request), room(call, call.a.score.softcap > 0, worker) {}
  bool sweeps() const { return b.dq || b.dk || b.dv || b.dalibi; }
};

class Backward {
 public:
  Backward(const BackwardPlan& plan, void* base)
      : plan_(plan), b_(plan.b), call_(plan.b.forward), a_(call_.a), base_(base) {}

  void run(Context& ctx) {
    host::Pool& pool = host::pool(ctx);
    const double cost = host::pairs_of(a_.sequences) * static_cast<double>(a_.h * (a_.d + a_.e)) /
                        kFlopsPerNanosecond;
    clear(pool);
    if (plan_.sweeps()) {
      pool.run(a_.sequences.count * a_.g * plan_.parts, 3 * cost,
               [&](int64_t item, int32_t worker) { sweep(item, worker); });
      plan_.part_dq.combine(pool, base_, a_);
      if (b_.dalibi) add_alibi();
    }
    if (b_.dsink_logit) {
      pool.run(a_.sequences.count * a_.h, cost / 16,
               [&](int64_t item, int32_t worker) { sink(item, worker); });
      for (int64_t h = 0; h < a_.h; ++h) {
        double sum = 0;
        for (int64_t r = 0; r < a_.sequences.count; ++r)
          sum += plan_.part_sink.at(base_)[r * a_.h + h];
        b_.dsink_logit.as()[h * b_.dsink_logit.stride[0]] = static_cast<float>(-sum);
      }
    }
    if (b_.dbias)
      pool.run(bias_items(b_), cost, [&](int64_t item, int32_t worker) {
        void* room = plan_.scratch.at(base_, worker);
        GradientTile tile(call_, b_, plan_.room, room);
        bias_item(call_, b_, item, tile, plan_.sums.at(room));
      });
  }

 private:
  // Zeros for what no sequence reaches.
  void clear(host::Pool& pool) const {
    const Sequences& q = a_.sequences;
    host::zero_rows(pool, b_.dq, b_.dq.dtype, q, a_.b, a_.h, a_.d);
    host::zero_keys(pool, b_.dk, b_.dk.dtype, q, a_.t, a_.g, a_.d);
    host::zero_keys(pool, b_.dv, b_.dv.dtype, q, a_.t, a_.g, a_.e);
    host::zero(pool, b_.dbias, FOVEA_F32, a_.b, a_.h, a_.s, a_.columns);
  }

  void sweep(int64_t item, int32_t worker) {
    const int64_t part = item % plan_.parts, key_head = item / plan_.parts % a_.g;
    const int64_t sequence = item / plan_.parts / a_.g;
    const Sequence q = a_.sequences[sequence];
    const int64_t own = host::part_keys(q.keys, plan_.parts, kKeys);
    const int64_t begin = std::min(q.keys, part * own), end = std::min(q.keys, begin + own);
    void* room = plan_.scratch.at(base_, worker);
    GradientTile tile(call_, b_, plan_.room, room);
    float *dk = plan_.dk.at(room), *dv = plan_.dv.at(room), *dq = plan_.dq.at(room);
    if (b_.dk) std::fill_n(dk, (end - begin) * call_.d_pad, 0.0f);
    if (b_.dv) std::fill_n(dv, (end - begin) * call_.e_pad, 0.0f);
    double* alibi = plan_.part_alibi.at(base_);
    if (alibi) {
      alibi += ((sequence * a_.g + key_head) * plan_.parts + part) * call_.group;
      std::fill_n(alibi, call_.group, 0.0);
    }

    const int64_t rows_all = q.rows * call_.group;
    for (int64_t row = 0; row < rows_all; row += kRows) {
      const RowTile rows(call_, q, key_head * call_.group, call_.group, row,
                         std::min<int64_t>(kRows, rows_all - row));
      if (b_.dq) std::fill_n(dq, rows.count * call_.d_pad, 0.0f);
      bool loaded = false;
      KeyWalk::range(begin, end).each(rows, [&](const KeySpan& span) {
        if (!loaded) tile.load(q, rows), loaded = true;
        const bool finite = tile.step(sequence, q, rows, span.begin, span.count, span.cover,
                                      static_cast<bool>(b_.dq));
        if (alibi) slopes(rows, tile, alibi);
        if (a_.score.softcap > 0) tile.through_softcap(rows);
        const Sums sums{dq, dk ? dk + (span.begin - begin) * call_.d_pad : nullptr,
                        dv ? dv + (span.begin - begin) * call_.e_pad : nullptr};
        if (finite)
          add(rows, tile, sums);
        else
          add_seen(rows, tile, sums);
      });
      for (int r = 0; b_.dq && r < rows.count; ++r)
        plan_.part_dq.save(base_, a_, q, rows.row[r], rows.head[r], part, dq + r * call_.d_pad);
    }
    host::store_keys(b_.dk, b_.dk.dtype, a_.sequences, q, begin, end, key_head, a_.d, dk,
                     call_.d_pad);
    host::store_keys(b_.dv, b_.dv.dtype, a_.sequences, q, begin, end, key_head, a_.e, dv,
                     call_.e_pad);
  }

  struct Sums {
    float *dq, *dk, *dv;
  };

  void add(const RowTile& rows, const GradientTile& tile, const Sums& to) const {
    const KeyTile& keys = tile.keys();
    const int64_t lanes = rows.lanes, d_pad = call_.d_pad, e_pad = call_.e_pad;
    if (b_.dv)
      call_.simd.gemm({keys.count, e_pad, rows.count, tile.p, lanes, tile.dout, e_pad, to.dv, e_pad,
                       nullptr, false, true});
    if (b_.dk)
      call_.simd.gemm({keys.count, d_pad, rows.count, tile.ds, lanes, tile.q, d_pad, to.dk, d_pad,
                       nullptr, false, true});
    if (b_.dq)
      call_.simd.gemm({rows.count, d_pad, keys.count, tile.ds, lanes, keys.k, keys.k_row, to.dq,
                       d_pad, nullptr, true, true});
  }

  // 0 * NaN is NaN: the same sums over the pairs that see each other.
  void add_seen(const RowTile& rows, const GradientTile& tile, const Sums& to) const {
    const KeyTile& keys = tile.keys();
    using host::add_row;
    for (int64_t j = 0; j < keys.count; ++j)
      for (int64_t r = 0; r < rows.count; ++r) {
        const int64_t at = j * rows.lanes + r;
        if (!tile.seen[at]) continue;
        if (b_.dv) add_row(a_.e, tile.p[at], tile.dout + r * call_.e_pad, to.dv + j * call_.e_pad);
        if (b_.dk) add_row(a_.d, tile.ds[at], tile.q + r * call_.d_pad, to.dk + j * call_.d_pad);
        if (b_.dq) add_row(a_.d, tile.ds[at], keys.k + j * keys.k_row, to.dq + r * call_.d_pad);
      }
  }

  void slopes(const RowTile& rows, const GradientTile& tile, double* alibi) const {
    const KeyTile& keys = tile.keys();
    for (int64_t j = 0; j < keys.count; ++j)
      for (int r = 0; r < rows.count; ++r)
        alibi[rows.head[r] % call_.group] +=
            static_cast<double>(tile.ds[j * rows.lanes + r]) *
            static_cast<double>(std::abs(rows.position[r] - keys.position[j]));
  }

  // dalibi may be summed over sequences, over heads, or both.
  void add_alibi() const {
    const View<2>& to = b_.dalibi;
    host::store_sums(
        a_.sequences.count * a_.h, [&](int64_t n) -> float& { return *to.at(n / a_.h, n % a_.h); },
        [&](int64_t n) {
          // (sequence, key head, part, head of the group)
          const double* from = plan_.part_alibi.at(base_) +
                               n / call_.group * plan_.parts * call_.group + n % call_.group;
          double sum = 0;
          for (int64_t part = 0; part < plan_.parts; ++part) sum += from[part * call_.group];
          return -sum;
        });
  }

  void sink(int64_t item, int32_t worker) const {
    const int64_t h = item % a_.h;
    const Sequence q = a_.sequences[item / a_.h];
    void* room = plan_.scratch.at(base_, worker);
    plan_.part_sink.at(base_)[item] =
        host::sink_sum(call_.simd, b_, q, h, plan_.room.o.at(room), plan_.room.dout.at(room));
  }

  const BackwardPlan& plan_;
  const AttendBackward& b_;
  const Call call_;
  const Attend& a_;
  void* base_;
};

Text offer(const Context& ctx, const AttendBackward& b, Plan& plan) {
  const Call call(b.forward);
  const Attend& a = b.forward;
  Layout worker;
  BackwardPlan p(b, call, worker);
  p.parts = host::gradient_parts(a);
  const int64_t own = p.sweeps() ? host::part_keys(a.sequences.key_max, p.parts, kKeys) : 0;
  p.dq = worker.add<float>(b.dq ? kRows * call.d_pad : 0);
  p.dk = worker.add<float>(b.dk ? own : 0, call.d_pad);
  p.dv = worker.add<float>(b.dv ? own : 0, call.e_pad);
  p.sums = worker.add<double>(b.dbias ? kBiasSums : 0);
  const double sequences = static_cast<double>(a.sequences.count);
  const double items = std::max({sequences * static_cast<double>(a.g * p.parts),
                                 b.dbias ? static_cast<double>(bias_items(b)) : 0.0,
                                 b.dsink_logit ? sequences * static_cast<double>(a.h) : 0.0});

  p.part_dq = host::PartRows(a, b.dq, p.parts, plan.workspace);
  p.part_alibi = plan.workspace.add<double>(b.dalibi ? p.parts : 0, a.sequences.count, a.h);
  p.part_sink = plan.workspace.add<double>(b.dsink_logit ? a.h : 0, a.sequences.count);
  p.scratch = host::WorkerScratch(ctx, items, worker, plan.workspace);
  host::host_plan<Backward>(plan, p, host::shape_name(a.dtype, a.d));
  return "";
}

}  // namespace

extern const Kernel<AttendBackward> attention_backward_host = {"", offer};

}  // namespace fovea
