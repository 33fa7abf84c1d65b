// SPDX-License-Identifier: Apache-2.0
// A recurrence token by token, core/recur.h: every dtype, width and stride.
// A block owns a slice of value columns of a sequence's state head, recur.cuh.  It reads the state
// once, walks the tokens with the state in registers, and writes it once.
#pragma once
#include "core/locate.h"
#include "cuda/launch.h"
#include "cuda/loop/recur.cuh"

namespace fovea::cuda {

template <Recurrence Form>
class ForwardWalk {
 public:
  __device__ ForwardWalk(const RecurCall& call, const RunTokens& q, int64_t head, int64_t slice,
                         float* shared)
      : call_(call),
        a_(call.a),
        q_(q),
        lane_(call, head, slice * (blockDim.x / 32) + threadIdx.x / 32),
        stage_(call, q_, head, shared) {}

  __device__ void run() {
    lane_.load_state(q_, h_);
    if (a_.full)
      full();
    else
      causal();
    if (a_.state_out) lane_.store_state(a_.state_out, call_.out, a_.run.out_row(q_.sequence), h_);
  }

 private:
  __device__ __forceinline__ int count(int64_t t, int64_t end) const {
    return static_cast<int>(min(static_cast<int64_t>(call_.tokens), end - t));
  }
  __device__ void causal() {
    int64_t kept = 0, next = a_.snapshot ? a_.run.every : INT64_MAX;
    for (int64_t t0 = 0; t0 < q_.count; t0 += call_.tokens) {
      const int tokens = count(t0, q_.count);
      const bool with = a_.o && t0 + tokens > q_.from;
      stage_.fill(q_.begin + t0, tokens, 0, with ? stage_.end() : kQueries);
      for (int i = 0; i < tokens; ++i) {
        const int64_t t = t0 + i, at = q_.begin + t;
        const bool out = a_.o && t >= q_.from;
        token_.load(lane_, stage_, q_, i, at);
        if (out && a_.read_before) outputs(i, at, true);
        token_.correct(lane_, h_), token_.add(lane_, h_);
        if (out && !a_.read_before) outputs(i, at, true);
        if (t + 1 != next) continue;
        if (kept < a_.run.kept)
          lane_.store_state(a_.snapshot, call_.snapshot, a_.run.kept_row(q_, kept), h_);
        ++kept, next += a_.run.every;
      }
    }
  }
  __device__ void full() {
    const Recur::Keys keys = a_.keys(q_);
    for (int64_t t0 = 0; t0 < keys.count; t0 += call_.tokens) {
      const int tokens = count(t0, keys.count);
      stage_.fill(keys.begin + t0, tokens, 0, kQueries);
      for (int i = 0; i < tokens; ++i) {
        token_.load(lane_, stage_, q_, i, keys.begin + t0 + i);
        token_.correct(lane_, h_), token_.add(lane_, h_);
      }
    }
    for (int64_t t0 = q_.from; a_.o && t0 < q_.count; t0 += call_.tokens) {
      const int tokens = count(t0, q_.count);
      stage_.fill(q_.begin + t0, tokens, kQueries, stage_.end());
      for (int i = 0; i < tokens; ++i) outputs(i, q_.begin + t0 + i, false);
    }
  }
  __device__ __forceinline__ void outputs(int token, int64_t at, bool with_token) {
    each_output(call_, stage_, lane_.head, token, at, [&](int64_t output, const float* query) {
      float y[CW];
      lane_.product(query, h_, y);
      const float over = a_.den ? *a_.den.at(q_.batch, at, output) : 1.f;
      const float own = a_.bonus ? lane_.bonus(query, token_.key) : 0.f;
#pragma unroll
      for (int j = 0; j < CW; ++j) {
        y[j] = fmaf(a_.scale, y[j], a_.added);
        if (a_.den) y[j] /= over;
        if (a_.bonus) y[j] += a_.bonus_of(own * token_.value[j]);
        if (with_token && a_.skip && lane_.has_column(j))
          y[j] = fmaf(*a_.skip.at(lane_.head, lane_.first + j), token_.value[j], y[j]);
        if (lane_.ld == j && lane_.has_column(j))
          a_.o.store(y[j], q_.batch, at, output, lane_.first + j);
      }
    });
  }

  const RecurCall& call_;
  const Recur& a_;
  const RunTokens q_;
  const Lane lane_;
  Stage stage_;
  LaneToken<Form> token_;
  float h_[R][CW];
};

template <Recurrence Form>
__global__ void __launch_bounds__(256, 2)
    recur_forward_simt(const __grid_constant__ RecurCall call, int64_t work) {
  extern __shared__ __align__(16) float s_stage[];
  const Recur& a = call.a;
  const int64_t columns = columns_of(call), slices = (a.e + columns - 1) / columns;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t rest = quotient(w, slices), sequence = quotient(rest, a.heads);
    ForwardWalk<Form>(call, a.run[sequence], rest - sequence * a.heads, w - rest * slices, s_stage)
        .run();
  }
}

template <Recurrence Form>
void recur_forward(Context& ctx, const char* op, const RecurCall& call, int64_t work) {
  launch<recur_forward_simt<Form>>(ctx, op, work, 32 * call.warps, stage_bytes(call), call, work);
}

}  // namespace fovea::cuda
