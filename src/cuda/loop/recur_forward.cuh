// SPDX-License-Identifier: Apache-2.0
// A recurrence token by token, core/recur.h: every dtype, width and stride.
// A block owns a slice of value columns of a sequence's state head, recur.cuh.  It reads the state
// once, walks the tokens with the state in registers, and writes it once.
#pragma once
#include <algorithm>

#include "core/locate.h"
#include "cuda/launch.h"
#include "cuda/loop/recur.cuh"
#include "cuda/loop/recur_steps.cuh"

namespace fovea::cuda {

template <Recurrence Form>
class ForwardWalk {
 public:
  // Arrays lie in objects of their own: one with other members is kept in memory.
  __device__ ForwardWalk(const RecurCall& call, const RunTokens& q, int64_t head, int64_t slice,
                         float* shared, LaneToken<Form>& token, float (&h)[R][CW])
      : call_(call),
        a_(call.a),
        q_(q),
        lane_(call, head, slice),
        stage_(call, q_, head, slice, shared),
        token_(token),
        h_(h) {}

  __device__ __forceinline__ void run() {
    lane_.prefetch_state(q_);
    if (a_.full) {
      lane_.load_state(q_, h_);
      full();
    } else {
      causal();
    }
    if (a_.state_out) lane_.store_state(a_.state_out, call_.out, a_.run.out_row(q_.sequence), h_);
  }

 private:
  __device__ __forceinline__ int count(int64_t t, int64_t end) const {
    return static_cast<int>(min(static_cast<int64_t>(call_.tokens), end - t));
  }
  __device__ __forceinline__ void causal() {
    next_ = a_.snapshot ? a_.run.every : INT64_MAX;
    if (!q_.count) lane_.load_state(q_, h_);
    for (int64_t t0 = 0; t0 < q_.count; t0 += call_.tokens) {
      const int tokens = count(t0, q_.count);
      stage_.fill(q_.begin + t0, tokens, 0, with_outputs(t0, tokens) ? stage_.end() : kQueries);
      if (t0 == 0) lane_.load_state(q_, h_);
      for (int i = 0; i < tokens; ++i) step(i, t0 + i);
    }
  }
  __device__ __forceinline__ bool with_outputs(int64_t t, int tokens) const {
    return a_.o && t + tokens > q_.from;
  }
  // Token t of the sequence, i of the stage.
  __device__ __forceinline__ void step(int i, int64_t t) {
    const int64_t at = q_.begin + t;
    const bool out = a_.o && t >= q_.from;
    token_.load(lane_, stage_, q_, i, at);
    if (out && a_.read_before) outputs(i, at, true);
    token_.correct(lane_, h_), token_.add(lane_, h_);
    if (out && !a_.read_before) outputs(i, at, true);
    if (t + 1 != next_) return;
    if (kept_ < a_.run.kept)
      lane_.store_state(a_.snapshot, call_.snapshot, a_.run.kept_row(q_, kept_), h_);
    ++kept_, next_ += a_.run.every;
  }
  __device__ __forceinline__ void full() {
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
    const bool fours = call_.fours & kFoursO;
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
        if (!fours && lane_.ld == j && lane_.has_column(j))
          a_.o.store(y[j], q_.batch, at, output, lane_.first + j);
      }
      if (fours && lane_.ld == 0 && lane_.has_column(0))
        store_four(a_.o, a_.o.offset(q_.batch, at, output, lane_.first), y);
    });
  }

  const RecurCall& call_;
  const Recur& a_;
  const RunTokens q_;
  const Lane lane_;
  Stage stage_;
  int64_t kept_ = 0, next_;  // snapshots so far, tokens before the next one
  LaneToken<Form>& token_;
  float (&h_)[R][CW];
};

// A block owns item first + its number.  There is no loop over items: what does not change in one
// would be kept in registers, and spilled.
template <Recurrence Form>
__global__ void __launch_bounds__(256, 2)
    recur_forward_simt(const __grid_constant__ RecurCall call, int64_t first) {
  extern __shared__ __align__(16) float s_stage[];
  const Recur& a = call.a;
  const int64_t columns = columns_of(call), slices = (a.e + columns - 1) / columns;
  const int64_t w = first + blockIdx.x, rest = quotient(w, slices);
  const int64_t sequence = quotient(rest, a.heads);
  LaneToken<Form> token;
  float h[R][CW];
  ForwardWalk<Form>(call, a.run[sequence], rest - sequence * a.heads, w - rest * slices, s_stage,
                    token, h)
      .run();
}

template <Recurrence Form>
void recur_forward(Context& ctx, const char* op, const RecurCall& call, int64_t work) {
  if (recur_steps<Form>(ctx, op, call)) return;
  for (int64_t first = 0; first < work; first += INT_MAX)
    launch<recur_forward_simt<Form>>(ctx, op, std::min<int64_t>(work - first, INT_MAX),
                                     32 * call.warps, stage_bytes(call), call, first);
}

}  // namespace fovea::cuda
