// SPDX-License-Identifier: Apache-2.0
// x_kl_pool_forward in f32 FMA: every dtype, width, stride and block size.  A block owns 64 rows
// (16 where there are few) of a head; over its tiles of 64 blocks of keys (pool_tile.cuh) it takes
// the steps of kl_forward with x the teacher's pooled logits and y the student's.
#include "core/dtype.h"
#include "ops/kl/stage_coupled.cuh"
#include "ops/kl_experimental/pool_tile.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "x_kl_pool_forward";

template <class Pairs>
__global__ void __launch_bounds__(Pairs::threads, 2)
    pool_forward_kernel(const __grid_constant__ PoolCall call) {
  extern __shared__ __align__(128) unsigned char s_dynamic[];
  __shared__ PoolShared<Pairs> s;
  Pairs pairs(s_dynamic, pool_width(call.a));
  const Kl& a = call.a.kl;
  for (int64_t w = blockIdx.x; w < call.work; w += gridDim.x) {
    // Late rows first: under a causal mask they are the longest.
    const int64_t i0 = (call.row_tiles - 1 - w % call.row_tiles) * Pairs::own;
    const int64_t h = w / call.row_tiles % a.h, sequence = w / call.row_tiles / a.h;
    __syncthreads();
    if (threadIdx.x == 0) {
      s.at.seq = a.sequences[sequence];
      s.units = pool_sequence(call.a, s.at.seq, sequence);
    }
    __syncthreads();
    const Sequence& seq = s.at.seq;
    if (i0 >= seq.rows) continue;
    s.at.put_rows(call.teacher, call.student, i0);
    const int64_t i1 = i0 + Pairs::own < seq.rows ? i0 + Pairs::own : seq.rows;
    const KeyTiles range = key_tiles(a.mask, seq, h, h + 1, i0, i1, kStageTile);
    StageCoupled<Pairs> state;
    for (int64_t u0 = 0; u0 < s.units.keys; u0 += kStageTile) {
      if (!may_see(range, kStageTile, u0 * call.a.block_keys, pool_end(call.a, seq, u0))) continue;
      float x[Pairs::R][Pairs::C], y[Pairs::R][Pairs::C];
      pool_scores(call, s, pairs, h, i0, u0, range, x, y);
      state.add(x, y);
    }
#pragma unroll
    for (int r = 0; r < Pairs::R; ++r) {
      const CoupledRow row = coupled_row(state, r);
      const int64_t i = i0 + Pairs::own_of(r);
      if (!Pairs::leads() || i >= seq.rows) continue;
      const auto put = [&](const View<3>& to, float value) {
        if (to) to.as()[row_place(seq, h, i, to.stride)] = value;
      };
      put(a.kl, row.kl), put(a.first.lse, row.lse[0]), put(a.second.lse, row.lse[1]);
    }
  }
}

template <class Pairs>
void run(Context& ctx, PoolCall call) {
  const Kl& a = call.a.kl;
  call.row_tiles = ceil_div(a.sequences.query_max, Pairs::own);
  call.work = a.sequences.count * a.h * call.row_tiles;
  launch<pool_forward_kernel<Pairs>>(ctx, kOp, call.work, Pairs::threads, pool_bytes<Pairs>(call.a),
                                     call);
}

std::string offer(const Context&, const KlPool& a, Plan& plan) {
  plan.kernel += std::string(".") + dtype_name(a.kl.first.dtype);
  plan.launch = [=](Context& ctx, void*) {
    const Sequences& q = a.kl.sequences;
    const PoolCall call(a);
    if (few_rows(ctx, q.query_max, q.count * a.kl.h * ceil_div(q.query_max, 64)))
      run<PairsFma<1>>(ctx, call);
    else
      run<PairsFma<4>>(ctx, call);
  };
  return "";
}

std::string offer_mma(const Context& ctx, const KlPool& a, Plan& plan) {
  if (std::string why = pool_mma_refuses(ctx, a); !why.empty()) return why;
  plan.kernel += std::string(".") + dtype_name(a.kl.first.dtype);
  plan.launch = [=](Context& ctx, void*) {
    with_mma(a.kl.first.dtype, [&]<class Pairs> { run<Pairs>(ctx, PoolCall(a)); });
  };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<KlPool> kl_pool_forward_sm80 = {"sm80", cuda::offer_mma};
extern const Kernel<KlPool> kl_pool_forward_simt = {"simt", cuda::offer};

}  // namespace fovea
