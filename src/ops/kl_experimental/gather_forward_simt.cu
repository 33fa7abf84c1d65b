// SPDX-License-Identifier: Apache-2.0
// x_kl_gather_forward in f32 FMA: every dtype, width and stride.  A warp owns a row of a head; each
// eight of its lanes take every fourth entry of the list (gather_simt.cuh) and keep sums of their
// own, which are joined at the end:
//   X = max x, l_x = sum e^(x - X), Y and l_y likewise, c = sum e^(x - X) ((x - X) - (y - Y))
//   kl = c / l_x - ln l_x + ln l_y,  lse = X + ln l_x, Y + ln l_y
#include "core/dtype.h"
#include "ops/kl_experimental/gather_simt.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "x_kl_gather_forward";

__global__ void __launch_bounds__(kGatherThreads)
    gather_forward_kernel(const __grid_constant__ GatherSimt call) {
  extern __shared__ float4 s_dynamic[];
  const KlGather& a = call.a;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* const s_x = reinterpret_cast<float*>(s_dynamic) + warp * 2 * call.pitch;
  float* const s_y = s_x + call.pitch;
  const int64_t rows = a.kl.sequences.query_max;
  for (int64_t w = int64_t{blockIdx.x} * kGatherWarps + warp; w < call.work;
       w += int64_t{gridDim.x} * kGatherWarps) {
    // Heads first: theirs may be one list.
    const int64_t h = w % a.kl.h, i = w / a.kl.h % rows;
    const Sequence q = a.kl.sequences[w / a.kl.h / rows];
    if (i >= q.rows) continue;
    __syncwarp();
    put_row(s_x, call.side[0].q, q_place(call.side[0], q, h, i), call.pitch, lane, 32);
    put_row(s_y, call.side[1].q, q_place(call.side[1], q, h, i), call.pitch, lane, 32);
    __syncwarp();
    ListSums sums;
    for (int64_t n0 = 0; n0 < a.n; n0 += kWarpPairs) {
      const int64_t j = list_entry(a, q, h, i, n0 + lane / kPairLanes);
      float score[2];
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        const StageSide& of = call.side[side];
        const float x = pair_product(of.k, j < 0 ? -1 : k_place(of, q, h, j), side ? s_y : s_x);
        score[side] = only_numbers(x * of.scale);
      }
      if (j < 0) continue;
      ListSums one;
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        one.m[side] = fmaxf(score[side], sums.m[side]);
        one.l[side] = expf(score[side] - one.m[side]);
      }
      one.c = one.l[0] * ((score[0] - one.m[0]) - (score[1] - one.m[1]));
      sums.join(one);
    }
    for (int step = kPairLanes; step < 32; step *= 2) sums.join(sums.other(step));
    if (lane) continue;
    put_list(a, q, h, i, sums);
  }
}

std::string offer(const Context&, const KlGather& a, Plan& plan) {
  plan.kernel += std::string(".") + dtype_name(a.kl.first.dtype);
  plan.launch = [=](Context& ctx, void*) {
    GatherSimt call(a);
    call.work = a.kl.sequences.count * a.kl.h * a.kl.sequences.query_max;
    launch<gather_forward_kernel>(ctx, kOp, ceil_div(call.work, kGatherWarps), kGatherThreads,
                                  kGatherWarps * 2 * call.pitch * sizeof(float), call);
  };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<KlGather> kl_gather_forward_simt = {"simt", cuda::offer};

}  // namespace fovea
