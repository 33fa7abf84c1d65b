// SPDX-License-Identifier: Apache-2.0
// Scores of x_select_block on Hopper, of rows whose lse is given (NSA):
//   score(i, c) = sum_n exp(min(scale <row(i, n), column(c)> - row_lse(i, n), 0))
// over the query heads n of a list head, or their mean; -inf where the row does not see column c.
//   A tile is 128 columns of u x 256 (row, head), head fastest.  A work unit is a group of
//   256 / Heads list rows under a list head.  Its rows stay in shared memory while columns pass.
//   A block takes a run of the chunk's tiles, in the order of units and columns; runs are of one
//   length.  Warp 0 of warpgroup 0 is the producer.  The two consumer warpgroups own 64 columns
//   each (score_product_sm90.cuh).
// Shared memory: two tiles of rows, three or four of columns, and what the rows of a unit see.
//
//   barrier          arrives                    waits             guards
//   q_full, k_full   TMA's bytes                consumer          a stage of rows, of columns
//   q_empty, k_empty a lane of each of 8 warps  producer          the same stage
//   named 1 + n      warpgroup n                warpgroup n       what its unit's rows see
//   named 3 + n      the other warpgroup        warpgroup n       ping-pong: its turn to multiply
#pragma once
#include "cuda/block/softmax.cuh"
#include "cuda/launch.h"
#include "cuda/tile/order.cuh"
#include "ops/select/block_sums.cuh"
#include "ops/select/score_product_sm90.cuh"

namespace fovea::cuda {

// A warpgroup's unit, in shared memory.
template <int Rows>
struct BlockSumsUnit90 {
  int seen[Rows];
  // In powers of two; of lane t of four: heads 16 n + 2 t, + 1, + 8, + 9 of a row.
  alignas(16) float4 lse[Rows][kTokenSums / Rows / 16][4];
};

template <int Dtype, int D, int Heads>
struct BlockSumsShape90 : ScoreShape90<Dtype, D, Heads, BlockSumsUnit90> {};

// ---- which tiles a block owns

struct BlockSumsAt90 {
  int batch, row, rows, list;  // batch and row: of the chunk
};

template <int Rows>
__device__ __forceinline__ BlockSumsAt90 unit_at(const BlockSums90& call, int unit) {
  const int above = unit / call.groups, group = unit - above * call.groups;
  const int lists = static_cast<int>(call.x.a.x), batch = above / lists;
  const int row = group * Rows, left = static_cast<int>(call.chunk.rows) - row;
  return {batch, row, left < Rows ? left : Rows, above - batch * lists};
}
// Columns that row `row` of the chunk sees; 0 where there is no such row.
__device__ __forceinline__ int seen_by(const BlockSums90& call, int batch, int row) {
  RowSpan at;
  return find_row(call.x.a, call.chunk.b0 + batch, call.chunk.n0 + row, at) ? at.seen : 0;
}
// Tiles that a unit's rows see: its last row sees most.
template <int Rows>
__device__ __forceinline__ int tiles_of(const BlockSums90& call, int unit) {
  const BlockSumsAt90 at = unit_at<Rows>(call, unit);
  int seen = 0;
#pragma unroll 1
  for (int i = at.rows - 1; i >= 0 && !seen; --i) seen = seen_by(call, at.batch, at.row + i);
  return (seen + kTokenKeys - 1) / kTokenKeys;
}

// The units of a run, and of each the tiles [tile, last).
template <int Rows>
struct BlockSumsWalk90 {
  const BlockSums90& call;
  int unit, tile, last;
  int64_t left;
  BlockSumsAt90 at;

  __device__ BlockSumsWalk90(const BlockSums90& call, const TokenSpan90& span)
      : call(call), unit(span.unit), tile(span.tile), last(0), left(span.tiles), at{} {}
  // False: there is no unit left that has tiles of the run.
  __device__ __forceinline__ bool open() {
#pragma unroll 1
    for (; left > 0 && unit < call.units; ++unit, tile = 0) {
      const int tiles = tiles_of<Rows>(call, unit);
      if (tile >= tiles) continue;
      at = unit_at<Rows>(call, unit);
      last = static_cast<int>(tile + left < tiles ? tile + left : tiles);
      return true;
    }
    return false;
  }
  __device__ void close() {
    left -= last - tile, tile = 0, ++unit;
  }
};

// ---- the producer, a warp

template <class Shape>
__device__ __forceinline__ void copy_summaries(const BlockSums90& call, const BlockSumsMaps90& maps,
                                               const TokenSpan90& span, TokenRings90<Shape> rings) {
  using TileQ = typename Shape::TileQ;
  using TileK = typename Shape::TileK;
  const int lane = threadIdx.x % 32;
  const int heads = static_cast<int>(call.x.a.h / call.x.a.g);  // of a column head
  BlockSumsWalk90<Shape::Rows> walk(call, span);
#pragma unroll 1
  for (; walk.open(); walk.close()) {
    const int batch = static_cast<int>(call.chunk.b0) + walk.at.batch;
    const int first_head = walk.at.list * Shape::Heads;
    sm90::barrier_wait(rings.q_empty(), rings.q_at.phase ^ 1);
    if (lane == 0) {
      sm90::barrier_expect(rings.q_full(), TileQ::bytes);
#pragma unroll
      for (int panel = 0; panel < TileQ::panels; ++panel)
        sm90::tma_load_box(rings.q() + panel * TileQ::panel_bytes, maps.row, rings.q_full(),
                           panel * TileQ::box, first_head,
                           static_cast<int>(call.chunk.n0) + walk.at.row, batch);
    }
    rings.q_at.next();
#pragma unroll 1
    for (int tile = walk.tile; tile < walk.last; ++tile) {
      sm90::barrier_wait(rings.k_empty(), rings.k_at.phase ^ 1);
      if (lane == 0) {
        sm90::barrier_expect(rings.k_full(), TileK::bytes);
#pragma unroll
        for (int panel = 0; panel < TileK::panels; ++panel)
          sm90::tma_load_box(rings.k() + panel * TileK::panel_bytes, maps.column, rings.k_full(),
                             panel * TileK::box, tile * kTokenKeys, first_head / heads, batch);
      }
      __syncwarp();
      rings.k_at.next();
    }
  }
}

// ---- a consumer warpgroup

template <class Shape>
struct BlockSumsConsumer90 : ScoreProduct90<Shape> {
  using Base = ScoreProduct90<Shape>;
  using Base::group, Base::rings, Base::left, Base::x, Base::N, Base::kTurn;
  using Base::release, Base::product, Base::own_key;
  static constexpr int Heads = Shape::Heads, Rows = Shape::Rows;
  static constexpr int HeadGroups = Heads / 8;
  using Unit = typename Shape::Unit;
  const BlockSums90& call;
  Unit& unit;
  float* to;  // the lane's first row

  __device__ BlockSumsConsumer90(const BlockSums90& call, Unit& unit, int group,
                                 const TokenRings90<Shape>& rings)
      : Base(group, rings), call(call), unit(unit) {}

  __device__ __forceinline__ void run(const TokenSpan90& span) {
    BlockSumsWalk90<Rows> walk(call, span);
    left = span.tiles;
    if (group == 1 && left > 0) sm90::named_barrier_arrive(kTurn, 256);
#pragma unroll 1
    for (; walk.open(); walk.close()) {
      open(walk.at);
      sm90::barrier_wait(rings.q_full(), rings.q_at.phase);
#pragma unroll 1
      for (int tile = walk.tile; tile < walk.last; ++tile) {
        sm90::barrier_wait(rings.k_full(), rings.k_at.phase);
        product();
        sm90::wait<0>();
        sm90::pin(x);
        release(rings.k_empty());
        rings.k_at.next();
        if (tile + 1 == walk.last) release(rings.q_empty());
        take(tile * kTokenKeys, walk.at.rows);
      }
      rings.q_at.next();
    }
  }

 private:
  // What the warpgroup's scores ask of a unit.
  __device__ __forceinline__ void open(const BlockSumsAt90& at) {
    const SelectBlock& a = call.x.a;
    const int thread = threadIdx.x % 128;
    sm90::named_barrier_sync(1 + group, 128);
    if (thread < Rows)
      unit.seen[thread] = thread < at.rows ? seen_by(call, at.batch, at.row + thread) : 0;
    for (int m = thread; m < kTokenSums; m += 128) {
      const int i = m / Heads, n = m % Heads;
      float lse = INFINITY;  // of what is not finite: all scores are 0
      if (i < at.rows)
        lse = *a.row_lse.at(call.chunk.b0 + at.batch, at.list * Heads + n,
                            call.chunk.n0 + at.row + i) *
              kLog2E;
      float* const of = &unit.lse[i][n / 16][n % 8 / 2].x;
      of[n % 16 / 8 * 2 + n % 2] = lse > -INFINITY ? lse : INFINITY;
    }
    sm90::named_barrier_sync(1 + group, 128);
    const int64_t row = at.batch * call.chunk.rows + at.row + threadIdx.x % 4;
    to = call.x.score + (row * call.x.lines + at.list) * call.x.pitch + own_key();
  }

  // Strange: a product of the tile is not finite.  What is -inf or NaN stays out of the sum's row.
  template <bool Strange>
  __device__ __forceinline__ void add_heads(float (&sum)[Rows][2]) const {
    const float scale = call.x.a.scale * kLog2E;
#pragma unroll
    for (int i = 0; i < Rows; ++i) sum[i][0] = sum[i][1] = 0.f;
      // Heads ascend in each sum; rows are in turn, so that sums do not wait for themselves.
#pragma unroll
    for (int n = 0; n < HeadGroups; n += 2)
#pragma unroll
      for (int i = 0; i < Rows; ++i) {
        const float4 of = unit.lse[i][n / 2][threadIdx.x % 4];
        const float lse[4] = {of.x, of.y, of.z, of.w};
#pragma unroll
        for (int m = 0; m < 8; ++m) {
          const int c = m % 4;
          const float s = x[i * HeadGroups + n + m / 4][c];
          float p = exp2_fast(min_or_nan(fmaf(s, scale, -lse[m / 4 * 2 + c % 2]), 0.f));
          if constexpr (Strange) {
            if (lse[m / 4 * 2 + c % 2] == INFINITY) p = 0.f;
            if (!(s > -INFINITY)) p = -INFINITY;
          }
          sum[i][c / 2] += p;
        }
      }
  }

  __device__ __forceinline__ void take(int tile, int rows) {
    const SelectBlock& a = call.x.a;
    float odd[4] = {};
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) odd[c] = fmaf(x[j][c], 0.f, odd[c]);
    const float any = (odd[0] + odd[1]) + (odd[2] + odd[3]);
    float sum[Rows][2];
    if (__any_sync(~0u, any != any))
      add_heads<true>(sum);
    else
      add_heads<false>(sum);
      // Lane t of four adds up rows t, t + 4, ...
#pragma unroll
    for (int m = 0; m < Rows / 4; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float all = Base::quad_row(sum, 4 * m, half);
        all = pick_score(all);
        if (a.reduce == FOVEA_X_SELECT_REDUCE_MEAN) all = __fdiv_rn(all, static_cast<float>(Heads));
        const int row = 4 * m + threadIdx.x % 4, key = tile + own_key() + 8 * half;
        if (row >= rows || key >= call.x.pitch) continue;
        to[4 * m * call.x.lines * call.x.pitch + tile + 8 * half] =
            key < unit.seen[row] ? all : -INFINITY;
      }
  }
};

template <class Shape>
__global__ void __launch_bounds__(kTokenThreads, 1)
    block_sums_sm90(const __grid_constant__ BlockSums90 call,
                    const __grid_constant__ BlockSumsMaps90 maps) {
  extern __shared__ __align__(1024) unsigned char shared[];
  auto* const units = reinterpret_cast<typename Shape::Unit*>(shared + Shape::units);
  const TokenRings90<Shape> rings{shared_address(shared), {}, {}};
  if (threadIdx.x == 0) {
    sm90::prefetch_map(maps.row), sm90::prefetch_map(maps.column);
    rings.init();
  }
  pdl_wait();
  pdl_trigger();
  static_assert(sizeof(TokenSpanShared90) <= sizeof(typename Shape::Unit));
  const TokenSpan90 span = find_span(
      call.units, [&](int unit) { return tiles_of<Shape::Rows>(call, unit); },
      *reinterpret_cast<TokenSpanShared90*>(units));
  __syncthreads();  // a unit takes its place
  const int group = sm90::uniform(threadIdx.x / 128) - 1;
  if (group < 0) {
    sm90::setmaxnreg_dec<Shape::producer_regs>();
    if (threadIdx.x < 32) copy_summaries<Shape>(call, maps, span, rings);
    return;
  }
  sm90::setmaxnreg_inc<Shape::consumer_regs>();
  BlockSumsConsumer90<Shape>(call, units[group], group, rings).run(span);
}

template <int Dtype, int D, int Heads>
BlockSumsInstance90 select_block_sums_sm90_instance() {
  using Shape = BlockSumsShape90<Dtype, D, Heads>;
  return {Dtype, D, Heads, [](Context& ctx, const BlockSums90& call, const BlockSumsMaps90& maps) {
            launch_pdl<block_sums_sm90<Shape>>(ctx, "x_select_block",
                                               device_info(ctx).multiprocessors, kTokenThreads,
                                               Shape::shared_bytes, call, maps);
          }};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(dtype, d, heads)     \
  template fovea::cuda::BlockSumsInstance90 \
  fovea::cuda::select_block_sums_sm90_instance<dtype, d, heads>();
