// SPDX-License-Identifier: Apache-2.0
// lse = m + ln l, o = sum_n exp(lse_n - m) o_n / l, with m = max lse_n and l = sum_n exp(lse_n -
// m). `lanes` threads of a warp own one head row of o; each holds V columns at a time (16 bytes of
// the wider type, else one) while the parts pass by in ascending order.  A column is read in all
// parts before it is written, and lse_part before lse, so part 0 may be the output.
#include "core/chunk.h"
#include "core/convert.h"
#include "core/dtype.h"
#include "core/locate.h"
#include "ops/merge/resolve.h"
#include "ops/merge/source.cuh"

namespace fovea {
namespace {

constexpr char kOp[] = "merge_forward";
constexpr int kThreads = 256;

template <class Part, class Out, int V>
__global__ void __launch_bounds__(kThreads) merge_forward_kernel(Merge a, int lanes) {
  const int64_t work = a.b * a.s * a.h * lanes;
  for (int64_t base = blockIdx.x * int64_t{kThreads}; base < work;
       base += int64_t{gridDim.x} * kThreads) {
    const int64_t w = base + threadIdx.x;
    const bool active = w < work;
    const int64_t row = active ? quotient(w, lanes) : 0, lane = w & (lanes - 1);
    const int64_t line = quotient(row, a.h), head = row - line * a.h;
    const int64_t batch = quotient(line, a.s), i = line - batch * a.s;
    const auto lse_of = [&](int64_t n) {
      const int64_t j = a.source_of(n, i);
      return j < 0 ? -INFINITY : a.lse_of(n, batch, head, j);
    };
    float m = -INFINITY, l = 0;
    if (active) {
      for (int64_t n = 0; n < a.n; ++n) m = greater(m, lse_of(n));
      for (int64_t n = 0; n < a.n; ++n) {
        const float lse = lse_of(n);
        if (lse != -INFINITY) l += expf(lse - m);
      }
    }
    const int64_t step_part = V > 1 ? 1 : a.o_part.stride[4], step_o = V > 1 ? 1 : a.o.stride[3];
    for (int64_t c = lane * V; active && c < a.e; c += int64_t{lanes} * V) {
      float sum[V] = {};
#pragma unroll 4
      for (int64_t n = 0; n < a.n; ++n) {
        const float lse = lse_of(n);
        if (lse == -INFINITY) continue;
        const float weight = expf(lse - m);
        const auto part = *reinterpret_cast<const Chunk<Part, V>*>(
            a.o_part.as<Part>() + n * a.o_part.stride[0] + batch * a.o_part.stride[1] +
            a.source_of(n, i) * a.o_part.stride[2] + head * a.o_part.stride[3] + c * step_part);
        for (int k = 0; k < V; ++k) sum[k] += weight * to_float(part.x[k]);
      }
      Chunk<Out, V> out;
      for (int k = 0; k < V; ++k) out.x[k] = from_float<Out>(m == -INFINITY ? 0 : sum[k] / l);
      *reinterpret_cast<Chunk<Out, V>*>(a.o.as<Out>() + batch * a.o.stride[0] + i * a.o.stride[1] +
                                        head * a.o.stride[2] + c * step_o) = out;
    }
    __syncwarp();  // every lane of the row has read lse_part, which lse may be
    if (a.lse && active && lane == 0)
      a.lse.as<float>()[batch * a.lse.stride[0] + head * a.lse.stride[1] + i * a.lse.stride[2]] =
          m == -INFINITY ? m : m + logf(l);
  }
}

std::string refuses(const Context&, const Merge&) {
  return "";
}

void prepare(const Context&, const Merge& request, Plan& plan) {
  const Slot<int32_t> source = add_source(request, plan);
  plan.kernel +=
      std::string(".") + dtype_name(request.part_dtype) + "." + dtype_name(request.o_dtype);
  plan.launch = [request, source](Context& ctx, void* base) {
    Merge a = request;
    a.source = source.at(base);
    build_source(ctx, kOp, a);
    with_fp(a.part_dtype, [&](auto part) {
      with_fp(a.o_dtype, [&](auto out) {
        using Part = decltype(part);
        using Out = decltype(out);
        constexpr int kV = kWide<Part, Out>;
        const bool wide =
            a.e % kV == 0 && chunked(a.o_part, sizeof(Part), kV) && chunked(a.o, sizeof(Out), kV);
        const int lanes = lanes_of(a.e / (wide ? kV : 1), 32);
        const int64_t blocks = cuda::ceil_div(a.b * a.s * a.h * lanes, int64_t{kThreads});
        if (wide)
          cuda::launch<merge_forward_kernel<Part, Out, kV>>(ctx, kOp, blocks, kThreads, 0, a,
                                                            lanes);
        else
          cuda::launch<merge_forward_kernel<Part, Out, 1>>(ctx, kOp, blocks, kThreads, 0, a, lanes);
      });
    });
  };
}

}  // namespace

const Kernel<Merge> merge_forward_cuda = {"merge_forward.cuda", refuses, prepare};

}  // namespace fovea
