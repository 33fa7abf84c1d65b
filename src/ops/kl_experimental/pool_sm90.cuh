// SPDX-License-Identifier: Apache-2.0
// db of x_kl_pool_backward on Hopper, for blocks of 64 or 128 keys (pool_backward.cu):
//   P_u = sum or max over the block's seen keys of e^(a - lse),  db = dkl (e^(b - lse') - P)
// A block owns 128 rows of a head.  Warpgroup 0 is the producer, one thread of it; two consumer
// warpgroups own 64 rows each.  The teacher's keys pass in tiles of 128; after those of 64 blocks
// the student's k of these blocks passes through the same ring.
// Shared memory: q of both sides, three stages of k, 32 KB each; P of 128 rows and 64 blocks, f32,
// which belongs to the warp that owns the row.
//
//   barrier   arrives                      waits     guards
//   q_full    TMA's bytes, of either side  consumer  q, copied once
//   k_full    TMA's bytes                  consumer  a stage of k
//   k_empty   a lane of each of 8 warps    producer  the same stage
#pragma once
#include "cuda/loop/pair_policy.cuh"
#include "cuda/tile/mma_sm80.cuh"
#include "cuda/tile/mma_sm90.cuh"
#include "ops/kl_experimental/pool_sweep.cuh"

namespace fovea::cuda {

template <int Dtype_, int D_>
struct PoolShape90 {
  static constexpr int Dtype = Dtype_, D = D_, Stages = 3, keys = 128;
  static constexpr int threads = 384, producer = 24, consumer = 240, warps = 8;
  using Tile = Swizzled<Dscores::rows, D>;
  using Units = Swizzled<kStageTile, D>;
  // A quarter warp's float2 of eight rows are in banks of their own.
  static constexpr int pitch = kStageTile + 8;
  static constexpr int k = 2 * Tile::bytes, sums = k + Stages * Tile::bytes;
  static constexpr int barriers = sums + Dscores::rows * pitch * 4;
  static constexpr int shared_bytes = barriers + (2 + 2 * Stages) * 8;
};

// Where a block works.
struct PoolTile90 {
  Sequence seq, units;
  int sequence, head, i0;
  int first, tiles;  // of 128 keys
  int span;          // tiles of 64 blocks

  __device__ PoolTile90(const PoolSweep90& sweep, int at) {
    const Dscores& dscores = sweep.dscores;
    const int64_t item = dscores.first + dscores.count - 1 - at;  // late rows first
    head = static_cast<int>(item % dscores.heads);
    sequence = static_cast<int>(item / dscores.heads / dscores.row_tiles);
    i0 = static_cast<int>(item / dscores.heads % dscores.row_tiles) * Dscores::rows;
    seq = sweep.a.kl.sequences[sequence];
    units = pool_sequence(sweep.a, seq, sequence);
    first = tiles = 0, span = kStageTile * static_cast<int>(sweep.a.block_keys) / 128;
    if (i0 >= seq.rows) return;
    const int64_t i1 = i0 + Dscores::rows < seq.rows ? i0 + Dscores::rows : seq.rows;
    const KeyTiles range = key_tiles(sweep.a.kl.mask, seq, 0, 1, i0, i1, 128);
    first = static_cast<int>(range.first), tiles = static_cast<int>(range.last);
  }
  // The first tile of the next 64 blocks.
  __device__ int next(int t) const { return min((t / span + 1) * span, tiles); }
};

template <class Shape>
struct PoolPipeline90 {
  uint32_t base;
  sm90::PipelineState<Shape::Stages> at;
  __device__ uint32_t q(int side) const { return base + side * Shape::Tile::bytes; }
  __device__ uint32_t k() const { return base + Shape::k + at.stage * Shape::Tile::bytes; }
  __device__ uint32_t q_full(int side) const { return base + Shape::barriers + side * 8; }
  __device__ uint32_t k_full() const { return base + Shape::barriers + 16 + at.stage * 16; }
  __device__ uint32_t k_empty() const { return k_full() + 8; }
  __device__ void init() const {
    PoolPipeline90 all{base, {}};
    for (int side = 0; side < 2; ++side) sm90::barrier_init(q_full(side), 1);
    for (; all.at.phase == 0; all.at.next()) {
      sm90::barrier_init(all.k_full(), 1);
      sm90::barrier_init(all.k_empty(), Shape::warps);
    }
    sm90::barrier_init_done();
  }
};

// One thread.
template <class Shape>
__device__ __forceinline__ void produce_pool(const PoolSweep90& sweep, const PoolMaps90& maps,
                                             const PoolTile90& at, PoolPipeline90<Shape> ring) {
  using Tile = typename Shape::Tile;
  const KlSide* const side[2] = {&sweep.a.kl.first, &sweep.a.kl.second};
  const int row = static_cast<int>(at.seq.row_begin) + at.i0;
  const auto key_head = [&](int s) {
    return at.head / static_cast<int>(sweep.a.kl.h / side[s]->key_heads);
  };
  const int key_heads[2] = {key_head(0), key_head(1)};
  for (int s = 0; s < 2; ++s)
    sm90::tma_load_tile<Tile>(ring.q(s), maps.q[s], ring.q_full(s), row, at.head,
                              static_cast<int>(at.seq.batch));
  for (int t = at.first; t < at.tiles;) {
    const int u0 = t / at.span * kStageTile, end = at.next(t);
    for (; t < end; ++t) {
      sm90::barrier_wait(ring.k_empty(), ring.at.phase ^ 1);
      sm90::tma_load_tile<Tile>(ring.k(), maps.k[0], ring.k_full(),
                                static_cast<int>(at.seq.key_begin) + t * Shape::keys, key_heads[0],
                                static_cast<int>(at.seq.key_batch));
      ring.at.next();
    }
    sm90::barrier_wait(ring.k_empty(), ring.at.phase ^ 1);
    sm90::tma_load_tile<typename Shape::Units>(ring.k(), maps.k[1], ring.k_full(),
                                               static_cast<int>(at.units.key_begin) + u0,
                                               key_heads[1], static_cast<int>(at.units.key_batch));
    ring.at.next();
  }
}

// A consumer's rows: those of a lane and the ones 8 below.
template <class Shape>
struct PoolRows90 {
  const PoolSweep90& sweep;
  const PoolTile90& at;
  float* sums;                            // P of the warp's 16 rows
  int row;                                // of the lane's first
  float gain[2], lse[2], lse_student[2];  // lse: in log2 units
  PlainPairs pairs;

  __device__ PoolRows90(const PoolSweep90& sweep, const PoolTile90& at, float* s_sums, int local)
      : sweep(sweep),
        at(at),
        sums(s_sums + local * Shape::pitch),
        row(at.i0 + local + static_cast<int>(threadIdx.x) % 32 / 4),
        pairs(sweep.teacher, at.seq, 0, 0) {
    const Kl& kl = sweep.a.kl;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = row + 8 * half;
      gain[half] = i < at.seq.rows ? row_value(sweep.a.dkl, at.seq, at.head, i) : 0;
      const bool none = gain[half] == 0;
      lse[half] = none ? 0 : row_value(kl.first.lse, at.seq, at.head, i) * kLog2E;
      lse_student[half] = none ? 0 : row_value(kl.second.lse, at.seq, at.head, i);
    }
  }
  // No row has seen a key.
  __device__ void clear() const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = lane; n < 16 * kStageTile / 4; n += 32)
      *reinterpret_cast<float4*>(sums + n / 16 * Shape::pitch + n % 16 * 4) = {-1, -1, -1, -1};
    __syncwarp();
  }
  // P of a tile's blocks, `block` the first's place among the 64.
  __device__ void pool(const float (&x)[16][4], int key, int block) const {
    const bool max = sweep.a.max;
    const auto each = [&](const auto& sees) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto power = [&](int tile) {
          return block_powers(x, tile, half, pairs.factor, lse[half], max,
                              [&](int column) { return sees(row + 8 * half, key + column); });
        };
        const float p[2] = {power(0), power(1)};
        if (threadIdx.x % 4) continue;
        float* const to = sums + (static_cast<int>(threadIdx.x) % 32 / 4 + 8 * half) * Shape::pitch;
        if (sweep.a.block_keys == 128)
          to[block] = join_blocks(p[0], p[1], max);
        else
          to[block] = p[0], to[block + 1] = p[1];
      }
    };
    if (pairs.full(at.i0, at.i0 + Dscores::rows, key, key + Shape::keys))
      each([](int, int) { return true; });
    else
      each([&](int i, int j) { return pairs.sees(i, j); });
  }
  // db of 64 blocks from u0 on, y their products with the student's rows.
  __device__ void store(const float (&y)[8][4], int u0) const {
    __syncwarp();  // P is there
    const float scale = sweep.a.kl.second.scale;
    const int column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float* const p =
          sums + (static_cast<int>(threadIdx.x) % 32 / 4 + 8 * half) * Shape::pitch + column;
      uint16_t* const to = static_cast<uint16_t*>(sweep.dscores.db) +
                           sweep.dscores.place(at.sequence, at.head, row + 8 * half) + u0 + column;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float2 weight = *reinterpret_cast<const float2*>(p + 8 * j);
        const auto dscore = [&](float x, float p) {
          const float r = expf(only_numbers(x * scale) - lse_student[half]);
          return gain[half] != 0 && !(p < 0) ? gain[half] * (r - p) : 0.f;
        };
        *reinterpret_cast<uint32_t*>(to + 8 * j) = pack<Shape::Dtype>(
            dscore(y[j][2 * half], weight.x), dscore(y[j][2 * half + 1], weight.y));
      }
    }
    __syncwarp();  // and done with
  }
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    pool_dscores_sm90(const __grid_constant__ PoolSweep90 sweep,
                      const __grid_constant__ PoolMaps90 maps) {
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ __align__(16) unsigned char s_tile[sizeof(PoolTile90)];
  using Tile = typename Shape::Tile;
  PoolPipeline90<Shape> ring{shared_address(shared), {}};
  if (threadIdx.x == 0) new (s_tile) PoolTile90(sweep, static_cast<int>(blockIdx.x)), ring.init();
  __syncthreads();
  const PoolTile90& at = *reinterpret_cast<const PoolTile90*>(s_tile);
  if (at.first >= at.tiles) return;
  const int group = sm90::uniform(threadIdx.x / 128) - 1;
  if (group < 0) {
    sm90::setmaxnreg_dec<Shape::producer>();
    if (threadIdx.x == 0) produce_pool<Shape>(sweep, maps, at, ring);
    return;
  }
  sm90::setmaxnreg_inc<Shape::consumer>();
  const PoolRows90<Shape> rows(sweep, at, reinterpret_cast<float*>(shared + Shape::sums),
                               group * 64 + static_cast<int>(threadIdx.x) / 32 % 4 * 16);
  const auto wait = [&](int side) {
    sm90::barrier_wait(ring.k_full(), ring.at.phase);
    sm90::barrier_wait(ring.q_full(side), 0);
    sm90::fence();
  };
  const auto release = [&] {
    if (threadIdx.x % 32 == 0) sm90::barrier_arrive(ring.k_empty());
    ring.at.next();
  };
  const uint32_t q_rows = group * 64 * kPanelRowBytes;
#pragma unroll 1
  for (int t = at.first; t < at.tiles;) {
    const int tile0 = t / at.span * at.span, u0 = t / at.span * kStageTile, end = at.next(t);
    rows.clear();
#pragma unroll 1
    for (; t < end; ++t) {
      float x[Shape::keys / 8][4];
      wait(0);
      sm90::product_rows<Shape::Dtype, Shape::D, Tile, Tile>(
          x, sm90::descriptor(ring.q(0) + q_rows), sm90::descriptor(ring.k()));
      sm90::commit();
      sm90::wait<0>();
      sm90::pin(x);
      release();
      rows.pool(x, t * Shape::keys, (t - tile0) * kStageTile / at.span);
    }
    float y[kStageTile / 8][4];
    wait(1);
    sm90::product_rows<Shape::Dtype, Shape::D, Tile, typename Shape::Units>(
        y, sm90::descriptor(ring.q(1) + q_rows), sm90::descriptor(ring.k()));
    sm90::commit();
    sm90::wait<0>();
    sm90::pin(y);
    release();
    rows.store(y, u0);
  }
}

template <int Dtype, int D>
PoolInstance90 kl_pool_sm90_instance() {
  using Shape = PoolShape90<Dtype, D>;
  constexpr auto run = [](Context& ctx, const PoolSweep90& sweep, const PoolMaps90& maps) {
    launch<pool_dscores_sm90<Shape>>(ctx, kPoolBackward, sweep.dscores.count, Shape::threads,
                                     Shape::shared_bytes, sweep, maps);
  };
  return {Dtype, D, run};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(dtype, d) \
  template fovea::cuda::PoolInstance90 fovea::cuda::kl_pool_sm90_instance<dtype, d>();
