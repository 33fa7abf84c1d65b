// SPDX-License-Identifier: Apache-2.0
// x_conv1d_forward on the CPU.
//   y_t = act(bias + sum_u weight[u] x_(t - (T - 1) + u))
// An item of the first pass is a piece of tokens and a block of channels, with the last T tokens in
// a ring.  Then states are written, an item for each sequence: the first pass reads state_in, which
// may be state_out.
#include <algorithm>

#include "host/sweep.h"
#include "ops/conv1d/conv1d.h"

namespace fovea {
namespace {

using host::ceil_div, host::load_row, host::store_row;

constexpr int64_t kChannels = 256;  // of an item
constexpr int64_t kTokens = 256;    // of a piece: the ring is filled anew in each

struct Room {
  Slot<float> ring, weight, bias, sum;
};

struct ForwardPlan {
  Conv1d a;
  RunPieces pieces;
  Room room;
  host::WorkerScratch scratch;
};

class Run1d {
 public:
  Run1d(const ForwardPlan& plan, void* base)
      : plan_(plan), a_(plan.a), simd_(host::simd()), base_(base) {}

  void run(Context& ctx) const {
    host::Pool& pool = host::pool(ctx);
    const int64_t blocks = ceil_div(a_.f, kChannels);
    const double cost = static_cast<double>(a_.b * a_.s) * static_cast<double>(a_.f);
    if (a_.y)
      pool.run(
          plan_.pieces.count * blocks, cost * static_cast<double>(a_.taps + 4) / 4,
          [&](int64_t item, int32_t worker) { outputs(item / blocks, item % blocks, worker); });
    if (!a_.state_out && !a_.snapshot) return;
    const double states = static_cast<double>(a_.run.count * a_.state_items());
    pool.run(a_.run.count, states * static_cast<double>(a_.f * a_.taps) * 3,
             [&](int64_t sequence, int32_t) {
               const RunTokens q = a_.run[sequence];
               for (int64_t item = 0; item < a_.state_items(); ++item)
                 for (int64_t c = 0; c < a_.f; ++c) a_.states(q, item, c);
             });
  }

 private:
  void outputs(int64_t piece, int64_t block, int32_t worker) const {
    void* room = plan_.scratch.at(base_, worker);
    float *ring = plan_.room.ring.at(room), *weight = plan_.room.weight.at(room);
    float *bias = plan_.room.bias.at(room), *sum = plan_.room.sum.at(room);
    const int64_t c0 = block * kChannels, n = std::min(kChannels, a_.f - c0);
    for (int64_t c = 0; c < n; ++c) bias[c] = a_.bias_of(c0 + c);
    for (int64_t u = 0; u < a_.taps; ++u)
      for (int64_t c = 0; c < n; ++c) weight[u * kChannels + c] = a_.weight_of(c0 + c, u);
    const auto at = [&](int64_t t) { return ring + (t + a_.taps) % a_.taps * kChannels; };
    plan_.pieces.each(a_.run, piece, [&](const RunTokens& q, int64_t first, int64_t end) {
      first = std::max(first, q.from);
      for (int64_t t = first - (a_.taps - 1); t < end; ++t) {
        load_token(q, t, c0, n, at(t));
        if (t < first) continue;
        std::copy_n(bias, n, sum);
        for (int64_t u = 0; u < a_.taps; ++u) {
          const float *x = at(t - (a_.taps - 1) + u), *w = weight + u * kChannels;
          for (int64_t c = 0; c < n; ++c) sum[c] = add_product(x[c], w[c], sum[c]);
        }
        for (int64_t c = 0; a_.silu && c < n; ++c) sum[c] = a_.activated(sum[c]);
        store_row(a_.y.data, a_.y_dtype, a_.offset(a_.y, q.batch, q.begin + t, c0), a_.y.stride[2],
                  n, sum, 1);
      }
    });
  }

  void load_token(const RunTokens& q, int64_t t, int64_t c0, int64_t n, float* to) const {
    if (t >= 0)
      return load_row(simd_, a_.x.data, a_.dtype, a_.offset(a_.x, q.batch, q.begin + t, c0),
                      a_.x.stride[2], n, to);
    for (int64_t c = 0; c < n; ++c) to[c] = a_.token(q, t, c0 + c);
  }

  const ForwardPlan& plan_;
  const Conv1d& a_;
  const host::Simd& simd_;
  void* base_;
};

}  // namespace

extern const Kernel<Conv1d> conv1d_forward_host = {
    "", [](const Context& ctx, const Conv1d& a, Plan& plan) {
      ForwardPlan p{a, RunPieces::of(a.run, INT64_MAX, kTokens, kTokens), {}, {}};
      Layout worker;
      p.room.ring = worker.add<float>(a.taps, kChannels);
      p.room.weight = worker.add<float>(a.taps, kChannels);
      p.room.bias = worker.add<float>(kChannels), p.room.sum = worker.add<float>(kChannels);
      p.scratch = host::WorkerScratch(ctx, ctx.threads, worker, plan.workspace);
      host::host_plan<Run1d>(plan, p, Text(".") + dtype_name(a.dtype));
      return Text();
    }};

}  // namespace fovea
