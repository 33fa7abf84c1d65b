// SPDX-License-Identifier: Apache-2.0
// Gradients of a recurrence, core/recur.h, token by token: every dtype, width and stride.
//   W = dstate_out; for tokens from the last on: W += scale q^' dy, dq^ = scale dy H_t', then the
//   adjoint of one update, whose formulas are in experimental/linear.h
// A block owns a slice of value columns of a sequence's state head, recur.cuh.  Registers hold W,
// and H of one token.  The block walks its tokens once and keeps the state of every `step` tokens.
// Then it takes pieces of `step` tokens from the last to the first, makes their states again, and
// reads them backwards.  States lie in the block's own part of the workspace.
// Sums over columns meet in shared memory, two buffers in turn, and are added warp by warp.
// Terms go to the workspace, core/recur_gradients.h.
#pragma once
#include "core/locate.h"
#include "cuda/launch.h"
#include "cuda/loop/recur.cuh"

namespace fovea::cuda {

constexpr int kRowSums = 4;  // dk, dg, dp, db

// Sums over the columns of a block, in two buffers in turn.
class ColumnSums {
 public:
  __device__ ColumnSums(const RecurCall& call, float* shared)
      : rows_(rows_of(call)), warps_(call.warps), shared_(shared) {}

  static FOVEA_HD int64_t floats(const RecurCall& call) {
    return 2 * call.warps * (kRowSums * rows_of(call) + 4);
  }

  __device__ __forceinline__ void give(const Lane& lane, int which, const float (&x)[R]) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const float sum = lane.over_columns(x[r]);
      if (lane.le == 0) row(which, threadIdx.x / 32)[lane.row(r)] = sum;
    }
  }
  // A number of the lane's columns, the same in all lanes along d.
  __device__ __forceinline__ void give_one(const Lane& lane, float x) {
    x = lane.over_columns(x);
    if (threadIdx.x % 32 == 0) single()[threadIdx.x / 32] = x;
  }
  __device__ __forceinline__ void meet() {
    __syncthreads();
  }
  // What the warps gave, to d floats; nullptr: nowhere.
  __device__ __forceinline__ void take(int which, int64_t d, float* to) const {
    if (!to) return;
    for (int64_t c = threadIdx.x; c < d; c += blockDim.x) {
      float sum = 0;
      for (int w = 0; w < warps_; ++w) sum += row(which, w)[c];
      to[c] = sum;
    }
  }
  __device__ __forceinline__ void take_one(float* to) const {
    if (!to || threadIdx.x) return;
    float sum = 0;
    for (int w = 0; w < warps_; ++w) sum += single()[w];
    *to = sum;
  }
  __device__ __forceinline__ void turn() {
    buffer_ ^= 1;
  }

 private:
  __device__ __forceinline__ float* base() const {
    return shared_ + buffer_ * warps_ * (kRowSums * rows_ + 4);
  }
  __device__ __forceinline__ float* row(int which, int warp) const {
    return base() + (which * warps_ + warp) * rows_;
  }
  __device__ __forceinline__ float* single() const {
    return base() + kRowSums * warps_ * rows_;
  }

  const int rows_, warps_;
  float* const shared_;
  int buffer_ = 0;
};

template <Recurrence Form>
class BackwardWalk {
  static constexpr bool kCorrected = Form == Recurrence::corrected;
  static constexpr bool kLow = Form == Recurrence::low_rank;

 public:
  __device__ BackwardWalk(const RecurBackwardCall& call, const RunTokens& q, int64_t head,
                          int64_t slice, float* shared)
      : call_(call),
        b_(call.b),
        a_(call.call.a),
        q_(q),
        lane_(call.call, head, slice),
        stage_(call.call, q_, head, slice, shared + ColumnSums::floats(call.call)),
        plane_(call.plane + slice),
        sums_(call.call, shared),
        states_(call.states + blockIdx.x * (call.pieces + call.step) * state_size()) {}

  __device__ void run() {
    lane_.load_state(q_, h_);
    load_gradient();
    if (a_.full) return full();
    const int64_t step = call_.step, pieces = (q_.count + step - 1) / step;
    // The state before each piece; the last piece's tokens are not needed yet.
    forward(0, (pieces - 1) * step, step, 0);
    if (pieces) keep(pieces - 1);
    for (int64_t piece = pieces; piece-- > 0;) {
      const int64_t begin = piece * step, end = min(q_.count, begin + step);
      take(piece);
      forward(begin, end - 1, 1, call_.pieces);
      keep(call_.pieces + end - 1 - begin);
      for (int64_t last = end; last > begin;) {
        const int64_t first = max(begin, last - call_.call.tokens);
        stage_.fill(q_.begin + first, static_cast<int>(last - first), 0, stage_.end());
        for (int64_t t = last; t-- > first;) {
          take(call_.pieces + t - begin);
          backward(t, static_cast<int>(t - first), call_.pieces + t - begin);
        }
        last = first;
      }
    }
    store_gradient();
  }

 private:
  static __device__ __forceinline__ int64_t state_size() { return R * CW * blockDim.x; }
  // H of the lane, to and from the block's states.
  __device__ __forceinline__ void keep(int64_t slot) {
    float* to = states_ + slot * state_size() + threadIdx.x * CW;
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int j = 0; j < CW; ++j) to[r * CW * blockDim.x + j] = h_[r][j];
  }
  __device__ __forceinline__ void take(int64_t slot) {
    const float* from = states_ + slot * state_size() + threadIdx.x * CW;
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int j = 0; j < CW; ++j) h_[r][j] = from[r * CW * blockDim.x + j];
  }
  // Tokens begin .. end - 1.  The state before every `every`th is kept, from `slot` on.
  __device__ __noinline__ void forward(int64_t begin, int64_t end, int64_t every, int64_t slot) {
    for (int64_t t0 = begin; t0 < end; t0 += call_.call.tokens) {
      const int tokens = static_cast<int>(min(static_cast<int64_t>(call_.call.tokens), end - t0));
      stage_.fill(q_.begin + t0, tokens, 0, kQueries);
      for (int i = 0; i < tokens; ++i) {
        if ((t0 + i - begin) % every == 0) keep(slot++);
        update(i, q_.begin + t0 + i);
      }
    }
  }
  __device__ __forceinline__ void update(int token, int64_t at) {
    token_.load(lane_, stage_, q_, token, at);
    token_.correct(lane_, h_), token_.add(lane_, h_);
  }
  __device__ void load_gradient() {
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int j = 0; j < CW; ++j)
        w_[r][j] = b_.dstate_out && lane_.has(r) && lane_.has_column(j)
                       ? *b_.dstate_out.at(q_.sequence, lane_.head, lane_.row(r), lane_.first + j)
                       : 0.f;
  }
  __device__ void store_gradient() const {
    if (!b_.dstate_in) return;
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int j = 0; j < CW; ++j)
        if (lane_.has(r) && lane_.has_column(j))
          *b_.dstate_in.at(q_.sequence, lane_.head, lane_.row(r), lane_.first + j) = w_[r][j];
  }
  __device__ __forceinline__ int64_t row_of(int64_t rows, int64_t at) const {
    return (plane_ * a_.b + q_.batch) * rows + at;
  }

  // dq^ of an output, `y` reads the state that it read.  W takes what the output adds, `dv` what
  // its bonus does.
  template <class Read>
  __device__ __forceinline__ void outputs(int64_t t, int token, Read read, float (&dv)[CW]) {
    const int64_t at = q_.begin + t;
    const bool there = t >= q_.from;
    each_output(call_.call, stage_, lane_.head, token, at, [&](int64_t output, const float* query) {
      float dy[CW], dq[R];
#pragma unroll
      for (int j = 0; j < CW; ++j)
        dy[j] = there && lane_.has_column(j) ? a_.o(q_.batch, at, output, lane_.first + j) : 0.f;
      if (a_.bonus) {
        const float own = lane_.bonus(query, token_.key);
        float de = 0;
#pragma unroll
        for (int j = 0; j < CW; ++j) {
          const float slope = dy[j] * a_.bonus_slope(own * token_.value[j]);
          de = fmaf(slope, token_.value[j], de), dv[j] = fmaf(own, slope, dv[j]);
        }
        sums_.give_one(lane_, de);
      }
      const float factor = a_.den && there ? a_.scale / *a_.den.at(q_.batch, at, output) : a_.scale;
#pragma unroll
      for (int j = 0; j < CW; ++j) dy[j] = there ? dy[j] * factor : 0.f;
      read(dy, dq);
      if (there) lane_.add(query, dy, 1, w_);
#pragma unroll
      for (int r = 0; r < R; ++r) dq[r] = there ? dq[r] : 0.f;
      sums_.give(lane_, 0, dq);
      sums_.meet();
      const int64_t row = row_of(a_.s, at) * a_.heads_out + output;
      sums_.take(0, a_.d, b_.terms.dq + row * a_.d);
      if (a_.bonus) sums_.take_one(b_.terms.de + row);
      sums_.turn();
    });
  }

  // h_ is the state before token t, which `slot` keeps.
  __device__ __forceinline__ void backward(int64_t t, int token, int64_t slot) {
    const int64_t at = q_.begin + t;
    float extra[CW] = {}, du[CW];
    token_.load(lane_, stage_, q_, token, at);
    token_.correct(lane_, h_);
    if (!a_.read_before)
      outputs(
          t, token, [&](const float(&dy)[CW], float(&dq)[R]) { after(dy, dq); }, extra);
    adjoint(at, slot, du);
    if (a_.read_before) {
      take(slot);
      outputs(
          t, token, [&](const float(&dy)[CW], float(&dq)[R]) { along_columns(h_, dy, dq); }, extra);
    }
    store_dv(at, du, extra, kCorrected ? token_.beta : 1.f);
  }
  // dy H_t', where h_ is H~.
  __device__ __forceinline__ void after(const float (&dy)[CW], float (&to)[R]) const {
    float along_u = 0, along_z = 0;
#pragma unroll
    for (int j = 0; j < CW; ++j) {
      along_u = fmaf(dy[j], token_.u[j], along_u);
      if constexpr (kLow) along_z = fmaf(dy[j], token_.z[j], along_z);
    }
    along_columns(h_, dy, to);
    lane_.each(token_.key, [&](int r, float x) { to[r] = fmaf(x, along_u, to[r]); });
    if constexpr (kLow)
      lane_.each(token_.low_b, [&](int r, float x) { to[r] = fmaf(x, along_z, to[r]); });
  }
  __device__ __forceinline__ void store_dv(int64_t at, const float (&du)[CW],
                                           const float (&extra)[CW], float beta) const {
    if (!a_.v) return;
    float* to = b_.terms.dv + ((q_.batch * a_.t + at) * a_.heads + lane_.head) * a_.e + lane_.first;
#pragma unroll
    for (int j = 0; j < CW; ++j)
      if (lane_.ld == j && lane_.has_column(j)) to[j] = fmaf(beta, du[j], extra[j]);
  }

  // W of the state after the token becomes that of the state before; h_ is H~.
  __device__ __forceinline__ void adjoint(int64_t at, int64_t slot, float (&du)[CW]) {
    const int64_t row = row_of(a_.t, at) * a_.heads + lane_.head;
    lane_.product(token_.key, w_, du);
    float dz[CW], x[R];
    if constexpr (kLow) lane_.product(token_.low_b, w_, dz);
    along_columns(w_, token_.u, x);
    sums_.give(lane_, 0, x);
    if constexpr (kCorrected) {
      along_columns(h_, du, x);
#pragma unroll
      for (int r = 0; r < R; ++r) x[r] = -x[r];
      sums_.give(lane_, 2, x);
      lane_.add(token_.correction, du, -1, w_);
      float dbeta = 0;
#pragma unroll
      for (int j = 0; j < CW; ++j) dbeta = fmaf(du[j], token_.value[j], dbeta);
      sums_.give_one(lane_, dbeta);
    }
    if constexpr (kLow) {
      along_columns(w_, token_.z, x);
      sums_.give(lane_, 3, x);
    }
    gates(at);
    if constexpr (kLow) {
      take(slot);
      along_columns(h_, dz, x);
      sums_.give(lane_, 2, x);
    }
    lane_.shrink(token_.decay, token_.column, token_.zeros, w_);
    if constexpr (kLow) lane_.add(token_.correction, dz, 1, w_);
    sums_.meet();
    sums_.take(0, a_.d, b_.terms.dk + row * a_.d);
    if (a_.row_gates()) sums_.take(1, a_.d, b_.terms.dg + row * a_.d);
    if constexpr (kCorrected || kLow) sums_.take(2, a_.d, b_.terms.dp + row * a_.d);
    if constexpr (kLow) sums_.take(3, a_.d, b_.terms.db + row * a_.d);
    if constexpr (kCorrected) sums_.take_one(b_.terms.dbeta + row);
    sums_.turn();
  }
  __device__ __forceinline__ void along_columns(const float (&m)[R][CW], const float (&y)[CW],
                                                float (&to)[R]) const {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      to[r] = 0;
#pragma unroll
      for (int j = 0; j < CW; ++j) to[r] = fmaf(m[r][j], y[j], to[r]);
    }
  }
  // Of the logs of decays: H~ . W, 0 where nothing is left of the state.
  __device__ __forceinline__ void gates(int64_t at) {
    if (!a_.row_gates() && !a_.gate_value) return;
    float of_row[R], of_column[CW] = {};
    lane_.each(token_.decay, [&](int r, float value) {
      of_row[r] = 0;
#pragma unroll
      for (int j = 0; j < CW; ++j) {
        const float decay = a_.gate_value ? value * token_.column[j] : value;
        const float x = decay == 0 ? 0.f : h_[r][j] * w_[r][j];
        of_row[r] += x, of_column[j] += x;
      }
    });
    if (a_.row_gates()) sums_.give(lane_, 1, of_row);
    if (!a_.gate_value) return;
    float* to =
        b_.terms.dgv + ((q_.batch * a_.s + at) * a_.heads + lane_.head) * a_.e + lane_.first;
#pragma unroll
    for (int j = 0; j < CW; ++j) {
      const float sum = lane_.over_rows(of_column[j]);
      if (lane_.ld == j && lane_.has_column(j)) to[j] = sum;
    }
  }

  // Visits the tokens first .. end - 1 of an axis, rows [low, high) of them staged.
  template <class Visit>
  __device__ __forceinline__ void each_staged(int64_t begin, int64_t count, int low, int high,
                                              Visit visit) {
    for (int64_t t0 = 0; t0 < count; t0 += call_.call.tokens) {
      const int tokens = static_cast<int>(min(static_cast<int64_t>(call_.call.tokens), count - t0));
      stage_.fill(begin + t0, tokens, low, high);
      for (int i = 0; i < tokens; ++i) visit(t0 + i, i);
    }
  }
  __device__ void full() {
    const Recur::Keys keys = a_.keys(q_);
    float du[CW], none[CW] = {}, x[R];
    each_staged(keys.begin, keys.count, 0, kQueries,
                [&](int64_t t, int token) { update(token, keys.begin + t); });
    each_staged(q_.begin, q_.count, kQueries, stage_.end(), [&](int64_t t, int token) {
      outputs(
          t, token, [&](const float(&dy)[CW], float(&dq)[R]) { along_columns(h_, dy, dq); }, none);
    });
    each_staged(keys.begin, keys.count, 0, kQueries, [&](int64_t t, int token) {
      const int64_t at = keys.begin + t;
      token_.load(lane_, stage_, q_, token, at);
      lane_.product(token_.key, w_, du);
      along_columns(w_, token_.value, x);
      sums_.give(lane_, 0, x);
      sums_.meet();
      sums_.take(0, a_.d, b_.terms.dk + (row_of(a_.t, at) * a_.heads + lane_.head) * a_.d);
      sums_.turn();
      store_dv(at, du, none, 1);
    });
    store_gradient();
  }

  const RecurBackwardCall& call_;
  const RecurBackward& b_;
  const Recur& a_;
  const RunTokens q_;
  const Lane lane_;
  Stage stage_;
  const int64_t plane_;
  ColumnSums sums_;
  LaneToken<Form> token_;
  float* states_;
  float h_[R][CW], w_[R][CW];
};

template <Recurrence Form>
__global__ void __launch_bounds__(256, 1)
    recur_backward_simt(const __grid_constant__ RecurBackwardCall call, int64_t work) {
  extern __shared__ __align__(16) float s_sums[];
  const Recur& a = call.call.a;
  const int64_t columns = columns_of(call.call), slices = (a.e + columns - 1) / columns;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t slice = w % slices, head = w / slices % a.heads;
    BackwardWalk<Form>(call, a.run[w / slices / a.heads], head, slice, s_sums).run();
    __syncthreads();
  }
}

template <Recurrence Form>
void recur_backward(Context& ctx, const char* op, const RecurBackwardCall& call, int64_t blocks,
                    int64_t work) {
  constexpr auto kernel = recur_backward_simt<Form>;
  const int64_t shared =
      ColumnSums::floats(call.call) * static_cast<int64_t>(sizeof(float)) + stage_bytes(call.call);
  if (shared > 32 * 1024) allow_shared<kernel>(ctx, op);
  kernel<<<grid_of(blocks), static_cast<unsigned>(32 * call.call.warps),
           static_cast<size_t>(shared), stream(ctx)>>>(call, work);
  check(cudaGetLastError(), op);
}

}  // namespace fovea::cuda
