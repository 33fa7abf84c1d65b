// SPDX-License-Identifier: Apache-2.0
// Neighbouring channels of a thread: pieces of a token, and their filters in registers.
#pragma once
#include "core/pieces.h"
#include "cuda/launch.h"
#include "cuda/tile/convert.cuh"
#include "ops/conv1d/conv1d.h"

namespace fovea::cuda {

constexpr int kConvThreads = 256;

template <class T, int N>
struct alignas(sizeof(T) * N % 16 ? 8 : 16) Piece {
  T x[N];
};

template <class T, int N>
__device__ __forceinline__ void widen(const Piece<T, N>& from, float (&to)[N]) {
  if constexpr (sizeof(T) == 2) {
    const auto* words = reinterpret_cast<const uint32_t*>(from.x);
    for (int v = 0; v < N; v += 2) {
      const float2 pair = pair_of<dtype_of<T>>(words[v / 2]);
      to[v] = pair.x, to[v + 1] = pair.y;
    }
  } else {
    for (int v = 0; v < N; ++v) to[v] = from.x[v];
  }
}

template <class T, int N>
__device__ __forceinline__ Piece<T, N> piece_at(const T* from) {
  return *reinterpret_cast<const Piece<T, N>*>(from);
}

template <class T, int N>
__device__ __forceinline__ void load_piece(const void* data, int64_t offset, float (&to)[N]) {
  widen(piece_at<T, N>(static_cast<const T*>(data) + offset), to);
}

template <class T, int N>
__device__ __forceinline__ void store_piece(void* data, int64_t offset, const float (&x)[N]) {
  Piece<T, N> to;
  for (int v = 0; v < N; ++v) to.x[v] = from_float<T>(x[v]);
  *reinterpret_cast<Piece<T, N>*>(static_cast<T*>(data) + offset) = to;
}

// How the last columns of a state are read and written.
enum class StateLay { elements, by_channel, by_column };

inline StateLay state_lay(const Conv1d& a, const View<3>& x, int32_t dtype, int64_t channels) {
  const bool pieces = dtype == a.dtype && x.stride[0] % channels == 0 &&
                      reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
  if (pieces && x.stride[2] == 1 && x.stride[1] == a.taps - 1 && a.tail == a.taps - 1)
    return StateLay::by_channel;
  if (pieces && x.stride[1] == 1 && x.stride[2] % channels == 0) return StateLay::by_column;
  return StateLay::elements;
}

template <class T, int Rows, int N>
__device__ __forceinline__ void load_state(const Conv1d& a, StateLay lay, const RunTokens& q,
                                           int64_t c, float (&to)[Rows][N]) {
  const View<3>& x = a.state_in;
  if (q.state >= 0 && lay == StateLay::by_channel) {
    float all[Rows * N];
    load_piece<T>(x.data, a.offset(x, q.state, c, 0), all);
    for (int u = 0; u < Rows; ++u)
      for (int v = 0; v < N; ++v) to[u][v] = all[v * Rows + u];
    return;
  }
  for (int u = 0; u < Rows; ++u) {
    if (q.state >= 0 && lay == StateLay::by_column)
      load_piece<T>(x.data, a.offset(x, q.state, c, a.tail - Rows + u), to[u]);
    else
      for (int v = 0; v < N; ++v) to[u][v] = a.token(q, u - Rows, c + v);
  }
}

// To row `row` of state_out.
template <class T, int Rows, int N>
__device__ __forceinline__ void store_state(const Conv1d& a, StateLay lay, int64_t row, int64_t c,
                                            const float (&from)[Rows][N]) {
  const View<3>& x = a.state_out;
  if (lay == StateLay::by_channel) {
    float all[Rows * N];
    for (int u = 0; u < Rows; ++u)
      for (int v = 0; v < N; ++v) all[v * Rows + u] = from[u][v];
    return store_piece<T>(x.data, a.offset(x, row, c, 0), all);
  }
  for (int u = 0; u < Rows; ++u) {
    if (lay == StateLay::by_column)
      store_piece<T>(x.data, a.offset(x, row, c, a.tail - Rows + u), from[u]);
    else
      for (int v = 0; v < N; ++v)
        store_float(x.data, a.out_dtype, a.offset(x, row, c + v, a.tail - Rows + u), from[u][v]);
  }
}

// rows[i] = rows[i + 1], the last one is x.
template <int Rows, int N>
__device__ __forceinline__ void shift_in(float (&rows)[Rows][N], const float (&x)[N]) {
  for (int v = 0; v < N; ++v) {
    for (int u = 0; u + 1 < Rows; ++u) rows[u][v] = rows[u + 1][v];
    rows[Rows - 1][v] = x[v];
  }
}

// The tokens before token `first`.
template <class T, int Rows, int N>
__device__ __forceinline__ void load_before(const Conv1d& a, StateLay lay, const RunTokens& q,
                                            int64_t first, int64_t c, float (&to)[Rows][N]) {
  if (first < Rows) load_state<T>(a, lay, q, c, to);
  for (int64_t t = first < Rows ? 0 : first - Rows; t < first; ++t) {
    float x[N];
    load_piece<T>(a.x.data, a.offset(a.x, q.batch, q.begin + t, c), x);
    shift_in(to, x);
  }
}

template <int Taps, int N>
struct Filter {
  float weight[Taps][N], bias[N];

  template <class W>
  __device__ __forceinline__ void contiguous(const Conv1d& a, int64_t c) {
    float all[Taps * N];
    load_piece<W>(a.weight.data, c * Taps, all);
    for (int u = 0; u < Taps; ++u)
      for (int v = 0; v < N; ++v) weight[u][v] = all[v * Taps + u];
  }
  __device__ __forceinline__ void load(const Conv1d& a, int64_t c) {
    const bool dense = a.weight.stride[0] == Taps && a.weight.stride[1] == 1 &&
                       reinterpret_cast<uintptr_t>(a.weight.data) % 16 == 0;
    for (int v = 0; v < N; ++v) bias[v] = a.bias_of(c + v);
    if (dense && a.weight_dtype == FOVEA_F32) return contiguous<float>(a, c);
    if (dense && a.weight_dtype == FOVEA_F16) return contiguous<f16>(a, c);
    if (dense) return contiguous<bf16>(a, c);
    for (int u = 0; u < Taps; ++u)
      for (int v = 0; v < N; ++v) weight[u][v] = a.weight_of(c + v, u);
  }
  // Of the tokens before, oldest first, and x.
  __device__ __forceinline__ float sum(const float (&before)[Taps - 1][N], float x, int v) const {
    float z = bias[v];
    for (int u = 0; u < Taps - 1; ++u) z = fmaf(before[u][v], weight[u][v], z);
    return fmaf(x, weight[Taps - 1][v], z);
  }
};

// x and y of a call in whole pieces of `channels`, with taps that have an instance.
inline bool in_channel_pieces(const Conv1d& a, const View<3>& x, int64_t channels) {
  return a.f % channels == 0 && a.taps >= 2 && a.taps <= kConv1dTapsMost &&
         in_pieces({x.data, {x.stride[0], x.stride[1], 1, x.stride[2]}}, {a.b, a.s, 1}, channels);
}

// f(taps) with taps as a constant, 2 .. 4.
template <class F>
void with_taps(int64_t taps, F f) {
  if (taps == 2) return f(std::integral_constant<int, 2>());
  taps == 3 ? f(std::integral_constant<int, 3>()) : f(std::integral_constant<int, 4>());
}

inline Text conv1d_name(const Conv1d& a, bool wide) {
  Text name = Text(".") + dtype_name(a.dtype);
  if (wide) name += Text(".taps") + Text::number(a.taps);
  return name;
}

}  // namespace fovea::cuda
