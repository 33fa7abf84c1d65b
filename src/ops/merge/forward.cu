// SPDX-License-Identifier: Apache-2.0
//   m = max lse_n,  l = sum_n exp(lse_n - m),  lse = m + ln l,  o = sum_n exp(lse_n - m) o_n / l
// `lanes` threads of a warp own one head row of o.  Each loads the weight of one part at a time and
// passes it on by shuffle.  Each sums V columns, 16 bytes of the wider type, else one, over the
// parts in ascending order, kBatch of them in flight.
// A column is read in all parts before it is written, and lse_part before lse: part 0 may be the
// output.
// Of up to kFew parts each thread has all weights itself, and asks for kAhead pieces of each part
// before the first sum.
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

constexpr int kBatch = 4;
constexpr int kFew = 4, kAhead = 2;
constexpr unsigned kWarp = 0xffffffffu;

// One head row of o.
struct Row {
  int64_t batch, i, head;
  bool active;
};

// A part of a row: its row in that part (-1: none) and lse.
struct Share {
  int64_t j;
  float lse;
};

__device__ Share share_of(const Merge& a, const Row& row, int64_t n) {
  if (!row.active || n >= a.n) return {-1, -INFINITY};
  const int64_t j = a.source_of(n, row.i);
  return {j, j < 0 ? -INFINITY : a.lse_of(n, row.batch, row.head, j)};
}

// Head row `number` of o, all rows in order.
__device__ Row row_of(const Merge& a, int64_t number) {
  const int64_t line = quotient(number, a.h), batch = quotient(line, a.s);
  return {batch, line - batch * a.s, number - line * a.h, true};
}

__device__ void store_lse(const Merge& a, const Row& row, float m, float l) {
  a.lse.as<float>()[row.batch * a.lse.stride[0] + row.head * a.lse.stride[1] +
                    row.i * a.lse.stride[2]] = m == -INFINITY ? m : m + logf(l);
}

// Adds the parts to V columns from c on (none where c is past the row); returns l.
template <class Part, int V>
__device__ float sum_parts(const Merge& a, const Row& row, float m, int lane, int lanes, int64_t c,
                           float (&sum)[V]) {
  const int64_t step = V > 1 ? 1 : a.o_part.stride[4];
  const Part* column = a.o_part.as<Part>() + row.batch * a.o_part.stride[1] +
                       row.head * a.o_part.stride[3] + c * step;
  float l = 0;
  for (int64_t first = 0; first < a.n; first += lanes) {
    const Share own = share_of(a, row, first + lane);
    const float own_weight = own.lse == -INFINITY ? -1 : expf(own.lse - m);  // < 0: adds nothing
    const int64_t count = a.n - first < lanes ? a.n - first : lanes;
    for (int64_t k = 0; k < count; k += kBatch) {
      float weight[kBatch];
      Chunk<Part, V> part[kBatch];
#pragma unroll
      for (int p = 0; p < kBatch; ++p) {
        const int from = static_cast<int>(k) + p;
        weight[p] = __shfl_sync(kWarp, own_weight, from, lanes);
        const int64_t j = __shfl_sync(kWarp, own.j, from, lanes);
        if (from >= count) weight[p] = -1;
        if (!(weight[p] < 0) && c < a.e)
          part[p] = *reinterpret_cast<const Chunk<Part, V>*>(
              column + (first + from) * a.o_part.stride[0] + j * a.o_part.stride[2]);
      }
#pragma unroll
      for (int p = 0; p < kBatch; ++p) {
        if (weight[p] < 0) continue;
        l += weight[p];
        if (c < a.e)
          for (int x = 0; x < V; ++x) sum[x] += weight[p] * to_float(part[p].x[x]);
      }
    }
  }
  return l;
}

template <class Part, class Out, int V>
__global__ void __launch_bounds__(kThreads)
    merge_forward_kernel(const __grid_constant__ Merge a, int lanes) {
  const int64_t work = a.b * a.s * a.h * lanes;
  for (int64_t base = blockIdx.x * int64_t{kThreads}; base < work;
       base += int64_t{gridDim.x} * kThreads) {
    const int64_t w = base + threadIdx.x;
    const int lane = threadIdx.x & (lanes - 1);
    const Row row = w < work ? row_of(a, quotient(w, lanes)) : Row{0, 0, 0, false};
    float m = -INFINITY;
    for (int64_t n = lane; n < a.n; n += lanes) m = greater(m, share_of(a, row, n).lse);
    for (int step = lanes / 2; step; step /= 2) m = greater(m, __shfl_xor_sync(kWarp, m, step));

    float l = 0;
    Out* o = a.o.as<Out>() + row.batch * a.o.stride[0] + row.i * a.o.stride[1] +
             row.head * a.o.stride[2];
    int64_t first = 0;
    do {  // with all lanes, for the shuffles
      const int64_t c = first + int64_t{lane} * V;
      float sum[V] = {};
      l = sum_parts<Part>(a, row, m, lane, lanes, c, sum);
      if (row.active && c < a.e) {
        Chunk<Out, V> out;
        for (int x = 0; x < V; ++x) out.x[x] = from_float<Out>(m == -INFINITY ? 0 : sum[x] / l);
        *reinterpret_cast<Chunk<Out, V>*>(o + c * (V > 1 ? 1 : a.o.stride[3])) = out;
      }
      first += int64_t{lanes} * V;
    } while (first < a.e);
    if (a.lse && row.active && lane == 0) store_lse(a, row, m, l);
  }
}

// At most kFew parts, whose rows are whole pieces of V columns.
template <class Part, class Out, int V>
__global__ void __launch_bounds__(kThreads)
    merge_few_kernel(const __grid_constant__ Merge a, int lanes) {
  const int64_t work = a.b * a.s * a.h * lanes;
  for (int64_t base = blockIdx.x * int64_t{kThreads}; base < work;
       base += int64_t{gridDim.x} * kThreads) {
    const int64_t w = base + threadIdx.x, lane = w & (lanes - 1);
    const Row row = w < work ? row_of(a, quotient(w, lanes)) : Row{0, 0, 0, false};
    float weight[kFew], m = -INFINITY, l = 0;
    const Part* part[kFew];
#pragma unroll
    for (int n = 0; n < kFew; ++n) {
      const Share share = share_of(a, row, n);
      weight[n] = share.lse, m = greater(m, share.lse);
      part[n] = a.o_part.as<Part>() + n * a.o_part.stride[0] + row.batch * a.o_part.stride[1] +
                share.j * a.o_part.stride[2] + row.head * a.o_part.stride[3];
    }
#pragma unroll
    for (int n = 0; n < kFew; ++n) {
      weight[n] = weight[n] == -INFINITY ? -1 : expf(weight[n] - m);  // < 0: adds nothing
      if (!(weight[n] < 0)) l += weight[n];
    }
    __syncwarp();  // lse may be what other lanes read
    if (!row.active) continue;
    if (a.lse && lane == 0) store_lse(a, row, m, l);
    Out* const o = a.o.as<Out>() + row.batch * a.o.stride[0] + row.i * a.o.stride[1] +
                   row.head * a.o.stride[2];
    const int64_t step = int64_t{lanes} * V;
    for (int64_t first = lane * V; first < a.e; first += kAhead * step) {
      Chunk<Part, V> x[kAhead][kFew];
#pragma unroll
      for (int p = 0; p < kAhead; ++p)
#pragma unroll
        for (int n = 0; n < kFew; ++n)
          if (first + p * step < a.e && !(weight[n] < 0))
            x[p][n] = *reinterpret_cast<const Chunk<Part, V>*>(part[n] + first + p * step);
#pragma unroll
      for (int p = 0; p < kAhead; ++p) {
        if (first + p * step >= a.e) break;
        float sum[V] = {};
#pragma unroll
        for (int n = 0; n < kFew; ++n)
          if (!(weight[n] < 0))
            for (int c = 0; c < V; ++c) sum[c] += weight[n] * to_float(x[p][n].x[c]);
        Chunk<Out, V> out;
        for (int c = 0; c < V; ++c) out.x[c] = from_float<Out>(m == -INFINITY ? 0 : sum[c] / l);
        *reinterpret_cast<Chunk<Out, V>*>(o + first + p * step) = out;
      }
    }
  }
}

Text offer(const Context&, const Merge& request, Plan& plan) {
  const Slot<int32_t> source = add_source(request, plan);
  plan.kernel += Text(".") + dtype_name(request.part_dtype) + "." + dtype_name(request.o_dtype);
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
        if (wide && a.n <= kFew)
          cuda::launch<merge_few_kernel<Part, Out, kV>>(ctx, kOp, blocks, kThreads, 0, a, lanes);
        else if (wide)
          cuda::launch<merge_forward_kernel<Part, Out, kV>>(ctx, kOp, blocks, kThreads, 0, a,
                                                            lanes);
        else
          cuda::launch<merge_forward_kernel<Part, Out, 1>>(ctx, kOp, blocks, kThreads, 0, a, lanes);
      });
    });
  };
  return "";
}

}  // namespace

extern const Kernel<Merge> merge_forward_cuda = {"", offer};

}  // namespace fovea
