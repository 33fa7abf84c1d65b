// SPDX-License-Identifier: Apache-2.0
// x_pool_forward and _backward: every dtype, width and stride.
//   y[c] = summary of the tokens of block c, in each column by itself
// Forward: a thread block owns a block of tokens of one head.  A thread owns a column and a stripe
// of the tokens; stripes are joined in order through shared memory.
// Backward: the same owners mark each block (where max and min are, the softmax of gated).  Then a
// warp owns a token of a key head, a lane every 32nd column, and adds what the blocks give that
// read it.  dbias: a thread owns a place, a column and a part of the blocks; parts add in order.
#include "core/dtype.h"
#include "cuda/block/reduce.cuh"
#include "cuda/launch.h"
#include "ops/summary/pool.h"

namespace fovea {
namespace cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

// Threads side by side over columns; the others are further stripes.
FOVEA_HD int across(int64_t columns) {
  int n = 32;
  while (n < columns && n < kThreads) n *= 2;
  return n;
}

// The stripe of this thread, joined with those of its column: the result is stripe 0's.
template <class State>
__device__ __forceinline__ void join_stripes(State& state, State* shared, int side) {
  __syncthreads();
  shared[threadIdx.x] = state;
  __syncthreads();
  if (static_cast<int>(threadIdx.x) < side)
    for (int n = threadIdx.x + side; n < kThreads; n += side) pool_join(state, shared[n]);
}

// A block of tokens of one head, as thread blocks number them.
struct Work {
  int64_t r, c, head;
  Sequence q;
  PoolBlock at;
};
__device__ __forceinline__ Work work_at(const PoolCall& a, int64_t w) {
  Work x;
  x.head = w % a.h, x.c = w / a.h % a.blocks_most, x.r = w / a.h / a.blocks_most;
  x.q = a.sequences[x.r];
  x.at = pool_block(a, x.q, x.r, x.head, x.c);
  return x;
}

__global__ void __launch_bounds__(kThreads, 1)
    pool_columns_kernel(const __grid_constant__ PoolCall a, PoolMark* mark, int64_t work) {
  __shared__ PoolState shared[kThreads];
  const int side = across(a.d), stripes = kThreads / side, stripe = threadIdx.x / side;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const Work x = work_at(a, w);
    if (!x.at.there) continue;
    Interval tokens = pool_tokens(a, x.at, x.r);
    tokens.begin += stripe;
    for (int64_t first = 0; first < a.d; first += side) {
      const int64_t c = first + threadIdx.x % side;
      PoolState state = pool_empty();
      if (c < a.d)
        state = pool_stripe(a, x.q, tokens, stripes, x.head, c, [](int64_t) { return true; });
      join_stripes(state, shared, side);
      if (stripe || c >= a.d) continue;
      if (mark)
        mark[pool_mark_at(a, x.at, x.head, c)] = pool_mark(x.at, state);
      else
        pool_store(a, x.q, x.r, x.at, x.head, c, state);
    }
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    pool_ranked_kernel(const __grid_constant__ PoolCall a, int64_t work) {
  __shared__ PoolState shared[kThreads];
  __shared__ bool chosen[kThreads];
  const int side = across(a.d), stripes = kThreads / side, stripe = threadIdx.x / side;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const Work x = work_at(a, w);
    if (!x.at.there) continue;
    for (int64_t first = 0; first < a.d; first += side) {
      const int64_t c = first + threadIdx.x % side;
      PoolState state = pool_empty();
      for (int64_t i0 = x.at.begin; i0 < x.at.end; i0 += kThreads) {
        const int64_t i = i0 + threadIdx.x;
        __syncthreads();
        chosen[threadIdx.x] =
            i < x.at.end && pool_there(a, x.q, i) && pool_chosen(a, x.q, x.at, x.head, i);
        __syncthreads();
        const Interval tokens{i0 + stripe, min(x.at.end, i0 + kThreads)};
        if (c < a.d)
          pool_join(state, pool_stripe(a, x.q, tokens, stripes, x.head, c,
                                       [&](int64_t k) { return chosen[k - i0]; }));
      }
      join_stripes(state, shared, side);
      if (!stripe && c < a.d) pool_store(a, x.q, x.r, x.at, x.head, c, state);
    }
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    pool_gated_kernel(const __grid_constant__ PoolCall a, PoolNorm* norm, int64_t work) {
  __shared__ PoolGated shared[kThreads];
  const int side = across(a.f), stripes = kThreads / side, stripe = threadIdx.x / side;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const Work x = work_at(a, w);
    if (!x.at.there) continue;
    for (int64_t first = 0; first < a.f; first += side) {
      const int64_t c = first + threadIdx.x % side;
      PoolGated state{-INFINITY, 0, 0};
      if (c < a.f) state = pool_gated(a, x.q, x.at, x.at.begin + stripe, stripes, x.head, c);
      join_stripes(state, shared, side);
      if (stripe || c >= a.f) continue;
      if (norm)
        norm[pool_mark_at(a, x.at, x.head, c)] = pool_norm(state);
      else
        pool_store(a, x.at, x.head, c, state);
    }
  }
}

// Kpt columns a thread: 1024 at a time.  A warp finds the norm of a token, eight tokens at once.
__global__ void __launch_bounds__(kThreads, 1)
    pool_similar_kernel(const __grid_constant__ PoolCall a, int64_t work) {
  constexpr int kEach = 4;
  __shared__ float inverse[kWarps];
  __shared__ float sums[kWarps];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const Work x = work_at(a, w);
    if (!x.at.there) continue;
    float square = 0;
    for (int64_t first = 0; first < a.d; first += kEach * kThreads) {
      float sum[kEach] = {};
      int64_t tokens = 0;
      for (int64_t i0 = x.at.begin; i0 < x.at.end; i0 += kWarps) {
        const int64_t i = i0 + warp;
        const bool there = i < x.at.end && pool_there(a, x.q, i);
        float own = 0;
        for (int64_t c = lane; there && c < a.d; c += 32) {
          const float value = pool_x(a, x.q, x.head, i, c).value;
          own = fmaf(value, value, own);
        }
        own = lanes_sum<32>(own);
        __syncthreads();
        if (lane == 0) inverse[warp] = !there ? -1 : own == 0 ? 0 : 1 / sqrtf(own);
        __syncthreads();
        for (int k = 0; k < kWarps; ++k) {
          if (inverse[k] == -1) continue;
          ++tokens;
#pragma unroll
          for (int n = 0; n < kEach; ++n) {
            const int64_t c = first + n * kThreads + threadIdx.x;
            if (c < a.d) sum[n] += pool_x(a, x.q, x.head, i0 + k, c).value * inverse[k];
          }
        }
      }
#pragma unroll
      for (int n = 0; n < kEach; ++n) {
        const float mean = tokens ? sum[n] / static_cast<float>(tokens) : 0;
        square = fmaf(mean, mean, square);
      }
    }
    square = block_sum<kThreads>(square, sums);
    if (threadIdx.x == 0) pool_store_similar(a, x.at, x.head, square);
  }
}

struct BackwardCall {
  PoolBackward b;
  PoolMark* mark;
  PoolNorm* norm;
  double* parts;
};

// A warp owns a row of a head of dx, or of dgate.
template <bool Gate>
__global__ void __launch_bounds__(kThreads, 1)
    pool_tokens_kernel(const __grid_constant__ BackwardCall call, int64_t work) {
  const PoolCall& a = call.b.call;
  const int64_t heads = Gate ? a.h : a.g, rows = a.sequences.s;
  for (int64_t w = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32; w < work;
       w += gridDim.x * int64_t{kWarps}) {
    const int64_t head = w % heads, row = w / heads % rows, batch = w / heads / rows;
    const PoolToken token = pool_token(a, batch, row);
    for (int64_t c = threadIdx.x % 32; c < a.d; c += 32) {
      if (Gate)
        pool_store_dgate(call.b, call.norm, token, batch, row, head, c);
      else
        pool_store_dx(call.b, call.mark, call.norm, token, batch, row, head, c);
    }
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    pool_bias_kernel(const __grid_constant__ BackwardCall call, int64_t work) {
  const PoolCall& a = call.b.call;
  const int64_t columns = a.block * a.d, windows = call.b.windows();
  const int64_t each = (windows + call.b.parts() - 1) / call.b.parts();
  for (int64_t w = blockIdx.x * int64_t{kThreads} + threadIdx.x; w < work;
       w += gridDim.x * int64_t{kThreads}) {
    const int64_t part = w / columns, place = w % columns / a.d;
    call.parts[w] = pool_dbias(a, call.norm, part * each, min(windows, (part + 1) * each), place,
                               w % columns % a.d);
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    pool_add_kernel(const __grid_constant__ BackwardCall call, int64_t work) {
  const PoolCall& a = call.b.call;
  for (int64_t w = blockIdx.x * int64_t{kThreads} + threadIdx.x; w < work;
       w += gridDim.x * int64_t{kThreads}) {
    double sum = 0;
    for (int64_t part = 0; part < call.b.parts(); ++part) sum += call.parts[part * work + w];
    *call.b.dbias.at(w / a.d, w % a.d) = static_cast<float>(sum);
  }
}

void enqueue_forward(Context& ctx, const PoolCall& a) {
  constexpr char op[] = "x_pool_forward";
  const int64_t work = a.sequences.count * a.blocks_most * a.h;
  if (a.wants(FOVEA_X_SUMMARY_GATED))
    launch<pool_gated_kernel>(ctx, op, work, kThreads, 0, a, static_cast<PoolNorm*>(nullptr), work);
  else if (a.wants(FOVEA_X_SUMMARY_RANKED))
    launch<pool_ranked_kernel>(ctx, op, work, kThreads, 0, a, work);
  else
    launch<pool_columns_kernel>(ctx, op, work, kThreads, 0, a, static_cast<PoolMark*>(nullptr),
                                work);
  if (a.similar || a.dissimilar) pool_similar(ctx, a);
}

void enqueue_backward(Context& ctx, const BackwardCall& call) {
  constexpr char op[] = "x_pool_backward";
  const PoolBackward& b = call.b;
  const PoolCall& a = b.call;
  const int64_t work = b.windows() * a.h;
  if (call.norm) launch<pool_gated_kernel>(ctx, op, work, kThreads, 0, a, call.norm, work);
  if (call.mark) launch<pool_columns_kernel>(ctx, op, work, kThreads, 0, a, call.mark, work);
  if (b.dx) {
    const int64_t rows = a.b * a.sequences.s * a.g;
    launch<pool_tokens_kernel<false>>(ctx, op, ceil_div(rows, kWarps), kThreads, 0, call, rows);
  }
  if (b.dgate) {
    const int64_t rows = a.b * a.sequences.s * a.h;
    launch<pool_tokens_kernel<true>>(ctx, op, ceil_div(rows, kWarps), kThreads, 0, call, rows);
  }
  if (!b.dbias) return;
  const int64_t columns = a.block * a.d, items = columns * b.parts();
  launch<pool_bias_kernel>(ctx, op, ceil_div(items, kThreads), kThreads, 0, call, items);
  launch<pool_add_kernel>(ctx, op, ceil_div(columns, kThreads), kThreads, 0, call, columns);
}

}  // namespace

void pool_similar(Context& ctx, const PoolCall& a) {
  const int64_t work = a.sequences.count * a.blocks_most * a.h;
  launch<pool_similar_kernel>(ctx, "x_pool_forward", work, kThreads, 0, a, work);
}

}  // namespace cuda

extern const Kernel<PoolCall> pool_forward_simt = {
    "simt", [](const Context&, const PoolCall& a, Plan& plan) {
      plan.kernel += Text(".") + dtype_name(a.dtype);
      plan.launch = [a](Context& ctx, void*) { cuda::enqueue_forward(ctx, a); };
      return Text();
    }};

extern const Kernel<PoolBackward> pool_backward_simt = {
    "simt", [](const Context&, const PoolBackward& b, Plan& plan) {
      plan.kernel += Text(".") + dtype_name(b.call.dtype);
      Slot<PoolMark> mark;
      Slot<PoolNorm> norm;
      Slot<double> parts;
      pool_lay_out(b, plan.workspace, mark, norm, parts);
      plan.launch = [=](Context& ctx, void* base) {
        cuda::enqueue_backward(ctx, {b, mark.at(base), norm.at(base), parts.at(base)});
      };
      return Text();
    }};

}  // namespace fovea
