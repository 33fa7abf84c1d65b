// SPDX-License-Identifier: Apache-2.0
// The calls of a recurrence, core/recur.h.
// Each item of a backward leaves terms (core/recur_gradients.h); a last pass adds them up and
// applies the maps.
#include "host/recur.h"

#include <algorithm>

#include "host/recur_chunk.h"
#include "host/recur_chunk_backward.h"
#include "host/recur_item_backward.h"
#include "host/recur_rows.h"
#include "host/sweep.h"

namespace fovea::host {
namespace {

double cost_of(const Recur& a) {
  return static_cast<double>(a.run.count) * static_cast<double>(a.heads) *
         static_cast<double>(a.run.token_max + (a.full ? a.t : 0)) *
         static_cast<double>(a.d * a.e) * 4 / kFlopsPerNanosecond * 4;
}

void walk_recur(Pool& threads, const Recur& a, bool chunks, const Room& room,
                const ChunkRoom& chunk, const WorkerScratch& scratch, void* base) {
  if (chunks) {
    threads.run(Item::count(a, kChunkSlice), cost_of(a) / 10, [&](int64_t item, int32_t worker) {
      run_chunks(a, room, chunk, scratch.at(base, worker), item);
    });
    return;
  }
  threads.run(Item::count(a), cost_of(a), [&](int64_t item, int32_t worker) {
    Item(a, room, scratch.at(base, worker), item).forward();
  });
}

struct ForwardPlan {
  Recur a;
  bool chunks;
  Room room;
  ChunkRoom chunk;
  WorkerScratch scratch;
  Slot<float> den;
};

class Forward {
 public:
  Forward(const ForwardPlan& plan, void* base) : plan_(plan), base_(base) {}

  void run(Context& ctx) const {
    Recur a = plan_.a;
    if (a.normaliser_used()) {
      float* den = a.o ? plan_.den.at(base_) : nullptr;
      walk(ctx, a.normaliser(den));
      a.den = {den, {a.s * a.heads_out, a.heads_out, 1}};
    }
    walk(ctx, a);
  }

 private:
  void walk(Context& ctx, const Recur& a) const {
    walk_recur(pool(ctx), a, plan_.chunks, plan_.room, plan_.chunk, plan_.scratch, base_);
  }
  const ForwardPlan& plan_;
  void* base_;
};

struct BackwardPlan {
  RecurBackward b;
  bool chunks;
  int64_t step;
  Room room;
  ChunkRoom chunk;
  ChunkBackwardRoom own;
  WorkerScratch scratch;
  // Of terms, in the order of RecurTerms; then the normaliser's den and dden, and o.
  Slot<float> dq, dk, dg, dp, db, dbeta, de, dv, dgv, q_norm, k_norm, den, dden, o;
};

class Backward {
 public:
  Backward(const BackwardPlan& plan, void* base) : plan_(plan), base_(base) {}

  void run(Context& ctx) const {
    RecurBackward b = plan_.b;
    Recur& a = b.forward;
    place(b.terms);
    Pool& threads = pool(ctx);
    if (b.idle()) return finish(threads, b);
    RecurBackward z = b;
    if (a.normalise) {
      a.den = {plan_.den.at(base_), {a.s * a.heads_out, a.heads_out, 1}};
      z.forward = a.normaliser(plan_.den.at(base_));
      walk_forward(threads, z.forward);
      find_dden(threads, a);
      z.forward.o.view.data = plan_.dden.at(base_);
      const auto column = [](const View<3>& x) {
        return View<4>{x.data, {x.stride[0], x.stride[1], x.stride[2], 0}};
      };
      z.dstate_out = column(b.dz_out), z.dstate_in = column(b.dz_in);
    }
    walk(threads, b, 0);
    if (a.normalise) walk(threads, z, plan_.b.terms.slices - 1);
    finish(threads, b);
  }

 private:
  void place(RecurTerms& t) const {
    const BackwardPlan& p = plan_;
    t.dq = p.dq.at(base_), t.dk = p.dk.at(base_), t.dg = p.dg.at(base_), t.dp = p.dp.at(base_);
    t.db = p.db.at(base_), t.dbeta = p.dbeta.at(base_), t.de = p.de.at(base_);
    t.dv = p.dv.at(base_), t.dgv = p.dgv.at(base_);
    t.q_norm = p.q_norm.at(base_), t.k_norm = p.k_norm.at(base_);
  }
  void walk_forward(Pool& threads, const Recur& a) const {
    walk_recur(threads, a, plan_.chunks, plan_.room, plan_.chunk, plan_.scratch, base_);
  }
  void walk(Pool& threads, const RecurBackward& b, int64_t plane) const {
    const Recur& a = b.forward;
    if (plan_.chunks) {
      threads.run(Item::count(a, kChunkSlice), cost_of(a) / 2, [&](int64_t item, int32_t worker) {
        run_chunks_backward(b, plan_.room, plan_.chunk, plan_.own, plan_.scratch.at(base_, worker),
                            item, plane);
      });
      return;
    }
    threads.run(Item::count(a), 4 * cost_of(a), [&](int64_t item, int32_t worker) {
      BackwardItem(b, plan_.room, plan_.scratch.at(base_, worker), item, plan_.step, plane).run();
    });
  }
  // dden = -<dout, y> / den, y the quotient: a forward of this call makes it.
  void find_dden(Pool& threads, const Recur& a) const {
    Recur y = a;
    y.skip = {}, y.state_out = {}, y.snapshot = {};
    y.o = {{plan_.o.at(base_), {a.s * a.heads_out * a.e, a.heads_out * a.e, a.e, 1}}, FOVEA_F32};
    walk_forward(threads, y);
    threads.run(a.run.count, cost_of(a) / 100, [&](int64_t sequence, int32_t) {
      const RunTokens q = a.run[sequence];
      for (int64_t t = q.from; t < q.count; ++t)
        for (int64_t j = 0; j < a.heads_out; ++j) {
          const int64_t at = q.begin + t;
          float sum = 0;
          for (int64_t c = 0; c < a.e; ++c) sum += a.o(q.batch, at, j, c) * y.o(q.batch, at, j, c);
          const int64_t row = (q.batch * a.s + at) * a.heads_out + j;
          plan_.dden.at(base_)[row] = -sum / plan_.den.at(base_)[row];
        }
    });
  }

  // Elements of an output, each with the terms that strides of 0 sum.
  void finish(Pool& threads, const RecurBackward& b) const {
    const Recur& a = b.forward;
    if (a.l2_norm && !b.idle())
      for (const bool of_q : {true, false}) {
        const int64_t heads = of_q ? a.h : a.g;
        if (!b.reads_norm(of_q)) continue;
        threads.run(a.b * a.s * heads, static_cast<double>(a.b * a.s * heads * a.d) * 10,
                    [&](int64_t i, int32_t) {
                      b.find_norm(of_q, i / heads / a.s, i / heads % a.s, i % heads);
                    });
      }
    each_gradient(b, [&](RecurGradient what) { finish(threads, b, what); });
  }
  static void finish(Pool& threads, const RecurBackward& b, RecurGradient what) {
    const Floats<4>& to = b.output(what);
    const RecurBackward::Extents n = b.extents(what);
    if (const GradientRows of(b, what); of.plain()) {
      const int64_t heads = n.n[2], rows = n.n[0] * n.n[1] * heads;
      return threads.run(rows, static_cast<double>(rows * n.n[3]), [&](int64_t row, int32_t) {
        of.store(row / heads / n.n[1], row / heads % n.n[1], row % heads);
      });
    }
    int64_t own[4], sums[4];  // extents of elements, and of the terms of one
    double all = 20;
    for (int i = 0; i < 4; ++i) {
      const bool summed = to.view.stride[i] == 0;
      own[i] = summed ? 1 : n.n[i], sums[i] = summed && !b.idle() ? n.n[i] : 1;
      all *= static_cast<double>(n.n[i]);
    }
    // Neighbours in the last axis share what a row has.
    const int64_t rows = own[0] * own[1] * own[2];
    threads.run(rows, all, [&](int64_t row, int32_t) {
      const int64_t i2 = row % own[2], i1 = row / own[2] % own[1], i0 = row / own[2] / own[1];
      for (int64_t i3 = 0; i3 < own[3]; ++i3) {
        double sum = 0;
        for (int64_t j0 = 0; j0 < sums[0]; ++j0)
          for (int64_t j1 = 0; j1 < sums[1]; ++j1)
            for (int64_t j2 = 0; j2 < sums[2]; ++j2)
              for (int64_t j3 = 0; j3 < sums[3]; ++j3)
                sum += static_cast<double>(b.term(what, i0 + j0, i1 + j1, i2 + j2, i3 + j3));
        to.store(static_cast<float>(sum), i0, i1, i2, i3);
      }
    });
  }

  const BackwardPlan& plan_;
  void* base_;
};

}  // namespace

void plan_recur(const Context& ctx, const Recur& a, Plan& plan) {
  ForwardPlan p{};
  p.a = a, p.chunks = goes_in_chunks(a);
  const int64_t width = p.chunks ? kChunkSlice : kSlice;
  Layout worker;
  p.room = Room(a, worker, width, 0, 1);
  if (p.chunks) p.chunk = ChunkRoom(a, worker);
  p.scratch = WorkerScratch(ctx, Item::most(a, width), worker, plan.workspace);
  if (a.normalise && a.o) p.den = plan.workspace.add<float>(a.b, a.s, a.heads_out);
  host_plan<Forward>(plan, p, shape_name(a.q.dtype, a.d));
}

void plan_recur_backward(const Context& ctx, const RecurBackward& b, Plan& plan) {
  BackwardPlan p{};
  p.b = b;
  const Recur& a = b.forward;
  RecurTerms& t = p.b.terms;
  p.chunks = backward_in_chunks(b);
  const int64_t width = p.chunks ? kChunkSlice : kSlice;
  const int64_t tokens = p.chunks ? kChunk : a.full ? 1 : std::max<int64_t>(a.run.token_max, 1);
  t.slices = ceil_div(a.e, width) + (a.normalise ? 1 : 0);
  for (p.step = 8; !p.chunks && p.step * p.step < a.run.token_max;) p.step *= 2;
  Layout worker;
  if (a.run.count) p.room = Room(a, worker, width, tokens, p.step);
  if (p.chunks && a.run.count) p.chunk = ChunkRoom(a, worker), p.own = ChunkBackwardRoom(a, worker);
  p.scratch = WorkerScratch(ctx, Item::most(a, width), worker, plan.workspace);
  Layout& to = plan.workspace;
  const bool corrected = a.form == Recurrence::corrected, low = a.form == Recurrence::low_rank;
  const int64_t batches = a.run.count ? a.b : 0;  // without sequences no term is read
  p.dq = to.add<float>(t.slices, batches, a.s, a.heads_out, a.d);
  p.dk = to.add<float>(t.slices, batches, a.t, a.heads, a.d);
  p.dv = to.add<float>(batches, a.t, a.heads, a.e);
  if (a.row_gates()) p.dg = to.add<float>(t.slices, batches, a.s, a.heads, a.d);
  if (a.gate_value) p.dgv = to.add<float>(batches, a.s, a.heads, a.e);
  if (corrected || low) p.dp = to.add<float>(t.slices, batches, a.s, a.heads, a.d);
  if (low) p.db = to.add<float>(t.slices, batches, a.s, a.heads, a.d);
  if (corrected) p.dbeta = to.add<float>(t.slices, batches, a.s, a.heads);
  if (a.bonus) p.de = to.add<float>(t.slices, batches, a.s, a.heads_out);
  if (a.l2_norm) {
    p.q_norm = to.add<float>(batches, a.s, a.h, 2);
    p.k_norm = to.add<float>(batches, a.s, a.g, 2);
  }
  if (a.normalise) {
    p.den = to.add<float>(batches, a.s, a.heads_out),
    p.dden = to.add<float>(batches, a.s, a.heads_out);
    p.o = to.add<float>(batches, a.s, a.heads_out, a.e);
  }
  host_plan<Backward>(plan, p, shape_name(a.q.dtype, a.d));
}

}  // namespace fovea::host
