// SPDX-License-Identifier: Apache-2.0
// x_conv1d_forward: every dtype, number of taps and stride.
//   y_t = act(bias + sum_u weight[u] x_(t - (T - 1) + u))
// A thread owns a channel, or 16 bytes of neighbouring ones, and a piece of the token axis; it
// keeps the T - 1 tokens before in registers.  Threads of a warp are neighbours in channels. States
// follow in a second launch, as outputs read state_in, which may be state_out.  Where a piece has
// all tokens of its sequence its thread writes them: decode is one launch.
#include "core/dtype.h"
#include "ops/conv1d/channels.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr int kAhead = 4;  // tokens whose loads are in flight at once

struct ForwardCall {
  Conv1d a;
  RunPieces pieces;
  bool fused;  // states with their outputs
  StateLay in, out;
};

__device__ __forceinline__ void all_states(const Conv1d& a, int64_t sequence, int64_t c) {
  const RunTokens q = a.run[sequence];
  for (int64_t item = 0; item < a.state_items(); ++item) a.states(q, item, c);
}

// Outputs of tokens first .. end - 1; `before` then has the last tokens.
template <class T, int Taps, int N>
__device__ __forceinline__ void walk(const ForwardCall& call, const RunTokens& q, int64_t first,
                                     int64_t end, const Filter<Taps, N>& filter, int64_t c,
                                     float (&before)[Taps - 1][N]) {
  const Conv1d& a = call.a;
  load_before<T>(a, call.in, q, first, c, before);
  const T* from = static_cast<const T*>(a.x.data) + a.offset(a.x, q.batch, q.begin + first, c);
  T* to = static_cast<T*>(a.y.data) + a.offset(a.y, q.batch, q.begin + first, c);
  const auto one = [&](const Piece<T, N>& piece) {
    float x[N], y[N];
    widen(piece, x);
    for (int v = 0; v < N; ++v) y[v] = filter.sum(before, x[v], v);
    if (a.silu)
      for (int v = 0; v < N; ++v) y[v] *= sigmoid_of(y[v]);
    store_piece<T>(to, 0, y);
    to += a.y.stride[1];
    shift_in(before, x);
  };
  int left = static_cast<int>(end - first);  // of a piece
  for (; left >= kAhead; left -= kAhead) {
    Piece<T, N> ahead[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i, from += a.x.stride[1]) ahead[i] = piece_at<T, N>(from);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) one(ahead[i]);
  }
  for (; left > 0; --left, from += a.x.stride[1]) one(piece_at<T, N>(from));
}

template <class T, int Taps>
__global__ void __launch_bounds__(kConvThreads, 2)
    conv1d_wide_kernel(const __grid_constant__ ForwardCall call, int64_t work) {
  constexpr int N = 16 / sizeof(T);
  const Conv1d& a = call.a;
  const int64_t groups = a.f / N;
  for (int64_t w = blockIdx.x * int64_t{kConvThreads} + threadIdx.x; w < work;
       w += gridDim.x * int64_t{kConvThreads}) {
    const int64_t c = w % groups * N, piece = w / groups;
    Filter<Taps, N> filter;
    filter.load(a, c);
    float before[Taps - 1][N];
    call.pieces.each(a.run, piece, [&](const RunTokens& q, int64_t first, int64_t end) {
      first = max(first, q.from);
      if (first < end || call.fused) walk<T>(call, q, first, end, filter, c, before);
      if (!call.fused || a.snapshot) return;
      if (const int64_t row = a.run.out_row(piece); row >= 0)
        store_state<T>(a, call.out, row, c, before);
    });
    // Left to write: snapshots with the state, or that of a sequence without tokens.
    if (!call.fused || (!a.snapshot && a.run[piece].count)) continue;
#pragma unroll 1
    for (int v = 0; v < N; ++v) all_states(a, piece, c + v);
  }
}

__global__ void __launch_bounds__(kConvThreads)
    conv1d_kernel(const __grid_constant__ ForwardCall call, int64_t work) {
  const Conv1d& a = call.a;
  for (int64_t w = blockIdx.x * int64_t{kConvThreads} + threadIdx.x; w < work;
       w += gridDim.x * int64_t{kConvThreads}) {
    const int64_t c = w % a.f, piece = w / a.f;
    call.pieces.each(a.run, piece, [&](const RunTokens& q, int64_t first, int64_t end) {
      for (int64_t t = max(first, q.from); t < end; ++t)
        store_float(a.y.data, a.y_dtype, a.offset(a.y, q.batch, q.begin + t, c),
                    a.activated(a.sum_of(q, t, c)));
    });
    if (call.fused) all_states(a, piece, c);
  }
}

__global__ void __launch_bounds__(kConvThreads)
    conv1d_state_kernel(const __grid_constant__ Conv1d a, int64_t work) {
  const int64_t items = a.state_items();
  for (int64_t w = blockIdx.x * int64_t{kConvThreads} + threadIdx.x; w < work;
       w += gridDim.x * int64_t{kConvThreads}) {
    const int64_t rest = w / a.f;
    a.states(a.run[rest / items], rest % items, w % a.f);
  }
}

void enqueue(Context& ctx, const ForwardCall& call, bool wide) {
  constexpr char op[] = "x_conv1d_forward";
  const Conv1d& a = call.a;
  const auto blocks = [](int64_t work) { return ceil_div(work, kConvThreads); };
  if (a.y && wide) {
    with_element(a.dtype, [&](auto element) {
      with_taps(a.taps, [&](auto taps) {
        using T = decltype(element);
        const int64_t work = call.pieces.count * (a.f / static_cast<int64_t>(16 / sizeof(T)));
        launch<conv1d_wide_kernel<T, decltype(taps)::value>>(ctx, op, blocks(work), kConvThreads, 0,
                                                             call, work);
      });
    });
  } else if (a.y) {
    const int64_t work = call.pieces.count * a.f;
    launch<conv1d_kernel>(ctx, op, blocks(work), kConvThreads, 0, call, work);
  }
  if (call.fused || (!a.state_out && !a.snapshot)) return;
  const int64_t work = a.run.count * a.state_items() * a.f;
  launch<conv1d_state_kernel>(ctx, op, blocks(work), kConvThreads, 0, a, work);
}

}  // namespace
}  // namespace cuda

extern const Kernel<Conv1d> conv1d_forward_simt = {
    "simt", [](const Context&, const Conv1d& a, Plan& plan) {
      constexpr int64_t kThreadsWanted = 1 << 18;
      constexpr int64_t kShort = 8;  // tokens that a thread has of a sequence of few
      const int64_t channels = 16 / dtype_bytes(a.dtype);
      const bool wide = a.y_dtype == a.dtype && cuda::in_channel_pieces(a, a.x, channels) &&
                        cuda::in_channel_pieces(a, a.y, channels);
      const int64_t groups = wide ? a.f / channels : a.f;
      cuda::ForwardCall call{a, {}, false, {}, {}};
      call.in = cuda::state_lay(a, a.state_in, a.in_dtype, channels);
      call.out = cuda::state_lay(a, a.state_out, a.out_dtype, channels);
      call.pieces = RunPieces::of(a.run, kThreadsWanted / (groups ? groups : 1),
                                  a.run.start ? 1 : kShort, 64);
      call.fused = a.y && !a.run.start && call.pieces.of_each == 1 && (a.state_out || a.snapshot);
      plan.kernel += cuda::conv1d_name(a, wide);
      plan.launch = [=](Context& ctx, void*) { cuda::enqueue(ctx, call, wide); };
      return Text();
    }};

}  // namespace fovea
