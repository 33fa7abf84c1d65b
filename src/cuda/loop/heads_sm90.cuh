// SPDX-License-Identifier: Apache-2.0
// The scores of a tile of rows and keys, all heads of both distributions one after the other, on
// Hopper: x = q_n k' of teacher and student, each taken by a policy as it comes.
//   A block owns 128 rows and every `parts`-th of the key tiles that they see, 128 keys each.  One
//   thread of warpgroup 0 is the producer.  The two consumer warpgroups own 64 rows each; what one
//   makes of a score runs under the product of the other.
// Shared memory: three tiles of Q and three of K, 32 KB each.  A tile of keys serves all heads that
// share it.
//
//   barrier          arrives                    waits     guards
//   q_full, k_full   TMA's bytes                consumer  a stage of Q, of K
//   q_empty, k_empty a lane of each of 8 warps  producer  the same stage
#pragma once
#include <new>

#include "cuda/loop/heads.cuh"
#include "cuda/loop/pair_policy.cuh"
#include "cuda/tile/mma_sm90.cuh"

namespace fovea::cuda {

template <int Dtype_, int D_>
struct HeadsShape90 {
  static constexpr int Dtype = Dtype_, D = D_, BM = kHeadsTile, BN = kHeadsTile, Stages = 3;
  static constexpr int threads = 384, producer_regs = 24, consumer_regs = 240, warps = 8;
  using Tile = Swizzled<BM, D>;
  static constexpr int keys = Stages * Tile::bytes, barriers = 2 * keys;
  static constexpr int shared_bytes = barriers + 4 * Stages * 8;
};

// What a block works on.
struct HeadsTile {
  Sequence seq;
  KeyTiles range;
  int r, i0, part, tiles, number;  // number: of the row tile among the launch's

  __device__ HeadsTile(const HeadsWork& work, int at) {
    part = at % work.parts, at /= work.parts;
    number = work.count - 1 - at;
    const int flat = work.first + number;
    r = flat / work.row_tiles, i0 = flat % work.row_tiles * kHeadsTile;
    seq = work.a.sequences[r];
    tiles = 0;
    if (i0 >= seq.rows) return;
    const int64_t i1 = i0 + kHeadsTile < seq.rows ? i0 + kHeadsTile : seq.rows;
    range = key_tiles(work.a.mask, seq, 0, 1, i0, i1, kHeadsTile);
    tiles = static_cast<int>(range.count());
  }
  __device__ int key(int t) const { return static_cast<int>(range[t]) * kHeadsTile; }
};

// The steps of a tile: heads of the teacher, then of the student.
struct HeadsStep {
  int side, head, key_head;
  __device__ HeadsStep(const HeadsWork& work, int n)
      : side(n >= work.heads[0]),
        head(side ? n - work.heads[0] : n),
        key_head(head / work.group[side]) {}
  __device__ bool same_keys(const HeadsStep& x) const {
    return side == x.side && key_head == x.key_head;
  }
};

template <class Shape>
struct HeadsPipelines {
  using PipelineState = sm90::PipelineState<Shape::Stages>;
  using Tile = typename Shape::Tile;
  uint32_t base;
  PipelineState q_at, k_at;
  __device__ uint32_t q() const { return base + q_at.stage * Tile::bytes; }
  __device__ uint32_t k() const { return base + Shape::keys + k_at.stage * Tile::bytes; }
  __device__ uint32_t q_full() const { return base + Shape::barriers + q_at.stage * 32; }
  __device__ uint32_t q_empty() const { return q_full() + 8; }
  __device__ uint32_t k_full() const { return base + Shape::barriers + k_at.stage * 32 + 16; }
  __device__ uint32_t k_empty() const { return k_full() + 8; }
  __device__ void init() const {
    HeadsPipelines at{base, {}, {}};
    for (; at.q_at.phase == 0; at.q_at.next(), at.k_at.next()) {
      sm90::barrier_init(at.q_full(), 1), sm90::barrier_init(at.k_full(), 1);
      sm90::barrier_init(at.q_empty(), Shape::warps);
      sm90::barrier_init(at.k_empty(), Shape::warps);
    }
    sm90::barrier_init_done();
  }
};

// One lane.
template <class Shape>
__device__ __forceinline__ void copy_heads(const HeadsWork& work, const HeadsMaps& maps,
                                           const HeadsTile& at, int first, int last,
                                           HeadsPipelines<Shape> rings) {
  using Tile = typename Shape::Tile;
  const int row = static_cast<int>(at.seq.row_begin) + at.i0,
            batch = static_cast<int>(at.seq.batch), key_batch = static_cast<int>(at.seq.key_batch);
  for (int t = at.part; t < at.tiles; t += work.parts) {
    const int key = static_cast<int>(at.seq.key_begin) + at.key(t);
    for (int n = first; n < last; ++n) {
      const HeadsStep step(work, n);
      if (n == first || !step.same_keys(HeadsStep(work, n - 1))) {
        sm90::barrier_wait(rings.k_empty(), rings.k_at.phase ^ 1);
        sm90::tma_load_tile<Tile>(rings.k(), maps.k[step.side], rings.k_full(), key, step.key_head,
                                  key_batch);
        rings.k_at.next();
      }
      sm90::barrier_wait(rings.q_empty(), rings.q_at.phase ^ 1);
      sm90::tma_load_tile<Tile>(rings.q(), maps.q[step.side], rings.q_full(), row, step.head,
                                batch);
      rings.q_at.next();
    }
  }
}

// Policy: a tile's first step is first(work, args); Policy(work, args, tile, row) for the lane's
// row and the one 8 on; begin() a tile of keys, load(step) what the rows have of a head, take(step,
// x) its scores, end(pairs, key, full) the tile; finish() at last.
template <class Shape, class Policy>
__global__ void __launch_bounds__(Shape::threads, 1)
    heads_sm90(const __grid_constant__ HeadsWork work, const __grid_constant__ HeadsMaps maps,
               const __grid_constant__ typename Policy::Args args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ __align__(16) unsigned char s_tile[sizeof(HeadsTile)];
  HeadsPipelines<Shape> rings{shared_address(shared), {}, {}};
  if (threadIdx.x == 0) new (s_tile) HeadsTile(work, static_cast<int>(blockIdx.x)), rings.init();
  __syncthreads();
  const HeadsTile& at = *reinterpret_cast<const HeadsTile*>(s_tile);
  if (at.i0 >= at.seq.rows) return;
  const int first = Policy::first(work, args), last = work.heads[0] + work.heads[1];
  const int group = sm90::uniform(threadIdx.x / 128) - 1;
  if (group < 0) {
    sm90::setmaxnreg_dec<Shape::producer_regs>();
    if (threadIdx.x == 0) copy_heads<Shape>(work, maps, at, first, last, rings);
    return;
  }
  sm90::setmaxnreg_inc<Shape::consumer_regs>();
  const int lane = threadIdx.x % 32;
  const PlainPairs pairs(work.a, at.seq, 0, 0);
  Policy policy(work, args, at, at.i0 + group * 64 + threadIdx.x / 32 % 4 * 16 + lane / 4);
  const auto release = [&](uint32_t barrier) {
    if (lane == 0) sm90::barrier_arrive(barrier);
  };
  float x[Shape::BN / 8][4];
#pragma unroll 1
  for (int t = at.part; t < at.tiles; t += work.parts) {
    policy.begin();
#pragma unroll 1
    for (int n = first; n < last; ++n) {
      const HeadsStep step(work, n);
      policy.load(step);
      if (n == first || !step.same_keys(HeadsStep(work, n - 1)))
        sm90::barrier_wait(rings.k_full(), rings.k_at.phase);
      sm90::barrier_wait(rings.q_full(), rings.q_at.phase);
      sm90::fence();
      sm90::product_rows<Shape::Dtype, Shape::D, typename Shape::Tile, typename Shape::Tile>(
          x, sm90::descriptor(rings.q() + group * 64 * kPanelRowBytes),
          sm90::descriptor(rings.k()));
      sm90::commit();
      sm90::wait<0>();
      sm90::pin(x);
      release(rings.q_empty());
      rings.q_at.next();
      if (n + 1 == last || !step.same_keys(HeadsStep(work, n + 1))) {
        release(rings.k_empty());
        rings.k_at.next();
      }
      policy.take(step, x);
    }
    const int key = at.key(t);
    policy.end(pairs, key, pairs.full(at.i0, at.i0 + Shape::BM, key, key + Shape::BN));
  }
  policy.finish();
}

}  // namespace fovea::cuda
