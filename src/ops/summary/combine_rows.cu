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

// The branches that are there, side by side.
template <int Terms>
struct CombineRows {
  Combine a;
  CombineTerm term[Terms];
  bool coarse;  // the last of them is a.u blocks of rows
};

template <class T, int Terms>
__global__ void __launch_bounds__(kThreads)
    combine_rows_kernel(const __grid_constant__ CombineRows<Terms> call, int lanes, int64_t work) {
  constexpr int kEach = 16 / static_cast<int>(sizeof(T));
  using Piece = Chunk<T, kEach>;
  const Combine& a = call.a;
  const int64_t teams = kThreads / lanes, pieces = a.e / kEach;
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  pdl_wait();
  for (int64_t w = blockIdx.x * teams + threadIdx.x / lanes; w < work; w += gridDim.x * teams) {
    const int64_t above = quotient(w, a.h), head = w - above * a.h;
    const int64_t batch = quotient(above, a.s), i = above - batch * a.s;
    if (i >= a.rows(batch)) continue;
    const int64_t block = call.coarse ? a.block_of(batch, i) : -1;
    T* const to = static_cast<T*>(a.y.data) + combine_at(a.y, batch, i, head, 0);
    for (int64_t piece = lane; piece < pieces; piece += lanes) {
      // Before the gates: neither waits for the other.
      Piece x[Terms], y;
#pragma unroll
      for (int n = 0; n < Terms; ++n) {
        const bool coarse = n == Terms - 1 && call.coarse;
        const int64_t row = coarse ? block : i;
        if (row >= 0)
          x[n] = *reinterpret_cast<const Piece*>(static_cast<const T*>(call.term[n].x.data) +
                                                 combine_at(call.term[n].x, batch, row, head, 0) +
                                                 piece * kEach);
      }
      float sum[kEach] = {};
#pragma unroll
      for (int n = 0; n < Terms; ++n) {
        if (n == Terms - 1 && call.coarse && block < 0) continue;
        const CombineTerm& t = call.term[n];
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

template <class T, int Terms>
void enqueue_terms(Context& ctx, const Combine& a) {
  CombineRows<Terms> call{a, {}, false};
  int there = 0;
  for (int n = 0; n < kCombineTerms; ++n)
    if (a.term[n].x) call.term[there++] = a.term[n], call.coarse = n == kCombineTerms - 1;
  const int64_t rows = a.e ? a.b * a.s * a.h : 0;
  const int lanes = lanes_of(a.e * static_cast<int64_t>(sizeof(T)) / 16, 32);
  launch_pdl<combine_rows_kernel<T, Terms>>(ctx, kOp, ceil_div(rows * lanes, kThreads), kThreads, 0,
                                            call, lanes, rows);
}

template <class T>
void enqueue(Context& ctx, const Combine& a) {
  static_assert(kCombineTerms == 5);
  int there = 0;
  for (const CombineTerm& t : a.term) there += t.x ? 1 : 0;
  if (there == 1) return enqueue_terms<T, 1>(ctx, a);
  if (there == 2) return enqueue_terms<T, 2>(ctx, a);
  if (there == 3) return enqueue_terms<T, 3>(ctx, a);
  there == 4 ? enqueue_terms<T, 4>(ctx, a) : enqueue_terms<T, 5>(ctx, a);
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
        cuda::with_element(a.dtype, [&](auto x) { cuda::enqueue<decltype(x)>(ctx, a); });
      };
      return Text();
    }};

}  // namespace fovea
