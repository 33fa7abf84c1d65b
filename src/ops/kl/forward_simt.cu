// SPDX-License-Identifier: Apache-2.0
// kl_forward in f32 FMA: every dtype, width and stride.
//   x = scale q k' of the first distribution, y of the second; of each row, online,
//   X = max x, l_x = sum e^(x - X), Y and l_y likewise, c = sum e^(x - X) ((x - X) - (y - Y))
//   kl = c / l_x - ln l_x + ln l_y,  lse = X + ln l_x, Y + ln l_y
// A block owns 64 rows (16 where there are few) of a head and walks its tiles of 64 keys; thread
// rows, products, shared memory and barriers are those of block/stage.cuh.  StreamKL (2606.20005).
//   The Jensen-Shannon divergence needs both lse first: its block walks the tiles once more.
#include "core/dtype.h"
#include "cuda/block/reduce.cuh"
#include "cuda/block/stage.cuh"
#include "cuda/loop/pairs.cuh"
#include "cuda/loop/zero.cuh"
#include "ops/kl/mixture.cuh"
#include "ops/kl/sides.cuh"
#include "ops/kl/stage_coupled.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr int kFewRows = 16;

struct KlSimt {
  Kl a;
  Attend first, second;  // as sweeps see them
  Operand q[2], k[2];
  View<3> kl, lse[2];
  int64_t row_tiles, work;
  const char* op;
};

template <int R>
struct KlShared {
  PackedRows rows;
  RowInfo row[16 * R];
  KeyInfo key[kStageTile];
  int64_t q[2][16 * R], k[2][kStageTile];  // element offsets; -1: none
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

template <int R, bool Mix>
__global__ void __launch_bounds__(kStageThreads, 2)
    kl_simt_kernel(const __grid_constant__ KlSimt call) {
  extern __shared__ float4 s_dynamic[];
  __shared__ KlShared<R> s;
  const FmaTiles<R> tiles(reinterpret_cast<float*>(s_dynamic));
  const Attend& a = call.first;
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
  for (int64_t w = blockIdx.x; w < call.work; w += gridDim.x) {
    // Late rows first: under a causal mask they are the longest.
    const int64_t tile = call.row_tiles - 1 - w % call.row_tiles, head = w / call.row_tiles;
    const int64_t m0 = tile * 16 * R;
    __syncthreads();
    if (threadIdx.x == 0) s.rows = {a.sequences[head / a.h], head / a.h, head % a.h, 1};
    __syncthreads();
    const PackedRows& rows = s.rows;
    const Sequence& seq = rows.seq;
    if (m0 >= rows.count()) continue;
    const int64_t heads[2] = {rows.g / (a.h / a.g), rows.g / (a.h / call.second.g)};
    for (int m = threadIdx.x; m < 16 * R; m += kStageThreads) {
      s.row[m] = row_info(a, rows, m0 + m);
      const bool there = s.row[m].i >= 0;
      s.q[0][m] = there ? rows.offset(m0 + m, a.q.stride) : -1;
      s.q[1][m] = there ? rows.offset(m0 + m, call.second.q.stride) : -1;
    }
    __syncthreads();  // a head without keys reads the rows at once
    const int64_t m1 = m0 + 16 * R < rows.count() ? m0 + 16 * R : rows.count();
    const KeyTiles range = key_tiles(a.mask, seq, rows.g, rows.g + 1, m0, m1, kStageTile);
    const auto sweep = [&](const auto& add) {
      for (int64_t n = 0; n < range.count(); ++n) {
        const int64_t j0 = range[n] * kStageTile;
        const int64_t j1 = j0 + kStageTile < seq.keys ? j0 + kStageTile : seq.keys;
        __syncthreads();  // the last tile's keys are done with
        if (threadIdx.x < kStageTile) {
          const int64_t j = j0 + threadIdx.x;
          s.key[threadIdx.x] = key_info(a, seq, heads[0], j);
          const bool there = s.key[threadIdx.x].k >= 0;
          s.k[0][threadIdx.x] = s.key[threadIdx.x].k;
          s.k[1][threadIdx.x] =
              there ? key_place(a.sequences, seq, j).offset(heads[1], call.second.k.stride) : -1;
        }
        __syncthreads();
        float x[R][4] = {}, y[R][4] = {};
        const auto product = [&](float(&to)[R][4], int side) {
          multiply_nt(
              to, tiles, call.q[side].width,
              [&](int row, int column) { return load_four(call.q[side], s.q[side][row], column); },
              [&](int row, int column) { return load_four(call.k[side], s.k[side][row], column); });
        };
        product(x, 0);
        product(y, 1);
        const bool plain =
            j1 == j0 + kStageTile && tile_full(a.mask, seq, rows.g, rows.g + 1, m0, m1, j0, j1);
#pragma unroll
        for (int r = 0; r < R; ++r)
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            x[r][c] = only_numbers(x[r][c] * a.score.scale);
            y[r][c] = only_numbers(y[r][c] * call.second.score.scale);
            if (plain) continue;
            const float seen = pair_score(a, seq, s.row[ty + 16 * r], s.key[tx + 16 * c], 0.f);
            if (seen == -INFINITY) x[r][c] = y[r][c] = -INFINITY;
          }
        add(x, y);
      }
    };
    StageCoupled<PairsFma<R>> state;
    sweep([&](const auto& x, const auto& y) { state.add(x, y); });
    float mixed[2][R] = {};
    if constexpr (Mix) {
      float lse[2][R];
      state.lse(lse);
      sweep([&](const auto& x, const auto& y) { add_mixture(x, y, lse, call.a.share, mixed); });
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const float sum[2] = {lanes_sum<16>(state.l[0][r]), lanes_sum<16>(state.l[1][r])};
      const float cross = lanes_sum<16>(Mix ? mixed[0][r] : state.c[r]);
      const float second = Mix ? lanes_sum<16>(mixed[1][r]) : 0;
      const int m = ty + 16 * r;
      if (tx || s.row[m].i < 0) continue;
      const bool empty = sum[0] == 0;
      const auto put = [&](const View<3>& to, float value) {
        if (to) to.as()[rows.lse_offset(m0 + m, to.stride)] = empty ? 0 : value;
      };
      put(call.kl, Mix ? cross : cross / sum[0] - logf(sum[0]) + logf(sum[1]));
      if constexpr (Mix) {
        put(call.a.kl_second, second);
        put(call.a.js, fmaf(call.a.share, cross, (1 - call.a.share) * second));
      }
#pragma unroll
      for (int side = 0; side < 2; ++side)
        if (call.lse[side])
          call.lse[side].as()[rows.lse_offset(m0 + m, call.lse[side].stride)] =
              empty ? -INFINITY : state.m[side][r] + logf(sum[side]);
    }
  }
}

const char* op_of(const Kl& a) {
  return a.share > 0 ? "x_kl_jensen_shannon_forward" : "kl_forward";
}

template <int R, bool Mix>
void run(Context& ctx, const KlSimt& call) {
  launch<kl_simt_kernel<R, Mix>>(ctx, call.op, call.work, kStageThreads, FmaTiles<R>::bytes(),
                                 call);
}

std::string offer(const Context&, const Kl& a, Plan& plan) {
  plan.kernel += std::string(".") + dtype_name(a.first.dtype);
  const bool few = a.sequences.query_max <= kFewRows;
  const int64_t row_tiles = ceil_div(a.sequences.query_max, few ? kFewRows : 64);
  const RowSlot kl(plan.workspace, a, a.kl, static_cast<bool>(a.total)),
      lse(plan.workspace, a, a.first.lse, static_cast<bool>(a.total));
  const TotalSlots totals(plan.workspace, a, static_cast<bool>(a.total));
  plan.launch = [=](Context& ctx, void* base) {
    const KlSide &x = a.first, &y = a.second;
    KlSimt call{a, attend_of(a, x, y), attend_of(a, y, x), {}, {}, {}, {}, row_tiles, 0, nullptr};
    call.q[0] = operand_of(x.q, x.dtype, x.width), call.q[1] = operand_of(y.q, y.dtype, y.width);
    call.k[0] = operand_of(x.k, x.dtype, x.width), call.k[1] = operand_of(y.k, y.dtype, y.width);
    call.kl = a.total ? kl.at(base) : a.kl;
    call.lse[0] = a.total ? lse.at(base) : x.lse, call.lse[1] = y.lse;
    call.work = a.sequences.count * a.h * row_tiles;
    call.op = op_of(a);
    if (few)
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
