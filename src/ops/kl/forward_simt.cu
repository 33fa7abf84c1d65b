// SPDX-License-Identifier: Apache-2.0
// kl_forward on the portable flash loop (loop/attend_simt.cuh): every dtype, width and stride.
//   x = scale q k' of the first distribution, y of the second; of each row, online,
//   X = max x, l_x = sum e^(x - X), Y and l_y likewise, c = sum e^(x - X) ((x - X) - (y - Y))
//   kl = c / l_x - ln l_x + ln l_y,  lse = X + ln l_x, Y + ln l_y
// A block owns 64 rows (16 where there are few) of a head.  StreamKL (2606.20005).
//   The Jensen-Shannon divergence needs both lse first: its block walks the tiles once more.
#include "core/dtype.h"
#include "cuda/loop/attend_simt.cuh"
#include "cuda/loop/zero.cuh"
#include "ops/kl/mixture.cuh"
#include "ops/kl/sides.cuh"
#include "ops/kl/stage_dual_softmax.cuh"

namespace fovea {
namespace cuda {
namespace {

struct KlSimt {
  Kl a;
  Attend first, second;  // as sweeps see them
  Operand q[2], k[2];
  View<3> kl, lse[2];
  PackedGrid grid;
  const char* op;
};

template <int R>
struct KlShared : PackedTile<R> {
  int64_t second_q[16 * R], second_k[kStageTile];  // element offsets; -1: none
};

// Score: the logits of both distributions, -inf where unseen.
template <int R>
struct DualScore {
  const FmaTiles<R>& tiles;
  const KlSimt& call;
  const KlShared<R>& s;
  const PackedItem& item;

  __device__ __forceinline__ void logits(float (&x)[R][4], float (&y)[R][4], int64_t j0,
                                         bool missing) const {
    const Attend& a = call.first;
    multiply_nt(
        x, tiles, call.q[0].width,
        [&](int row, int column) { return load_four(call.q[0], s.q[row], column); },
        [&](int row, int column) { return load_four(call.k[0], s.keys[row].k, column); });
    multiply_nt(
        y, tiles, call.q[1].width,
        [&](int row, int column) { return load_four(call.q[1], s.second_q[row], column); },
        [&](int row, int column) { return load_four(call.k[1], s.second_k[row], column); });
    const PairLogits<R> pairs(a, s, item, j0, missing);
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        x[r][c] = only_numbers(x[r][c] * a.score.scale);
        y[r][c] = only_numbers(y[r][c] * call.second.score.scale);
        if (!pairs.sees(r, c)) x[r][c] = y[r][c] = -INFINITY;
      }
  }
};

// The thread's share of sum p ln(p / m) and sum r ln(r / m).
template <int R>
__device__ __forceinline__ void add_mixture(const float (&x)[R][4], const float (&y)[R][4],
                                            const float (&lse)[2][R], float share,
                                            float (&sum)[2][R]) {
#pragma unroll
  for (int r = 0; r < R; ++r)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (x[r][i] == -INFINITY && y[r][i] == -INFINITY) continue;  // unseen
      const float u = x[r][i] - lse[0][r], v = y[r][i] - lse[1][r];
      sum[0][r] += mixed_term(u, v, share, 0.f), sum[1][r] += mixed_term(v, u, 1 - share, 0.f);
    }
}

// Epilogue: the divergences of a finished row and both its lse.
template <int R, bool Mix>
__device__ __forceinline__ void store_row(const KlSimt& call, const KlShared<R>& s,
                                          const StageDualSoftmax<PairsFma<R>>& state,
                                          const float (&mixed)[2][R], int r) {
  const float sum[2] = {lanes_sum<16>(state.l[0][r]), lanes_sum<16>(state.l[1][r])};
  const float cross = lanes_sum<16>(Mix ? mixed[0][r] : state.c[r]);
  const float second = Mix ? lanes_sum<16>(mixed[1][r]) : 0;
  const RowInfo& of = s.rows[threadIdx.x / 16 + 16 * r];
  if (threadIdx.x % 16 || of.i < 0) return;
  const bool empty = sum[0] == 0;
  const auto put = [&](const View<3>& to, float value, float none) {
    if (to) to.as()[lse_offset(s.piece.seq, of.i, of.h, to.stride)] = empty ? none : value;
  };
  put(call.kl, Mix ? cross : cross / sum[0] - logf(sum[0]) + logf(sum[1]), 0);
  if constexpr (Mix) {
    put(call.a.kl_second, second, 0);
    put(call.a.js, fmaf(call.a.share, cross, (1 - call.a.share) * second), 0);
  }
#pragma unroll
  for (int side = 0; side < 2; ++side)
    put(call.lse[side], state.m[side][r] + logf(sum[side]), -INFINITY);
}

template <int R, bool Mix>
__global__ void __launch_bounds__(kStageThreads, 2)
    kl_simt_kernel(const __grid_constant__ KlSimt call) {
  extern __shared__ float4 s_dynamic[];
  __shared__ KlShared<R> s;
  const FmaTiles<R> tiles(reinterpret_cast<float*>(s_dynamic));
  const Attend &a = call.first, &b = call.second;
  for (int64_t w = blockIdx.x; w < call.grid.work; w += gridDim.x) {
    PackedItem item(call.grid, w, 16 * R);
    const PackGqaRows& rows = s.piece;
    if (!stage_item(a, call.grid.group, item, s, [&](int m) {
          s.second_q[m] = s.rows[m].i < 0 ? -1 : rows.offset(item.m0 + m, b.q.stride);
        }))
      continue;
    const int64_t heads[2] = {rows.g / (a.h / a.g), rows.g / (a.h / b.g)};
    const WindowKeys keys(a, rows, item, 1, [&](int n, int64_t j) {
      s.keys[n] = key_info(a, rows.seq, heads[0], j);
      const bool there = s.keys[n].k >= 0;
      s.second_k[n] = there ? key_place(a.sequences, rows.seq, j).offset(heads[1], b.k.stride) : -1;
      return !there;
    });
    const auto sweep = [&](const auto& add) {
      sweep_keys(keys, [&](int64_t j0, bool missing) {
        float x[R][4] = {}, y[R][4] = {};
        DualScore<R>{tiles, call, s, item}.logits(x, y, j0, missing);
        add(x, y);
      });
    };
    StageDualSoftmax<PairsFma<R>> state;
    sweep([&](const auto& x, const auto& y) { state.add(x, y); });
    float mixed[2][R] = {};
    if constexpr (Mix) {
      float lse[2][R];
      state.lse(lse);
      sweep([&](const auto& x, const auto& y) { add_mixture(x, y, lse, call.a.share, mixed); });
    }
#pragma unroll
    for (int r = 0; r < R; ++r) store_row<R, Mix>(call, s, state, mixed, r);
  }
}

template <int R, bool Mix>
void run(Context& ctx, const KlSimt& call) {
  launch<kl_simt_kernel<R, Mix>>(ctx, call.op, call.grid.work, kStageThreads, FmaTiles<R>::bytes(),
                                 call);
}

Text offer(const Context&, const Kl& a, Plan& plan) {
  plan.kernel += Text(".") + dtype_name(a.first.dtype);
  const RowSlot kl(plan.workspace, a, a.kl, static_cast<bool>(a.total)),
      lse(plan.workspace, a, a.first.lse, static_cast<bool>(a.total));
  const TotalSlots totals(plan.workspace, a, static_cast<bool>(a.total));
  plan.launch = [=](Context& ctx, void* base) {
    const KlSide &x = a.first, &y = a.second;
    const Attend first = attend_of(a, x, y);
    const KlSimt call{a,
                      first,
                      attend_of(a, y, x),
                      {operand_of(x.q, x.dtype, x.width), operand_of(y.q, y.dtype, y.width)},
                      {operand_of(x.k, x.dtype, x.width), operand_of(y.k, y.dtype, y.width)},
                      a.total ? kl.at(base) : a.kl,
                      {a.total ? lse.at(base) : x.lse, y.lse},
                      PackedGrid(first, a.h),
                      op_of(a)};
    if (call.grid.few)
      a.share > 0 ? run<1, true>(ctx, call) : run<1, false>(ctx, call);
    else
      a.share > 0 ? run<4, true>(ctx, call) : run<4, false>(ctx, call);
    if (a.total) add_up(ctx, call.op, a, call.kl, call.lse[0], totals.parts.at(base));
  };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<Kl> kl_forward_simt = {"simt", cuda::offer};
extern const Kernel<Kl> kl_jensen_shannon_forward_simt = {"simt", cuda::offer};

}  // namespace fovea
