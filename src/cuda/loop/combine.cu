// SPDX-License-Identifier: Apache-2.0
// The merge of split-K (combine.cuh).  A warp owns 128 columns of a row.  Of many splits, whose
// loads would come in rounds, each warp of a team has some, and the first one merges what the
// others found, in their order.
#include "core/locate.h"
#include "cuda/loop/combine_row.cuh"
#include "cuda/loop/source.cuh"
#include "cuda/tile/order.cuh"

namespace fovea::cuda {
namespace {

constexpr int kWarps = 4;
// Of a team: splits of a warp, whose loads are in flight together; warps at most.
constexpr int kTeamSplits = 8, kTeamMost = 16;

// Columns [chunk kMergeColumns, ...) of a row that is merged.
struct MergedRow {
  int64_t batch, i, h, chunk;
};
// Whether work item `w` has a row.
__device__ bool find_row(const Attend& a, const Partials& parts, int64_t w, MergedRow& row) {
  const int64_t chunks = (a.e + kMergeColumns - 1) / kMergeColumns;
  int64_t rest = w;
  const auto digit = [&](int64_t n) {
    const int64_t all = rest;
    rest = quotient(all, n);
    return all - rest * n;
  };
  row.chunk = digit(chunks), row.h = digit(a.h);
  const int64_t i = digit(a.sequences.query_max - parts.out.history);
  const Sequence seq = a.sequences[rest];
  const OutRows::Place out = parts.out.of(a.sequences, seq, rest);
  row.batch = seq.batch, row.i = out.begin + i;
  return i < out.count && !(parts.skip_head && parts.skip_head[row.h]);
}

__global__ void __launch_bounds__(kWarps * 32)
    combine_kernel(Attend a, Partials parts, int64_t work) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t w = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; w < work;
       w += stride) {
    MergedRow row;
    if (!find_row(a, parts, w, row)) continue;
    pdl_wait();
    pdl_trigger();  // the kernel after may start: it writes nothing before this one has ended
    combine_row(a, parts, row.batch, row.i, row.h, row.chunk);
  }
  pdl_wait();  // of blocks without rows
}

// A block is a team.
__global__ void __launch_bounds__(kTeamMost * 32)
    combine_team_kernel(Attend a, Partials parts, int64_t work) {
  __shared__ float4 s_acc[kTeamMost][32];
  __shared__ float2 s_sums[kTeamMost];  // top, sum
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const int each = (parts.splits + warps - 1) / warps;
  const int begin = min(warp * each, parts.splits), end = min(begin + each, parts.splits);
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    MergedRow at;
    if (!find_row(a, parts, w, at)) continue;
    pdl_wait();
    pdl_trigger();
    const PartialRow row(a, parts, at.batch * parts.out.extent + at.i, at.h, at.chunk);
    const float sink = sink_of(a, at.h);
    const MergedSplits own = merge_splits<kTeamSplits, false>(parts, row, begin, end, sink);
    s_acc[warp][lane] = own.acc;
    if (lane == 0) s_sums[warp] = {own.top, own.sum};
    __syncthreads();
    if (warp == 0) {
      MergedSplits all = own;
      for (int n = 1; n < warps; ++n) all.top = fmaxf(all.top, s_sums[n].x);
      all.sum = 0, all.acc = {};
      for (int n = 0; n < warps; ++n) {
        const float2 sums = s_sums[n];
        const float by = sums.x == -INFINITY ? 0.f : expf(sums.x - all.base());
        const float4 x = s_acc[n][lane];
        all.sum = fmaf(by, sums.y, all.sum);
        all.acc.x = fmaf(by, x.x, all.acc.x), all.acc.y = fmaf(by, x.y, all.acc.y);
        all.acc.z = fmaf(by, x.z, all.acc.z), all.acc.w = fmaf(by, x.w, all.acc.w);
      }
      store_merged<false>(a, all, at.batch, at.i, at.h, at.chunk, sink);
    }
    __syncthreads();
  }
  pdl_wait();
}

}  // namespace

void combine(Context& ctx, const char* op, const Attend& a, const Partials& parts) {
  const int64_t rows = a.sequences.query_max - parts.out.history;
  if (rows <= 0) return;
  const int64_t work = a.sequences.count * rows * a.h * ceil_div(a.e, kMergeColumns);
  const int64_t warps = std::min<int64_t>(ceil_div(parts.splits, kTeamSplits), kTeamMost);
  if (warps > 1)
    launch_pdl<combine_team_kernel>(ctx, op, work, warps * 32, 0, a, parts, work);
  else
    launch_pdl<combine_kernel>(ctx, op, ceil_div(work, kWarps), kWarps * 32, 0, a, parts, work);
}

}  // namespace fovea::cuda
