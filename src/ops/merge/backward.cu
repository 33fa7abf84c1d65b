// SPDX-License-Identifier: Apache-2.0
// w_n = exp(lse_n - lse), do_n = w_n dout, dlse_n = w_n (<dout, o_n - o> + dlse).
// `lanes` threads of a warp own one head row of one part.  Each holds V columns at a time: 16 bytes
// of the wider type, else one.  A butterfly over the lanes gives the inner product.
#include "core/chunk.h"
#include "core/convert.h"
#include "core/dtype.h"
#include "core/locate.h"
#include "ops/merge/resolve.h"
#include "ops/merge/source.cuh"

namespace fovea {
namespace {

constexpr char kOp[] = "merge_backward";
constexpr int kThreads = 256;

// The row of o to which row j of part n belongs, or -1.
__device__ int64_t target_of(const Merge& a, int64_t n, int64_t j) {
  const int64_t i = a.row ? a.row_of(n, j) : j;
  return i >= 0 && i < a.s && a.source_of(n, i) == j ? i : -1;
}

template <class Part, class Out, int V>
__global__ void __launch_bounds__(kThreads) merge_backward_kernel(MergeBackward b, int lanes) {
  const Merge& a = b.forward;
  const int64_t work = a.n * a.b * a.u * a.h * lanes;
  for (int64_t base = blockIdx.x * int64_t{kThreads}; base < work;
       base += int64_t{gridDim.x} * kThreads) {
    const int64_t w = base + threadIdx.x;
    const bool active = w < work;
    const int64_t row = active ? quotient(w, lanes) : 0, lane = w & (lanes - 1);
    const int64_t line = quotient(row, a.h), head = row - line * a.h;
    const int64_t plane = quotient(line, a.u), j = line - plane * a.u;
    const int64_t n = quotient(plane, a.b), batch = plane - n * a.b;
    const float lse_part = a.lse_of(n, batch, head, j);
    const int64_t i = target_of(a, n, j);
    const bool counts = active && i >= 0 && lse_part != -INFINITY;
    float weight = 0, inner = 0;
    if (counts)
      weight = expf(lse_part - a.lse.as<float>()[batch * a.lse.stride[0] + head * a.lse.stride[1] +
                                                 i * a.lse.stride[2]]);
    for (int64_t c = lane * V; active && c < a.e; c += int64_t{lanes} * V) {
      Chunk<Part, V> gradient;
      for (int k = 0; k < V; ++k) gradient.x[k] = from_float<Part>(0);
      if (counts) {
        using In = Chunk<Out, V>;
        const auto dout = *reinterpret_cast<const In*>(
            b.dout.as<Out>() + batch * b.dout.stride[0] + i * b.dout.stride[1] +
            head * b.dout.stride[2] + c * (V > 1 ? 1 : b.dout.stride[3]));
        for (int k = 0; k < V; ++k) gradient.x[k] = from_float<Part>(weight * to_float(dout.x[k]));
        if (b.dlse_part) {
          const auto o = *reinterpret_cast<const In*>(a.o.as<Out>() + batch * a.o.stride[0] +
                                                      i * a.o.stride[1] + head * a.o.stride[2] +
                                                      c * (V > 1 ? 1 : a.o.stride[3]));
          const auto part = *reinterpret_cast<const Chunk<Part, V>*>(
              a.o_part.as<Part>() + n * a.o_part.stride[0] + batch * a.o_part.stride[1] +
              j * a.o_part.stride[2] + head * a.o_part.stride[3] +
              c * (V > 1 ? 1 : a.o_part.stride[4]));
          for (int k = 0; k < V; ++k)
            inner += to_float(dout.x[k]) * (to_float(part.x[k]) - to_float(o.x[k]));
        }
      }
      if (b.do_part)
        *reinterpret_cast<Chunk<Part, V>*>(b.do_part.as<Part>() + n * b.do_part.stride[0] +
                                           batch * b.do_part.stride[1] + j * b.do_part.stride[2] +
                                           head * b.do_part.stride[3] +
                                           c * (V > 1 ? 1 : b.do_part.stride[4])) = gradient;
    }
    if (!b.dlse_part) continue;
    for (int step = lanes / 2; step; step /= 2) inner += __shfl_xor_sync(0xffffffffu, inner, step);
    if (!active || lane) continue;
    if (counts && b.dlse)
      inner += b.dlse.as<float>()[batch * b.dlse.stride[0] + head * b.dlse.stride[1] +
                                  i * b.dlse.stride[2]];
    b.dlse_part.as<float>()[n * b.dlse_part.stride[0] + batch * b.dlse_part.stride[1] +
                            head * b.dlse_part.stride[2] + j * b.dlse_part.stride[3]] =
        counts ? weight * inner : 0;
  }
}

template <class Part, class Out>
bool wide(const MergeBackward& b) {
  constexpr int v = kWide<Part, Out>;
  const Merge& a = b.forward;
  return a.e % v == 0 && chunked(a.o_part, sizeof(Part), v) && chunked(a.o, sizeof(Out), v) &&
         chunked(b.dout, sizeof(Out), v) && (!b.do_part || chunked(b.do_part, sizeof(Part), v));
}

Text offer(const Context&, const MergeBackward& request, Plan& plan) {
  const Slot<int32_t> source = add_source(request.forward, plan);
  plan.kernel += Text(".") + dtype_name(request.forward.part_dtype) + "." +
                 dtype_name(request.forward.o_dtype);
  plan.launch = [request, source](Context& ctx, void* base) {
    MergeBackward b = request;
    Merge& a = b.forward;
    a.source = source.at(base);
    build_source(ctx, kOp, a);
    with_fp(a.part_dtype, [&](auto part) {
      with_fp(a.o_dtype, [&](auto out) {
        using Part = decltype(part);
        using Out = decltype(out);
        constexpr int kV = kWide<Part, Out>;
        const bool is_wide = wide<Part, Out>(b);
        const int lanes = lanes_of(a.e / (is_wide ? kV : 1), 32);
        const int64_t blocks = cuda::ceil_div(a.n * a.b * a.u * a.h * lanes, int64_t{kThreads});
        if (is_wide)
          cuda::launch<merge_backward_kernel<Part, Out, kV>>(ctx, kOp, blocks, kThreads, 0, b,
                                                             lanes);
        else
          cuda::launch<merge_backward_kernel<Part, Out, 1>>(ctx, kOp, blocks, kThreads, 0, b,
                                                            lanes);
      });
    });
  };
  return "";
}

}  // namespace

extern const Kernel<MergeBackward> merge_backward_cuda = {"", offer};

}  // namespace fovea
