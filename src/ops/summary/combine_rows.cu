// SPDX-License-Identifier: Apache-2.0
// x_combine_forward where rows are pieces of 16 bytes and a gate is one number a row:
//   y = sum of coefficient act(gate) x
// A team of lanes owns a row of a head, and a lane every n-th piece of it.
#include "core/chunk.h"
#include "core/dtype.h"
#include "core/locate.h"
#include "core/reasons.h"
#include "cuda/launch.h"
#include "cuda/tile/convert.cuh"
#include "cuda/tile/order.cuh"
#include "ops/summary/combine.h"

namespace fovea {
namespace cuda {
namespace {

constexpr int kThreads = 256;
constexpr char kOp[] = "x_combine_forward";

template <class T>
__global__ void __launch_bounds__(kThreads, 3)
    combine_rows_kernel(const __grid_constant__ Combine a, int lanes, int64_t work) {
  constexpr int kEach = 16 / static_cast<int>(sizeof(T));
  using Piece = Chunk<T, kEach>;
  const int64_t teams = kThreads / lanes, pieces = a.e / kEach;
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  pdl_wait();
  for (int64_t w = blockIdx.x * teams + threadIdx.x / lanes; w < work; w += gridDim.x * teams) {
    const int64_t above = quotient(w, a.h), head = w - above * a.h;
    const int64_t batch = quotient(above, a.s), i = above - batch * a.s;
    if (i >= a.rows(batch)) continue;
    const int64_t block = a.u ? a.block_of(batch, i) : -1;
    const T* from[kCombineTerms];
#pragma unroll
    for (int n = 0; n < kCombineTerms; ++n) {
      const CombineTerm& t = a.term[n];
      const int64_t row = n == kCombineTerms - 1 ? block : i;
      from[n] = nullptr;
      if (t.x && row >= 0)
        from[n] = static_cast<const T*>(t.x.data) + combine_at(t.x, batch, row, head, 0);
    }
    T* const to = static_cast<T*>(a.y.data) + combine_at(a.y, batch, i, head, 0);
    for (int64_t piece = lane; piece < pieces; piece += lanes) {
      // Before the gates: neither waits for the other.
      Piece x[kCombineTerms], y;
#pragma unroll
      for (int n = 0; n < kCombineTerms; ++n)
        if (from[n]) x[n] = *reinterpret_cast<const Piece*>(from[n] + piece * kEach);
      float sum[kEach] = {};
#pragma unroll
      for (int n = 0; n < kCombineTerms; ++n) {
        if (!from[n]) continue;
        const CombineTerm& t = a.term[n];
        const float weight = t.coefficient * combine_gate(t, batch, i, head, 0).value;
#pragma unroll
        for (int e = 0; e < kEach; ++e) sum[e] += weight * to_float(x[n].x[e]);
      }
#pragma unroll
      for (int e = 0; e < kEach; ++e) y.x[e] = from_float<T>(sum[e]);
      *reinterpret_cast<Piece*>(to + piece * kEach) = y;
    }
  }
}

template <class T>
void enqueue(Context& ctx, const Combine& a) {
  const int64_t rows = a.e ? a.b * a.s * a.h : 0;
  const int lanes = lanes_of(a.e * static_cast<int64_t>(sizeof(T)) / 16, 32);
  launch_pdl<combine_rows_kernel<T>>(ctx, kOp, ceil_div(rows * lanes, kThreads), kThreads, 0, a,
                                     lanes, rows);
}

Text refuse(const Combine& a) {
  const int bytes = a.dtype == FOVEA_F32 ? 4 : 2, each = 16 / bytes;
  if (a.y_dtype != a.dtype) return Text("y is ") + dtype_name(a.y_dtype) + ", wanted x's dtype";
  if (a.e % each) return reason("e", a.e, "whole pieces of 16 bytes");
  if (!chunked(a.y, static_cast<size_t>(bytes), each)) return reason_rows("y");
  for (const CombineTerm& t : a.term) {
    if (!t.x) continue;
    if (!chunked(t.x, static_cast<size_t>(bytes), each)) return reason_rows("x");
    if (t.gate && t.gate.stride[3] && a.e > 1) return "gate differs by column, wanted one a row";
  }
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<Combine> combine_forward_rows = {
    "rows", [](const Context&, const Combine& a, Plan& plan) {
      if (Text why = cuda::refuse(a); !why.empty()) return why;
      plan.kernel += Text(".") + dtype_name(a.dtype);
      plan.launch = [a](Context& ctx, void*) {
        if (a.dtype == FOVEA_F32) return cuda::enqueue<float>(ctx, a);
        if (a.dtype == FOVEA_F16) return cuda::enqueue<cuda::f16>(ctx, a);
        cuda::enqueue<cuda::bf16>(ctx, a);
      };
      return Text();
    }};

}  // namespace fovea
