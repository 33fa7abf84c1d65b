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

// Each inlined part is called at one place: a second copy of outputs() or adjoint() is a quarter of
// the kernel, and of the time that it takes to compile.
template <Recurrence Form>
class BackwardWalk {
  static constexpr bool kCorrected = Form == Recurrence::corrected;
  static constexpr bool kLow = Form == Recurrence::low_rank;

 public:
  // Arrays lie in objects of their own: one with other members is kept in memory.
  __device__ BackwardWalk(const RecurBackwardCall& call, const RunTokens& q, int64_t head,
                          int64_t slice, float* shared, LaneToken<Form>& token, float (&h)[R][CW],
                          float (&w)[R][CW])
      : call_(call),
        b_(call.b),
        a_(call.call.a),
        q_(q),
        lane_(call.call, head, slice),
        stage_(call.call, q_, head, slice, shared + ColumnSums::floats(call.call)),
        plane_(call.plane + slice),
        sums_(call.call, shared),
        states_(call.states + blockIdx.x * (call.pieces + call.step) * state_size()),
        token_(token),
        h_(h),
        w_(w) {}

  __device__ __forceinline__ void run() {
    load(a_.state_in, q_.state, h_);
    load({b_.dstate_out, FOVEA_F32}, q_.sequence, w_);
    const int64_t pieces = (q_.count + call_.step - 1) / call_.step;
    for (int64_t left = full() ? 2 : pieces; left >= 0; --left) {
      const Round x = full() ? full_round(left) : causal_round(left, pieces);
      forward(x);
      reverse(x);
    }
    store_gradient();
  }

 private:
  // Tokens begin .. made - 1 of an axis are added to the state, begin .. end - 1 are read.
  struct Round {
    int64_t first;  // where the axis begins
    int64_t begin, made, end;
    int64_t every, slot;     // the state before each `every`th is kept, from `slot` on
    bool outputs, gradient;  // what is read: rows of q and dout, keys and values
  };
  __device__ __forceinline__ bool full() const { return kAdditive<Form> && a_.full; }
  __device__ __forceinline__ bool read_before() const { return kAdditive<Form> && a_.read_before; }

  // First the state before each piece is made, then pieces from the last to the first.
  __device__ __forceinline__ Round causal_round(int64_t left, int64_t pieces) {
    const int64_t step = call_.step, begin = left * step;
    if (left == pieces) return {q_.begin, 0, begin - step, 0, step, 0, true, true};
    take(left, h_);
    const int64_t end = min(q_.count, begin + step);
    return {q_.begin, begin, end - 1, end, 1, call_.pieces, true, true};
  }
  // The state of all keys; then rows of q, and keys.
  __device__ __forceinline__ Round full_round(int64_t left) const {
    const Recur::Keys keys = a_.keys(q_);
    if (left == 2) return {keys.begin, 0, keys.count, 0, INT64_MAX, 0, false, false};
    if (left == 1) return {q_.begin, 0, 0, q_.count, 1, 0, true, false};
    return {keys.begin, 0, 0, keys.count, 1, 0, false, true};
  }

  static __device__ __forceinline__ int64_t state_size() { return R * CW * blockDim.x; }
  // Where row 0 of the lane's tile is; row r lies 32 r pieces after it.
  __device__ __forceinline__ float4* kept(int64_t slot) const {
    return reinterpret_cast<float4*>(states_ + slot * state_size()) + threadIdx.x / 32 * (32 * R) +
           threadIdx.x % 32;
  }
  // The lane's part of a state, to and from the block's states.
  __device__ __forceinline__ void keep(int64_t slot, const float (&h)[R][CW]) const {
    float4* to = kept(slot);
#pragma unroll
    for (int r = 0; r < R; ++r) to[32 * r] = make_float4(h[r][0], h[r][1], h[r][2], h[r][3]);
  }
  __device__ __forceinline__ void take(int64_t slot, float (&h)[R][CW]) const {
    const float4* from = kept(slot);
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const float4 x = from[32 * r];
      h[r][0] = x.x, h[r][1] = x.y, h[r][2] = x.z, h[r][3] = x.w;
    }
  }
  // Tensors are read and written by way of slot 0, in loops: code over registers is unrolled.
  __device__ __forceinline__ void load(const Floats<4>& x, int64_t row, float (&h)[R][CW]) const {
    const bool there = x && row >= 0;
    const int64_t base = x.offset(there ? row : 0, lane_.head, 0, lane_.first);
#pragma unroll 4
    for (int r = 0; r < R; ++r) {
      float four[CW];
#pragma unroll
      for (int j = 0; j < CW; ++j) {
        const int64_t offset = base + lane_.row(r) * x.view.stride[2] + j * x.view.stride[3];
        four[j] = 0;
        if (there && lane_.has(r) && lane_.has_column(j))
          four[j] = load_fp(x.view.data, x.dtype, offset);
      }
      kept(0)[32 * r] = make_float4(four[0], four[1], four[2], four[3]);
    }
    take(0, h);
  }
  __device__ __forceinline__ void store_gradient() const {
    if (!b_.dstate_in) return;
    keep(0, w_);
#pragma unroll 4
    for (int r = 0; r < R; ++r) {
      const float4 x = kept(0)[32 * r];
      const float four[CW] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int j = 0; j < CW; ++j)
        if (lane_.has(r) && lane_.has_column(j))
          *b_.dstate_in.at(q_.sequence, lane_.head, lane_.row(r), lane_.first + j) = four[j];
    }
  }
  __device__ __forceinline__ int staged(int64_t count) const {
    return static_cast<int>(min(static_cast<int64_t>(call_.call.tokens), count));
  }
  // The state after the last token is kept too, for causal rounds to read.
  __device__ __forceinline__ void forward(const Round& x) {
    int64_t slot = x.slot, wait = 0;
    for (int64_t t0 = x.begin; t0 < x.made; t0 += call_.call.tokens) {
      const int tokens = staged(x.made - t0);
      stage_.fill(x.first + t0, tokens, 0, kQueries);
      for (int i = 0; i < tokens; ++i) {
        if (wait == 0) keep(slot++, h_), wait = x.every;
        --wait;
        token_.load(lane_, stage_, q_, i, x.first + t0 + i);
        token_.correct(lane_, h_), token_.add(lane_, h_);
      }
    }
    if (!full()) keep(slot, h_);
  }
  // Backwards where states change; without them dout is added to W in the order of rows.
  __device__ __forceinline__ void reverse(const Round& x) {
    const int low = x.gradient ? 0 : kQueries, high = x.outputs ? stage_.end() : kQueries;
    for (int64_t done = 0; done < x.end - x.begin; done += call_.call.tokens) {
      const int tokens = staged(x.end - x.begin - done);
      const int64_t t0 = x.gradient ? x.end - done - tokens : x.begin + done;
      stage_.fill(x.first + t0, tokens, low, high);
      for (int i = 0; i < tokens; ++i) {
        const int token = x.gradient ? tokens - 1 - i : i;
        backward(x, x.first + t0 + token, token, x.slot + t0 + token - x.begin);
      }
    }
  }
  __device__ __forceinline__ bool bonus() const {
    return kAdditive<Form> && a_.bonus;
  }
  __device__ __forceinline__ bool by_column() const {
    return token_.by_column(lane_);
  }
  __device__ __forceinline__ int64_t row_of(int64_t rows, int64_t at) const {
    return (plane_ * a_.b + q_.batch) * rows + at;
  }

  // dq^ of a token's outputs.  W takes what they add, `dv` what their bonus does.
  __device__ __forceinline__ void outputs(int64_t at, int token, float (&dv)[CW]) {
    const bool there = at - q_.begin >= q_.from;
    each_output(call_.call, stage_, lane_.head, token, at, [&](int64_t output, const float* query) {
      float dy[CW], dq[R];
#pragma unroll
      for (int j = 0; j < CW; ++j)
        dy[j] = there && lane_.has_column(j) ? a_.o(q_.batch, at, output, lane_.first + j) : 0.f;
      if (bonus()) {
        const float own = lane_.bonus(query, token_.key);
        float de = 0;
#pragma unroll
        for (int j = 0; j < CW; ++j) {
          const float slope = dy[j] * a_.bonus_slope(own * token_.value[j]);
          de = fmaf(slope, token_.value[j], de), dv[j] = fmaf(own, slope, dv[j]);
        }
        sums_.give_one(lane_, de);
      }
      const float factor = kAdditive<Form> && a_.den && there
                               ? a_.scale / *a_.den.at(q_.batch, at, output)
                               : a_.scale;
#pragma unroll
      for (int j = 0; j < CW; ++j) dy[j] = there ? dy[j] * factor : 0.f;
      read_state(dy, dq);
      if (there) lane_.add(query, dy, 1, w_);
#pragma unroll
      for (int r = 0; r < R; ++r) dq[r] = there ? dq[r] : 0.f;
      sums_.give(lane_, 0, dq);
      sums_.meet();
      const int64_t row = row_of(a_.s, at) * a_.heads_out + output;
      sums_.take(0, a_.d, b_.terms.dq + row * a_.d);
      if (bonus()) sums_.take_one(b_.terms.de + row);
      sums_.turn();
    });
  }

  // Of causal rounds `slot` keeps the state before the token.
  __device__ __forceinline__ void backward(const Round& x, int64_t at, int token, int64_t slot) {
    float extra[CW] = {}, du[CW];
    if (!full()) take(slot, h_);
    if (x.gradient) token_.load(lane_, stage_, q_, token, at), token_.correct(lane_, h_);
    constexpr int kUnrolled = kAdditive<Form> ? 1 : 2;
#pragma unroll kUnrolled
    for (int turn = 0; turn < 2; ++turn) {
      if ((turn == 1) == read_before()) {
        if (read_before()) take(slot, h_);
        if (x.outputs) outputs(at, token, extra);
      } else if (x.gradient) {
        adjoint(at, slot, du);
      }
    }
    if (x.gradient) store_dv(at, du, extra, kCorrected ? token_.beta : 1.f);
  }
  // dy H of the state that outputs read; that after the token is H~ and the update.
  __device__ __forceinline__ void read_state(const float (&dy)[CW], float (&to)[R]) const {
    along_columns(h_, dy, to);
    if (read_before() || full()) return;
    float along_u = 0, along_z = 0;
#pragma unroll
    for (int j = 0; j < CW; ++j) {
      along_u = fmaf(dy[j], token_.u[j], along_u);
      if constexpr (kLow) along_z = fmaf(dy[j], token_.z[j], along_z);
    }
    lane_.each(token_.key, [&](int r, float x) { to[r] = fmaf(x, along_u, to[r]); });
    if constexpr (kLow)
      lane_.each(token_.low_b, [&](int r, float x) { to[r] = fmaf(x, along_z, to[r]); });
  }
  __device__ __forceinline__ void store_dv(int64_t at, const float (&du)[CW],
                                           const float (&extra)[CW], float beta) const {
    if (!a_.v) return;
    float* to = b_.terms.dv + ((q_.batch * a_.t + at) * a_.heads + lane_.head) * a_.e + lane_.first;
    store_columns(to, [&](int j) { return fmaf(beta, du[j], extra[j]); });
  }
  // of(j) of each column, by a lane along d.
  template <class Of>
  __device__ __forceinline__ void store_columns(float* to, Of of) const {
    float own = 0;
#pragma unroll
    for (int j = 0; j < CW; ++j) {
      const float x = of(j);
      own = lane_.ld == j ? x : own;
    }
    if (lane_.ld < CW && lane_.has_column(lane_.ld)) to[lane_.ld] = own;
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
      take(slot, h_);
      along_columns(h_, dz, x);
      sums_.give(lane_, 2, x);
    }
    lane_.shrink(token_.decay, token_.column, by_column(), token_.zeros, w_);
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
    if (!a_.row_gates() && !by_column()) return;
    float of_row[R], of_column[CW] = {};
    lane_.each(token_.decay, [&](int r, float value) {
      of_row[r] = 0;
#pragma unroll
      for (int j = 0; j < CW; ++j) {
        const float decay = by_column() ? value * token_.column[j] : value;
        // Rounded: not fused with one of the two sums.
        const float x = decay == 0 ? 0.f : __fmul_rn(h_[r][j], w_[r][j]);
        of_row[r] += x, of_column[j] += x;
      }
    });
    if (a_.row_gates()) sums_.give(lane_, 1, of_row);
    if (!by_column()) return;
    float* to =
        b_.terms.dgv + ((q_.batch * a_.s + at) * a_.heads + lane_.head) * a_.e + lane_.first;
    store_columns(to, [&](int j) { return lane_.over_rows(of_column[j]); });
  }

  const RecurBackwardCall& call_;
  const RecurBackward& b_;
  const Recur& a_;
  const RunTokens q_;
  const Lane lane_;
  Stage<Form> stage_;
  const int64_t plane_;
  ColumnSums sums_;
  float* const states_;
  LaneToken<Form>& token_;
  float (&h_)[R][CW], (&w_)[R][CW];
};

template <Recurrence Form>
__global__ void __launch_bounds__(256, 1)
    recur_backward_simt(const __grid_constant__ RecurBackwardCall call, int64_t work) {
  extern __shared__ __align__(16) float s_sums[];
  const Recur& a = call.call.a;
  const int64_t columns = columns_of(call.call), slices = (a.e + columns - 1) / columns;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t rest = quotient(w, slices), sequence = quotient(rest, a.heads);
    LaneToken<Form> token;
    float h[R][CW], gradient[R][CW];
    BackwardWalk<Form>(call, a.run[sequence], rest - sequence * a.heads, w - rest * slices, s_sums,
                       token, h, gradient)
        .run();
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
