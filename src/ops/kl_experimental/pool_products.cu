// SPDX-License-Identifier: Apache-2.0
// The two products of db, 64 own places x 128 columns a block, of the rows that a launch holds:
//   dq  own are rows of a head, over tiles of 64 blocks of keys: scale db k, stored
//   dk  own are blocks of keys of a key head, over tiles of 64 rows of its query heads, every so
//       many of which are a part: db' q, added to the part's sums
// Blocks of keys are few, so dk comes in parts; pool_join adds them up in order.
#include "ops/kl/stage_sums.cuh"
#include "ops/kl_experimental/pool_tile.cuh"

namespace fovea::cuda {
namespace {

constexpr int kChunks = 2;  // of 64 columns

FOVEA_HD int64_t count_of(int64_t x, int64_t each) {
  return (x + each - 1) / each;
}

// Where 64 x 64 of db lie, and what they are multiplied with.
struct Factor {
  int64_t db, own_stride, other_stride;  // elements
  int64_t x, x_stride, terms;            // first row of the operand, from one to the next, how many
};

template <class Pairs>
__device__ __forceinline__ void add_product(float (&acc)[kChunks][Pairs::R][Pairs::C], Pairs& pairs,
                                            const void* db, const Factor& of, const Operand& x,
                                            int first) {
  using T = typename PoolDscore<Pairs>::T;
  const T* const from = static_cast<const T*>(db) + of.db;
  float p[Pairs::R][Pairs::C];
  each_pair<Pairs>([&](int r, int c) {
    p[r][c] =
        to_float(from[Pairs::own_of(r) * of.own_stride + Pairs::other_of(c) * of.other_stride]);
  });
  pairs.put(p);
  pairs.add(
      acc, x, [&](int row) { return row < of.terms ? of.x + row * of.x_stride : -1; }, of.terms,
      first);
}

template <class Pairs>
__global__ void __launch_bounds__(Pairs::threads, 2)
    pool_products_kernel(const __grid_constant__ PoolCall call,
                         const __grid_constant__ PoolDscores dscores,
                         const __grid_constant__ PoolParts parts, int64_t dq_work) {
  extern __shared__ __align__(128) unsigned char s_dynamic[];
  __shared__ Sequence seq, units;
  constexpr int kHalves = PoolDscores::rows / Pairs::own;
  Pairs pairs(s_dynamic, Pairs::chunk);
  const KlPool& a = call.a;
  const KlSide& side = a.kl.second;
  const int64_t *q_stride = call.student.q_stride, *k_stride = call.student.k_stride;
  const int64_t passes = count_of(side.width, kChunks * Pairs::chunk);
  for (int64_t w = blockIdx.x; w < call.work; w += gridDim.x) {
    const bool rows = w < dq_work;
    const int64_t at = (rows ? w : w - dq_work) / passes;
    const int first = static_cast<int>((rows ? w : w - dq_work) % passes) * kChunks * Pairs::chunk;
    const int64_t item = rows ? dscores.first + at / kHalves : 0;
    const int64_t unit_tile = rows ? item / dscores.heads : at / parts.count;
    const int64_t head =
        rows ? item % dscores.heads : unit_tile / parts.unit_tiles % side.key_heads;
    const int64_t sequence =
        rows ? unit_tile / dscores.row_tiles : unit_tile / parts.unit_tiles / side.key_heads;
    find_sequence(a, sequence, seq, units);
    // The first own place; the tiles of others from `begin` on, every `step`.
    const int64_t own0 =
        rows ? unit_tile % dscores.row_tiles * PoolDscores::rows + at % kHalves * Pairs::own
             : unit_tile % parts.unit_tiles * kStageTile;
    if (own0 >= (rows ? seq.rows : units.keys)) continue;
    const int64_t row_tiles = count_of(a.kl.sequences.query_max, kStageTile);
    const int64_t begin = rows ? 0 : at % parts.count, step = rows ? 1 : parts.count;
    const int64_t end = rows ? count_of(units.keys, kStageTile) : row_tiles * call.student.group;
    float* const to = parts.sums + at * kStageTile * parts.columns;
    float acc[kChunks][Pairs::R][Pairs::C] = {};
    const auto each_sum = [&](const auto& f) {
#pragma unroll
      for (int n = 0; n < kChunks; ++n)
        each_pair<Pairs>([&](int r, int c) {
          const int64_t column = first + n * Pairs::chunk + Pairs::column_of(c);
          if (column < parts.columns)
            f(to[Pairs::own_of(r) * parts.columns + column], acc[n][r][c]);
        });
    };
    if (!rows && parts.more) each_sum([](float sum, float& x) { x = sum; });
    for (int64_t n = begin; n < end; n += step) {
      const int64_t h = rows ? head : head * call.student.group + n / row_tiles;
      const int64_t i0 = rows ? own0 : n % row_tiles * kStageTile;
      const int64_t u0 = rows ? n * kStageTile : own0;
      if (i0 >= seq.rows || !dscores.holds(dscores.item(sequence, h, i0))) continue;
      if (!pool_seen(a, seq, pool_tiles(a, seq, h, i0), u0)) continue;
      Factor of;
      of.db = dscores.place(sequence, h, i0) + u0;
      if (rows) {
        of.own_stride = dscores.pitch, of.other_stride = 1;
        of.x = units.key_batch * k_stride[0] + (units.key_begin + u0) * k_stride[1] +
               h / call.student.group * k_stride[2];
        of.x_stride = k_stride[1], of.terms = units.keys - u0;
      } else {
        of.own_stride = 1, of.other_stride = dscores.pitch;
        of.x = seq.batch * q_stride[0] + (seq.row_begin + i0) * q_stride[1] + h * q_stride[2];
        of.x_stride = q_stride[1], of.terms = seq.rows - i0;
      }
      add_product(acc, pairs, dscores.db, of, rows ? call.student.k : call.student.q, first);
    }
    if (!rows) {
      each_sum([](float& sum, float x) { sum = x; });
      continue;
    }
#pragma unroll
    for (int r = 0; r < Pairs::R; ++r) {
      const int64_t i = own0 + Pairs::own_of(r), *stride = side.dq.stride;
      if (i >= seq.rows) continue;
      store_sums<Pairs>(side.dq, side.dtype,
                        seq.batch * stride[0] + (seq.row_begin + i) * stride[1] + head * stride[2],
                        first, side.width, side.scale, acc, r);
    }
  }
}

// A thread adds up an element of dk.
__global__ void __launch_bounds__(kStageThreads)
    pool_join_kernel(const __grid_constant__ KlPool a, const __grid_constant__ PoolParts parts,
                     int64_t work) {
  const KlSide& side = a.kl.second;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kStageThreads;
  for (int64_t w = static_cast<int64_t>(blockIdx.x) * kStageThreads + threadIdx.x; w < work;
       w += stride) {
    const int64_t column = w % parts.columns, row = w / parts.columns % kStageTile;
    const int64_t tile = w / parts.columns / kStageTile;
    const int64_t sequence = tile / parts.unit_tiles / side.key_heads;
    const Sequence units = pool_sequence(a, a.kl.sequences[sequence], sequence);
    const int64_t u = tile % parts.unit_tiles * kStageTile + row;
    if (u >= units.keys || column >= side.width) continue;
    float sum = 0;
    for (int64_t part = 0; part < parts.count; ++part)
      sum += parts.sums[((tile * parts.count + part) * kStageTile + row) * parts.columns + column];
    const int64_t* to = side.dk.stride;
    store_float(side.dk.data, side.dtype,
                units.key_batch * to[0] + (units.key_begin + u) * to[1] +
                    tile / parts.unit_tiles % side.key_heads * to[2] + column * to[3],
                side.scale * sum);
  }
}

}  // namespace

void pool_products(Context& ctx, const PoolCall& call, const PoolDscores& dscores,
                   const PoolParts& parts, bool mma) {
  const KlSide& side = call.a.kl.second;
  with_pairs(mma, side.dtype, [&]<class Pairs> {
    PoolCall now = call;
    const int64_t passes = count_of(side.width, kChunks * Pairs::chunk);
    const int64_t dq_work = side.dq ? dscores.count * (PoolDscores::rows / Pairs::own) * passes : 0;
    now.work = dq_work + (side.dk ? parts.tiles * parts.count * passes : 0);
    launch<pool_products_kernel<Pairs>>(ctx, kPoolBackward, now.work, Pairs::threads,
                                        Pairs::shared_bytes(Pairs::chunk), now, dscores, parts,
                                        dq_work);
  });
}

void pool_join(Context& ctx, const PoolCall& call, const PoolParts& parts) {
  const int64_t work = parts.tiles * kStageTile * parts.columns;
  launch<pool_join_kernel>(ctx, kPoolBackward, ceil_div(work, kStageThreads), kStageThreads, 0,
                           call.a, parts, work);
}

}  // namespace fovea::cuda
