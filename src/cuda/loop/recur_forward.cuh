// SPDX-License-Identifier: Apache-2.0
// A recurrence token by token, core/recur.h: every dtype, width and stride.
// A block owns a slice of value columns of a sequence's state head, recur.cuh.  It reads the state
// once, walks the tokens with the state in registers, and writes it once.
#pragma once
#include <algorithm>
#include <type_traits>

#include "core/locate.h"
#include "cuda/launch.h"
#include "cuda/loop/recur.cuh"
#include "cuda/loop/recur_steps.cuh"

namespace fovea::cuda {

// Lanes: as of LaneOf; then no call interrupts the walk, and nothing is spilled.
template <Recurrence Form, int Lanes = 0>
class ForwardWalk {
 public:
  // Arrays lie in objects of their own: one with other members is kept in memory.
  __device__ ForwardWalk(const RecurCall& call, const RunTokens& q, int64_t head, int64_t slice,
                         float* shared, LaneToken<Form>& token, float (&h)[R][CW])
      : call_(call),
        a_(call.a),
        q_(q),
        slice_(slice),
        lane_(call, head, slice),
        stage_(call, q_, head, slice, shared),
        token_(token),
        h_(h) {}

  // Tokens in turn; of `full` all keys, then rows of q.  One loop has both, so that the state is
  // read and stored at one place each: other copies would be compiled again.
  __device__ __forceinline__ void run() {
    lane_.prefetch_state(q_);
    const Recur::Keys keys = full() ? a_.keys(q_) : Recur::Keys{q_.begin, q_.count};
    const Count end = static_cast<Count>(full() ? keys.count + q_.count : q_.count);
    int staged = fill(keys, 0), i = 0;
    lane_.load_state(q_, h_);
    int64_t next = a_.snapshot ? a_.run.every : INT64_MAX;
    Count kept = 0;
#pragma unroll 1
    for (Count t = 0;; ++t, ++i) {
      if (t == next || t == end) {
        store(t == next, kept, t == end);
        ++kept, next += a_.run.every;
      }
      if (t == end) break;
      if (Lanes == 0 && i == staged) staged = fill(keys, t), i = 0;
      const int64_t row = full() ? t - keys.count : t;
      const bool of_keys = !full() || row < 0;
      step(i, of_keys ? keys.begin + t : q_.begin + row, of_keys, a_.o && row >= q_.from);
    }
  }

 private:
  using Count = std::conditional_t<(Lanes > 0), int, int64_t>;  // one stage's tokens fit an int

  __device__ __forceinline__ bool full() const {
    return kAdditive<Form> && Lanes == 0 && a_.full;
  }
  __device__ __forceinline__ bool read_before() const {
    return kAdditive<Form> && a_.read_before;
  }

  // Stages tokens from the t-th on, of one axis; returns how many.  Lanes: all of them.
  __device__ __forceinline__ int fill(const Recur::Keys& keys, int64_t t) {
    const int64_t row = full() ? t - keys.count : t;
    const bool of_keys = !full() || row < 0;
    const int64_t left = of_keys ? keys.count - t : q_.count - row;
    const int count =
        static_cast<int>(Lanes ? left : min(static_cast<int64_t>(call_.tokens), left));
    stage_.fill(of_keys ? keys.begin + t : q_.begin + row, count, of_keys ? 0 : kQueries,
                a_.o && row + count > q_.from ? stage_.end() : kQueries);
    return count;
  }
  // The state: snapshot `kept`, and what is left at the end.
  __device__ __forceinline__ void store(bool snapshot, Count kept, bool last) const {
    const LaneOf<Lanes> lane(call_, lane_.head, slice_, step_thread());
#pragma unroll 1
    for (int which = 0; which < 2; ++which) {
      const bool of_end = which;
      const Floats<4>& to = of_end ? a_.state_out : a_.snapshot;
      if (!to || !(of_end ? last : snapshot && kept < a_.run.kept)) continue;
      lane.store_state(to, of_end ? call_.out : call_.snapshot,
                       of_end ? a_.run.out_row(q_.sequence) : a_.run.kept_row(q_, kept), h_);
    }
  }
  // Token i of the stage.
  __device__ __forceinline__ void step(int i, int64_t at, bool update, bool out) {
    token_.load(lane_, stage_, q_, i, at);
    constexpr int kUnrolled = kAdditive<Form> ? 1 : 2;
#pragma unroll kUnrolled
    for (int turn = 0; turn < 2; ++turn) {
      if ((turn == 0) == read_before()) {
        if (out) outputs(i, at);
      } else if (update) {
        token_.correct(lane_, h_), token_.add(lane_, h_);
      }
    }
  }
  __device__ __forceinline__ void outputs(int token, int64_t at) {
    const bool fours = call_.fours & kFoursO;
    each_output(call_, stage_, lane_.head, token, at, [&](int64_t output, const float* query) {
      float y[CW], own_column = 0;  // that of the lane along d
      lane_.product(query, h_, y);
      const bool divided = kAdditive<Form> && a_.den, bonus = kAdditive<Form> && a_.bonus;
      const bool skip = kAdditive<Form> && a_.skip;
      const float over = divided ? *a_.den.at(q_.batch, at, output) : 1.f;
      const float own = bonus ? lane_.bonus(query, token_.key) : 0.f;
#pragma unroll
      for (int j = 0; j < CW; ++j) {
        float sum = fmaf(a_.scale, y[j], a_.added);
        if (divided) sum /= over;
        if (bonus) sum += a_.bonus_of(own * token_.value[j]);
        if (skip && lane_.has_column(j))
          sum = fmaf(*a_.skip.at(lane_.head, lane_.first + j), token_.value[j], sum);
        y[j] = sum, own_column = lane_.ld == j ? sum : own_column;
      }
      if (!fours && lane_.ld < CW && lane_.has_column(lane_.ld))
        a_.o.store(own_column, q_.batch, at, output, lane_.first + lane_.ld);
      if (fours && lane_.ld == 0 && lane_.has_column(0))
        store_four(a_.o, a_.o.offset(q_.batch, at, output, lane_.first), y);
    });
  }

  const RecurCall& call_;
  const Recur& a_;
  const RunTokens q_;
  const int64_t slice_;
  const LaneOf<Lanes> lane_;
  Stage<Form, (Lanes > 0)> stage_;
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

// Of whole lanes, all tokens in one stage: decode and drafts that recur_steps.cuh does not serve.
template <Recurrence Form, int Lanes>
__global__ void __launch_bounds__(256, 2) recur_whole_simt(const __grid_constant__ RecurCall call) {
  extern __shared__ __align__(16) float s_stage[];
  const Recur& a = call.a;
  const auto slices = static_cast<uint32_t>(a.e / columns_of(call));
  const uint32_t rest = blockIdx.x / slices, sequence = rest / static_cast<uint32_t>(a.heads);
  LaneToken<Form> token;
  float h[R][CW];
  ForwardWalk<Form, Lanes>(call, a.run[sequence], rest - sequence * static_cast<uint32_t>(a.heads),
                           blockIdx.x - rest * slices, s_stage, token, h)
      .run();
}

inline bool serves_whole(const RecurCall& call) {
  const Recur& a = call.a;
  const auto any = [](const Floats<4>& x, StateOrder order) {
    return x && order == StateOrder::any;
  };
  return call.whole && call.queries >= a.outputs() && a.run.token_max <= call.tokens && !a.full &&
         !a.gate_value && !any(a.state_in, call.in) && !any(a.state_out, call.out) &&
         !any(a.snapshot, call.snapshot);
}

template <Recurrence Form>
void recur_forward(Context& ctx, const char* op, const RecurCall& call, int64_t work) {
  const auto whole = [&]<int Lanes> {
    launch<recur_whole_simt<Form, Lanes>>(ctx, op, work, 32 * call.warps, stage_bytes(call), call);
  };
  if (recur_steps<Form>(ctx, op, call)) return;
  if (work <= INT_MAX && serves_whole(call)) {
    if (call.lanes == 4) return whole.template operator()<4>();
    if (call.lanes == 8) return whole.template operator()<8>();
  }
  for (int64_t first = 0; first < work; first += INT_MAX)
    launch<recur_forward_simt<Form>>(ctx, op, std::min<int64_t>(work - first, INT_MAX),
                                     32 * call.warps, stage_bytes(call), call, first);
}

}  // namespace fovea::cuda
