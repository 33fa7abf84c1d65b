// SPDX-License-Identifier: Apache-2.0
// x_conv1d_backward: every dtype, number of taps and stride.
//   dz_t = dy_t act'(z_t),  dx_t = sum_u weight[u] dz_(t + T - 1 - u) + dstate_out
//   dweight[u] = sum_t dz_t x_(t - (T - 1) + u),  dbias = sum_t dz_t
// A thread owns a channel, or four neighbours, and a piece of the token axis.  Four neighbours walk
// T - 1 tokens further than the piece, with the last T of dz in registers, and leave the piece's
// sums in the workspace.  A block then adds the parts of 32 channels in a fixed order.
#include "core/dtype.h"
#include "cuda/loop/zero.cuh"
#include "ops/conv1d/channels.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr int kChannels = 4;  // of a thread
constexpr int kAhead = 2;     // tokens whose loads are in flight at once
constexpr int kSlices = 16;   // of a block that adds parts

struct BackwardCall {
  Conv1dBackward b;
  RunPieces pieces;
  float* parts;  // (pieces, taps + 1, f)
  float* sums;   // (taps + 1, f)
};

// The gradients of a piece: sums of dweight and dbias in registers.
template <class T, int Taps>
struct Walk {
  static constexpr int N = kChannels;
  const Conv1dBackward& b;
  const Filter<Taps, N>& filter;
  int64_t c;
  float dweight[Taps][N], dbias[N];

  __device__ __forceinline__ void sequence(const RunTokens& q, int64_t first, int64_t end) {
    const Conv1d& a = b.forward;
    float before[Taps - 1][N], dz[Taps][N] = {};
    load_before<T>(a, StateLay::elements, q, first, c, before);
    const T* x = static_cast<const T*>(a.x.data) + a.offset(a.x, q.batch, q.begin + first, c);
    const T* dy = static_cast<const T*>(a.y.data) + a.offset(a.y, q.batch, q.begin + first, c);
    // Tokens from `first` on: those of the piece, of the walk, those there are, and the first
    // output.
    const int own = static_cast<int>(end - first), steps = b.dx ? own + Taps - 1 : own;
    const int there = static_cast<int>(min(q.count - first, int64_t{steps}));
    const int from = static_cast<int>(clamp_i64(q.from - first, 0, steps));
    for (int t = 0; t < steps; t += kAhead) {
      Piece<T, N> next[kAhead] = {}, slope[kAhead] = {};
#pragma unroll
      for (int i = 0; i < kAhead; ++i, x += a.x.stride[1], dy += a.y.stride[1]) {
        if (t + i < there) next[i] = piece_at<T, N>(x);
        if (t + i < there && t + i >= from) slope[i] = piece_at<T, N>(dy);
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const bool counts = t + i >= from && t + i < there;
        float now[N], by[N];
        widen(next[i], now), widen(slope[i], by);
        if (a.silu && counts)
          for (int v = 0; v < N; ++v) by[v] *= a.slope(filter.sum(before, now[v], v));
        if (counts && t + i < own) add(before, now, by);
        shift_in(dz, by), shift_in(before, now);
        const int to = t + i - (Taps - 1);
        if (b.dx && to >= 0 && to < own) store(q, first + to, dz);
      }
    }
  }

 private:
  __device__ __forceinline__ void add(const float (&before)[Taps - 1][N], const float (&now)[N],
                                      const float (&slope)[N]) {
    for (int v = 0; v < N; ++v) {
      for (int u = 0; u < Taps - 1; ++u)
        dweight[u][v] = fmaf(slope[v], before[u][v], dweight[u][v]);
      dweight[Taps - 1][v] = fmaf(slope[v], now[v], dweight[Taps - 1][v]);
      dbias[v] += slope[v];
    }
  }
  // dz has tokens t .. t + Taps - 1.
  __device__ __forceinline__ void store(const RunTokens& q, int64_t t, const float (&dz)[Taps][N]) {
    const Conv1d& a = b.forward;
    float sum[N] = {};
    if (b.dstate_out && t > q.count - Taps)
      for (int v = 0; v < N; ++v) sum[v] = b.from_state(q, t, c + v);
    for (int v = 0; v < N; ++v)
      for (int u = 0; u < Taps; ++u)
        sum[v] = fmaf(dz[Taps - 1 - u][v], filter.weight[u][v], sum[v]);
    store_piece<T>(b.dx.data, a.offset(b.dx, q.batch, q.begin + t, c), sum);
  }
};

template <class T, int Taps>
__global__ void __launch_bounds__(kConvThreads, 2)
    conv1d_backward_wide_kernel(const __grid_constant__ BackwardCall call, int64_t work) {
  const Conv1d& a = call.b.forward;
  const int64_t groups = a.f / kChannels;
  for (int64_t w = blockIdx.x * int64_t{kConvThreads} + threadIdx.x; w < work;
       w += gridDim.x * int64_t{kConvThreads}) {
    const int64_t c = w % groups * kChannels, piece = w / groups;
    Filter<Taps, kChannels> filter;
    filter.load(a, c);
    Walk<T, Taps> walk{call.b, filter, c, {}, {}};
    call.pieces.each(a.run, piece, [&](const RunTokens& q, int64_t first, int64_t end) {
      walk.sequence(q, first, end);
    });
    if (!call.parts) continue;
    const int64_t part = piece * (Taps + 1) * a.f + c;
    for (int u = 0; u < Taps; ++u) store_piece<float>(call.parts, part + u * a.f, walk.dweight[u]);
    store_piece<float>(call.parts, part + Taps * a.f, walk.dbias);
  }
}

__global__ void __launch_bounds__(kConvThreads)
    conv1d_dx_kernel(const __grid_constant__ BackwardCall call, int64_t work) {
  const Conv1d& a = call.b.forward;
  for (int64_t w = blockIdx.x * int64_t{kConvThreads} + threadIdx.x; w < work;
       w += gridDim.x * int64_t{kConvThreads}) {
    const int64_t c = w % a.f;
    call.pieces.each(a.run, w / a.f, [&](const RunTokens& q, int64_t first, int64_t end) {
      for (int64_t t = first; t < end; ++t)
        store_float(call.b.dx.data, a.dtype, a.offset(call.b.dx, q.batch, q.begin + t, c),
                    call.b.gradient(q, t, c));
    });
  }
}

__global__ void __launch_bounds__(kConvThreads)
    conv1d_part_kernel(const __grid_constant__ BackwardCall call, int64_t work) {
  const Conv1d& a = call.b.forward;
  for (int64_t w = blockIdx.x * int64_t{kConvThreads} + threadIdx.x; w < work;
       w += gridDim.x * int64_t{kConvThreads}) {
    const int64_t c = w % a.f, u = w / a.f % (a.taps + 1);
    float sum = 0.f;
    call.pieces.each(a.run, w / a.f / (a.taps + 1),
                     [&](const RunTokens& q, int64_t first, int64_t end) {
                       for (int64_t t = max(first, q.from); t < end; ++t)
                         sum = fmaf(call.b.slope(q, t, c),
                                    u < a.taps ? a.token(q, t - (a.taps - 1) + u, c) : 1.f, sum);
                     });
    call.parts[w] = sum;
  }
}

// A warp's lanes are channels, its number is a slice of the pieces.
__global__ void __launch_bounds__(kSlices * 32)
    conv1d_sum_kernel(const __grid_constant__ BackwardCall call, int64_t work) {
  __shared__ double s_sum[kSlices][32];
  const Conv1d& a = call.b.forward;
  const int lane = threadIdx.x % 32, slice = threadIdx.x / 32;
  const int64_t chunks = (a.f + 31) / 32, rows = a.taps + 1;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t c = w % chunks * 32 + lane, u = w / chunks;
    double sum = 0;
    if (c < a.f)
#pragma unroll 4
      for (int64_t piece = slice; piece < call.pieces.count; piece += kSlices)
        sum += call.parts[(piece * rows + u) * a.f + c];
    __syncthreads();
    s_sum[slice][lane] = sum;
    __syncthreads();
    if (slice == 0 && c < a.f) {
      sum = 0;
      for (int k = 0; k < kSlices; ++k) sum += s_sum[k][lane];
      call.sums[u * a.f + c] = static_cast<float>(sum);
    }
  }
}

// A stride of 0 makes one element of its dimension.
__global__ void __launch_bounds__(kConvThreads)
    conv1d_store_sums_kernel(const __grid_constant__ BackwardCall call, int64_t work) {
  const Conv1d& a = call.b.forward;
  const View<2>& to = call.b.dweight;
  for (int64_t w = blockIdx.x * int64_t{kConvThreads} + threadIdx.x; w < work;
       w += gridDim.x * int64_t{kConvThreads}) {
    const int64_t c = w % a.f, u = w / a.f;
    if (u == a.taps && call.b.dbias) *call.b.dbias.at(c) = call.sums[w];
    if (u == a.taps || !to || (c && !to.stride[0]) || (u && !to.stride[1])) continue;
    float sum = 0.f;
    for (int64_t i = c; i < (to.stride[0] ? c + 1 : a.f); ++i)
      for (int64_t j = u; j < (to.stride[1] ? u + 1 : a.taps); ++j) sum += call.sums[j * a.f + i];
    *to.at(c, u) = sum;
  }
}

__global__ void __launch_bounds__(kConvThreads)
    conv1d_dstate_kernel(const __grid_constant__ BackwardCall call, int64_t work) {
  const Conv1d& a = call.b.forward;
  const View<3>& to = call.b.dstate_in;
  for (int64_t w = blockIdx.x * int64_t{kConvThreads} + threadIdx.x; w < work;
       w += gridDim.x * int64_t{kConvThreads}) {
    const int64_t c = w % a.f, column = w / a.f % a.tail, r = w / a.f / a.tail;
    const int64_t t = column - a.tail;
    store_float(to.data, call.b.din_dtype, a.offset(to, r, c, column),
                t > -a.taps ? call.b.gradient(a.run[r], t, c) : 0.f);
  }
}

// Without sequences there is no workspace: taps may be more than memory holds.
void zero_sums(Context& ctx, const char* op, const Conv1dBackward& b) {
  const View<2>& to = b.dweight;
  const int64_t f = b.forward.f, taps = b.forward.taps;
  if (to)
    zero(ctx, op, {to.data, {0, 0, to.stride[0], to.stride[1]}}, FOVEA_F32,
         {{1, 1, to.stride[0] ? f : 1, to.stride[1] ? taps : 1}});
  if (b.dbias)
    zero(ctx, op, {b.dbias.data, {0, 0, 0, b.dbias.stride[0]}}, FOVEA_F32, {{1, 1, 1, f}});
}

void enqueue(Context& ctx, const BackwardCall& call, bool wide) {
  constexpr char op[] = "x_conv1d_backward";
  const Conv1dBackward& b = call.b;
  const Conv1d& a = b.forward;
  const auto blocks = [](int64_t work) { return ceil_div(work, kConvThreads); };
  if (b.dx && a.run.ragged())
    zero(ctx, op, {b.dx.data, {b.dx.stride[0], b.dx.stride[1], b.dx.stride[2], 1}}, a.dtype,
         {{a.b, a.s, a.f, 1}});
  if (!a.run.count) return zero_sums(ctx, op, b);
  if (wide && (b.dx || call.parts)) {
    const int64_t work = call.pieces.count * (a.f / kChannels);
    with_element(a.dtype, [&](auto element) {
      with_taps(a.taps, [&](auto taps) {
        launch<conv1d_backward_wide_kernel<decltype(element), decltype(taps)::value>>(
            ctx, op, blocks(work), kConvThreads, 0, call, work);
      });
    });
  }
  if (!wide && b.dx) {
    const int64_t work = call.pieces.count * a.f;
    launch<conv1d_dx_kernel>(ctx, op, blocks(work), kConvThreads, 0, call, work);
  }
  if (!wide && call.parts) {
    const int64_t work = call.pieces.count * (a.taps + 1) * a.f;
    launch<conv1d_part_kernel>(ctx, op, blocks(work), kConvThreads, 0, call, work);
  }
  if (call.sums) {
    launch<conv1d_sum_kernel>(ctx, op, ceil_div(a.f, 32) * (a.taps + 1), kSlices * 32, 0, call,
                              ceil_div(a.f, 32) * (a.taps + 1));
    const int64_t work = (a.taps + 1) * a.f;
    launch<conv1d_store_sums_kernel>(ctx, op, blocks(work), kConvThreads, 0, call, work);
  }
  if (!b.dstate_in) return;
  const int64_t work = a.run.count * a.tail * a.f;
  launch<conv1d_dstate_kernel>(ctx, op, blocks(work), kConvThreads, 0, call, work);
}

}  // namespace
}  // namespace cuda

extern const Kernel<Conv1dBackward> conv1d_backward_simt = {
    "simt", [](const Context&, const Conv1dBackward& b, Plan& plan) {
      constexpr int64_t kThreadsWanted = 1 << 17;
      const Conv1d& a = b.forward;
      const auto fits = [&](const View<3>& x) {
        return cuda::in_channel_pieces(a, x, cuda::kChannels);
      };
      const bool wide = a.y_dtype == a.dtype && fits(a.x) && fits(a.y) && (!b.dx || fits(b.dx));
      const int64_t groups = wide ? a.f / cuda::kChannels : a.f;
      cuda::BackwardCall call{b, {}, nullptr, nullptr};
      call.pieces = RunPieces::of(a.run, kThreadsWanted / (groups ? groups : 1), 8, 256);
      const int64_t rows = a.run.count ? b.sums() : 0;
      const auto parts = plan.workspace.add<float>(call.pieces.count, rows, a.f);
      const auto sums = plan.workspace.add<float>(rows, a.f);
      plan.kernel += cuda::conv1d_name(a, wide);
      plan.launch = [=](Context& ctx, void* base) {
        cuda::BackwardCall placed = call;
        placed.parts = parts.at(base), placed.sums = sums.at(base);
        cuda::enqueue(ctx, placed, wide);
      };
      return Text();
    }};

}  // namespace fovea
