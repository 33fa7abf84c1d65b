// SPDX-License-Identifier: Apache-2.0
// What the Hopper kernels of x_select_token's scores share: their rings of Q and K, the tiles that
// a block owns, and where the keys of a tile lie.
#pragma once
#include "cuda/tile/mma_sm90.cuh"
#include "ops/select/token_scores.cuh"

namespace fovea::cuda {

template <class Shape>
struct TokenRings90 {
  uint32_t base;
  sm90::PipelineState<Shape::QStages> q_at;
  sm90::PipelineState<Shape::Stages> k_at;
  __device__ uint32_t q() const { return base + q_at.stage * Shape::TileQ::bytes; }
  __device__ uint32_t k() const { return base + Shape::keys + k_at.stage * Shape::TileK::bytes; }
  __device__ uint32_t q_full() const { return base + Shape::barriers + q_at.stage * 16; }
  __device__ uint32_t q_empty() const { return q_full() + 8; }
  __device__ uint32_t k_full() const {
    return base + Shape::barriers + Shape::QStages * 16 + k_at.stage * 16;
  }
  __device__ uint32_t k_empty() const { return k_full() + 8; }
  __device__ void init() const {
    TokenRings90 at{base, {}, {}};
    for (; at.q_at.phase == 0; at.q_at.next())
      sm90::barrier_init(at.q_full(), 1), sm90::barrier_init(at.q_empty(), Shape::warps);
    for (; at.k_at.phase == 0; at.k_at.next())
      sm90::barrier_init(at.k_full(), 1), sm90::barrier_init(at.k_empty(), Shape::warps);
    sm90::barrier_init_done();
  }
};

// ---- which tiles a block owns

__device__ inline int tiles_of(const TokenScores90& call, const TokenGroup& group) {
  if (group.rows <= 0) return 0;
  const TokenRow row = call.a.row(group.sequence, group.first + group.rows - 1);
  return static_cast<int>((row.high + kTokenKeys - 1) / kTokenKeys);
}
__device__ inline TokenGroup group_of(const TokenScores90& call, int unit) {
  return call.groups.at(call.a.attend.sequences, call.first + unit / call.group_units);
}

// A run of tiles.
struct TokenSpan90 {
  int unit, tile;
  int64_t tiles;
};

template <int Threads = kTokenThreads>
struct TokenSpanShared90 {
  int64_t warp_sum[Threads / 32];
  TokenSpan90 span;
};

// The block's run of equally long ones, of units [0, units) that have tiles(unit) each; called by
// all threads.
template <class Tiles, int Threads>
__device__ __forceinline__ TokenSpan90 find_span(int units, Tiles tiles_of_unit,
                                                 TokenSpanShared90<Threads>& s) {
  const int each = (units + Threads - 1) / Threads;
  const int begin = min(static_cast<int>(threadIdx.x) * each, units);
  const int end = min(begin + each, units), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int64_t own = 0;
#pragma unroll 1
  for (int unit = begin; unit < end; ++unit) own += tiles_of_unit(unit);
  int64_t sum = own;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int64_t other = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == 31) s.warp_sum[warp] = sum;
  __syncthreads();
  int64_t before = sum - own, all = 0;
  for (int w = 0; w < Threads / 32; ++w) {
    if (w < warp) before += s.warp_sum[w];
    all += s.warp_sum[w];
  }
  const int64_t from = all * blockIdx.x / gridDim.x, to = all * (blockIdx.x + 1) / gridDim.x;
  if (threadIdx.x == 0) s.span = {0, 0, 0};
  __syncthreads();
  if (from < to && before <= from && from < before + own) {
    int unit = begin;
    int64_t at = from - before;
    for (;; ++unit) {
      const int tiles = tiles_of_unit(unit);
      if (at < tiles) break;
      at -= tiles;
    }
    s.span = {unit, static_cast<int>(at), to - from};
  }
  __syncthreads();
  return s.span;
}
__device__ inline TokenSpan90 find_span(const TokenScores90& call, TokenSpanShared90<>& s) {
  return find_span(
      call.units, [&](int unit) { return tiles_of(call, group_of(call, unit)); }, s);
}

// The units of a run, and of each the tiles [tile, last).
struct TokenWalk90 {
  const TokenScores90& call;
  int unit, tile, last;
  int64_t left;

  __device__ TokenWalk90(const TokenScores90& call, const TokenSpan90& span)
      : call(call), unit(span.unit), tile(span.tile), last(0), left(span.tiles) {}
  // The next unit that has tiles of the run; false: there is none.
  __device__ __forceinline__ bool open(TokenGroup& group) {
#pragma unroll 1
    for (; left > 0 && unit < call.units; ++unit, tile = 0) {
      group = group_of(call, unit);
      const int tiles = tiles_of(call, group);
      if (tile >= tiles) continue;
      last = static_cast<int>(tile + left < tiles ? tile + left : tiles);
      return true;
    }
    return false;
  }
  __device__ void close() {
    left -= last - tile, tile = 0, ++unit;
  }
  __device__ int list() const {
    return unit % call.group_units;
  }
  __device__ int first_head() const {
    return list() * static_cast<int>(call.a.group());
  }
  __device__ int key_head() const {
    return first_head() / static_cast<int>(call.a.key_group());
  }
};

// ---- where keys lie

// A box of a tile's keys, in the coordinates of the map of K.  batch -1: no key of it is there.
struct TokenBox90 {
  int row, batch;
};

// The box of the calling lane, of a sequence's tile.
__device__ __forceinline__ TokenBox90 box_of(const TokenScores90& call, const Sequence& q,
                                             int tile) {
  const Sequences& sequences = call.a.attend.sequences;
  const int lane = threadIdx.x % 32, key = tile * kTokenKeys + lane * call.box_keys;
  TokenBox90 box{static_cast<int>(q.key_begin) + key, static_cast<int>(q.key_batch)};
  if (sequences.page && lane < call.boxes) {
    const int page = static_cast<int>(sequences.page), number = box.row / page;
    box.batch = key < q.keys ? *sequences.page_table.at<int32_t>(q.key_batch, number) : -1;
    if (box.batch < 0 || box.batch >= sequences.pool) box.batch = -1;
    box.row -= number * page;
  }
  return box;
}

}  // namespace fovea::cuda
