// SPDX-License-Identifier: Apache-2.0
// x_norm_gate where rows are read 16 bytes at once: x, gate and y of one type, the gate behind the
// norm, nothing added; the formulas are in experimental/norm.h.
// Lanes of a warp own neighbouring pieces of a group, so a warp has one group of 32 pieces or
// several of fewer.  A thread keeps its head and columns from row to row, and with them weight and
// bias.
#pragma once
#include "core/locate.h"
#include "cuda/block/reduce.cuh"
#include "cuda/launch.h"
#include "cuda/tile/convert.cuh"
#include "ops/norm/gate.h"

namespace fovea::cuda {

constexpr int kWideThreads = 256;

template <class T>
constexpr int kPiece = 16 / sizeof(T);

struct NormWide {
  NormGateBackward b;
  NormScale* scale;  // as of the other kernels
  int lanes;         // of a group, a power of two
};

template <class T>
__device__ __forceinline__ void load_piece(const NormRows& x, int64_t at, float (&to)[kPiece<T>]) {
  const uint4 words = *reinterpret_cast<const uint4*>(x.view.as<T>() + at);
  const T* from = reinterpret_cast<const T*>(&words);
#pragma unroll
  for (int i = 0; i < kPiece<T>; ++i) to[i] = to_float(from[i]);
}
template <class T>
__device__ __forceinline__ void store_piece(const NormRows& x, int64_t at,
                                            const float (&from)[kPiece<T>]) {
  uint4 words;
  T* to = reinterpret_cast<T*>(&words);
#pragma unroll
  for (int i = 0; i < kPiece<T>; ++i) to[i] = from_float<T>(from[i]);
  *reinterpret_cast<uint4*>(x.view.as<T>() + at) = words;
}
template <int N>
__device__ __forceinline__ void load_columns(const NormColumns& x, int64_t head, int64_t c,
                                             float absent, float (&to)[N]) {
  for (int i = 0; i < N; ++i)
    to[i] =
        x ? load_float(x.view.data, x.dtype, head * x.view.stride[0] + (c + i) * x.view.stride[1])
          : absent;
}
__device__ __forceinline__ float group_sum(float x, int lanes) {
  for (int step = lanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

template <class T, bool Backward>
__global__ void __launch_bounds__(kWideThreads)
    norm_gate_wide_kernel(const __grid_constant__ NormWide call, int64_t rows) {
  constexpr int N = kPiece<T>;
  const NormGate& n = call.b.forward;
  // Threads have a column piece of a head, and every `step`th row.
  const int64_t pieces = n.h * (n.e / N);
  const int64_t thread = blockIdx.x * int64_t{kWideThreads} + threadIdx.x;
  const int64_t step = gridDim.x * int64_t{kWideThreads} / pieces;
  const int64_t piece = thread % pieces, head = piece / (n.e / N), c = piece % (n.e / N) * N;
  float weight[N], bias[N];
  load_columns(n.weight, head, c, 1.f, weight), load_columns(n.bias, head, c, 0.f, bias);
  const float over = 1.f / n.divisor(), over_group = 1.f / static_cast<float>(n.group);
  // Every thread turns as often: lanes of a warp meet in sums, and may have different rows.
  const int64_t first = thread / pieces;
  for (int64_t turn = 0; turn * step < rows; ++turn) {
    const int64_t row = first + turn * step;
    const bool held = row < rows && first < step;
    const int64_t batch = held ? quotient(row, n.s) : 0, i = held ? row - batch * n.s : 0;
    const bool there = held && i < n.rows(batch);
    float v[N] = {}, gate[N] = {};
    if (there) load_piece<T>(n.x, n.x.at(batch, i, head) + c, v);
    if (there && n.gate) load_piece<T>(n.gate, n.gate.at(batch, i, head) + c, gate);
    NormScale at{0.f, 1.f};
    if (!n.plain()) {
      float sum = 0, squares = 0;
      if (n.centred()) {
        for (int k = 0; k < N; ++k) sum += v[k];
        at.mean = group_sum(sum, call.lanes) * over_group;
      }
      for (int k = 0; k < N; ++k) squares = fmaf(v[k] - at.mean, v[k] - at.mean, squares);
      at.size = 1.f / sqrtf(group_sum(squares, call.lanes) * over + n.eps);
    }
    float y[N];
    if constexpr (!Backward) {
      for (int k = 0; k < N; ++k) {
        y[k] = fmaf(n.factor * weight[k], (v[k] - at.mean) * at.size, bias[k]);
        if (n.gate) y[k] *= gate_value(n.act, gate[k]).value;
      }
      if (there) store_piece<T>(n.y, n.y.at(batch, i, head) + c, y);
      continue;
    }
    float dy[N] = {}, dgate[N];
    if (there) load_piece<T>(n.y, n.y.at(batch, i, head) + c, dy);
    float along = 0, middle = 0;
    for (int k = 0; k < N; ++k) {
      const float normed = (v[k] - at.mean) * at.size;
      const GateValue act = n.gate ? gate_value(n.act, gate[k]) : GateValue{1.f, 0.f};
      dgate[k] = dy[k] * fmaf(n.factor * weight[k], normed, bias[k]) * act.slope;
      dy[k] *= n.factor * weight[k] * act.value;  // now dn
      along = fmaf(dy[k], normed, along), middle += dy[k];
    }
    if (!n.plain()) along = group_sum(along, call.lanes) * over;
    if (n.centred()) middle = group_sum(middle, call.lanes) * over_group;
    for (int k = 0; k < N; ++k)
      y[k] = n.plain() ? dy[k]
                       : at.size * (dy[k] - (n.centred() ? middle : 0.f) -
                                    (v[k] - at.mean) * at.size * along);
    if (!held) continue;
    if (!there)
      for (int k = 0; k < N; ++k) y[k] = dgate[k] = 0;
    if (call.b.dx) store_piece<T>(call.b.dx, call.b.dx.at(batch, i, head) + c, y);
    if (call.b.dgate) store_piece<T>(call.b.dgate, call.b.dgate.at(batch, i, head) + c, dgate);
    if (call.scale && there && c % n.group == 0)
      call.scale[(row * n.h + head) * (n.e / n.group) + c / n.group] = at;
  }
}

// Rows whose pieces of 16 bytes are aligned.
inline bool in_pieces(const NormRows& x, int32_t dtype, int64_t piece) {
  if (!x) return true;
  bool fits = x.dtype == dtype && x.view.stride[3] == 1 &&
              reinterpret_cast<uintptr_t>(x.view.data) % 16 == 0;
  for (int i = 0; i < 3; ++i) fits = fits && x.view.stride[i] % piece == 0;
  return fits;
}

// Lanes of a group where the wide kernel serves the call, else 0.
inline int wide_lanes(const NormGateBackward& b, bool backward) {
  const NormGate& n = b.forward;
  const int64_t piece = n.x.dtype == FOVEA_F32 ? 4 : 8, lanes = n.group / piece;
  const bool fits =
      n.group % piece == 0 && lanes >= 1 && lanes <= 32 && (lanes & (lanes - 1)) == 0 &&
      !n.before && !n.after && !(n.gate && n.gate_first) && in_pieces(n.x, n.x.dtype, piece) &&
      in_pieces(n.gate, n.x.dtype, piece) && in_pieces(n.y, n.x.dtype, piece) &&
      (!backward || (in_pieces(b.dx, n.x.dtype, piece) && in_pieces(b.dgate, n.x.dtype, piece)));
  // Threads of a warp that share a group must share a row.
  const int64_t pieces = n.h * (n.e / piece);
  return fits && pieces > 0 && pieces < (int64_t{1} << 24) && pieces % lanes == 0
             ? static_cast<int>(lanes)
             : 0;
}

template <bool Backward>
void enqueue_wide(Context& ctx, const char* op, const NormWide& call) {
  const NormGate& n = call.b.forward;
  const int64_t rows = n.b * n.s, pieces = n.h * (n.e / (n.x.dtype == FOVEA_F32 ? 4 : 8));
  // 64 warps a multiprocessor of a Hopper GPU.
  const int64_t threads = 132 * 8 * int64_t{kWideThreads};
  const int64_t step = rows < ceil_div(threads, pieces) ? rows : ceil_div(threads, pieces);
  with_element(n.x.dtype, [&](auto element) {
    launch<norm_gate_wide_kernel<decltype(element), Backward>>(
        ctx, op, ceil_div(step * pieces, kWideThreads), kWideThreads, 0, call, rows);
  });
}

}  // namespace fovea::cuda
