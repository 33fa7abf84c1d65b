// SPDX-License-Identifier: Apache-2.0
// One sweep over the keys of two distributions on Hopper, for BM rows at a time: scores x = q k' of
// the first and y = q2 k2' of the second, and of each row the online sums (in log2 units)
//   X = max x, l_x = sum 2^(x - X),  Y and l_y likewise,  c = sum 2^(x - X) ((x - X) - (y - Y))
//   of which kl = ln 2 c / l_x - ln l_x + ln l_y: X and Y never meet, so large scores cost no
//   digit. Blocks, warps, works and copies are those of attend_sm90.cuh; a slot of Q holds both
//   rows, the ring K and K2 in turn.  Both products of a tile are in flight together: the powers
//   of the first run under the second's, those of the second under the other warpgroups'.
// Policies: Mask (tile_policy.cuh); Sink: the sums of a row, Sink::Sums, what they begin with and
// what becomes of them.  StreamKL (2606.20005).
#pragma once
#include "cuda/block/softmax.cuh"
#include "cuda/loop/feed_sm90.cuh"
#include "cuda/loop/tile_policy.cuh"

namespace fovea::cuda {

template <int Dtype_, int D_, int E_, int Groups_, int BN_, int Stages_>
struct PairShape90 {
  static constexpr int Dtype = Dtype_, D = D_, E = E_, Groups = Groups_, BN = BN_, Stages = Stages_;
  static constexpr int BM = 64 * Groups;
  static constexpr int threads = 128 * (Groups + 1);
  static constexpr int copying = 56, computing = Groups == 3 ? 152 : 224;
  using TileQ = Swizzled<BM, D>;
  using TileQ2 = Swizzled<BM, E>;
  using TileK = Swizzled<BN, D>;
  using TileV = Swizzled<BN, E>;  // the second's keys
  static constexpr int q_bytes = TileQ::bytes + TileQ2::bytes;
  static constexpr int stage_bytes = TileK::bytes > TileV::bytes ? TileK::bytes : TileV::bytes;
  static constexpr int slack_bytes = 1024;  // works and barriers
  static constexpr int Slots =
      Stages * stage_bytes + 2 * q_bytes + slack_bytes <= 227 * 1024 ? 2 : 1;
  static constexpr int tile_bytes = Slots * q_bytes + Stages * stage_bytes;
  static constexpr int shared_bytes = tile_bytes + slack_bytes;
  static_assert(shared_bytes <= 227 * 1024);
};

// A row's sums: the maxima in log2 units, l and c.
struct CoupledTotal {
  float m[2], l[2], c;
};

constexpr float kLargest = 3.402823466e38f;

// Infinite products become NaN, before a mask makes them -inf.
template <int N>
__device__ __forceinline__ void forbid_infinity(float (&x)[N][4]) {
#pragma unroll
  for (int j = 0; j < N; ++j)
#pragma unroll
    for (int c = 0; c < 4; ++c) x[j][c] = fmaf(x[j][c], 0.f, x[j][c]);
}

// The sums of the rows that a lane shares with its quad; l and c are the lane's own shares.  What
// the first's scores give is summed while the second's product runs: a tile's part of c is
// sum p u - sum p w, both centred.
struct CoupledSoftmax {
  float m[2][2] = {{kNegativeInfinity, kNegativeInfinity}, {kNegativeInfinity, kNegativeInfinity}};
  float l[2][2] = {}, c[2] = {};  // [side][half]
  float gap[2] = {};              // X - Y, the maxima that c is centred at
  float top[2], old[2];           // of the tile under way: X; l_x of the tiles before

  // The maximum with a tile's scores, and what the sums of the tiles before shrink by.
  template <int N>
  __device__ __forceinline__ float2 raise(int side, int half, const float (&x)[N][4],
                                          float factor) {
    float most = m[side][half];
#pragma unroll
    for (int j = 0; j < N; ++j) most = fmaxf(most, fmaxf(x[j][2 * half], x[j][2 * half + 1]));
    most = quad_max(most);
    const float base = most == kNegativeInfinity ? 0.f : __fmul_rn(most, factor);
    const float shrink = exp2_fast(__fmul_rn(m[side][half], factor) - base);
    m[side][half] = most;
    return {base, shrink};
  }

  // The first's scores become p.  Whole: no score is masked; else one of -inf is, seen ones are
  // NaN where they are infinite.
  template <bool Whole, int N>
  __device__ __forceinline__ void first(float (&x)[N][4], const float (&factor)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 at = raise(0, half, x, factor[0]);
      float sum = 0.f, product = 0.f;
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          const float u = fmaf(x[j][i], factor[0], -at.x), p = exp2_fast(u);
          const bool unseen = !Whole && x[j][i] == kNegativeInfinity;
          sum += p, product = fmaf(p, unseen ? 0.f : u, product);
          x[j][i] = p;
        }
      top[half] = at.x, old[half] = l[0][half] * at.y;
      // A score of -inf that is seen leaves no trace in the sum, but NaN in the product.
      l[0][half] = old[half] + fmaf(product, 0.f, sum);
      c[half] = fmaf(c[half], at.y, product);
    }
  }
  template <bool Whole, int N>
  __device__ __forceinline__ void second(const float (&p)[N][4], const float (&y)[N][4],
                                         const float (&factor)[2]) {
    bool plain = true;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 at = raise(1, half, y, factor[1]);
      float sum = 0.f, product = 0.f;
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          const float w = fmaf(y[j][i], factor[1], -at.x);
          const bool unseen = !Whole && y[j][i] == kNegativeInfinity;
          sum += exp2_fast(w), product = fmaf(p[j][i], unseen ? 0.f : w, product);
        }
      const float moved = top[half] - at.x;
      l[1][half] = fmaf(l[1][half], at.y, sum);
      c[half] = fmaf(old[half], gap[half] - moved, c[half]) - product;
      gap[half] = moved;
      plain = plain && fabsf(product) <= kLargest;
    }
    // The product tells of p's NaN too, which is not the second's.
    if (Whole && __any_sync(~0u, !plain)) {
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) l[1][i / 2] = fmaf(y[j][i], 0.f, l[1][i / 2]);
    }
  }
  __device__ __forceinline__ CoupledTotal total(int half, const float (&factor)[2]) const {
    return {{m[0][half] * factor[0], m[1][half] * factor[1]},
            {quad_sum(l[0][half]), quad_sum(l[1][half])},
            quad_sum(c[half])};
  }
};

// A computing warpgroup.
template <class Shape, class Mask, class Sink>
__device__ __forceinline__ void compute_pairs(const Attend& a, float second_scale, const Sink& sink,
                                              int group, const Shared90<Shape, Mask>& shared) {
  constexpr int BN = Shape::BN;
  using Shared = Shared90<Shape, Mask>;
  using Ring = typename Shared::Ring;
  const int lane = threadIdx.x % 32, warp_row = group * 64 + threadIdx.x / 32 % 4 * 16;
  const float factor[2] = {a.score.scale * kLog2E, second_scale * kLog2E};
  typename Shared::WorkRing slot;
  typename Shared::QRing q_at;
  Ring at;
  float x[1][BN / 8][4], y[1][BN / 8][4];
  const auto release = [&](uint32_t barrier) {
    if (lane == 0) sm90::barrier_arrive(barrier);
  };

  for (;;) {
    sm90::barrier_wait(shared.q_full(q_at), q_at.phase);
    const typename Shared::Slot& work = shared.work(slot);
    if (__all_sync(~0u, work.tile.size == 0)) return;
    const uint32_t q_rows = sm90::uniform(shared.q(q_at) + group * 64 * kPanelRowBytes);
    const int row = work.tile.begin + warp_row;
    int n = sm90::uniform(work.last), left = max(sm90::uniform(work.count), 1);
    const int begin = sm90::uniform(work.mask.begin), end = sm90::uniform(work.mask.end);
    typename Sink::Sums state;
    sink.begin(state, work.tile, row);

    const auto step = [&](auto whole) {
      const Ring first = at;
      at.next();
      const Ring second = at;
      at.next();
      sm90::barrier_wait(shared.full(first), first.phase);
      sm90::fence();
      sm90::product_rows<Shape::Dtype, Shape::D, typename Shape::TileQ, typename Shape::TileK>(
          x[0], sm90::descriptor(sm90::unhoisted(q_rows)), sm90::descriptor(shared.keys(first)));
      sm90::commit();
      sm90::barrier_wait(shared.full(second), second.phase);
      sm90::fence();
      sm90::product_rows<Shape::Dtype, Shape::E, typename Shape::TileQ2, typename Shape::TileV>(
          y[0], sm90::descriptor(sm90::unhoisted(q_rows + Shape::TileQ::bytes)),
          sm90::descriptor(shared.keys(second)));
      sm90::commit();
      sm90::wait<1>();
      sm90::pin(x[0]);
      release(shared.empty(first));
      if constexpr (!whole) forbid_infinity(x[0]), work.mask.apply(x, n * BN, row);
      state.template first<whole>(x[0], factor);
      sm90::wait<0>();
      sm90::pin(y[0]);
      release(shared.empty(second));
      if (--left == 0) release(shared.q_empty(q_at));
      if constexpr (!whole) forbid_infinity(y[0]), work.mask.apply(y, n * BN, row);
      state.template second<whole>(x[0], y[0], factor);
      n = work.before(n);
    };
    using Whole = std::true_type;
    using Part = std::false_type;
#pragma unroll 1
    do step(Part());
    while (left > 0 && (n >= end || n < begin));
#pragma unroll 1
    while (left > 0 && n >= begin) step(Whole());
#pragma unroll 1
    while (left > 0) step(Part());

    each_row<1>(row, [&](int, int half, int m) {
      const auto total = state.total(half, factor);
      if (lane % 4 == 0 && m < work.tile.begin + work.tile.size) sink.store(work.tile, m, total);
    });
    __syncwarp();
    release(shared.free(slot));
    slot.next(), q_at.next();
  }
}

template <class Shape, TileMask Mask, class Sink>
__global__ void __launch_bounds__(Shape::threads, 1)
    pair_sm90(const __grid_constant__ Attend a, float second_scale,
              const __grid_constant__ AttendGrid grid, const __grid_constant__ PairMaps maps,
              const __grid_constant__ WorkOrder order, const __grid_constant__ Schedule schedule,
              const __grid_constant__ Sink sink) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const Shared90<Shape, Mask> shared(memory);
  if (threadIdx.x == 0) shared.init();
  __syncthreads();
  const int warp = sm90::uniform(threadIdx.x / 32);
  if (threadIdx.x == 32)
    sm90::prefetch_map(maps.q), sm90::prefetch_map(maps.k), sm90::prefetch_map(maps.q2),
        sm90::prefetch_map(maps.v);
  if (warp < 4) {
    sm90::give_registers<Shape::copying>();
    Copy90<Shape, false, Mask, PairMaps>{a, grid, maps, shared}.run(warp, order, schedule);
  } else {
    sm90::take_registers<Shape::computing>();
    compute_pairs<Shape>(a, second_scale, sink, warp / 4 - 1, shared);
  }
}

}  // namespace fovea::cuda
