// SPDX-License-Identifier: Apache-2.0
// x_norm_gate_forward and _backward on the CPU; the formulas are in experimental/norm.h.
// An item of work is a part of the rows of all batches; it has its own sums of dweight and dbias,
// and the parts are added in order.  Parts depend on shapes alone.
#include <algorithm>

#include "host/sweep.h"
#include "ops/norm/gate.h"

namespace fovea {
namespace {

using host::ceil_div, host::load_row, host::store_row;

// A worker's rows of e columns: u, a, act', v, n, w; y or dy, then t and dn; what is added.
struct Room {
  Slot<float> u, a, slope, n, w, y, add, weight, bias, one;
  template <class F>
  void each(F f) {
    for (Slot<float>* row : {&u, &a, &slope, &n, &w, &y, &add, &weight, &bias, &one}) f(*row);
  }
};

struct NormPlan {
  NormGateBackward b;
  bool backward;
  Room room;
  Slot<double> dweight, dbias;  // (parts, h, e)
  host::WorkerScratch scratch;
};

class Norm {
 public:
  Norm(const NormPlan& plan, void* base)
      : plan_(plan), b_(plan.b), n_(plan.b.forward), simd_(host::simd()), base_(base) {}

  void run(Context& ctx) const {
    const int64_t rows = n_.b * n_.s, parts = b_.parts(), each = ceil_div(rows, parts);
    const int64_t columns = n_.h * n_.e;
    host::pool(ctx).run(parts, static_cast<double>(rows) * static_cast<double>(columns),
                        [&](int64_t part, int32_t worker) {
                          double *dweight = plan_.dweight.at(base_), *dbias = plan_.dbias.at(base_);
                          if (dweight) std::fill_n(dweight += part * columns, columns, 0.0);
                          if (dbias) std::fill_n(dbias += part * columns, columns, 0.0);
                          Row row(*this, worker);
                          for (int64_t i = part * each; i < std::min(rows, (part + 1) * each); ++i)
                            for (int64_t head = 0; head < n_.h; ++head)
                              row.run(i / n_.s, i % n_.s, head, dweight, dbias);
                        });
    add(b_.dweight, plan_.dweight.at(base_), parts);
    add(b_.dbias, plan_.dbias.at(base_), parts);
  }

 private:
  // A row of a head, in a worker's memory.
  class Row {
   public:
    Row(const Norm& norm, int32_t worker)
        : norm_(norm), n_(norm.n_), b_(norm.b_), simd_(norm.simd_) {
      void* at = norm.plan_.scratch.at(norm.base_, worker);
      const Room& room = norm.plan_.room;
      u_ = room.u.at(at), a_ = room.a.at(at), slope_ = room.slope.at(at), v_ = room.n.at(at);
      w_ = room.w.at(at), y_ = room.y.at(at), add_ = room.add.at(at);
      weight_ = room.weight.at(at), bias_ = room.bias.at(at), one_ = room.one.at(at);
      std::fill_n(one_, n_.e, 1.0f);
    }

    void run(int64_t batch, int64_t i, int64_t head, double* dweight, double* dbias) {
      if (i >= n_.rows(batch)) return clear(batch, i, head);
      load(batch, i, head);
      for (int64_t c = 0; c < n_.e; c += n_.group) normalise(c);
      for (int64_t c = 0; c < n_.e; ++c) w_[c] = n_.factor * (weight_[c] * v_[c]) + bias_[c];
      if (norm_.plan_.backward) return backward(batch, i, head, dweight, dbias);
      if (n_.gate && !n_.gate_first)
        for (int64_t c = 0; c < n_.e; ++c) w_[c] *= a_[c];
      if (n_.after) {
        take(n_.after, batch, i, head, add_);
        for (int64_t c = 0; c < n_.e; ++c) w_[c] += add_[c];
      }
      give(n_.y, batch, i, head, w_);
    }

   private:
    void take(const NormRows& x, int64_t batch, int64_t i, int64_t head, float* to) const {
      load_row(simd_, x.view.data, x.dtype, x.at(batch, i, head), x.view.stride[3], n_.e, to);
    }
    void take(const NormColumns& x, int64_t head, float absent, float* to) const {
      if (!x) return static_cast<void>(std::fill_n(to, n_.e, absent));
      load_row(simd_, x.view.data, x.dtype, head * x.view.stride[0], x.view.stride[1], n_.e, to);
    }
    void give(const NormRows& x, int64_t batch, int64_t i, int64_t head, const float* from) const {
      store_row(x.view.data, x.dtype, x.at(batch, i, head), x.view.stride[3], n_.e, from, 1);
    }
    void clear(int64_t batch, int64_t i, int64_t head) {
      std::fill_n(y_, n_.e, 0.0f);
      if (b_.dx) give(b_.dx, batch, i, head, y_);
      if (b_.dgate) give(b_.dgate, batch, i, head, y_);
    }

    // u, a and its slope; v in place of n.
    void load(int64_t batch, int64_t i, int64_t head) {
      take(n_.x, batch, i, head, u_);
      if (n_.before) {
        take(n_.before, batch, i, head, add_);
        for (int64_t c = 0; c < n_.e; ++c) u_[c] += add_[c];
      }
      if (n_.gate) {
        take(n_.gate, batch, i, head, a_);
        for (int64_t c = 0; c < n_.e; ++c) {
          const GateValue at = gate_value(n_.act, a_[c]);
          a_[c] = at.value, slope_[c] = at.slope;
        }
      }
      const bool first = n_.gate && n_.gate_first;
      for (int64_t c = 0; c < n_.e; ++c) v_[c] = first ? u_[c] * a_[c] : u_[c];
      take(n_.weight, head, 1, weight_), take(n_.bias, head, 0, bias_);
    }
    double mean(int64_t c, const float* x, const float* y) const {
      return simd_.dot(n_.group, x + c, y + c) / static_cast<double>(n_.group);
    }
    // n in place of v, for the group from column c on, whose size add_[c] keeps.
    void normalise(int64_t c) {
      if (n_.plain()) return;
      float* v = v_ + c;
      if (n_.centred()) {
        const auto middle = static_cast<float>(mean(c, v_, one_));
        for (int64_t k = 0; k < n_.group; ++k) v[k] -= middle;
      }
      const double squares = simd_.dot(n_.group, v, v) / static_cast<double>(n_.divisor());
      size_of(c) = static_cast<float>(1 / std::sqrt(squares + static_cast<double>(n_.eps)));
      for (int64_t k = 0; k < n_.group; ++k) v[k] *= size_of(c);
    }
    float& size_of(int64_t c) { return add_[c / n_.group]; }

    void backward(int64_t batch, int64_t i, int64_t head, double* dweight, double* dbias) {
      take(n_.y, batch, i, head, y_);
      const bool behind = n_.gate && !n_.gate_first, first = n_.gate && n_.gate_first;
      if (behind) {
        for (int64_t c = 0; c < n_.e; ++c) slope_[c] *= y_[c] * w_[c], y_[c] *= a_[c];
        if (b_.dgate) give(b_.dgate, batch, i, head, slope_);
      }
      for (int64_t c = 0; dbias && c < n_.e; ++c)
        dbias[head * n_.e + c] += static_cast<double>(y_[c]);
      for (int64_t c = 0; dweight && c < n_.e; ++c)
        dweight[head * n_.e + c] += static_cast<double>(n_.factor * y_[c]) * v_[c];
      if (!b_.dx && !(first && b_.dgate)) return;
      for (int64_t c = 0; c < n_.e; ++c) y_[c] *= n_.factor * weight_[c];
      for (int64_t c = 0; c < n_.e; c += n_.group) pull(c);
      if (first) {
        for (int64_t c = 0; c < n_.e; ++c) slope_[c] *= y_[c] * u_[c], y_[c] *= a_[c];
        if (b_.dgate) give(b_.dgate, batch, i, head, slope_);
      }
      if (b_.dx) give(b_.dx, batch, i, head, y_);
    }
    // dv in place of dn.
    void pull(int64_t c) {
      if (n_.plain()) return;
      const auto along = static_cast<float>(simd_.dot(n_.group, y_ + c, v_ + c) /
                                            static_cast<double>(n_.divisor()));
      const float middle = n_.centred() ? static_cast<float>(mean(c, y_, one_)) : 0.0f;
      for (int64_t k = c; k < c + n_.group; ++k)
        y_[k] = size_of(c) * (y_[k] - middle - v_[k] * along);
    }

    const Norm& norm_;
    const NormGate& n_;
    const NormGateBackward& b_;
    const host::Simd& simd_;
    float *u_, *a_, *slope_, *v_, *w_, *y_, *add_, *weight_, *bias_, *one_;
  };

  // Sums may be over heads, or over columns.
  void add(const View<2>& to, const double* sums, int64_t parts) const {
    if (!to) return;
    host::store_sums(
        n_.h * n_.e, [&](int64_t n) -> float& { return *to.at(n / n_.e, n % n_.e); },
        [&](int64_t n) {
          double sum = 0;
          for (int64_t part = 0; part < parts; ++part) sum += sums[part * n_.h * n_.e + n];
          return sum;
        });
  }

  const NormPlan& plan_;
  const NormGateBackward& b_;
  const NormGate& n_;
  const host::Simd& simd_;
  void* base_;
};

void lay_out(const Context& ctx, const NormGateBackward& b, bool backward, Plan& plan) {
  NormPlan p{};
  p.b = b, p.backward = backward;
  const NormGate& n = b.forward;
  Layout worker;
  p.room.each([&](Slot<float>& row) { row = worker.add<float>(n.e); });
  p.dweight = plan.workspace.add<double>(b.dweight ? b.parts() : 0, n.h, n.e);
  p.dbias = plan.workspace.add<double>(b.dbias ? b.parts() : 0, n.h, n.e);
  p.scratch = host::WorkerScratch(ctx, ctx.threads, worker, plan.workspace);
  host::host_plan<Norm>(plan, p, Text(".") + dtype_name(n.x.dtype));
}

}  // namespace

extern const Kernel<NormGate> norm_gate_forward_host = {
    "", [](const Context& ctx, const NormGate& n, Plan& plan) {
      NormGateBackward request{};
      request.forward = n;
      lay_out(ctx, request, false, plan);
      return Text();
    }};

extern const Kernel<NormGateBackward> norm_gate_backward_host = {
    "", [](const Context& ctx, const NormGateBackward& b, Plan& plan) {
      lay_out(ctx, b, true, plan);
      return Text();
    }};

}  // namespace fovea
