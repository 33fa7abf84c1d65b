// SPDX-License-Identifier: Apache-2.0
// Scores of x_select_block on Hopper, of rows whose lse is given (NSA):
//   score(i, c) = sum_n exp(min(scale <row(i, n), column(c)> - row_lse(i, n), 0))
// over the query heads n of a list head, or their mean; -inf where a product is not a number or
// -inf.  Columns that row i does not see are not written.
//   A tile is 128 columns of u x 256 (row, head), head fastest.  A work unit is a group of
//   256 / Heads list rows under a list head.  Its rows stay in shared memory while columns pass.
//   A block takes a run of the chunk's tiles, in the order of units and columns; runs are of one
//   length.  Warp 0 of warpgroup 0 is the producer, which also loads a unit's lse.
//   Consumer warpgroup w owns columns 64 (w % 2) .. + 63 of a tile, which are wgmma's rows, and
//   half w / 2 of the unit's rows.  So the heads of a score lie in a thread and its three
//   neighbours.  The four take turns at the tensor cores: sums of three run under a product.
// Shared memory: two units and their tiles of rows, three or four tiles of columns.
//
//   barrier       arrives                     waits            guards
//   q_full        the producer, TMA's bytes   consumers        a unit and its rows
//   k_full        TMA's bytes                 consumers        a stage of columns
//   q_empty       a lane of each of 16 warps  producer         a unit and its rows
//   k_empty       a lane of each of 16 warps  producer         a stage of columns
//   named 1 + w   the warpgroup before w      warpgroup w      its turn to multiply
#pragma once
#include <climits>

#include "cuda/block/softmax.cuh"
#include "cuda/launch.h"
#include "cuda/tile/order.cuh"
#include "ops/select/block_sums.cuh"
#include "ops/select/score_product_sm90.cuh"

namespace fovea::cuda {

// Of no row, and of what is not finite: all scores are 0.  Exponents stay finite.
constexpr float kNoLse = 0x1p100f;

// A unit in shared memory.
template <int Rows>
struct BlockSumsUnit90 {
  int64_t to;      // its first score
  int tile, last;  // the run's tiles of it
  int seen[Rows];
  // In powers of two; of lane t of four: heads 16 n + 2 t, + 1, + 8, + 9 of a row.
  alignas(16) float4 lse[Rows][kTokenSums / Rows / 16][4];
};

template <int Dtype, int D, int Heads>
struct BlockSumsShape90 : ScoreShape90<Dtype, D, Heads, BlockSumsUnit90> {
  static constexpr int warps = 16, threads = 640, producer_regs = 56, consumer_regs = 104;
};

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
  return call.seen[(call.chunk.b0 + batch) * call.x.a.n + call.chunk.n0 + row];
}
__device__ __forceinline__ int tiles_up(int seen) {
  return (seen + kTokenKeys - 1) / kTokenKeys;
}
// Tiles that a unit's rows see: its last row sees most.
template <int Rows>
__device__ __forceinline__ int tiles_of(const BlockSums90& call, int unit) {
  const BlockSumsAt90 at = unit_at<Rows>(call, unit);
  int seen = 0;
#pragma unroll 1
  for (int i = at.rows - 1; i >= 0 && !seen; --i) seen = seen_by(call, at.batch, at.row + i);
  return tiles_up(seen);
}

// ---- the producer, a warp

// Of a unit: lane i has what row i sees, and lse of rows and heads.
template <class Shape>
struct BlockSumsLane90 {
  static constexpr int Rows = Shape::Rows, Heads = Shape::Heads;
  int seen;
  float lse[kTokenSums / 32];

  __device__ __forceinline__ BlockSumsLane90(const BlockSums90& call, const BlockSumsAt90& at) {
    const SelectBlock& a = call.x.a;
    const int lane = threadIdx.x % 32, i = lane % Rows, n = at.list * Heads + lane / Rows;
    seen = lane < at.rows ? seen_by(call, at.batch, at.row + lane) : 0;
#pragma unroll
    for (int m = 0; m < kTokenSums / 32; ++m) {
      lse[m] = kNoLse;
      if (i >= at.rows) continue;
      const float x =
          *a.row_lse.at(call.chunk.b0 + at.batch, n + m * (32 / Rows), call.chunk.n0 + at.row + i) *
          kLog2E;
      if (x > -INFINITY && x < INFINITY) lse[m] = x;
    }
  }
  __device__ __forceinline__ void store(typename Shape::Unit& unit) const {
    const int lane = threadIdx.x % 32;
    if (lane < Rows) unit.seen[lane] = seen;
#pragma unroll
    for (int m = 0; m < kTokenSums / 32; ++m) {
      const int n = lane / Rows + m * (32 / Rows);
      (&unit.lse[lane % Rows][n / 16][n % 8 / 2].x)[n % 16 / 8 * 2 + n % 2] = lse[m];
    }
  }
};

template <class Shape>
__device__ __forceinline__ void copy_summaries(const BlockSums90& call, const BlockSumsMaps90& maps,
                                               TokenSpan90 span, typename Shape::Unit* units,
                                               TokenRings90<Shape> rings) {
  using TileQ = typename Shape::TileQ;
  using TileK = typename Shape::TileK;
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (; span.tiles > 0 && span.unit < call.units; ++span.unit, span.tile = 0) {
    const BlockSumsAt90 at = unit_at<Shape::Rows>(call, span.unit);
    const BlockSumsLane90<Shape> own(call, at);
    const int tiles = tiles_up(__reduce_max_sync(~0u, own.seen));
    if (span.tile >= tiles) continue;
    const int last =
        static_cast<int>(span.tile + span.tiles < tiles ? span.tile + span.tiles : tiles);
    const int batch = static_cast<int>(call.chunk.b0) + at.batch;
    const int first_head = at.list * Shape::Heads;
    const int column_head = static_cast<int>(call.x.a.column_head(first_head));
    sm90::barrier_wait(rings.q_empty(), rings.q_at.phase ^ 1);
    auto& unit = units[rings.q_at.stage];
    own.store(unit);
    if (lane == 0)
      unit.to = ((at.batch * call.chunk.rows + at.row) * call.x.lines + at.list) * call.x.pitch,
      unit.tile = span.tile, unit.last = last;
    __syncwarp();
    if (lane == 0) {
      sm90::barrier_expect(rings.q_full(), TileQ::bytes);
#pragma unroll
      for (int panel = 0; panel < TileQ::panels; ++panel)
        sm90::tma_load_box(rings.q() + panel * TileQ::panel_bytes, maps.row, rings.q_full(),
                           panel * TileQ::box, first_head, static_cast<int>(call.chunk.n0) + at.row,
                           batch);
    }
    rings.q_at.next();
    span.tiles -= last - span.tile;
#pragma unroll 1
    for (int tile = span.tile; tile < last; ++tile) {
      sm90::barrier_wait(rings.k_empty(), rings.k_at.phase ^ 1);
      if (lane == 0) {
        sm90::barrier_expect(rings.k_full(), TileK::bytes);
#pragma unroll
        for (int panel = 0; panel < TileK::panels; ++panel)
          sm90::tma_load_box(rings.k() + panel * TileK::panel_bytes, maps.column, rings.k_full(),
                             panel * TileK::box, tile * kTokenKeys, column_head, batch);
      }
      __syncwarp();
      rings.k_at.next();
    }
  }
}

// ---- a consumer warpgroup

template <class Shape>
struct BlockSumsConsumer90 {
  static constexpr int Heads = Shape::Heads, Rows = Shape::Rows / 2;
  static constexpr int N = kTokenSums / 16, HeadGroups = Heads / 8;
  static constexpr int kTurn = 1, Steps = Shape::D / 16;
  using Unit = typename Shape::Unit;
  const BlockSums90& call;
  const Unit* const units;
  const int warpgroup, group, half;  // group and half: its columns and its rows
  TokenRings90<Shape> rings;
  float x[N][4];  // products, then exponents.  NaN: the score is -inf

  __device__ BlockSumsConsumer90(const BlockSums90& call, const Unit* units, int warpgroup,
                                 const TokenRings90<Shape>& rings)
      : call(call),
        units(units),
        warpgroup(warpgroup),
        group(warpgroup % 2),
        half(warpgroup / 2),
        rings(rings) {}

  __device__ __forceinline__ void run(int64_t left) {
    int tile = 0, last = 0;
    if (warpgroup == 3 && left > 0) sm90::named_barrier_arrive(kTurn, 256);
#pragma unroll 1
    for (; left > 0; --left) {
      const Unit& unit = units[rings.q_at.stage];
      if (tile == last) {
        sm90::barrier_wait(rings.q_full(), rings.q_at.phase);
        tile = unit.tile, last = unit.last;
      }
      sm90::barrier_wait(rings.k_full(), rings.k_at.phase);
      product(left == 1);
      release(rings.k_empty());
      rings.k_at.next();
      find_exponents(unit);
      sum_up(unit,
             tile * kTokenKeys + group * 64 + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4);
      if (++tile < last) continue;
      release(rings.q_empty());
      rings.q_at.next();
    }
  }

 private:
  __device__ __forceinline__ void release(uint32_t barrier) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) sm90::barrier_arrive(barrier);
  }
  template <int From, int To>
  __device__ __forceinline__ void steps(uint64_t keys, uint64_t rows) {
    using TileQ = typename Shape::TileQ;
    using TileK = typename Shape::TileK;
#pragma unroll
    for (int k = From; k < To; ++k)
      sm90::Wgmma<Shape::Dtype, kTokenSums / 2>::template ss<0>(
          x, keys + k / 4 * (TileK::panel_bytes / 16) + k % 4 * 2,
          rows + k / 4 * (TileQ::panel_bytes / 16) + k % 4 * 2, k != 0);
    sm90::commit();
  }
  __device__ __forceinline__ void product(bool ends) {
    using TileQ = typename Shape::TileQ;
    using TileK = typename Shape::TileK;
    const uint64_t keys = TileK::descriptor(rings.k() + group * 64 * TileK::row_bytes);
    const uint64_t rows = TileQ::descriptor(rings.q() + half * kTokenSums / 2 * TileQ::row_bytes);
    // The first step overwrites x: its registers are free until then.
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) asm volatile("" : "=f"(x[j][c]));
    sm90::named_barrier_sync(kTurn + warpgroup, 256);
    sm90::fence();
    steps<0, Steps * 3 / 4>(keys, rows);
    steps<Steps * 3 / 4, Steps>(keys, rows);
    sm90::wait<1>();
    if (!ends || warpgroup < 3) sm90::named_barrier_arrive(kTurn + (warpgroup + 1) % 4, 256);
    sm90::wait<0>();
    sm90::pin(x);
  }

  // visit(x[j][c], x[j][c + 1], their lse)
  template <class Visit>
  __device__ __forceinline__ void each_pair(const Unit& unit, Visit visit) {
#pragma unroll
    for (int j = 0; j < N; j += 2) {
      const float4 of = unit.lse[half * Rows + j / HeadGroups][j % HeadGroups / 2][threadIdx.x % 4];
#pragma unroll
      for (int c = 0; c < 4; c += 2) {
        visit(x[j][c], x[j][c + 1], of.x, of.y);
        visit(x[j + 1][c], x[j + 1][c + 1], of.z, of.w);
      }
    }
  }
  __device__ __forceinline__ void find_exponents(const Unit& unit) {
    const float scale = call.x.a.scale * kLog2E;
    // As an integer, -inf is above negative numbers, and what is to be cut at 0 or NaN is above it.
    int top = INT_MIN;
    each_pair(unit, [&](float& x0, float& x1, float lse0, float lse1) {
      x0 = fmaf(x0, scale, -lse0), x1 = fmaf(x1, scale, -lse1);
      top = __vimax3_s32(top, __float_as_int(x0), __float_as_int(x1));
    });
    if (!__any_sync(~0u, top >= __float_as_int(-INFINITY))) return;
    sm90::pin(x);  // lse is loaded again, for want of registers
    const auto checked = [](float x, float lse) {
      if (!(x > -INFINITY)) return NAN;
      return lse == kNoLse ? -INFINITY : fminf(x, 0.f);
    };
    each_pair(unit, [&](float& x0, float& x1, float lse0, float lse1) {
      x0 = checked(x0, lse0), x1 = checked(x1, lse1);
    });
  }

  // Heads ascend in each sum; rows are in turn, so that sums do not wait for themselves.
  __device__ __forceinline__ void sum_up(const Unit& unit, int column) const {
    float sum[Rows][2];
#pragma unroll
    for (int n = 0; n < HeadGroups; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c)
#pragma unroll
        for (int i = 0; i < Rows; ++i) {
          const float p = exp2_fast(x[i * HeadGroups + n][c]);
          sum[i][c / 2] = n || c % 2 ? sum[i][c / 2] + p : p;
        }
    const float share = call.x.a.reduce == FOVEA_X_SELECT_REDUCE_MEAN ? 1.f / Heads : 1.f;
    // Lane t of four adds up rows t, t + 4, ...
#pragma unroll
    for (int m = 0; m < Rows; m += 4) {
      const int row = half * Rows + m + threadIdx.x % 4, room = unit.seen[row] - column;
      float* const to = call.x.score + unit.to + row * (call.x.lines * call.x.pitch) + column;
#pragma unroll
      for (int far = 0; far < 2; ++far) {
        const float all = ScoreProduct90<Shape>::quad_row(sum, m, far) * share;
        if (8 * far < room) to[8 * far] = fmaxf(all, -INFINITY);
      }
    }
  }
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
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
  static_assert(sizeof(TokenSpanShared90<Shape::threads>) <= sizeof(typename Shape::Unit));
  const TokenSpan90 span = find_span(
      call.units, [&](int unit) { return tiles_of<Shape::Rows>(call, unit); },
      *reinterpret_cast<TokenSpanShared90<Shape::threads>*>(units));
  __syncthreads();  // a unit takes its place
  const int group = sm90::uniform(threadIdx.x / 128) - 1;
  if (group < 0) {
    sm90::setmaxnreg_dec<Shape::producer_regs>();
    if (threadIdx.x < 32) copy_summaries<Shape>(call, maps, span, units, rings);
    return;
  }
  sm90::setmaxnreg_inc<Shape::consumer_regs>();
  BlockSumsConsumer90<Shape>(call, units, group, rings).run(span.tiles);
}

template <int Dtype, int D, int Heads>
BlockSumsInstance90 select_block_sums_sm90_instance() {
  using Shape = BlockSumsShape90<Dtype, D, Heads>;
  return {Dtype, D, Heads, [](Context& ctx, const BlockSums90& call, const BlockSumsMaps90& maps) {
            launch_pdl<block_sums_sm90<Shape>>(ctx, "x_select_block",
                                               device_info(ctx).multiprocessors, Shape::threads,
                                               Shape::shared_bytes, call, maps);
          }};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(dtype, d, heads)     \
  template fovea::cuda::BlockSumsInstance90 \
  fovea::cuda::select_block_sums_sm90_instance<dtype, d, heads>();
