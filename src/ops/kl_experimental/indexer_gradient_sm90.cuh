// SPDX-License-Identifier: Apache-2.0
// The gradients of an indexer on Hopper from db = dkl (R - P), which lies in memory for some row
// tiles at a time; with z_n = <q_n, k>, dz_n = db w_n where z_n > 0:
//   rows  a block owns 128 rows of a head: dw_n = sum_j db max(z_n, 0), dq_n = dz_n k
//   keys  a block owns 128 keys, a part of the row tiles and some heads: dk = sum_n dz_n' q_n in
//         f32, which another kernel adds up in order
// A warp of warpgroup 0 is the producer; the two consumer warpgroups own 64 rows (keys) each.
// Shared memory: the owned tile, and a ring of the tiles that pass, in which rows past the sequence
// are zeros.
//
//   barrier   arrives                      waits     guards
//   own_full  TMA's bytes                  consumer  the owned tile, copied once
//   raw       TMA's bytes                  producer  a stage whose tail it is to clear
//   full      TMA's bytes or the producer  consumer  a stage of the ring
//   empty     a lane of each of 8 warps    producer  the same stage
#pragma once
#include "cuda/loop/backward_block_sm90.cuh"
#include "cuda/loop/epilogue.cuh"
#include "cuda/tile/mma_sm80.cuh"
#include "ops/kl_experimental/indexer_scores_sm90.cuh"

namespace fovea::cuda {

template <int Dtype_, int D_, int Passing_, int Stages_>
struct DscoresShape90 {
  static constexpr int Dtype = Dtype_, D = D_, Own = kHeadsTile, Passing = Passing_;
  static constexpr int Stages = Stages_, threads = 384, producer_regs = 24, consumer_regs = 240,
                       warps = 8;
  using TileOwn = Swizzled<Own, D>;
  using Tile = Swizzled<Passing, D>;
  static constexpr int ring = TileOwn::bytes, barriers = ring + Stages * Tile::bytes;
  static constexpr int shared_bytes = barriers + (2 + 2 * Stages) * 8;
};

// The owned tile and the ring, as a producer or a consumer sees them.
template <class Shape>
struct DscoresPipeline {
  using State = sm90::PipelineState<Shape::Stages>;
  using Tile = typename Shape::Tile;
  static constexpr int N = Shape::Passing / 8, D = Shape::D;
  uint32_t base;
  State at;
  uint32_t raw_phase = 0;

  __device__ uint32_t tile() const { return base + Shape::ring + at.stage * Tile::bytes; }
  __device__ uint32_t own_full() const { return base + Shape::barriers; }
  __device__ uint32_t raw() const { return own_full() + 8; }
  __device__ uint32_t full() const { return raw() + 8 + at.stage * 16; }
  __device__ uint32_t empty() const { return full() + 8; }
  __device__ void init() const {
    sm90::barrier_init(own_full(), 1), sm90::barrier_init(raw(), 1);
    for (DscoresPipeline x{base, {}}; x.at.phase == 0; x.at.next())
      sm90::barrier_init(x.full(), 1), sm90::barrier_init(x.empty(), Shape::warps);
    sm90::barrier_init_done();
  }

  // The producer's warp: the owned tile, then a tile of `count` rows that exist.
  __device__ void copy_own(const CUtensorMap& map, int row, int head, int batch) const {
    if (threadIdx.x == 0)
      sm90::tma_load_tile<typename Shape::TileOwn>(base, map, own_full(), row, head, batch);
  }
  __device__ void copy(const CUtensorMap& map, int row, int head, int batch, int64_t count) {
    sm90::barrier_wait(empty(), at.phase ^ 1);
    copy_present<Tile, Shape::Passing>(tile(), map, full(), raw(), raw_phase, row, head, batch,
                                       FirstRows{static_cast<int>(count)}, 0);
    at.next();
  }

  // z of a consumer's 64 rows and the tile that comes next; wait<0>() and pin() are the caller's.
  __device__ void start_scores(float (&z)[N][4]) const {
    sm90::barrier_wait(full(), at.phase);
    sm90::fence();
    const int group = sm90::uniform(threadIdx.x / 128) - 1;
    sm90::product_rows<Shape::Dtype, D, typename Shape::TileOwn, Tile>(
        z, sm90::descriptor(base + group * 64 * kPanelRowBytes), sm90::descriptor(tile()));
    sm90::commit();
  }
  // sums += dz X, X the tile.
  __device__ void add(float (&sums)[D / 8][4], const float (&dz)[1][N][4]) const {
    uint32_t operand[1][N / 2][4];
    pack_operand<Shape::Dtype>(operand, dz);
    sm90::fence();
    sm90::product_columns<Shape::Dtype>(sums, operand[0],
                                        sm90::descriptor(tile(), Tile::panel_bytes), true);
    sm90::commit();
    sm90::wait<0>();
    sm90::pin(sums);
  }
  __device__ void release() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) sm90::barrier_arrive(empty());
    at.next();
  }
};

// The consumer's first row (or key) of the owned tile; the other is 8 on.
__device__ __forceinline__ int own_row90() {
  return threadIdx.x / 32 * 16 - 64 + threadIdx.x % 32 / 4;
}

template <int N>
__device__ __forceinline__ void clear_sums90(float (&x)[N][4]) {
#pragma unroll
  for (int j = 0; j < N; ++j)
#pragma unroll
    for (int c = 0; c < 4; ++c) x[j][c] = 0.f;
}

// dz from db, z and w.
__device__ __forceinline__ float head_dscore90(float d, float z, float w) {
  return d * (z <= 0.f ? 0.f : w);
}

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    heads_rows_sm90(const __grid_constant__ HeadsWork work,
                    const __grid_constant__ IndexerMaps90 maps,
                    const __grid_constant__ IndexerArgs90 args) {
  constexpr int N = kHeadsTile / 8, D = Shape::D;
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ __align__(16) unsigned char s_tile[sizeof(HeadsTile)];
  DscoresPipeline<Shape> ring{shared_address(shared), {}};
  const int head = static_cast<int>(blockIdx.x) % work.heads[1];
  if (threadIdx.x == 0)
    new (s_tile) HeadsTile(work, static_cast<int>(blockIdx.x) / work.heads[1]), ring.init();
  __syncthreads();
  const HeadsTile& at = *reinterpret_cast<const HeadsTile*>(s_tile);
  if (at.i0 >= at.seq.rows) return;
  if (threadIdx.x < 128) {
    sm90::setmaxnreg_dec<Shape::producer_regs>();
    if (threadIdx.x >= 32 || at.tiles == 0) return;
    ring.copy_own(maps.q[1], static_cast<int>(at.seq.row_begin) + at.i0, head,
                  static_cast<int>(at.seq.batch));
    for (int t = 0; t < at.tiles; ++t)
      ring.copy(maps.k[1], static_cast<int>(at.seq.key_begin) + at.key(t), 0,
                static_cast<int>(at.seq.key_batch), at.seq.keys - at.key(t));
    return;
  }
  sm90::setmaxnreg_inc<Shape::consumer_regs>();
  const int own = own_row90(), row = at.i0 + own, lane = threadIdx.x % 32;
  const auto place = [&](const int64_t* stride, int half) {
    return at.seq.batch * stride[0] + (at.seq.row_begin + row + 8 * half) * stride[1] +
           head * stride[2];
  };
  const bool there[2] = {row < at.seq.rows, row + 8 < at.seq.rows};
  float w[2], dweight[2] = {}, dq[D / 8][4], x[1][N][4];
#pragma unroll
  for (int half = 0; half < 2; ++half)
    w[half] = there[half] ? args.weight.as()[place(args.weight.stride, half)] : 0.f;
  clear_sums90(dq);
  const float* db = args.db + (int64_t{at.number} * kHeadsTile + own) * args.columns + lane % 4 * 2;
  if (at.tiles > 0) sm90::barrier_wait(ring.own_full(), 0);
#pragma unroll 1
  for (int t = 0; t < at.tiles; ++t) {
    const int key = at.key(t);
    ring.start_scores(x[0]);
    float2 d[2][N];
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int j = 0; j < N; ++j)
        d[half][j] = *reinterpret_cast<const float2*>(db + 8 * half * args.columns + key + j * 8);
    sm90::wait<0>();
    sm90::pin(x[0]);
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float of = c % 2 ? d[c / 2][j].y : d[c / 2][j].x, z = x[0][j][c];
        dweight[c / 2] = fmaf(of, z <= 0.f ? 0.f : z, dweight[c / 2]);
        x[0][j][c] = head_dscore90(of, z, w[c / 2]);
      }
    if (args.dq) ring.add(dq, x);
    ring.release();
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = quad_sum(dweight[half]);
    if (args.dweight && there[half] && lane % 4 == 0)
      args.dweight.as()[place(args.dweight.stride, half)] = sum;
    if (!args.dq) continue;
    uint16_t* line = args.dq.as<uint16_t>() + place(args.dq.stride, half);
    store_row<Shape::Dtype>(there[half] ? line : nullptr, args.width, dq, half, 1.f);
  }
}

// What a block of `keys` works on: a key tile, every row_parts-th row tile of the launch, heads
// [head, head_end).
struct DscoresKeysTile {
  Sequence seq;
  int64_t place;  // of its sums
  int r, tile, row_part, head, head_end;

  __device__ DscoresKeysTile(const HeadsWork& work, const IndexerArgs90& args, int at) : place(at) {
    const int head_part = at % args.head_parts, heads = work.heads[1];
    head = heads * head_part / args.head_parts;
    head_end = heads * (head_part + 1) / args.head_parts;
    at /= args.head_parts;
    row_part = at % args.row_parts, at /= args.row_parts;
    tile = at % static_cast<int>(args.parts.tiles), r = at / static_cast<int>(args.parts.tiles);
    seq = work.a.sequences[r];
  }
};

// The walk of a block of `keys`: f(row tile's number in the launch, its first row).
template <class F>
__device__ __forceinline__ void each_row_tile(const HeadsWork& work, const IndexerArgs90& args,
                                              const DscoresKeysTile& at, const F& f) {
  const int begin = max(work.first, at.r * work.row_tiles) - work.first,
            end = min(work.first + work.count, (at.r + 1) * work.row_tiles) - work.first;
#pragma unroll 1
  for (int number = begin + at.row_part; number < end; number += args.row_parts) {
    const int64_t i0 = int64_t{work.first + number - at.r * work.row_tiles} * kHeadsTile;
    if (i0 >= at.seq.rows) return;
    const int64_t i1 = i0 + kHeadsTile < at.seq.rows ? i0 + kHeadsTile : at.seq.rows;
    const KeyTiles range = key_tiles(work.a.mask, at.seq, 0, 1, i0, i1, kHeadsTile);
    if (at.tile < range.sinks || (at.tile >= range.first && at.tile < range.last))
      f(number, static_cast<int>(i0));
  }
}

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    heads_keys_sm90(const __grid_constant__ HeadsWork work,
                    const __grid_constant__ IndexerMaps90 maps,
                    const __grid_constant__ IndexerArgs90 args) {
  constexpr int N = Shape::Passing / 8, D = Shape::D, kHalves = kHeadsTile / Shape::Passing;
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ __align__(16) unsigned char s_tile[sizeof(DscoresKeysTile)];
  DscoresPipeline<Shape> ring{shared_address(shared), {}};
  if (threadIdx.x == 0)
    new (s_tile) DscoresKeysTile(work, args, static_cast<int>(blockIdx.x)), ring.init();
  __syncthreads();
  const DscoresKeysTile& at = *reinterpret_cast<const DscoresKeysTile*>(s_tile);
  if (at.tile * kHeadsTile >= at.seq.keys) return;
  const int row_begin = static_cast<int>(at.seq.row_begin), batch = static_cast<int>(at.seq.batch);
  if (threadIdx.x < 128) {
    sm90::setmaxnreg_dec<Shape::producer_regs>();
    if (threadIdx.x >= 32) return;
    ring.copy_own(maps.k[1], static_cast<int>(at.seq.key_begin) + at.tile * kHeadsTile, 0,
                  static_cast<int>(at.seq.key_batch));
    each_row_tile(work, args, at, [&](int, int i0) {
      for (int first = i0; first < i0 + kHeadsTile; first += Shape::Passing)
        for (int n = at.head; n < at.head_end; ++n)
          ring.copy(maps.q_part, row_begin + first, n, batch, at.seq.rows - first);
    });
    return;
  }
  sm90::setmaxnreg_inc<Shape::consumer_regs>();
  const int own = own_row90(), lane = threadIdx.x % 32;
  float dk[D / 8][4], x[1][N][4];
  clear_sums90(dk);
  sm90::barrier_wait(ring.own_full(), 0);
  const int64_t* stride = args.weight.stride;
  const float* weight = args.weight.as() + batch * stride[0];
  each_row_tile(work, args, at, [&](int number, int i0) {
#pragma unroll 1
    for (int part = 0; part < kHalves; ++part) {
      const int from = part * Shape::Passing + lane % 4 * 2;  // the lane's first row
      const float* db = args.db + (int64_t{number} * kHeadsTile + from) * args.columns +
                        at.tile * kHeadsTile + own;
      float d[N][4];
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c) d[j][c] = db[(j * 8 + c % 2) * args.columns + c / 2 * 8];
#pragma unroll 1
      for (int n = at.head; n < at.head_end; ++n) {
        float w[N][2];
#pragma unroll
        for (int j = 0; j < N; ++j)
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            const int i = i0 + from + j * 8 + c;
            w[j][c] = i < at.seq.rows ? weight[(row_begin + i) * stride[1] + n * stride[2]] : 0.f;
          }
        ring.start_scores(x[0]);
        sm90::wait<0>();
        sm90::pin(x[0]);
#pragma unroll
        for (int j = 0; j < N; ++j)
#pragma unroll
          for (int c = 0; c < 4; ++c) x[0][j][c] = head_dscore90(d[j][c], x[0][j][c], w[j][c % 2]);
        ring.add(dk, x);
        ring.release();
      }
    }
  });
  float* const to = args.parts.sums + at.place * kHeadsTile * D + own * D + lane % 4 * 2;
#pragma unroll
  for (int j = 0; j < D / 8; ++j)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float2& sum = *reinterpret_cast<float2*>(to + half * 8 * D + j * 8);
      float2 more = make_float2(dk[j][2 * half], dk[j][2 * half + 1]);
      if (work.first) more.x += sum.x, more.y += sum.y;
      sum = more;
    }
}

}  // namespace fovea::cuda
