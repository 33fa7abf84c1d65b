// SPDX-License-Identifier: Apache-2.0
// Heads from factors and back on CUDA.  A warp owns a token.  Its lanes share the columns of a row,
// V neighbouring ones each; rows of up to 16 lanes leave room for several heads at once.  Sums over
// columns and over heads go through shuffles in a fixed order.  No shared memory, no barrier.
#include "core/chunk.h"
#include "cuda/launch.h"
#include "cuda/tile/convert.cuh"
#include "ops/tpa/kernels.h"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "x_tpa";
constexpr int kWarp = 32, kWarps = 8;
constexpr int64_t kTokensMost = 1 << 30;  // of a launch: no division of 64 bits

// Ranks whose sums a lane holds at once, of N pieces of V columns.
template <int V, int N>
constexpr int kRanks = V == 1 ? 1 : 2;

// Some tokens of rows of n1, from token `at` of row n on.
struct Tokens {
  int64_t n, at, count, n1;
  __device__ Tokens token(int64_t number) const {
    const int64_t to = at + number;
    const int64_t rows =
        n1 >> 31 ? to >= n1 : static_cast<uint32_t>(to) / static_cast<uint32_t>(n1);
    return {n + rows, to - rows * n1, 1, n1};
  }
};

// Lanes of a row, and heads of a warp.
struct Lanes {
  int row, heads, lane, head;
  __device__ explicit Lanes(int row)
      : row(row),
        heads(kWarp / row),
        lane(static_cast<int>(threadIdx.x) % kWarp % row),
        head(static_cast<int>(threadIdx.x) % kWarp / row) {}
  // Of the lanes of a row.
  __device__ float over_row(float x) const {
    for (int step = row / 2; step; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    return x;
  }
  // Of the rows of a warp.
  __device__ float over_heads(float x) const {
    for (int step = row; step < kWarp; step *= 2) x += __shfl_xor_sync(~0u, x, step);
    return x;
  }
};

template <class T, int V>
__device__ __forceinline__ void load(const View<4>& x, int64_t row, int64_t column,
                                     float (&to)[V]) {
  if constexpr (V == 1) {
    to[0] = to_float(x.as<T>()[row + column * x.stride[3]]);
  } else {
    const auto all = *reinterpret_cast<const Chunk<T, V>*>(x.as<T>() + row + column);
#pragma unroll
    for (int n = 0; n < V; ++n) to[n] = to_float(all.x[n]);
  }
}
template <class T, int V>
__device__ __forceinline__ void store(const View<4>& x, int64_t row, int64_t column,
                                      const float (&from)[V]) {
  if constexpr (V == 1) {
    x.as<T>()[row + column * x.stride[3]] = from_float<T>(from[0]);
  } else {
    Chunk<T, V> all;
#pragma unroll
    for (int n = 0; n < V; ++n) all.x[n] = from_float<T>(from[n]);
    *reinterpret_cast<Chunk<T, V>*>(x.as<T>() + row + column) = all;
  }
}

__device__ __forceinline__ int64_t token_offset(const View<4>& x, int64_t n, int64_t at) {
  return n * x.stride[0] + at * x.stride[1];
}

template <class T, int V>
__device__ void expand_token(const TpaExpand& x, const Lanes& by, int64_t n, int64_t at) {
  const Factors& of = x.of;
  const int64_t from = x.row(n, at);
  if (from < 0) return;
  const int64_t a = token_offset(of.a, from, at), b = token_offset(of.b, from, at);
  const int64_t y = token_offset(x.y, n, at);
  const int heads = static_cast<int>(of.heads), ranks = static_cast<int>(of.ranks);
  for (int c = by.lane * V; c < of.width; c += by.row * V) {
#pragma unroll 1
    for (int i = by.head; i < heads; i += by.heads) {
      float sum[V] = {};
      for (int r = 0; r < ranks; ++r) {
        float row[V];
        load<T, V>(of.b, b + r * of.b.stride[2], c, row);
        const float factor = to_float(of.a.as<T>()[a + r * of.a.stride[2] + i * of.a.stride[3]]);
#pragma unroll
        for (int m = 0; m < V; ++m) sum[m] = fmaf(factor, row[m], sum[m]);
      }
#pragma unroll
      for (int m = 0; m < V; ++m) sum[m] *= of.scale;
      store<T, V>(x.y, y + i * x.y.stride[2], c, sum);
    }
  }
}

template <class T, int V>
__global__ void __launch_bounds__(kWarp* kWarps, 4)
    expand_kernel(const __grid_constant__ TpaExpand x, Tokens some, int lanes) {
  const Lanes by(lanes);
  for (int64_t w = blockIdx.x; w * kWarps < some.count; w += gridDim.x) {
    const int64_t number = w * kWarps + threadIdx.x / kWarp;
    if (number >= some.count) continue;
    const auto [n, at, count, n1] = some.token(number);
    if (x.pages && at == 0 && threadIdx.x % kWarp == 0)
      *x.table_out.at<int32_t>(n / x.pages, n % x.pages) =
          x.page(n) < 0 ? -1 : static_cast<int32_t>(n);
    expand_token<T, V>(x, by, n, at);
  }
}

// Some ranks of a token, from `first` on.  A lane has N pieces of V columns.
template <class T, int V, int N>
__device__ void reduce_ranks(const TpaReduce& x, const Lanes& by, int64_t n, int64_t at,
                             int first) {
  constexpr int kAtOnce = kRanks<V, N>;
  const Factors& of = x.of;
  const int64_t a = token_offset(of.a, n, at), b = token_offset(of.b, n, at);
  const int64_t dy = token_offset(x.dy, n, at), da = token_offset(x.da, n, at);
  const int64_t db = token_offset(x.db, n, at), kept = token_offset(x.sum, n, at);
  const int heads = static_cast<int>(of.heads), ranks = static_cast<int>(of.ranks) - first;
  const int width = static_cast<int>(of.width);
  float sum[kAtOnce][N][V] = {};
  // Lanes take part in the shuffles of every step.
  for (int begin = 0; begin < heads; begin += by.heads) {
    const int i = begin + by.head;
    float grad[N][V] = {};
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const int c = (by.lane + k * by.row) * V;
      if (i < heads && c < width) load<T, V>(x.dy, dy + i * x.dy.stride[2], c, grad[k]);
    }
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      if (r >= ranks) break;
      const float factor =
          i < heads ? to_float(of.a.as<T>()[a + (first + r) * of.a.stride[2] + i * of.a.stride[3]])
                    : 0.f;
      float inner = 0;
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const int c = (by.lane + k * by.row) * V;
        float row[V] = {};
        if (c < width) load<T, V>(of.b, b + (first + r) * of.b.stride[2], c, row);
#pragma unroll
        for (int m = 0; m < V; ++m) {
          const float g = grad[k][m];
          inner += g == 0 ? 0.f : g * row[m];
          sum[r][k][m] += g == 0 ? 0.f : factor * g;
        }
      }
      inner = by.over_row(inner);
      if (x.da && by.lane == 0 && i < heads)
        x.da.as<T>()[da + (first + r) * x.da.stride[2] + i * x.da.stride[3]] =
            from_float<T>(of.scale * inner);
    }
  }
  if (!x.db) return;
#pragma unroll
  for (int r = 0; r < kAtOnce; ++r)
#pragma unroll
    for (int k = 0; k < N; ++k) {
      float all[V];
#pragma unroll
      for (int m = 0; m < V; ++m) all[m] = by.over_heads(sum[r][k][m]);
      const int c = (by.lane + k * by.row) * V;
      if (r >= ranks || by.head || c >= width) continue;
      const int64_t row = kept + (first + r) * x.sum.stride[2];
      if (!x.first) {
        float before[V];
        load<float, V>(x.sum, row, c, before);
#pragma unroll
        for (int m = 0; m < V; ++m) all[m] += before[m];
      }
      if (!x.last) {
        store<float, V>(x.sum, row, c, all);
        continue;
      }
#pragma unroll
      for (int m = 0; m < V; ++m) all[m] *= of.scale;
      store<T, V>(x.db, db + (first + r) * x.db.stride[2], c, all);
    }
}

template <class T, int V, int N>
__global__ void __launch_bounds__(kWarp* kWarps, N == 1 ? 3 : 1)
    reduce_kernel(const __grid_constant__ TpaReduce x, Tokens some, int lanes) {
  const Lanes by(lanes);
  for (int64_t w = blockIdx.x; w * kWarps < some.count; w += gridDim.x) {
    const int64_t number = w * kWarps + threadIdx.x / kWarp;
    if (number >= some.count) continue;
    const auto [n, at, count, n1] = some.token(number);
    for (int first = 0; first < x.of.ranks; first += kRanks<V, N>)
      reduce_ranks<T, V, N>(x, by, n, at, first);
  }
}

// Enqueues kernel(x, tokens, lanes) over all tokens.
template <auto kernel, class X>
void launch_tokens(Context& ctx, const X& x, int lanes) {
  const int64_t n1 = x.of.n1, all = x.of.n0 * n1;
  for (int64_t first = 0; first < all; first += kTokensMost) {
    const int64_t count = all - first < kTokensMost ? all - first : kTokensMost;
    launch<kernel>(ctx, kOp, ceil_div(count, kWarps), kWarp * kWarps, 0, x,
                   Tokens{first / n1, first % n1, count, n1}, lanes);
  }
}
int lanes_of_row(const Factors& of, int v) {
  return lanes_of(ceil_div(of.width, v), kWarp);
}

template <class T>
void expand(Context& ctx, const TpaExpand& x) {
  constexpr int kWide = 16 / sizeof(T);
  const auto run = [&]<int V>() {
    launch_tokens<expand_kernel<T, V>>(ctx, x, lanes_of_row(x.of, V));
  };
  if (x.of.width % kWide == 0 && chunked(x.of.b, sizeof(T), kWide) &&
      chunked(x.y, sizeof(T), kWide))
    run.template operator()<kWide>();
  else
    run.template operator()<1>();
}

template <class T>
void reduce(Context& ctx, const TpaReduce& x) {
  constexpr int kWide = 16 / sizeof(T), kMost = 576;
  const auto run = [&]<int V, int N>() {
    launch_tokens<reduce_kernel<T, V, N>>(ctx, x, lanes_of_row(x.of, V));
  };
  const bool wide = x.of.width % kWide == 0 && chunked(x.of.b, sizeof(T), kWide) &&
                    chunked(x.dy, sizeof(T), kWide) && (!x.db || chunked(x.db, sizeof(T), kWide));
  if (wide && x.of.width <= kWarp * kWide)
    run.template operator()<kWide, 1>();
  else if (wide)
    run.template operator()<kWide, (kMost + kWarp * kWide - 1) / (kWarp * kWide)>();
  else
    run.template operator()<1, kMost / kWarp>();
}

}  // namespace
}  // namespace cuda

extern const Kernel<TpaExpand> tpa_expand_simt = {
    "simt", [](const Context&, const TpaExpand& x, Plan& plan) {
      plan.launch = [x](Context& ctx, void*) {
        cuda::with_element(x.of.dtype, [&](auto t) { cuda::expand<decltype(t)>(ctx, x); });
      };
      return Text();
    }};

extern const Kernel<TpaReduce> tpa_reduce_simt = {
    "simt", [](const Context&, const TpaReduce& x, Plan& plan) {
      plan.launch = [x](Context& ctx, void*) {
        cuda::with_element(x.of.dtype, [&](auto t) { cuda::reduce<decltype(t)>(ctx, x); });
      };
      return Text();
    }};

}  // namespace fovea
