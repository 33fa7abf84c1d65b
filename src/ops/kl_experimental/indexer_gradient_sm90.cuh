// SPDX-License-Identifier: Apache-2.0
// The gradients of an indexer on Hopper from db = dkl (R - P), which lies in memory for some row
// tiles at a time; with z_n = <q_n, k>, dz_n = db w_n where z_n > 0:
//   rows  a block owns 128 rows of a head: dw_n = sum_j db max(z_n, 0), dq_n = dz_n k
//   keys  a block owns 128 keys, a part of the row tiles and some heads: dk = sum_n dz_n' q_n in
//         f32, which another kernel adds up in order
// A db of +0 is a pair that does not count; one of -0 counts, and its slopes are -0: where a row of
// k (or q) that is summed holds an infinity or NaN, pairs of +0 are left out one by one.
// A warp of warpgroup 0 copies; the two others own 64 rows (keys) each.
// Shared memory: the owned tile, a ring of the tiles that pass, in which rows past the sequence are
// zeros, 4 KB a warp for slopes that are looked at one by one; barriers: full (bytes) and empty
// (one arrival a computing warp) of each, and the copying warp's own.
#pragma once
#include "cuda/loop/backward_walk_sm90.cuh"
#include "cuda/loop/sink.cuh"
#include "cuda/tile/mma_sm80.cuh"
#include "ops/kl_experimental/indexer_scores_sm90.cuh"

namespace fovea::cuda {

template <int Dtype_, int D_, int Passing_, int Stages_>
struct SlopesShape90 {
  static constexpr int Dtype = Dtype_, D = D_, Own = kHeadsTile, Passing = Passing_;
  static constexpr int Stages = Stages_, threads = 384, copying = 24, computing = 240, warps = 8;
  using TileOwn = Swizzled<Own, D>;
  using Tile = Swizzled<Passing, D>;
  static constexpr int ring = TileOwn::bytes, scratch = ring + Stages * Tile::bytes;
  static constexpr int scratch_bytes = 16 * Passing * 2;  // of a warp
  static constexpr int barriers = scratch + warps * scratch_bytes;
  static constexpr int shared_bytes = barriers + (2 + 2 * Stages) * 8;
};

template <class Shape>
struct SlopesRing {
  using Ring = sm90::Ring<Shape::Stages>;
  uint32_t base;
  Ring at;
  __device__ uint32_t tile() const { return base + Shape::ring + at.stage * Shape::Tile::bytes; }
  __device__ uint32_t own_full() const { return base + Shape::barriers; }
  __device__ uint32_t raw() const { return own_full() + 8; }
  __device__ uint32_t full() const { return raw() + 8 + at.stage * 16; }
  __device__ uint32_t empty() const { return full() + 8; }
  __device__ void init() const {
    sm90::barrier_init(own_full(), 1), sm90::barrier_init(raw(), 1);
    for (SlopesRing x{base, {}}; x.at.phase == 0; x.at.next())
      sm90::barrier_init(x.full(), 1), sm90::barrier_init(x.empty(), Shape::warps);
    sm90::barrier_init_done();
  }
};

// dz from db, z and w.
__device__ __forceinline__ float head_slope90(float d, float z, float w) {
  return __float_as_uint(d) == 0 ? 0.f : unmasked_zero90(d * (z <= 0.f ? 0.f : w));
}

// sums += ds X where ds is not +0, X a tile [row][column] in shared memory.
template <class Shape, int N, int Steps>
__device__ __forceinline__ void add_selected90(float (&sums)[N][4], const uint32_t (&ds)[Steps][4],
                                               unsigned char* scratch, const unsigned char* x) {
  constexpr int kPitch = Shape::Passing / 2;
  const int lane = threadIdx.x % 32;
  uint32_t* const words = reinterpret_cast<uint32_t*>(scratch);
  __syncwarp();
#pragma unroll
  for (int k = 0; k < Steps; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      words[(lane / 4 + i % 2 * 8) * kPitch + k * 8 + i / 2 * 4 + lane % 4] = ds[k][i];
  __syncwarp();
  const auto value = [](uint32_t bits) {
    const uint16_t half = static_cast<uint16_t>(bits);
    if constexpr (Shape::Dtype == FOVEA_F16)
      return __half2float(reinterpret_cast<const __half&>(half));
    else
      return __uint_as_float(static_cast<uint32_t>(half) << 16);
  };
#pragma unroll 1
  for (int n = 0; n < Shape::Passing; ++n)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t bits = words[(lane / 4 + half * 8) * kPitch + n / 2] >> (n % 2 * 16) & 0xffffu;
      if (bits == 0) continue;
      const float d = value(bits);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const uint32_t two =
            *reinterpret_cast<const uint32_t*>(x + Shape::Tile::at(n, j) + lane % 4 * 4);
        sums[j][2 * half] = fmaf(d, value(two), sums[j][2 * half]);
        sums[j][2 * half + 1] = fmaf(d, value(two >> 16), sums[j][2 * half + 1]);
      }
    }
  __syncwarp();
}

// sums += ds X by the one way or the other.
template <class Shape, int N, int Steps>
__device__ __forceinline__ void add_slopes90(float (&sums)[N][4], const uint32_t (&ds)[Steps][4],
                                             bool odd, unsigned char* shared, uint32_t tile) {
  if (odd) {
    add_selected90<Shape>(sums, ds,
                          shared + Shape::scratch + (threadIdx.x / 32 - 4) * Shape::scratch_bytes,
                          shared + (tile - shared_address(shared)));
    return;
  }
  sm90::fence();
  sm90::product_columns<Shape::Dtype>(sums, ds, sm90::descriptor(tile, Shape::Tile::panel_bytes),
                                      true);
  sm90::commit();
  sm90::wait<0>();
  sm90::pin(sums);
}

// Whether one of `count` rows holds an infinity or NaN; a warp asks together.
__device__ __forceinline__ bool any_odd(const uint8_t* odd, int count) {
  bool any = false;
  for (int n = threadIdx.x % 32; n < count; n += 32) any = any || odd[n];
  return __any_sync(~0u, any);
}

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    heads_rows_sm90(const __grid_constant__ HeadsWork work, const __grid_constant__ SlopesMaps maps,
                    const __grid_constant__ SlopesRows90 args) {
  constexpr int N = kHeadsTile / 8, D = Shape::D;
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ __align__(16) unsigned char s_tile[sizeof(HeadsTile)];
  SlopesRing<Shape> ring{shared_address(shared), {}};
  const int head = static_cast<int>(blockIdx.x) % work.heads[1];
  if (threadIdx.x == 0)
    new (s_tile) HeadsTile(work, static_cast<int>(blockIdx.x) / work.heads[1]), ring.init();
  __syncthreads();
  const HeadsTile& at = *reinterpret_cast<const HeadsTile*>(s_tile);
  if (at.i0 >= at.seq.rows) return;
  const int group = sm90::uniform(threadIdx.x / 128) - 1, lane = threadIdx.x % 32;
  const int key_begin = static_cast<int>(at.seq.key_begin),
            key_batch = static_cast<int>(at.seq.key_batch);
  if (group < 0) {
    sm90::setmaxnreg_dec<Shape::copying>();
    if (threadIdx.x >= 32 || at.tiles == 0) return;
    if (lane == 0)
      sm90::copy_tile<typename Shape::TileOwn>(ring.base, maps.q, ring.own_full(),
                                               static_cast<int>(at.seq.row_begin) + at.i0, head,
                                               static_cast<int>(at.seq.batch));
    uint32_t raw_phase = 0;
    for (int t = 0; t < at.tiles; ++t) {
      sm90::barrier_wait(ring.empty(), ring.at.phase ^ 1);
      copy_present<typename Shape::Tile, Shape::Passing>(
          ring.tile(), maps.k, ring.full(), ring.raw(), raw_phase, key_begin + at.key(t), 0,
          key_batch, FirstRows{static_cast<int>(at.seq.keys) - at.key(t)}, 0);
      ring.at.next();
    }
    return;
  }
  sm90::setmaxnreg_inc<Shape::computing>();
  const int own = group * 64 + threadIdx.x / 32 % 4 * 16 + lane / 4, row = at.i0 + own;
  float w[2], dweight[2] = {}, dq[D / 8][4], x[1][N][4];
  uint32_t ds[1][N / 2][4];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = row + 8 * half;
    const int64_t* stride = args.weight.stride;
    w[half] = i < at.seq.rows
                  ? args.weight.as()[at.seq.batch * stride[0] + (at.seq.row_begin + i) * stride[1] +
                                     head * stride[2]]
                  : 0.f;
  }
#pragma unroll
  for (int j = 0; j < D / 8; ++j)
#pragma unroll
    for (int c = 0; c < 4; ++c) dq[j][c] = 0.f;
  const float* db = args.db + (int64_t{at.number} * kHeadsTile + own) * args.columns + lane % 4 * 2;
  if (at.tiles > 0) sm90::barrier_wait(ring.own_full(), 0);
#pragma unroll 1
  for (int t = 0; t < at.tiles; ++t) {
    const int key = at.key(t);
    const bool odd = any_odd(args.odd_keys + key_batch * args.t + key_begin + key,
                             min(kHeadsTile, static_cast<int>(at.seq.keys) - key));
    sm90::barrier_wait(ring.full(), ring.at.phase);
    sm90::fence();
    sm90::product_rows<Shape::Dtype, D, typename Shape::TileOwn, typename Shape::Tile>(
        x[0], sm90::descriptor(ring.base + group * 64 * kPanelRowBytes),
        sm90::descriptor(ring.tile()));
    sm90::commit();
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
        if (__float_as_uint(of) != 0) dweight[c / 2] = fmaf(of, z <= 0.f ? 0.f : z, dweight[c / 2]);
        x[0][j][c] = head_slope90(of, z, w[c / 2]);
      }
    if (args.dq) {
      pack_operand<Shape::Dtype>(ds, x);
      add_slopes90<Shape>(dq, ds[0], odd, shared, ring.tile());
    }
    __syncwarp();
    if (lane == 0) sm90::barrier_arrive(ring.empty());
    ring.at.next();
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = row + 8 * half;
    const int64_t token = at.seq.row_begin + i;
    const bool there = i < at.seq.rows;
    const float sum = quad_sum(dweight[half]);
    const int64_t* stride = args.dweight.stride;
    if (args.dweight && there && lane % 4 == 0)
      args.dweight.as()[at.seq.batch * stride[0] + token * stride[1] + head * stride[2]] = sum;
    if (!args.dq) continue;
    stride = args.dq.stride;
    uint16_t* line =
        args.dq.as<uint16_t>() + at.seq.batch * stride[0] + token * stride[1] + head * stride[2];
    store_row<Shape::Dtype>(there ? line : nullptr, args.width, dq, half, 1.f);
  }
}

// What a block of `keys` works on: a key tile, every row_parts-th row tile of the launch, heads
// [head, head_end).
struct SlopesKeysTile {
  Sequence seq;
  int64_t place;  // of its sums
  int r, tile, row_part, head, head_end;

  __device__ SlopesKeysTile(const HeadsWork& work, const SlopesKeys90& args, int at) : place(at) {
    const int head_part = at % args.head_parts;
    const int heads = work.heads[1];
    head = heads * head_part / args.head_parts,
    head_end = heads * (head_part + 1) / args.head_parts;
    at /= args.head_parts;
    row_part = at % args.row_parts, at /= args.row_parts;
    tile = at % args.key_tiles, r = at / args.key_tiles;
    seq = work.a.sequences[r];
  }
};

// The walk of a block of `keys`: f(row tile's number in the launch, sequence's tile m).
template <class F>
__device__ __forceinline__ void each_row_tile(const HeadsWork& work, const SlopesKeys90& args,
                                              const SlopesKeysTile& at, const F& f) {
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
    heads_keys_sm90(const __grid_constant__ HeadsWork work, const __grid_constant__ SlopesMaps maps,
                    const __grid_constant__ SlopesKeys90 args) {
  constexpr int N = Shape::Passing / 8, D = Shape::D, kHalves = kHeadsTile / Shape::Passing;
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ __align__(16) unsigned char s_tile[sizeof(SlopesKeysTile)];
  SlopesRing<Shape> ring{shared_address(shared), {}};
  if (threadIdx.x == 0)
    new (s_tile) SlopesKeysTile(work, args, static_cast<int>(blockIdx.x)), ring.init();
  __syncthreads();
  const SlopesKeysTile& at = *reinterpret_cast<const SlopesKeysTile*>(s_tile);
  if (at.tile * kHeadsTile >= at.seq.keys) return;
  const int group = sm90::uniform(threadIdx.x / 128) - 1, lane = threadIdx.x % 32;
  const int row_begin = static_cast<int>(at.seq.row_begin), batch = static_cast<int>(at.seq.batch);
  if (group < 0) {
    sm90::setmaxnreg_dec<Shape::copying>();
    if (threadIdx.x >= 32) return;
    if (lane == 0)
      sm90::copy_tile<typename Shape::TileOwn>(
          ring.base, maps.k, ring.own_full(),
          static_cast<int>(at.seq.key_begin) + at.tile * kHeadsTile, 0,
          static_cast<int>(at.seq.key_batch));
    uint32_t raw_phase = 0;
    each_row_tile(work, args, at, [&](int, int i0) {
      for (int part = 0; part < kHalves; ++part)
        for (int n = at.head; n < at.head_end; ++n) {
          sm90::barrier_wait(ring.empty(), ring.at.phase ^ 1);
          const int first = i0 + part * Shape::Passing;
          copy_present<typename Shape::Tile, Shape::Passing>(
              ring.tile(), maps.q_part, ring.full(), ring.raw(), raw_phase, row_begin + first, n,
              batch, FirstRows{static_cast<int>(at.seq.rows) - first}, 0);
          ring.at.next();
        }
    });
    return;
  }
  sm90::setmaxnreg_inc<Shape::computing>();
  const int own = group * 64 + threadIdx.x / 32 % 4 * 16 + lane / 4;
  float dk[D / 8][4], x[1][N][4];
  uint32_t ds[1][N / 2][4];
#pragma unroll
  for (int j = 0; j < D / 8; ++j)
#pragma unroll
    for (int c = 0; c < 4; ++c) dk[j][c] = 0.f;
  sm90::barrier_wait(ring.own_full(), 0);
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
      const int first = i0 + part * Shape::Passing;
      const bool odd = any_odd(args.odd_rows + int64_t{batch} * args.s + row_begin + first,
                               min(Shape::Passing, static_cast<int>(at.seq.rows) - first));
      const int64_t* stride = args.weight.stride;
      const float* weight = args.weight.as() + batch * stride[0];
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
        sm90::barrier_wait(ring.full(), ring.at.phase);
        sm90::fence();
        sm90::product_rows<Shape::Dtype, D, typename Shape::TileOwn, typename Shape::Tile>(
            x[0], sm90::descriptor(ring.base + group * 64 * kPanelRowBytes),
            sm90::descriptor(ring.tile()));
        sm90::commit();
        sm90::wait<0>();
        sm90::pin(x[0]);
#pragma unroll
        for (int j = 0; j < N; ++j)
#pragma unroll
          for (int c = 0; c < 4; ++c) x[0][j][c] = head_slope90(d[j][c], x[0][j][c], w[j][c % 2]);
        pack_operand<Shape::Dtype>(ds, x);
        add_slopes90<Shape>(dk, ds[0], odd, shared, ring.tile());
        __syncwarp();
        if (lane == 0) sm90::barrier_arrive(ring.empty());
        ring.at.next();
      }
    }
  });
  float* const to = args.sums + at.place * kHeadsTile * D + own * D + lane % 4 * 2;
#pragma unroll
  for (int j = 0; j < D / 8; ++j)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float2& sum = *reinterpret_cast<float2*>(to + half * 8 * D + j * 8);
      float2 more = make_float2(dk[j][2 * half], dk[j][2 * half + 1]);
      if (args.more) more.x += sum.x, more.y += sum.y;
      sum = more;
    }
}

}  // namespace fovea::cuda
