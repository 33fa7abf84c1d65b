// SPDX-License-Identifier: Apache-2.0
// x_kl_pool_backward by way of dscores (dscores.cuh): P = e^(x - lse), R = e^(y - lse'),
// db = dkl (R - P).  A block owns 64 rows of a head and writes their db, in f32 FMA or on mma.sync
// (pool_tile.cuh); on Hopper 128 rows (pool_sm90.cuh).
#include "ops/kl_experimental/pool_sweep.cuh"

namespace fovea {
namespace cuda {
namespace {

template <class Pairs>
__global__ void __launch_bounds__(Pairs::threads, 2)
    pool_dscores_kernel(const __grid_constant__ PoolCall call,
                        const __grid_constant__ Dscores dscores, int64_t work) {
  extern __shared__ __align__(128) unsigned char s_dynamic[];
  __shared__ PoolShared<Pairs> s;
  __shared__ float s_gain[Pairs::own], s_lse[2][Pairs::own];
  using T = typename PoolDscore<Pairs>::T;
  constexpr int kHalves = Dscores::rows / Pairs::own;
  Pairs pairs(s_dynamic, pool_width(call.a));
  const Kl& a = call.a.kl;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    // Late rows first.
    const int64_t item = dscores.first + dscores.count - 1 - w / kHalves;
    const int64_t h = item % dscores.heads, tile = item / dscores.heads;
    const int64_t sequence = tile / dscores.row_tiles;
    const int64_t i0 = tile % dscores.row_tiles * Dscores::rows + w % kHalves * Pairs::own;
    find_sequence(call, sequence, s.at.seq, s.units);
    const Sequence& seq = s.at.seq;
    if (i0 >= seq.rows) continue;
    s.at.put_rows(call.teacher, call.student, i0);
    // Rows of gain 0 are no rows.
    for (int m = threadIdx.x; m < Pairs::own; m += Pairs::threads) {
      const float gain = i0 + m < seq.rows ? row_value(call.a.dkl, seq, h, i0 + m) : 0;
      s_gain[m] = gain;
      s_lse[0][m] = gain == 0 ? 0 : row_value(a.first.lse, seq, h, i0 + m);
      s_lse[1][m] = gain == 0 ? 0 : row_value(a.second.lse, seq, h, i0 + m);
    }
    const KeyTiles range = seen_tiles(a.mask, seq, h, i0);
    T* const db = static_cast<T*>(dscores.db) + dscores.place(sequence, h, i0);
    for (int64_t u0 = 0; u0 < s.units.keys; u0 += kStageTile) {
      if (!pool_seen(call.a, seq, range, u0)) continue;
      float x[Pairs::R][Pairs::C], y[Pairs::R][Pairs::C];
      pool_scores(call, s, pairs, h, i0, u0, range, x, y);
      each_pair<Pairs>([&](int r, int c) {
        const int m = Pairs::own_of(r);
        const bool counts = s_gain[m] != 0 && x[r][c] != -INFINITY;
        const float p = expf(x[r][c] - s_lse[0][m]);
        db[m * dscores.pitch + u0 + Pairs::other_of(c)] =
            from_float<T>(counts ? s_gain[m] * (expf(y[r][c] - s_lse[1][m]) - p) : 0);
      });
    }
  }
}

template <bool Mma>
Text offer(const Context& ctx, const KlPool& a, Plan& plan) {
  if constexpr (Mma)
    if (Text why = pool_mma_refuses(ctx, a); !why.empty()) return why;
  return plan_dscores(
      PoolCall(a), plan, Mma, [](Context& ctx, const PoolCall& call, const Dscores& dscores) {
        with_pairs(Mma, call.own().dtype, [&]<class Pairs> {
          const int64_t work = dscores.count * (Dscores::rows / Pairs::own);
          launch<pool_dscores_kernel<Pairs>>(ctx, kPoolBackward, work, Pairs::threads,
                                             pool_bytes<Pairs>(call.a), call, dscores, work);
        });
      });
}

Text offer_sm90(const Context& ctx, const KlPool& a, Plan& plan) {
  const PoolCall call(a);
  PoolMaps90 maps;
  if (Text why = pool_sm90_refuses(ctx, call, maps); !why.empty()) return why;
  return plan_dscores(call, plan, true, [=](Context& ctx, const PoolCall&, const Dscores& dscores) {
    pool_sweep_sm90(ctx, a, maps, dscores);
  });
}

}  // namespace
}  // namespace cuda

extern const Kernel<KlPool> kl_pool_backward_sm90 = {"sm90", cuda::offer_sm90};
extern const Kernel<KlPool> kl_pool_backward_sm80 = {"sm80", cuda::offer<true>};
extern const Kernel<KlPool> kl_pool_backward_simt = {"simt", cuda::offer<false>};

}  // namespace fovea
