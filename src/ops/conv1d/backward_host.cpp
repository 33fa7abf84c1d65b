// SPDX-License-Identifier: Apache-2.0
// x_conv1d_backward on the CPU.
//   dz_t = dy_t act'(z_t),  dx_t = sum_u weight[u] dz_(t + T - 1 - u) + dstate_out
//   dweight[u] = sum_t dz_t x_(t - (T - 1) + u),  dbias = sum_t dz_t
// An item owns a block of channels of all sequences and walks their tokens in order, with the last
// T of x and of dz in rings.  Sums are in f64.
#include <algorithm>

#include "host/sweep.h"
#include "ops/conv1d/conv1d.h"

namespace fovea {
namespace {

using host::ceil_div, host::load_row, host::store_row;

constexpr int64_t kChannels = 64;  // of an item

struct Room {
  Slot<float> x, dz, weight, row;
  Slot<double> sum;  // (taps + 1, channels)
};

struct BackwardPlan {
  Conv1dBackward b;
  Slot<double> sums;  // (taps + 1, f)
  Room room;
  host::WorkerScratch scratch;
};

class Backward1d {
 public:
  Backward1d(const BackwardPlan& plan, void* base)
      : plan_(plan), b_(plan.b), a_(plan.b.forward), simd_(host::simd()), base_(base) {}

  void run(Context& ctx) const {
    host::Pool& pool = host::pool(ctx);
    if (b_.dx && a_.run.ragged())
      host::zero(pool, {b_.dx.data, {b_.dx.stride[0], b_.dx.stride[1], b_.dx.stride[2], 1}},
                 a_.dtype, a_.b, a_.s, a_.f, 1);
    const double cost = static_cast<double>(a_.b * a_.s) * static_cast<double>(a_.f);
    // Without sequences there is no workspace: taps may be more than memory holds.
    if (a_.run.count)
      pool.run(ceil_div(a_.f, kChannels), cost * static_cast<double>(a_.taps + 2),
               [&](int64_t block, int32_t worker) { channels(block * kChannels, worker); });
    const double* sums = plan_.sums.at(base_);
    if (b_.dbias)
      for (int64_t c = 0; c < a_.f; ++c)
        *b_.dbias.at(c) = sums ? static_cast<float>(sums[a_.taps * a_.f + c]) : 0.0f;
    if (b_.dweight)
      host::store_sums(
          a_.f * a_.taps,
          [&](int64_t i) -> float& { return *b_.dweight.at(i / a_.taps, i % a_.taps); },
          [&](int64_t i) { return sums ? sums[i % a_.taps * a_.f + i / a_.taps] : 0.0; });
  }

 private:
  void channels(int64_t c0, int32_t worker) const {
    void* room = plan_.scratch.at(base_, worker);
    const int64_t n = std::min(kChannels, a_.f - c0);
    float* weight = plan_.room.weight.at(room);
    double* sum = plan_.room.sum.at(room);
    for (int64_t u = 0; u < a_.taps; ++u)
      for (int64_t c = 0; c < n; ++c) weight[u * kChannels + c] = a_.weight_of(c0 + c, u);
    std::fill_n(sum, (a_.taps + 1) * kChannels, 0.0);
    for (int64_t r = 0; r < a_.run.count; ++r) sequence(a_.run[r], c0, n, room);
    double* sums = plan_.sums.at(base_);
    for (int64_t u = 0; sums && u <= a_.taps; ++u)
      std::copy_n(sum + u * kChannels, n, sums + u * a_.f + c0);
  }

  void sequence(const RunTokens& q, int64_t c0, int64_t n, void* room) const {
    float *x = plan_.room.x.at(room), *dz = plan_.room.dz.at(room);
    float* row = plan_.room.row.at(room);
    const float* weight = plan_.room.weight.at(room);
    const auto ring = [&](float* of, int64_t t) {
      return of + (t + a_.taps) % a_.taps * kChannels;
    };
    std::fill_n(dz, a_.taps * kChannels, 0.0f);
    for (int64_t t = 1 - a_.taps; t < 0; ++t)
      for (int64_t c = 0; c < n; ++c) ring(x, t)[c] = a_.token(q, t, c0 + c);
    const int64_t steps = q.count + a_.taps - 1;
    for (int64_t t = 0; t < steps; ++t) {
      float* slope = ring(dz, t);
      std::fill_n(slope, n, 0.0f);
      if (t < q.count)
        load_row(simd_, a_.x.data, a_.dtype, a_.offset(a_.x, q.batch, q.begin + t, c0),
                 a_.x.stride[2], n, ring(x, t));
      if (t >= q.from && t < q.count) slopes(q, t, c0, n, room);
      const int64_t to = t - (a_.taps - 1);  // the token whose gradient is complete
      for (int64_t c = 0; c < n; ++c) row[c] = b_.from_state(q, to, c0 + c);
      for (int64_t u = 0; u < a_.taps; ++u) {
        const float *from = ring(dz, t - u), *w = weight + u * kChannels;
        for (int64_t c = 0; c < n; ++c) row[c] += w[c] * from[c];
      }
      if (to >= 0 && b_.dx)
        store_row(b_.dx.data, a_.dtype, a_.offset(b_.dx, q.batch, q.begin + to, c0),
                  b_.dx.stride[2], n, row, 1);
      if (to < 0) store_state(q, a_.tail + to, c0, n, row);
    }
    if (!b_.dstate_in) return;  // a tail that nobody stores may be longer than memory
    std::fill_n(row, n, 0.0f);
    for (int64_t k = 0; k < a_.tail - (a_.taps - 1); ++k) store_state(q, k, c0, n, row);
  }

  // dz of token t into its ring, and what it adds to the sums.
  void slopes(const RunTokens& q, int64_t t, int64_t c0, int64_t n, void* room) const {
    float *x = plan_.room.x.at(room), *row = plan_.room.row.at(room);
    float* dz = plan_.room.dz.at(room) + t % a_.taps * kChannels;
    const float* weight = plan_.room.weight.at(room);
    double* sum = plan_.room.sum.at(room);
    const auto tap = [&](int64_t u) { return x + (t + 1 + u) % a_.taps * kChannels; };
    for (int64_t c = 0; c < n; ++c) row[c] = a_.bias_of(c0 + c);
    for (int64_t u = 0; a_.silu && u < a_.taps; ++u)
      for (int64_t c = 0; c < n; ++c)
        row[c] = add_product(tap(u)[c], weight[u * kChannels + c], row[c]);
    load_row(simd_, a_.y.data, a_.y_dtype, a_.offset(a_.y, q.batch, q.begin + t, c0),
             a_.y.stride[2], n, dz);
    for (int64_t c = 0; c < n; ++c) dz[c] *= a_.slope(row[c]);
    for (int64_t u = 0; u < a_.taps; ++u)
      for (int64_t c = 0; c < n; ++c)
        sum[u * kChannels + c] += static_cast<double>(dz[c]) * static_cast<double>(tap(u)[c]);
    for (int64_t c = 0; c < n; ++c) sum[a_.taps * kChannels + c] += static_cast<double>(dz[c]);
  }

  void store_state(const RunTokens& q, int64_t column, int64_t c0, int64_t n,
                   const float* row) const {
    if (b_.dstate_in)
      store_row(b_.dstate_in.data, b_.din_dtype, a_.offset(b_.dstate_in, q.sequence, c0, column),
                b_.dstate_in.stride[1], n, row, 1);
  }

  const BackwardPlan& plan_;
  const Conv1dBackward& b_;
  const Conv1d& a_;
  const host::Simd& simd_;
  void* base_;
};

}  // namespace

extern const Kernel<Conv1dBackward> conv1d_backward_host = {
    "", [](const Context& ctx, const Conv1dBackward& b, Plan& plan) {
      const Conv1d& a = b.forward;
      BackwardPlan p{b, {}, {}, {}};
      const int64_t taps = a.run.count ? a.taps : 0;
      p.sums = plan.workspace.add<double>(a.run.count ? b.sums() : 0, a.f);
      Layout worker;
      for (Slot<float>* ring : {&p.room.x, &p.room.dz, &p.room.weight})
        *ring = worker.add<float>(taps, kChannels);
      p.room.row = worker.add<float>(kChannels);
      p.room.sum = worker.add<double>(taps + 1, kChannels);
      p.scratch = host::WorkerScratch(ctx, ctx.threads, worker, plan.workspace);
      host::host_plan<Backward1d>(plan, p, Text(".") + dtype_name(a.dtype));
      return Text();
    }};

}  // namespace fovea
