// SPDX-License-Identifier: Apache-2.0
// x_cache_step: a thread block owns a head of a sequence.  Its threads mark the slots that stay;
// one thread pairs free slots with those that move down; then all copy, a warp each row.
#include "core/dtype.h"
#include "cuda/block/reduce.cuh"
#include "cuda/launch.h"
#include "ops/summary/cache_step.h"

namespace fovea {
namespace cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

struct StepCall {
  CacheStep a;
  int32_t* stays;
  CacheMove* move;
};

__device__ __forceinline__ void copy_rows(const CacheStep& a, const View<4>& k, const View<4>& v,
                                          int64_t b, int64_t slot, int64_t row, int64_t g) {
  for (int64_t c = threadIdx.x % 32; c < a.d; c += 32) a.copy(a.k, b, slot, k, row, g, c);
  for (int64_t c = threadIdx.x % 32; c < a.e; c += 32) a.copy(a.v, b, slot, v, row, g, c);
}

__global__ void __launch_bounds__(kThreads, 1)
    cache_step_kernel(const __grid_constant__ StepCall call, int64_t work) {
  __shared__ int s_last[kThreads];
  __shared__ CacheCounts s_counts;
  const CacheStep& a = call.a;
  const int warp = threadIdx.x / 32;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t b = w / a.g, g = w % a.g;
    int64_t live = a.live(b, g);
    int own = -1;
    for (int64_t n = threadIdx.x; n < live; n += kThreads) {
      own = max(own, a.at(b, g, n));
      if (a.mass) *a.score.at(b, g, n) += *a.mass.at(b, g, n);
    }
    __syncthreads();
    s_last[threadIdx.x] = own;
    __syncthreads();
    for (int n = 0; n < kThreads; ++n) own = max(own, s_last[n]);
    const int64_t last = own;
    if (!a.ring) {
      int32_t* const stays = call.stays + w * a.t;
      CacheMove* const move = call.move + w * a.t;
      for (int64_t n = threadIdx.x; n < live; n += kThreads)
        stays[n] = a.stays(b, g, live, n, last);
      __syncthreads();
      if (threadIdx.x == 0) s_counts = cache_moves(stays, live, move);
      __syncthreads();
      for (int64_t n = warp; n < s_counts.moves; n += kWarps) {
        const int64_t from = move[n].from, to = move[n].to;
        copy_rows(a, a.k, a.v, b, to, from, g);
        if (threadIdx.x % 32) continue;
        a.at(b, g, to) = a.at(b, g, from);
        *a.score.at(b, g, to) = *a.score.at(b, g, from);
      }
      live = s_counts.stay;
      __syncthreads();
    }
    const int64_t begin = a.old_len ? a.old_len[b] : last + 1, added = a.added(b, live);
    for (int64_t n = warp; n < added; n += kWarps) {
      const int64_t p = begin + n;
      if (a.ring && (p < 0 || (p >= a.sink && n < added - a.turn(g)))) continue;
      const int64_t slot = a.ring ? a.slot(g, p) : live + n;
      copy_rows(a, a.k_new, a.v_new, b, slot, n, g);
      if (threadIdx.x % 32) continue;
      a.at(b, g, slot) = static_cast<int32_t>(p);
      if (!a.ring) *a.score.at(b, g, slot) = 0;
    }
    if (a.ring && added)
      live = clamp_i64(begin + added, live, a.sink + a.turn(g));
    else if (!a.ring)
      live += added;
    if (threadIdx.x == 0) *a.count.at<int32_t>(b, g) = static_cast<int32_t>(live);
  }
}

}  // namespace
}  // namespace cuda

extern const Kernel<CacheStep> cache_step_simt = {
    "simt", [](const Context&, const CacheStep& a, Plan& plan) {
      plan.kernel += Text(".") + dtype_name(a.dtype);
      const CacheRoom room = cache_room(a, plan.workspace);
      plan.launch = [=](Context& ctx, void* base) {
        const int64_t work = a.b * a.g;
        cuda::launch<cuda::cache_step_kernel>(
            ctx, "x_cache_step", work, cuda::kThreads, 0,
            cuda::StepCall{a, room.stays.at(base), room.move.at(base)}, work);
      };
      return Text();
    }};

}  // namespace fovea
