// SPDX-License-Identifier: Apache-2.0
// The weighted sum of kl, in f64 and in one order: a block adds up the rows of a head of a
// sequence, then one block the heads.
#include "cuda/block/reduce.cuh"
#include "ops/kl/sides.cuh"

namespace fovea::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    head_totals_kernel(const __grid_constant__ Kl a, const __grid_constant__ View<3> kl,
                       const __grid_constant__ View<3> lse, KlTotals* parts) {
  __shared__ double s_sum[kThreads / 32];
  const int64_t count = a.sequences.count * a.h;
  for (int64_t w = blockIdx.x; w < count; w += gridDim.x) {
    const Sequence q = a.sequences[w / a.h];
    const int64_t h = w % a.h;
    const auto at = [&](const View<3>& x, int64_t i) { return row_value(x, q, h, i); };
    KlTotals sum{};
    for (int64_t i = threadIdx.x; i < q.rows; i += kThreads) {
      if (at(lse, i) == -INFINITY) continue;
      const float weight = a.row_weight ? at(a.row_weight, i) : 1.f;
      if (weight == 0) continue;  // counts for nothing, NaN included
      sum.weight += weight;
      if (kl) sum.value += static_cast<double>(weight) * at(kl, i);
    }
    sum.value = block_sum<kThreads>(sum.value, s_sum);
    sum.weight = block_sum<kThreads>(sum.weight, s_sum);
    if (threadIdx.x == 0) parts[w] = sum;
  }
}

__global__ void __launch_bounds__(kThreads)
    total_kernel(const __grid_constant__ Kl a, KlTotals* parts) {
  __shared__ double s_sum[kThreads / 32];
  const int64_t count = a.sequences.count * a.h;
  KlTotals sum{};
  for (int64_t w = threadIdx.x; w < count; w += kThreads)
    sum.value += parts[w].value, sum.weight += parts[w].weight;
  sum.value = block_sum<kThreads>(sum.value, s_sum);
  sum.weight = block_sum<kThreads>(sum.weight, s_sum);
  if (threadIdx.x) return;
  parts[count] = sum;
  if (!a.total) return;
  double total = sum.value;
  if (a.mean) total = sum.weight == 0 ? 0 : sum.value / sum.weight;
  *a.total.as() = static_cast<float>(total);
}

}  // namespace

const KlTotals* add_up(Context& ctx, const char* op, const Kl& a, const View<3>& kl,
                       const View<3>& lse, KlTotals* parts) {
  const int64_t count = a.sequences.count * a.h;
  launch<head_totals_kernel>(ctx, op, count, kThreads, 0, a, kl, lse, parts);
  launch<total_kernel>(ctx, op, 1, kThreads, 0, a, parts);
  return parts + count;
}

}  // namespace fovea::cuda
