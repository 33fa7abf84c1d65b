// SPDX-License-Identifier: Apache-2.0
// x_kl_pool_forward, in f32 FMA (every dtype, width, stride and block size) and on mma.sync.  A
// block owns 64 rows of a head; over its tiles of 64 blocks of keys (pool_tile.cuh) it takes the
// steps of kl_forward with x the teacher's pooled logits and y the student's.
#include "core/dtype.h"
#include "ops/kl/stage_dual_softmax.cuh"
#include "ops/kl_experimental/pool_tile.cuh"

namespace fovea {
namespace cuda {
namespace {

template <class Pairs>
__global__ void __launch_bounds__(Pairs::threads, 2)
    pool_forward_kernel(const __grid_constant__ PoolCall call, int64_t row_tiles, int64_t work) {
  extern __shared__ __align__(128) unsigned char s_dynamic[];
  __shared__ PoolShared<Pairs> s;
  Pairs pairs(s_dynamic, pool_width(call.a));
  const Kl& a = call.a.kl;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    // Late rows first: under a causal mask they are the longest.
    const int64_t i0 = (row_tiles - 1 - w % row_tiles) * Pairs::own;
    const int64_t h = w / row_tiles % a.h, sequence = w / row_tiles / a.h;
    find_sequence(call, sequence, s.at.seq, s.units);
    const Sequence& seq = s.at.seq;
    if (i0 >= seq.rows) continue;
    s.at.put_rows(call.teacher, call.student, i0);
    const KeyTiles range = seen_tiles(a.mask, seq, h, i0);
    StageDualSoftmax<Pairs> state;
    for (int64_t u0 = 0; u0 < s.units.keys; u0 += kStageTile) {
      if (!pool_seen(call.a, seq, range, u0)) continue;
      float x[Pairs::R][Pairs::C], y[Pairs::R][Pairs::C];
      pool_scores(call, s, pairs, h, i0, u0, range, x, y);
      state.add(x, y);
    }
#pragma unroll
    for (int r = 0; r < Pairs::R; ++r) {
      const DualRow row = dual_row(state, r);
      const int64_t i = i0 + Pairs::own_of(r);
      if (!Pairs::leads() || i >= seq.rows) continue;
      const auto put = [&](const View<3>& to, float value) {
        if (to) to.as()[row_place(seq, h, i, to.stride)] = value;
      };
      put(a.kl, row.kl), put(a.first.lse, row.lse[0]), put(a.second.lse, row.lse[1]);
    }
  }
}

template <bool Mma>
Text offer(const Context& ctx, const KlPool& a, Plan& plan) {
  if constexpr (Mma)
    if (Text why = pool_mma_refuses(ctx, a); !why.empty()) return why;
  plan.kernel += Text(".") + dtype_name(a.kl.first.dtype);
  plan.launch = [=](Context& ctx, void*) {
    const int64_t row_tiles = ceil_div(a.kl.sequences.query_max, kStageTile);
    const int64_t work = a.kl.sequences.count * a.kl.h * row_tiles;
    with_pairs(Mma, a.kl.first.dtype, [&]<class Pairs> {
      launch<pool_forward_kernel<Pairs>>(ctx, "x_kl_pool_forward", work, Pairs::threads,
                                         pool_bytes<Pairs>(a), PoolCall(a), row_tiles, work);
    });
  };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<KlPool> kl_pool_forward_sm80 = {"sm80", cuda::offer<true>};
extern const Kernel<KlPool> kl_pool_forward_simt = {"simt", cuda::offer<false>};

}  // namespace fovea
