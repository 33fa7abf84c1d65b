// SPDX-License-Identifier: Apache-2.0
// x_kl_pool_backward: db once, then two products of it.  P = e^(x - lse), R = e^(y - lse'),
// db = dkl (R - P):
//   dscores    a block owns 64 rows of a head and writes db, for as many rows at a time as their
//             room holds: pool_tile.cuh in f32 FMA or on mma.sync, pool_sm90.cuh on Hopper
//   products  dq = scale db k, and of parts of the rows db' q (pool_products.cu)
//   join      dk = scale times the parts' sums, added in order
#include <algorithm>

#include "core/dtype.h"
#include "cuda/loop/zero.cuh"
#include "ops/kl_experimental/pool_tile.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr const char* kOp = kPoolBackward;

template <class Pairs>
__global__ void __launch_bounds__(Pairs::threads, 2)
    pool_dscores_kernel(const __grid_constant__ PoolCall call,
                        const __grid_constant__ PoolDscores dscores) {
  extern __shared__ __align__(128) unsigned char s_dynamic[];
  __shared__ PoolShared<Pairs> s;
  __shared__ float s_gain[Pairs::own], s_lse[2][Pairs::own];
  using T = typename PoolDscore<Pairs>::T;
  constexpr int kHalves = PoolDscores::rows / Pairs::own;
  Pairs pairs(s_dynamic, pool_width(call.a));
  const Kl& a = call.a.kl;
  for (int64_t w = blockIdx.x; w < call.work; w += gridDim.x) {
    // Late rows first.
    const int64_t item = dscores.first + dscores.count - 1 - w / kHalves;
    const int64_t h = item % dscores.heads, tile = item / dscores.heads;
    const int64_t sequence = tile / dscores.row_tiles;
    const int64_t i0 = tile % dscores.row_tiles * PoolDscores::rows + w % kHalves * Pairs::own;
    find_sequence(call.a, sequence, s.at.seq, s.units);
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
    const KeyTiles range = pool_tiles(call.a, seq, h, i0);
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

// Zeros for what no block of the sweeps stores: rows past the lengths, blocks past the keys.
void clear(Context& ctx, const KlPool& a) {
  const Sequences& q = a.kl.sequences;
  const KlSide& side = a.kl.second;
  if (side.dq && (q.query_start || q.query_len || q.query_max < a.kl.s))
    zero(ctx, kOp, side.dq, side.dtype, {a.kl.b, a.kl.s, a.kl.h, side.width});
  if (side.dk && (q.key_start || q.key_len || a.u > pool_units(a, q.key_max)))
    zero(ctx, kOp, side.dk, side.dtype,
         {q.key_start ? 1 : q.count, a.u, side.key_heads, side.width});
}

// sweep(ctx, call, dscores) writes db of the launch's items.
template <class Sweep>
void plan_by(const KlPool& a, Plan& plan, bool mma, const Sweep& sweep) {
  plan.kernel += std::string(".") + dtype_name(a.kl.first.dtype);
  const PoolParts parts(a);
  const PoolDscores dscores(a);
  const int64_t all = dscores.items(a), bytes = PoolDscores::rows * dscores.pitch * (mma ? 2 : 4);
  const int64_t band = std::min(
      all, clamp_i64(kDscoresBytesMost / std::max<int64_t>(bytes, 1), 1, kDscoresBytesMost));
  const auto db = plan.workspace.add<unsigned char>(band, bytes);
  const auto sums = plan.workspace.add<float>(a.kl.second.dk ? parts.floats() : 0);
  plan.launch = [=](Context& ctx, void* base) {
    clear(ctx, a);
    const PoolCall call(a);
    PoolDscores now = dscores;
    PoolParts to = parts;
    now.db = db.at(base), to.sums = sums.at(base);
    do {  // once without rows: the sums are of nothing then
      now.count = std::min(band, all - now.first);
      sweep(ctx, call, now);
      pool_products(ctx, call, now, to, mma);
      now.first += now.count, to.more = true;
    } while (now.first < all);
    if (a.kl.second.dk) pool_join(ctx, call, to);
  };
}

std::string offer_by(const KlPool& a, Plan& plan, bool mma) {
  plan_by(a, plan, mma, [=](Context& ctx, PoolCall call, const PoolDscores& dscores) {
    with_pairs(mma, a.kl.first.dtype, [&]<class Pairs> {
      call.work = dscores.count * (PoolDscores::rows / Pairs::own);
      launch<pool_dscores_kernel<Pairs>>(ctx, kOp, call.work, Pairs::threads, pool_bytes<Pairs>(a),
                                         call, dscores);
    });
  });
  return "";
}

std::string offer(const Context&, const KlPool& a, Plan& plan) {
  return offer_by(a, plan, false);
}
std::string offer_mma(const Context& ctx, const KlPool& a, Plan& plan) {
  if (std::string why = pool_mma_refuses(ctx, a); !why.empty()) return why;
  return offer_by(a, plan, true);
}
std::string offer_sm90(const Context& ctx, const KlPool& a, Plan& plan) {
  if (std::string why = pool_sm90_refuses(ctx, a); !why.empty()) return why;
  plan_by(a, plan, true, [=](Context& ctx, const PoolCall&, const PoolDscores& dscores) {
    pool_sweep_sm90(ctx, a, dscores);
  });
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<KlPool> kl_pool_backward_sm90 = {"sm90", cuda::offer_sm90};
extern const Kernel<KlPool> kl_pool_backward_sm80 = {"sm80", cuda::offer_mma};
extern const Kernel<KlPool> kl_pool_backward_simt = {"simt", cuda::offer};

}  // namespace fovea
