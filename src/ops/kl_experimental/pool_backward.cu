// SPDX-License-Identifier: Apache-2.0
// x_kl_pool_backward, in f32 FMA and on mma.sync, by two sweeps that pool anew (pool_tile.cuh), P =
// e^(x - lse), R = e^(y - lse'), db = dkl (R - P):
//   rows   a block owns 64 rows of a head, dq = scale db k over its tiles of blocks
//   units  a block owns 64 blocks of keys of one of the student's key heads and a part of the row
//          tiles of the query heads that read it, dk = scale db' q; blocks of keys are few, so the
//          parts' sums are added by a kernel of their own, in order
#include "core/dtype.h"
#include "cuda/loop/zero.cuh"
#include "ops/kl/stage_sums.cuh"
#include "ops/kl_experimental/pool_weights.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "x_kl_pool_backward";

template <class Pairs>
struct PoolBackwardShared : PoolShared<Pairs> {
  float gain[Pairs::own], lse[2][Pairs::own];
};

// Rows of gain 0 are no rows.
template <class Pairs>
__device__ __forceinline__ void put_gains(const PoolCall& call, PoolBackwardShared<Pairs>& s,
                                          int64_t h, int64_t i0) {
  s.at.put_rows(call.teacher, call.student, i0);
  const KlPool& a = call.a;
  for (int m = threadIdx.x; m < Pairs::own; m += Pairs::threads) {
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

// db of the rows from i0 and the blocks from u0 of head h.
template <bool Weighted, class Pairs>
__device__ __forceinline__ void pool_slopes(const PoolCall& call, PoolBackwardShared<Pairs>& s,
                                            Pairs& pairs, int64_t sequence, int64_t h, int64_t i0,
                                            int64_t u0, const KeyTiles& range,
                                            float (&db)[Pairs::R][Pairs::C]) {
  float p[Pairs::R][Pairs::C];
  if constexpr (Weighted) {
    pool_student(call, s, pairs, h, u0, db);
    take_weights(call, s, sequence, h, i0, u0, p);
  } else {
    pool_scores(call, s, pairs, h, i0, u0, range, p, db);
    each_pair<Pairs>([&](int r, int c) {
      p[r][c] = p[r][c] == -INFINITY ? -1 : expf(p[r][c] - s.lse[0][Pairs::own_of(r)]);
    });
  }
  each_pair<Pairs>([&](int r, int c) {
    const int m = Pairs::own_of(r);
    const float gain = s.gain[m];
    const bool counts = gain != 0 && !(p[r][c] < 0);
    db[r][c] = counts ? gain * (expf(db[r][c] - s.lse[1][m]) - p[r][c]) : 0;
  });
}

template <class Pairs, int Chunks, bool Weighted>
__global__ void __launch_bounds__(Pairs::threads, Chunks <= 2 ? 2 : 1)
    pool_rows_kernel(const __grid_constant__ PoolCall call) {
  extern __shared__ __align__(128) unsigned char s_dynamic[];
  __shared__ PoolBackwardShared<Pairs> s;
  Pairs pairs(s_dynamic, pool_width(call.a));
  const Kl& a = call.a.kl;
  const KlSide& side = a.second;
  for (int64_t w = blockIdx.x; w < call.work; w += gridDim.x) {
    const int first = static_cast<int>(w % call.passes) * Chunks * Pairs::chunk;
    const int64_t h = w / call.passes / call.tiles;
    const int64_t tile = call.first + call.tiles - 1 - w / call.passes % call.tiles;
    const int64_t i0 = tile % call.row_tiles * Pairs::own, sequence = tile / call.row_tiles;
    __syncthreads();
    if (threadIdx.x == 0) {
      s.at.seq = a.sequences[sequence];
      s.units = pool_sequence(call.a, s.at.seq, sequence);
    }
    __syncthreads();
    const Sequence& seq = s.at.seq;
    if (i0 >= seq.rows) continue;
    put_gains(call, s, h, i0);
    const int64_t i1 = i0 + Pairs::own < seq.rows ? i0 + Pairs::own : seq.rows;
    const KeyTiles range = key_tiles(a.mask, seq, h, h + 1, i0, i1, kStageTile);
    float acc[Chunks][Pairs::R][Pairs::C] = {};
    for (int64_t u0 = 0; u0 < s.units.keys; u0 += kStageTile) {
      if (!may_see(range, kStageTile, u0 * call.a.block_keys, pool_end(call.a, seq, u0))) continue;
      float y[Pairs::R][Pairs::C];
      pool_slopes<Weighted>(call, s, pairs, sequence, h, i0, u0, range, y);
      pairs.put(y);
      const int64_t head = h / call.student.group * call.student.k_stride[2];
      pairs.add(
          acc, call.student.k,
          [&](int row) {
            const int64_t at = s.at.k[1][row];
            return at < 0 ? at : at + head;
          },
          s.units.keys - u0, first);
    }
#pragma unroll
    for (int r = 0; r < Pairs::R; ++r) {
      const int64_t i = i0 + Pairs::own_of(r);
      if (i >= seq.rows) continue;
      const int64_t* stride = side.dq.stride;
      store_sums<Pairs>(side.dq, side.dtype,
                        seq.batch * stride[0] + (seq.row_begin + i) * stride[1] + h * stride[2],
                        first, call.student.q.width, side.scale, acc, r);
    }
  }
}

// Parts of the row tiles, and where their sums lie: f32, 64 rows of `columns` each.
struct PoolParts {
  float* sums;
  int64_t count, columns;
  bool more;  // to what lies there

  explicit PoolParts(const KlPool& a)
      : sums(nullptr),
        count(clamp_i64(row_tiles(a) * a.kl.h /
                            (a.kl.second.key_heads ? a.kl.second.key_heads : 1) / kPartTiles,
                        1, kPartsMost)),
        columns(ceil_div(a.kl.second.width, kStageTile) * kStageTile),
        more(false) {}
  static int64_t row_tiles(const KlPool& a) {
    return ceil_div(a.kl.sequences.query_max, kStageTile);
  }
  static int64_t unit_tiles(const KlPool& a) {
    return ceil_div(pool_units(a, a.kl.sequences.key_max), kStageTile);
  }
  static int64_t tiles(const KlPool& a) {
    return a.kl.sequences.count * a.kl.second.key_heads * unit_tiles(a);
  }
  int64_t floats(const KlPool& a) const { return count * tiles(a) * kStageTile * columns; }
  static constexpr int64_t kPartTiles = 8, kPartsMost = 32;
};

template <class Pairs, int Chunks, bool Weighted>
__global__ void __launch_bounds__(Pairs::threads, Chunks <= 2 ? 2 : 1)
    pool_units_kernel(const __grid_constant__ PoolCall call,
                      const __grid_constant__ PoolParts parts) {
  extern __shared__ __align__(128) unsigned char s_dynamic[];
  __shared__ PoolBackwardShared<Pairs> s;
  Pairs pairs(s_dynamic, pool_width(call.a));
  const Kl& a = call.a.kl;
  const KlSide& side = a.second;
  for (int64_t w = blockIdx.x; w < call.work; w += gridDim.x) {
    const int first = static_cast<int>(w % call.passes) * Chunks * Pairs::chunk;
    const int64_t place = w / call.passes, part = place % parts.count, tile = place / parts.count;
    const int64_t u0 = tile % call.unit_tiles * kStageTile,
                  key_head = tile / call.unit_tiles % side.key_heads;
    const int64_t sequence = tile / call.unit_tiles / side.key_heads;
    __syncthreads();
    if (threadIdx.x == 0) {
      s.at.seq = a.sequences[sequence];
      s.units = pool_sequence(call.a, s.at.seq, sequence);
    }
    __syncthreads();
    const Sequence& seq = s.at.seq;
    if (u0 >= s.units.keys) continue;
    const int64_t j0 = u0 * call.a.block_keys, j1 = pool_end(call.a, seq, u0);
    float acc[Chunks][Pairs::R][Pairs::C] = {};
    const int64_t begin = clamp_i64(call.first - sequence * call.row_tiles, 0, call.row_tiles);
    const int64_t tiles =
        clamp_i64(call.first + call.tiles - sequence * call.row_tiles, 0, call.row_tiles) - begin;
    if (parts.more && tiles == 0) continue;
    // Every part has tiles of all lengths.
    for (int64_t n = part; n < tiles * call.student.group; n += parts.count) {
      const int64_t h = key_head * call.student.group + n / tiles;
      const int64_t i0 = (begin + n % tiles) * kStageTile;
      const Range rows = row_range(a.mask, seq, h, h + 1, j0, j1);
      if (i0 + kStageTile <= rows.begin || i0 >= rows.end) continue;
      const int64_t i1 = i0 + kStageTile < seq.rows ? i0 + kStageTile : seq.rows;
      const KeyTiles range = key_tiles(a.mask, seq, h, h + 1, i0, i1, kStageTile);
      __syncthreads();  // the last tile's rows are done with
      put_gains(call, s, h, i0);
      __syncthreads();
      float y[Pairs::R][Pairs::C];
      pool_slopes<Weighted>(call, s, pairs, sequence, h, i0, u0, range, y);
      pairs.put_turned(y);
      const int64_t head = h * call.student.q_stride[2];
      pairs.add(
          acc, call.student.q,
          [&](int row) {
            const int64_t at = s.at.q[1][row];
            return at < 0 ? at : at + head;
          },
          i1 - i0, first);
    }
    float* const to = parts.sums + place * kStageTile * parts.columns;
#pragma unroll
    for (int n = 0; n < Chunks; ++n)
      each_pair<Pairs>([&](int r, int c) {
        const int64_t column = first + n * Pairs::chunk + Pairs::column_of(c);
        if (column >= parts.columns) return;
        float& sum = to[Pairs::own_of(r) * parts.columns + column];
        sum = parts.more ? sum + acc[n][r][c] : acc[n][r][c];
      });
  }
}

// A thread adds up an element of dk.
__global__ void __launch_bounds__(kStageThreads)
    pool_parts_kernel(const __grid_constant__ KlPool a, const __grid_constant__ PoolParts parts,
                      int64_t unit_tiles, int64_t work) {
  const KlSide& side = a.kl.second;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kStageThreads;
  for (int64_t w = static_cast<int64_t>(blockIdx.x) * kStageThreads + threadIdx.x; w < work;
       w += stride) {
    const int64_t column = w % parts.columns, row = w / parts.columns % kStageTile;
    const int64_t tile = w / parts.columns / kStageTile;
    const int64_t sequence = tile / unit_tiles / side.key_heads;
    const Sequence units = pool_sequence(a, a.kl.sequences[sequence], sequence);
    const int64_t u = tile % unit_tiles * kStageTile + row;
    if (u >= units.keys || column >= side.width) continue;
    float sum = 0;
    for (int64_t part = 0; part < parts.count; ++part)
      sum += parts.sums[((tile * parts.count + part) * kStageTile + row) * parts.columns + column];
    const int64_t* to = side.dk.stride;
    store_float(side.dk.data, side.dtype,
                units.key_batch * to[0] + (units.key_begin + u) * to[1] +
                    tile / unit_tiles % side.key_heads * to[2] + column * to[3],
                side.scale * sum);
  }
}

// All row tiles, where nothing has to be made of them first.
template <class Pairs, bool Weighted>
void take_tiles(PoolCall& call) {
  if (Weighted) return;
  call.row_tiles = ceil_div(call.a.kl.sequences.query_max, Pairs::own);
  call.first = 0, call.tiles = call.a.kl.sequences.count * call.row_tiles;
}

template <class Pairs, bool Weighted = false>
void rows(Context& ctx, PoolCall call) {
  const Kl& a = call.a.kl;
  take_tiles<Pairs, Weighted>(call);
  call.work = a.h * call.tiles;
  with_sums<Pairs>(a.second.width, [&]<int Chunks>(int64_t passes) {
    call.passes = passes, call.work *= passes;
    launch<pool_rows_kernel<Pairs, Chunks, Weighted>>(ctx, kOp, call.work, Pairs::threads,
                                                      pool_bytes<Pairs>(call.a), call);
  });
}

template <class Pairs, bool Weighted = false>
void units(Context& ctx, PoolCall call, const PoolParts& parts) {
  take_tiles<Pairs, Weighted>(call);
  call.unit_tiles = PoolParts::unit_tiles(call.a);
  call.work = PoolParts::tiles(call.a) * parts.count;
  with_sums<Pairs>(call.a.kl.second.width, [&]<int Chunks>(int64_t passes) {
    call.passes = passes, call.work *= passes;
    launch<pool_units_kernel<Pairs, Chunks, Weighted>>(ctx, kOp, call.work, Pairs::threads,
                                                       pool_bytes<Pairs>(call.a), call, parts);
  });
}

// Zeros for what no block of the sweeps stores: rows past the lengths, blocks past the keys.
void clear(Context& ctx, const KlPool& a) {
  const Sequences& q = a.kl.sequences;
  const KlSide& side = a.kl.second;
  if (side.dq && (q.query_start || q.query_len || q.query_max < a.kl.s))
    zero(ctx, kOp, side.dq, side.dtype, {a.kl.b, a.kl.s, a.kl.h, side.width});
  if (side.dk)
    zero(ctx, kOp, side.dk, side.dtype,
         {q.key_start ? 1 : q.count, a.u, side.key_heads, side.width});
}

struct NoWeights {
  template <class F>
  void each_band(Context&, PoolCall&, void*, const F& f) const {
    f();
  }
};

// rows(ctx, call) and units(ctx, call, parts), after what both need.
template <class Rows, class Units, class Weights = NoWeights>
void prepare_by(const KlPool& a, Plan& plan, const Rows& rows, const Units& units,
                const Weights& weights = {}) {
  plan.kernel += std::string(".") + dtype_name(a.kl.first.dtype);
  const PoolParts parts(a);
  const auto sums = plan.workspace.add<float>(a.kl.second.dk ? parts.floats(a) : 0);
  plan.launch = [=](Context& ctx, void* base) {
    clear(ctx, a);
    PoolParts now = parts;
    now.sums = sums.at(base);
    PoolCall call(a);
    weights.each_band(ctx, call, base, [&] {
      if (a.kl.second.dq) rows(ctx, call);
      if (a.kl.second.dk) units(ctx, call, now);
      now.more = true;
    });
    if (!a.kl.second.dk) return;
    const int64_t work = PoolParts::tiles(a) * kStageTile * now.columns;
    launch<pool_parts_kernel>(ctx, kOp, ceil_div(work, kStageThreads), kStageThreads, 0, a, now,
                              PoolParts::unit_tiles(a), work);
  };
}

std::string offer(const Context&, const KlPool& a, Plan& plan) {
  prepare_by(
      a, plan,
      [](Context& ctx, const PoolCall& call) {
        const Sequences& q = call.a.kl.sequences;
        if (few_rows(ctx, q.query_max, q.count * call.a.kl.h * ceil_div(q.query_max, 64)))
          rows<PairsFma<1>>(ctx, call);
        else
          rows<PairsFma<4>>(ctx, call);
      },
      [](Context& ctx, const PoolCall& call, const PoolParts& parts) {
        units<PairsFma<4>>(ctx, call, parts);
      });
  return "";
}

template <bool Weighted, class Weights = NoWeights>
void prepare_mma_by(const KlPool& a, Plan& plan, const Weights& weights = {}) {
  prepare_by(
      a, plan,
      [](Context& ctx, const PoolCall& call) {
        with_mma(call.a.kl.first.dtype, [&]<class Pairs> { rows<Pairs, Weighted>(ctx, call); });
      },
      [](Context& ctx, const PoolCall& call, const PoolParts& parts) {
        with_mma(call.a.kl.first.dtype,
                 [&]<class Pairs> { units<Pairs, Weighted>(ctx, call, parts); });
      },
      weights);
}

std::string offer_mma(const Context& ctx, const KlPool& a, Plan& plan) {
  if (std::string why = pool_mma_refuses(ctx, a); !why.empty()) return why;
  prepare_mma_by<false>(a, plan);
  return "";
}

std::string offer_sm90(const Context& ctx, const KlPool& a, Plan& plan) {
  if (std::string why = hopper_weights_refuse(ctx, a); !why.empty()) return why;
  prepare_mma_by<true>(a, plan, HopperWeights(plan.workspace, a));
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<KlPool> kl_pool_backward_sm90 = {"sm90", cuda::offer_sm90};
extern const Kernel<KlPool> kl_pool_backward_sm80 = {"sm80", cuda::offer_mma};
extern const Kernel<KlPool> kl_pool_backward_simt = {"simt", cuda::offer};

}  // namespace fovea
