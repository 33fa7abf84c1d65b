// SPDX-License-Identifier: Apache-2.0
// x_group_norm_forward and _backward on the CPU.
//   y = factor gain x z, z = 1 / sqrt(mean(x^2) + eps)
//   dx = factor z (gain dy - x z^2 mean(gain dy x)),  dgain = factor sum dy x z
// An item of work is a part of the rows of all batches; it has its own sum of dgain, and the parts
// are added in order.  Parts depend on shapes alone.
#include <cmath>

#include "host/sweep.h"
#include "ops/norm/kernels.h"

namespace fovea {
namespace {

using host::ceil_div, host::load_row, host::store_row;

// A worker's rows.
struct Room {
  Slot<float> x, y, gain;
};

struct NormPlan {
  GroupNormBackward b;
  bool backward;
  Room room;
  Slot<double> dgain;  // (parts, h, e)
  host::WorkerScratch scratch;
};

class Norm {
 public:
  Norm(const NormPlan& plan, void* base)
      : plan_(plan), b_(plan.b), n_(plan.b.forward), simd_(host::simd()), base_(base) {}

  void run(Context& ctx) const {
    host::Pool& pool = host::pool(ctx);
    const int64_t rows = n_.b * n_.s, parts = b_.parts(), each = ceil_div(rows, parts);
    pool.run(parts, static_cast<double>(rows * n_.h) * static_cast<double>(n_.e) / 2,
             [&](int64_t part, int32_t worker) {
               double* dgain = plan_.dgain.at(base_);
               if (dgain) std::fill_n(dgain += part * n_.h * n_.e, n_.h * n_.e, 0.0);
               for (int64_t i = part * each; i < std::min(rows, (part + 1) * each); ++i)
                 for (int64_t head = 0; head < n_.h; ++head)
                   row(i / n_.s, i % n_.s, head, dgain, worker);
             });
    if (b_.dgain) add_dgain(parts);
  }

 private:
  static int64_t offset(const View<4>& x, int64_t batch, int64_t i, int64_t head) {
    return batch * x.stride[0] + i * x.stride[1] + head * x.stride[2];
  }

  void row(int64_t batch, int64_t i, int64_t head, double* dgain, int32_t worker) const {
    void* room = plan_.scratch.at(base_, worker);
    float *x = plan_.room.x.at(room), *y = plan_.room.y.at(room), *gain = plan_.room.gain.at(room);
    if (i >= n_.rows(batch)) {
      if (!b_.dx) return;
      std::fill_n(x, n_.e, 0.0f);
      return store_row(b_.dx.data, n_.dtype, offset(b_.dx, batch, i, head), b_.dx.stride[3], n_.e,
                       x, 1);
    }
    load_row(simd_, n_.x.data, n_.dtype, offset(n_.x, batch, i, head), n_.x.stride[3], n_.e, x);
    if (n_.gain)
      load_row(simd_, n_.gain.data, n_.gain_dtype, head * n_.gain.stride[0], n_.gain.stride[1],
               n_.e, gain);
    else
      std::fill_n(gain, n_.e, 1.0f);
    const double mean = simd_.dot(n_.e, x, x) / static_cast<double>(n_.e);
    const float z = static_cast<float>(1 / std::sqrt(mean + static_cast<double>(n_.eps)));
    const float size = n_.factor * z;
    const int64_t at = offset(n_.y, batch, i, head);
    if (!plan_.backward) {
      for (int64_t c = 0; c < n_.e; ++c) y[c] = gain[c] * (x[c] * size);
      return store_row(n_.y.data, n_.y_dtype, at, n_.y.stride[3], n_.e, y, 1);
    }
    load_row(simd_, n_.y.data, n_.y_dtype, at, n_.y.stride[3], n_.e, y);
    if (dgain)
      for (int64_t c = 0; c < n_.e; ++c)
        dgain[head * n_.e + c] += static_cast<double>(y[c]) * (x[c] * size);
    if (!b_.dx) return;
    for (int64_t c = 0; c < n_.e; ++c) y[c] *= gain[c];
    // x z has a mean square of at most 1, whatever the size of x.
    for (int64_t c = 0; c < n_.e; ++c) x[c] *= z;
    const float pull = simd_.dot(n_.e, y, x) / static_cast<float>(n_.e);
    for (int64_t c = 0; c < n_.e; ++c) y[c] -= x[c] * pull;
    store_row(b_.dx.data, n_.dtype, offset(b_.dx, batch, i, head), b_.dx.stride[3], n_.e, y, size);
  }

  // dgain may be summed over heads, or over columns.
  void add_dgain(int64_t parts) const {
    const View<2>& to = b_.dgain;
    const double* sums = plan_.dgain.at(base_);
    host::store_sums(
        n_.h * n_.e, [&](int64_t n) -> float& { return *to.at(n / n_.e, n % n_.e); },
        [&](int64_t n) {
          double sum = 0;
          for (int64_t part = 0; part < parts; ++part) sum += sums[part * n_.h * n_.e + n];
          return sum;
        });
  }

  const NormPlan& plan_;
  const GroupNormBackward& b_;
  const GroupNorm& n_;
  const host::Simd& simd_;
  void* base_;
};

void lay_out(const Context& ctx, const GroupNormBackward& b, bool backward, Plan& plan) {
  NormPlan p{};
  p.b = b, p.backward = backward;
  const GroupNorm& n = b.forward;
  Layout worker;
  for (Slot<float>* row : {&p.room.x, &p.room.y, &p.room.gain}) *row = worker.add<float>(n.e);
  p.dgain = plan.workspace.add<double>(b.dgain ? b.parts() : 0, n.h, n.e);
  p.scratch = host::WorkerScratch(ctx, ctx.threads, worker, plan.workspace);
  host::host_plan<Norm>(plan, p, Text(".") + dtype_name(n.dtype));
}

}  // namespace

extern const Kernel<GroupNorm> group_norm_forward_host = {
    "", [](const Context& ctx, const GroupNorm& n, Plan& plan) {
      GroupNormBackward request{};
      request.forward = n;
      lay_out(ctx, request, false, plan);
      return Text();
    }};

extern const Kernel<GroupNormBackward> group_norm_backward_host = {
    "", [](const Context& ctx, const GroupNormBackward& b, Plan& plan) {
      lay_out(ctx, b, true, plan);
      return Text();
    }};

}  // namespace fovea
