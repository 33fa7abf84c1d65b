// SPDX-License-Identifier: Apache-2.0
// x_kl_gather_forward on mma.sync (sm_80 and up), where 16 heads share a row's list and its keys: a
// block owns a row of 16 heads, whose list's keys come to shared memory once for all of them, 64 at
// a time; each of its four warps takes 16 of these and keeps sums of its own (gather_simt.cuh),
// joined in order at the end.
// Shared memory: q of both sides, 16 x 128, two stages of keys of both, 64 x 128.
// Barriers: one when a stage has landed, one when it is done with.
#include "core/dtype.h"
#include "cuda/tile/copy.cuh"
#include "cuda/tile/mma_sm80.cuh"
#include "ops/kl/gather_simt.cuh"
#include "ops/kl/stage_coupled.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "x_kl_gather_forward";
constexpr int kHeads = 16, kKeys = 64, kWidth = 128;

// A warp's fragment of scores: rows are heads.
struct GatherFragment {
  static constexpr int R = 2, C = 4;
  __device__ static float max(float x) { return quad_max(x); }
  __device__ static float sum(float x) { return quad_sum(x); }
  __device__ static int column_of(int c) { return c / 2 * 8 + threadIdx.x % 4 * 2 + c % 2; }
};

using TileQ = Swizzled<kHeads, kWidth>;
using TileK = Swizzled<kKeys, kWidth>;
constexpr int kStageBytes = 2 * TileK::bytes, kSharedBytes = 2 * TileQ::bytes + 2 * kStageBytes;

// Keys of entries from n0 on; a row of zeros for an entry that names none.
__device__ __forceinline__ void copy_keys(const GatherSimt& call, const Sequence& q, int64_t i,
                                          int64_t n0, uint32_t to) {
  constexpr int kStep = kGatherThreads / kPanelChunks, kRows = kKeys / kStep;
  int64_t j[kRows];
#pragma unroll
  for (int k = 0; k < kRows; ++k)
    j[k] = list_entry(call.a, q, 0, i, n0 + threadIdx.x / kPanelChunks + k * kStep);
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    const StageSide& of = call.side[side];
    const uint16_t* base = static_cast<const uint16_t*>(of.k.data);
    copy_rows<kKeys, kWidth, kGatherThreads>(
        to + side * TileK::bytes, of.k.width, base, [&](int row) -> const uint16_t* {
          const int64_t key = j[row / kStep];
          return key < 0 ? nullptr : base + k_place(of, q, 0, key);
        });
  }
  copy_commit();
}

template <int Dtype>
__global__ void __launch_bounds__(kGatherThreads, 3)
    gather_heads_kernel(const __grid_constant__ GatherSimt call, int64_t head_tiles) {
  extern __shared__ __align__(1024) unsigned char s_dynamic[];
  __shared__ float s_sums[kGatherWarps][kHeads][5];  // m, l of both sides; c
  const KlGather& a = call.a;
  const uint32_t s_q = shared_address(s_dynamic), s_k = s_q + 2 * TileQ::bytes;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t rows = a.kl.sequences.query_max;
  for (int64_t w = blockIdx.x; w < call.work; w += gridDim.x) {
    const int64_t h0 = w % head_tiles * kHeads, i = w / head_tiles % rows;
    const Sequence q = a.kl.sequences[w / head_tiles / rows];
    if (i >= q.rows) continue;
    __syncthreads();  // the last row is done with
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const StageSide& of = call.side[side];
      const uint16_t* base = static_cast<const uint16_t*>(of.q.data);
      copy_rows<kHeads, kWidth, kGatherThreads>(
          s_q + side * TileQ::bytes, of.q.width, base, [&](int row) -> const uint16_t* {
            return h0 + row < a.kl.h ? base + q_place(of, q, h0 + row, i) : nullptr;
          });
    }
    StageCoupled<GatherFragment> state;
    copy_keys(call, q, i, 0, s_k);
    for (int64_t n0 = 0; n0 < a.n; n0 += kKeys) {
      const uint32_t now = s_k + n0 / kKeys % 2 * kStageBytes;
      if (n0 + kKeys < a.n) {
        copy_keys(call, q, i, n0 + kKeys, s_k + (n0 / kKeys + 1) % 2 * kStageBytes);
        copy_wait<1>();
      } else {
        copy_wait<0>();
      }
      __syncthreads();
      float score[2][GatherFragment::R][GatherFragment::C];
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        float sums[1][2][4] = {};
        product_rows<Dtype, 1, 2, kWidth, TileQ, TileK>(
            sums, s_q + side * TileQ::bytes + TileQ::at(outer_row(lane), outer_chunk(lane)),
            now + side * TileK::bytes + TileK::at(warp * 16 + inner_row(lane), inner_chunk(lane)));
#pragma unroll
        for (int c = 0; c < GatherFragment::C; ++c) {
          const int64_t n = n0 + warp * 16 + GatherFragment::column_of(c);
          const bool named = list_entry(a, q, 0, i, n) >= 0;
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
        if (lane % 4 == 0) s_sums[warp][lane / 4 + 8 * r][k] = mine[k];
    }
    __syncthreads();
    if (threadIdx.x >= kHeads || h0 + threadIdx.x >= a.kl.h) continue;
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

std::string refuses(const Context& ctx, const KlGather& a) {
  if (const std::string why = mma_refuses(ctx, a.kl.first, a.kl.second, kWidth); !why.empty())
    return why;
  if (a.kl.h < 4) return "fewer than 4 heads";
  if (a.index.stride[1] != 0) return "a list of its own for each head";
  if (a.kl.first.key_heads != 1 || a.kl.second.key_heads != 1) return "more than one key head";
  return "";
}

void prepare(const Context&, const KlGather& a, Plan& plan) {
  plan.kernel += std::string(".") + dtype_name(a.kl.first.dtype);
  plan.launch = [=](Context& ctx, void*) {
    GatherSimt call(a);
    const int64_t head_tiles = ceil_div(a.kl.h, kHeads);
    call.work = a.kl.sequences.count * head_tiles * a.kl.sequences.query_max;
    const auto run = [&]<int Dtype> {
      launch<gather_heads_kernel<Dtype>>(ctx, kOp, call.work, kGatherThreads, kSharedBytes, call,
                                         head_tiles);
    };
    if (a.kl.first.dtype == FOVEA_BF16)
      run.template operator()<FOVEA_BF16>();
    else
      run.template operator()<FOVEA_F16>();
  };
}

}  // namespace
}  // namespace cuda

extern const Kernel<KlGather> kl_gather_forward_sm80;
const Kernel<KlGather> kl_gather_forward_sm80 = {"x_kl_gather_forward.cuda.sm80", cuda::refuses,
                                                 cuda::prepare};

}  // namespace fovea
