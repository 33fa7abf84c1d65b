// SPDX-License-Identifier: Apache-2.0
// x_kl_pool_backward in f32 FMA, by two sweeps that pool anew (pool_simt.cuh), P = e^(x - lse),
// R = e^(y - lse'), db = dkl (R - P):
//   rows   a block owns 64 rows of a head, dq = scale db k over its tiles of blocks
//   units  a block owns 64 blocks of keys of one of the student's key heads, dk = scale db' q over
//          the row tiles of the query heads that read it, head after head
#include "core/dtype.h"
#include "cuda/loop/attend_bwd_simt.cuh"
#include "cuda/loop/zero.cuh"
#include "ops/kl/pool_simt.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "x_kl_pool_backward";

template <int R>
struct PoolBackwardShared : PoolShared<R> {
  float gain[16 * R], lse[2][16 * R];
};

// Rows of gain 0 are no rows.
template <int R>
__device__ __forceinline__ void put_gains(const PoolSimt& call, PoolBackwardShared<R>& s, int64_t h,
                                          int64_t i0) {
  s.at.put_rows(call.teacher, call.student, i0);
  const KlPool& a = call.a;
  for (int m = threadIdx.x; m < 16 * R; m += kStageThreads) {
    const int64_t i = s.at.row[m];
    float gain = 0, lse[2] = {0, 0};
    if (i >= 0) gain = row_value(a.dkl, s.at.seq, h, i);
    if (gain != 0) {
      lse[0] = row_value(a.kl.first.lse, s.at.seq, h, i);
      lse[1] = row_value(a.kl.second.lse, s.at.seq, h, i);
    }
    s.gain[m] = gain, s.lse[0][m] = lse[0], s.lse[1][m] = lse[1];
  }
}

// y becomes db.
template <int R>
__device__ __forceinline__ void pool_slopes(const PoolBackwardShared<R>& s, const float (&x)[R][4],
                                            float (&y)[R][4]) {
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const int m = threadIdx.x / 16 + 16 * r;
    const float gain = s.gain[m], lse[2] = {s.lse[0][m], s.lse[1][m]};
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const bool counts = gain != 0 && x[r][c] != -INFINITY;
      y[r][c] = counts ? gain * (expf(y[r][c] - lse[1]) - expf(x[r][c] - lse[0])) : 0;
    }
  }
}

template <int R, int Chunks>
__global__ void __launch_bounds__(kStageThreads, Chunks <= 2 ? 2 : 1)
    pool_rows_kernel(const __grid_constant__ PoolSimt call) {
  extern __shared__ float4 s_dynamic[];
  __shared__ PoolBackwardShared<R> s;
  const StageTiles<R> tiles(reinterpret_cast<float*>(s_dynamic));
  const Kl& a = call.a.kl;
  const KlSide& side = a.second;
  for (int64_t w = blockIdx.x; w < call.work; w += gridDim.x) {
    const int64_t i0 = (call.row_tiles - 1 - w % call.row_tiles) * 16 * R;
    const int64_t h = w / call.row_tiles % a.h, sequence = w / call.row_tiles / a.h;
    __syncthreads();
    if (threadIdx.x == 0) {
      s.at.seq = a.sequences[sequence];
      s.units = pool_sequence(call.a, s.at.seq, sequence);
    }
    __syncthreads();
    const Sequence& seq = s.at.seq;
    if (i0 >= seq.rows) continue;
    put_gains(call, s, h, i0);
    const int64_t i1 = i0 + 16 * R < seq.rows ? i0 + 16 * R : seq.rows;
    const KeyTiles range = key_tiles(a.mask, seq, h, h + 1, i0, i1, kStageTile);
    float acc[Chunks][R][4] = {};
    for (int64_t u0 = 0; u0 < s.units.keys; u0 += kStageTile) {
      if (!may_see(range, kStageTile, u0 * call.a.block_keys, pool_end(call.a, seq, u0))) continue;
      float x[R][4], y[R][4];
      pool_scores(call, s, tiles, h, i0, u0, range, x, y);
      pool_slopes(s, x, y);
      put_p(tiles, y);
      const int64_t head = h / call.student.group * call.student.k_stride[2];
      multiply_nn(acc, tiles, call.student.k.width,
                  static_cast<int>(clamp_i64(s.units.keys - u0, 0, kStageTile)),
                  [&](int row, int column) {
                    const int64_t at = s.at.k[1][row];
                    return load_four(call.student.k, at < 0 ? at : at + head, column);
                  });
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const int64_t i = i0 + threadIdx.x / 16 + 16 * r;
      if (i >= seq.rows) continue;
      const int64_t* stride = side.dq.stride;
      store_gradient(side.dq, side.dtype,
                     seq.batch * stride[0] + (seq.row_begin + i) * stride[1] + h * stride[2],
                     call.student.q.width, side.scale, acc, r);
    }
  }
}

template <int Chunks>
__global__ void __launch_bounds__(kStageThreads, Chunks <= 2 ? 2 : 1)
    pool_units_kernel(const __grid_constant__ PoolSimt call) {
  extern __shared__ float4 s_dynamic[];
  __shared__ PoolBackwardShared<4> s;
  const StageTiles<4> tiles(reinterpret_cast<float*>(s_dynamic));
  const Kl& a = call.a.kl;
  const KlSide& side = a.second;
  for (int64_t w = blockIdx.x; w < call.work; w += gridDim.x) {
    const int64_t u0 = w % call.unit_tiles * kStageTile,
                  key_head = w / call.unit_tiles % side.key_heads;
    const int64_t sequence = w / call.unit_tiles / side.key_heads;
    __syncthreads();
    if (threadIdx.x == 0) {
      s.at.seq = a.sequences[sequence];
      s.units = pool_sequence(call.a, s.at.seq, sequence);
    }
    __syncthreads();
    const Sequence& seq = s.at.seq;
    if (u0 >= s.units.keys) continue;
    const int64_t j0 = u0 * call.a.block_keys, j1 = pool_end(call.a, seq, u0);
    float acc[Chunks][4][4] = {};
    for (int64_t h = key_head * call.student.group; h < (key_head + 1) * call.student.group; ++h) {
      const Range rows = row_range(a.mask, seq, h, h + 1, j0, j1);
      for (int64_t i0 = rows.begin / kStageTile * kStageTile; i0 < rows.end; i0 += kStageTile) {
        const int64_t i1 = i0 + kStageTile < seq.rows ? i0 + kStageTile : seq.rows;
        const KeyTiles range = key_tiles(a.mask, seq, h, h + 1, i0, i1, kStageTile);
        __syncthreads();  // the last tile's rows are done with
        put_gains(call, s, h, i0);
        __syncthreads();
        float x[4][4], y[4][4];
        pool_scores(call, s, tiles, h, i0, u0, range, x, y);
        pool_slopes(s, x, y);
        __syncthreads();
        // P' for the product: rows of it are blocks.
#pragma unroll
        for (int r = 0; r < 4; ++r)
#pragma unroll
          for (int c = 0; c < 4; ++c)
            tiles.p[(threadIdx.x % 16 + 16 * c) * kStagePitch + threadIdx.x / 16 + 16 * r] =
                y[r][c];
        const int64_t head = h * call.student.q_stride[2];
        multiply_nn(acc, tiles, call.student.q.width, static_cast<int>(i1 - i0),
                    [&](int row, int column) {
                      const int64_t at = s.at.q[1][row];
                      return load_four(call.student.q, at < 0 ? at : at + head, column);
                    });
      }
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int64_t u = u0 + threadIdx.x / 16 + 16 * r;
      if (u >= s.units.keys) continue;
      const int64_t* stride = side.dk.stride;
      store_gradient(side.dk, side.dtype,
                     s.units.key_batch * stride[0] + (s.units.key_begin + u) * stride[1] +
                         key_head * stride[2],
                     call.student.k.width, side.scale, acc, r);
    }
  }
}

void rows(Context& ctx, PoolSimt call) {
  const Kl& a = call.a.kl;
  const Sequences& q = a.sequences;
  const int64_t tiles = ceil_div(q.query_max, 64);
  const bool few = few_rows(ctx, q.query_max, q.count * a.h * tiles);
  call.row_tiles = few ? ceil_div(q.query_max, 16) : tiles;
  call.work = q.count * a.h * call.row_tiles;
  with_chunks(a.second.width, [&]<int Chunks> {
    if (few)
      launch<pool_rows_kernel<1, Chunks>>(ctx, kOp, call.work, kStageThreads,
                                          StageTiles<1>::bytes(), call);
    else
      launch<pool_rows_kernel<4, Chunks>>(ctx, kOp, call.work, kStageThreads,
                                          StageTiles<4>::bytes(), call);
  });
}

void units(Context& ctx, PoolSimt call) {
  const Kl& a = call.a.kl;
  call.unit_tiles = ceil_div(pool_units(call.a, a.sequences.key_max), kStageTile);
  call.work = a.sequences.count * a.second.key_heads * call.unit_tiles;
  with_chunks(a.second.width, [&]<int Chunks> {
    launch<pool_units_kernel<Chunks>>(ctx, kOp, call.work, kStageThreads, StageTiles<4>::bytes(),
                                      call);
  });
}

void prepare(const Context&, const KlPool& a, Plan& plan) {
  plan.kernel += std::string(".") + dtype_name(a.kl.first.dtype);
  plan.launch = [=](Context& ctx, void*) {
    const Sequences& q = a.kl.sequences;
    const KlSide& side = a.kl.second;
    if (side.dq && (q.query_start || q.query_len || q.query_max < a.kl.s))
      zero(ctx, kOp, side.dq, side.dtype, {a.kl.b, a.kl.s, a.kl.h, side.width});
    // Blocks past the keys have no owner.
    if (side.dk)
      zero(ctx, kOp, side.dk, side.dtype,
           {q.key_start ? 1 : q.count, a.u, side.key_heads, side.width});
    const PoolSimt call(a);
    if (side.dq) rows(ctx, call);
    if (side.dk) units(ctx, call);
  };
}

}  // namespace
}  // namespace cuda

extern const Kernel<KlPool> kl_pool_backward_simt;
const Kernel<KlPool> kl_pool_backward_simt = {
    "x_kl_pool_backward.cuda.simt", [](const Context&, const KlPool&) { return std::string(); },
    cuda::prepare};

}  // namespace fovea
