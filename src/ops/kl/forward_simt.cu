// SPDX-License-Identifier: Apache-2.0
// kl_forward in f32 FMA: every dtype, width and stride.
//   x = scale q k' of the first distribution, y of the second; of each row, online,
//   X = max x, l_x = sum e^(x - X), Y and l_y likewise, c = sum e^(x - X) ((x - X) - (y - Y))
//   kl = c / l_x - ln l_x + ln l_y,  lse = X + ln l_x, Y + ln l_y
// A block owns 64 rows (16 where there are few) of a head and walks its tiles of 64 keys; thread
// rows, products, shared memory and barriers are those of block/stage.cuh.  StreamKL (2606.20005).
#include "core/dtype.h"
#include "cuda/block/reduce.cuh"
#include "cuda/block/stage.cuh"
#include "cuda/loop/pairs.cuh"
#include "cuda/loop/zero.cuh"
#include "ops/kl/sides.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "kl_forward";
constexpr int kFewRows = 16;

struct KlSimt {
  Kl a;
  Attend first, second;  // as sweeps see them
  Operand q[2], k[2];
  View<3> kl, lse[2];
  int64_t row_tiles, work;
};

template <int R>
struct KlShared {
  PackedRows rows;
  RowInfo row[16 * R];
  KeyInfo key[kStageTile];
  int64_t q[2][16 * R], k[2][kStageTile];  // element offsets; -1: none
};

// The sums of a thread's rows; l and c are its own share.
template <int R>
struct StageCoupled {
  float m[2][R], l[2][R], c[R];

  __device__ StageCoupled() {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      m[0][r] = m[1][r] = -INFINITY;
      l[0][r] = l[1][r] = c[r] = 0;
    }
  }
  __device__ __forceinline__ void add(const float (&x)[R][4], const float (&y)[R][4]) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      float top[2] = {m[0][r], m[1][r]}, base[2], moved[2], shrink[2];
#pragma unroll
      for (int i = 0; i < 4; ++i) top[0] = fmaxf(top[0], x[r][i]), top[1] = fmaxf(top[1], y[r][i]);
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        top[side] = lanes_max<16>(top[side]);
        base[side] = top[side] == -INFINITY ? 0 : top[side];
        moved[side] = m[side][r] == -INFINITY ? 0 : m[side][r] - base[side];
        shrink[side] = expf(m[side][r] - base[side]);
        m[side][r] = top[side];
      }
      c[r] = shrink[0] * fmaf(moved[0] - moved[1], l[0][r], c[r]);
      l[0][r] *= shrink[0], l[1][r] *= shrink[1];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (x[r][i] == -INFINITY && y[r][i] == -INFINITY) continue;  // unseen
        const float u = x[r][i] - base[0], w = y[r][i] - base[1], p = expf(u);
        l[0][r] += p, l[1][r] += expf(w);
        c[r] = fmaf(p, u - w, c[r]);
      }
    }
  }
};

template <int R>
__global__ void __launch_bounds__(kStageThreads, 2)
    kl_simt_kernel(const __grid_constant__ KlSimt call) {
  extern __shared__ float4 s_dynamic[];
  __shared__ KlShared<R> s;
  const StageTiles<R> tiles(reinterpret_cast<float*>(s_dynamic));
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
    StageCoupled<R> state;
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
          x[r][c] *= a.score.scale, y[r][c] *= call.second.score.scale;
          x[r][c] = fmaf(x[r][c], 0.f, x[r][c]), y[r][c] = fmaf(y[r][c], 0.f, y[r][c]);  // inf: NaN
          if (plain) continue;
          const float seen = pair_score(a, seq, s.row[ty + 16 * r], s.key[tx + 16 * c], 0.f);
          if (seen == -INFINITY) x[r][c] = y[r][c] = -INFINITY;
        }
      state.add(x, y);
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const float sum[2] = {lanes_sum<16>(state.l[0][r]), lanes_sum<16>(state.l[1][r])};
      const float cross = lanes_sum<16>(state.c[r]);
      const int m = ty + 16 * r;
      if (tx || s.row[m].i < 0) continue;
      const bool empty = sum[0] == 0;
      if (call.kl)
        call.kl.as()[rows.lse_offset(m0 + m, call.kl.stride)] =
            empty ? 0 : cross / sum[0] - logf(sum[0]) + logf(sum[1]);
#pragma unroll
      for (int side = 0; side < 2; ++side)
        if (call.lse[side])
          call.lse[side].as()[rows.lse_offset(m0 + m, call.lse[side].stride)] =
              empty ? -INFINITY : state.m[side][r] + logf(sum[side]);
    }
  }
}

void prepare(const Context&, const Kl& a, Plan& plan) {
  plan.kernel += std::string(".") + dtype_name(a.first.dtype);
  const bool few = a.sequences.query_max <= kFewRows;
  const int64_t row_tiles = ceil_div(a.sequences.query_max, few ? kFewRows : 64);
  const RowSlot kl(plan.workspace, a, a.kl, static_cast<bool>(a.total)),
      lse(plan.workspace, a, a.first.lse, static_cast<bool>(a.total));
  const TotalSlots totals(plan.workspace, a, static_cast<bool>(a.total));
  plan.launch = [=](Context& ctx, void* base) {
    const KlSide &x = a.first, &y = a.second;
    KlSimt call{a, attend_of(a, x, y), attend_of(a, y, x), {}, {}, {}, {}, row_tiles, 0};
    call.q[0] = operand_of(x.q, x.dtype, x.width), call.q[1] = operand_of(y.q, y.dtype, y.width);
    call.k[0] = operand_of(x.k, x.dtype, x.width), call.k[1] = operand_of(y.k, y.dtype, y.width);
    call.kl = a.total ? kl.at(base) : a.kl;
    call.lse[0] = a.total ? lse.at(base) : x.lse, call.lse[1] = y.lse;
    call.work = a.sequences.count * a.h * row_tiles;
    if (few)
      launch<kl_simt_kernel<1>>(ctx, kOp, call.work, kStageThreads, StageTiles<1>::bytes(), call);
    else
      launch<kl_simt_kernel<4>>(ctx, kOp, call.work, kStageThreads, StageTiles<4>::bytes(), call);
    if (a.total) add_up(ctx, kOp, a, call.kl, call.lse[0], totals.parts.at(base));
  };
}

}  // namespace
}  // namespace cuda

extern const Kernel<Kl> kl_forward_simt = {
    "kl_forward.cuda.simt", [](const Context&, const Kl&) { return std::string(); }, cuda::prepare};

}  // namespace fovea
