// SPDX-License-Identifier: Apache-2.0
// What every kernel of x_probe_forward does to its outputs before and after, an element a thread.
#include "cuda/launch.h"
#include "ops/summary/probe_work.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "x_probe_forward";
constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    probe_clear_kernel(const __grid_constant__ ProbeCall p, int64_t work) {
  for (int64_t n = blockIdx.x * int64_t{kThreads} + threadIdx.x; n < work;
       n += gridDim.x * int64_t{kThreads})
    *p.column_sum.at(n / p.a.columns / p.x, n / p.a.columns % p.x, n % p.a.columns) = 0;
}

__global__ void __launch_bounds__(kThreads)
    probe_zero_kernel(unsigned long long* sums, int64_t work) {
  for (int64_t n = blockIdx.x * int64_t{kThreads} + threadIdx.x; n < work;
       n += gridDim.x * int64_t{kThreads})
    sums[n] = 0;
}

__global__ void __launch_bounds__(kThreads)
    probe_sums_kernel(const __grid_constant__ ProbeCall p, const unsigned long long* sums,
                      int64_t work) {
  for (int64_t n = blockIdx.x * int64_t{kThreads} + threadIdx.x; n < work;
       n += gridDim.x * int64_t{kThreads}) {
    const int64_t o = n % p.columns, x = n / p.columns % p.x, r = n / p.columns / p.x;
    *p.diagonal_sum.at(r, x, o) =
        probe_diagonal(p, sums + (r * p.a.h + x * p.group()) * p.columns, o);
  }
}

int64_t each(int64_t work) {
  return ceil_div(work, kThreads);
}

}  // namespace

void probe_clear_columns(Context& ctx, const ProbeCall& p) {
  const Sequences& q = p.a.sequences;
  const int64_t all = (q.key_start ? 1 : q.count) * p.x * p.a.columns;
  launch<probe_clear_kernel>(ctx, kOp, each(all), kThreads, 0, p, all);
}

void probe_clear_diagonals(Context& ctx, const ProbeCall& p, unsigned long long* sums) {
  const int64_t all = p.a.sequences.count * p.a.h * p.columns;
  launch<probe_zero_kernel>(ctx, kOp, each(all), kThreads, 0, sums, all);
}

void probe_store_diagonals(Context& ctx, const ProbeCall& p, unsigned long long* sums) {
  const int64_t all = p.a.sequences.count * p.x * p.columns;
  launch<probe_sums_kernel>(ctx, kOp, each(all), kThreads, 0, p,
                            static_cast<const unsigned long long*>(sums), all);
}

}  // namespace cuda
}  // namespace fovea
