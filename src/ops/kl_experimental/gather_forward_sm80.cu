// SPDX-License-Identifier: Apache-2.0
// x_kl_gather_forward on mma.sync, where 16 heads share a row's list and its keys
// (gather_sm80.cuh): each warp keeps sums of its own keys (gather_simt.cuh), joined in order at the
// end.
#include "core/dtype.h"
#include "ops/kl/stage_coupled.cuh"
#include "ops/kl_experimental/gather_sm80.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "x_kl_gather_forward";

template <int Dtype>
__global__ void __launch_bounds__(kGatherThreads, 3)
    gather_heads_kernel(const __grid_constant__ GatherSimt call, int64_t head_tiles) {
  extern __shared__ __align__(1024) unsigned char s_dynamic[];
  __shared__ float s_sums[kGatherWarps][kGatherHeads][5];  // m, l of both sides; c
  __shared__ int s_named[2][kGatherKeys];
  const KlGather& a = call.a;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t rows = a.kl.sequences.query_max;
  for (int64_t w = blockIdx.x; w < call.work; w += gridDim.x) {
    const int64_t h0 = w % head_tiles * kGatherHeads, i = w / head_tiles % rows;
    const Sequence q = a.kl.sequences[w / head_tiles / rows];
    if (i >= q.rows) continue;
    __syncthreads();  // the last row is done with
    GatherTiles tiles(s_dynamic, s_named);
    tiles.begin(call, q, h0, i);
    StageCoupled<GatherFragment> state;
    for (int64_t n0 = 0; n0 < a.n; n0 += kGatherKeys) {
      tiles.advance(call, q, i, n0);
      float score[2][GatherFragment::R][GatherFragment::C];
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        float sums[1][2][4];
        tiles.product<Dtype>(sums, side, n0);
#pragma unroll
        for (int c = 0; c < GatherFragment::C; ++c) {
          const bool named = tiles.names(n0)[warp * 16 + GatherFragment::column_of(c)] >= 0;
#pragma unroll
          for (int r = 0; r < GatherFragment::R; ++r)
            score[side][r][c] =
                named ? only_numbers(sums[0][c / 2][2 * r + c % 2] * call.side[side].scale)
                      : -INFINITY;
        }
      }
      state.add(score[0], score[1]);
      __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < GatherFragment::R; ++r) {
      const float mine[5] = {state.m[0][r], state.m[1][r], GatherFragment::sum(state.l[0][r]),
                             GatherFragment::sum(state.l[1][r]), GatherFragment::sum(state.c[r])};
#pragma unroll
      for (int k = 0; k < 5; ++k)
        if (lane % 4 == 0) s_sums[warp][GatherFragment::row_of(r)][k] = mine[k];
    }
    __syncthreads();
    if (threadIdx.x >= kGatherHeads || h0 + threadIdx.x >= a.kl.h) continue;
    ListSums all;
    for (int of = 0; of < kGatherWarps; ++of) {
      const float(&x)[5] = s_sums[of][threadIdx.x];
      ListSums part;
      part.m[0] = x[0], part.m[1] = x[1], part.l[0] = x[2], part.l[1] = x[3], part.c = x[4];
      all.join(part);
    }
    put_list(a, q, h0 + threadIdx.x, i, all);
  }
}

std::string offer(const Context& ctx, const KlGather& a, Plan& plan) {
  if (std::string why = gather_heads_refuse(ctx, a); !why.empty()) return why;
  plan.kernel += std::string(".") + dtype_name(a.kl.first.dtype);
  plan.launch = [=](Context& ctx, void*) {
    GatherSimt call(a);
    const int64_t head_tiles = ceil_div(a.kl.h, kGatherHeads);
    call.work = a.kl.sequences.count * head_tiles * a.kl.sequences.query_max;
    const auto run = [&]<int Dtype> {
      launch<gather_heads_kernel<Dtype>>(ctx, kOp, call.work, kGatherThreads, GatherTiles::bytes,
                                         call, head_tiles);
    };
    if (a.kl.first.dtype == FOVEA_BF16)
      run.template operator()<FOVEA_BF16>();
    else
      run.template operator()<FOVEA_F16>();
  };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<KlGather> kl_gather_forward_sm80 = {"sm80", cuda::offer};

}  // namespace fovea
