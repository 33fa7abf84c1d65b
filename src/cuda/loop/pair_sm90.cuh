// SPDX-License-Identifier: Apache-2.0
// One sweep over the keys of two distributions on Hopper, for BM rows at a time: scores x = q k' of
// the first and y = q2 k2' of the second, and of each row the sums (in log2 units)
//   l_x = sum 2^(x - X),  l_y = sum 2^(y - Y),  c = sum 2^(x - X) ((x - X) - (y - Y))
//   of which kl = ln 2 c / l_x - ln l_x + ln l_y.  X and Y, that a row's scores are relative to,
//   never meet, so large scores cost no digit; any number near the maxima will do, so they stay
//   until a score passes one by more than kSlack.
// Blocks, warps, work items and copies are those of attend_sm90.cuh; a slot of Q holds both rows,
// the ring K and K2 in turn.  Both products of a tile are in flight together: the powers of the
// first run under the second's, those of the second under the other warpgroups'. A tile that is
// seen whole is tried with X and Y as they are: no maxima, no masks.  Where a sum of it is too
// large or not finite, or nothing was seen before, the warpgroup takes the tile again with maxima
// and masks; its keys are given back after that. Policies: Mask (tile_policy.cuh); Epilogue: the
// sums of a row, Epilogue::Sums, what they begin with and what becomes of them.  StreamKL
// (2606.20005).
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
  static constexpr int blocks = Groups == 1 ? 2 : 1;  // of a multiprocessor
  // Key tiles left to copy when the next work item is requested (Producer90).
  static constexpr int prefetch = 2;
  // More warpgroups, and two blocks, fill each other's gaps better without.
  static constexpr bool first_sums_early = Groups == 2;
  static constexpr int producer_regs = Groups == 1 ? 40 : Groups == 4 ? 32 : 56;
  static constexpr int consumer_regs = Groups == 4   ? 112
                                       : Groups == 3 ? 152
                                       : Groups == 2 ? 224
                                                     : 216;
  using TileQ = Swizzled<BM, D>;
  using TileQ2 = Swizzled<BM, E>;
  using TileK = Swizzled<BN, D>;
  using TileV = Swizzled<BN, E>;  // the second's keys
  static constexpr int q_bytes = TileQ::bytes + TileQ2::bytes;
  static constexpr int stage_bytes = TileK::bytes > TileV::bytes ? TileK::bytes : TileV::bytes;
  static constexpr int slack_bytes = 1024;  // work items and barriers
  static constexpr int most_bytes = 227 * 1024 / blocks;
  static constexpr int Slots =
      Stages * stage_bytes + 2 * q_bytes + slack_bytes <= most_bytes ? 2 : 1;
  static constexpr int tile_bytes = Slots * q_bytes + Stages * stage_bytes;
  static constexpr int shared_bytes = tile_bytes + slack_bytes;
  static_assert(shared_bytes <= most_bytes);
};

// A row's sums: what they are relative to in log2 units, l and c.
struct DualTotal {
  float m[2], l[2], c;
};

// Infinite products become NaN, before a mask makes them -inf.
template <int N>
__device__ __forceinline__ void forbid_infinity(float (&x)[N][4]) {
#pragma unroll
  for (int j = 0; j < N; ++j)
#pragma unroll
    for (int c = 0; c < 4; ++c) x[j][c] = fmaf(x[j][c], 0.f, x[j][c]);
}

// What x is computed from stays above this: ptxas moves a wait for products up past arithmetic that
// should run under them, but not past a branch.  x is not -1.
__device__ __forceinline__ void stay_above(float x) {
  asm volatile(
      "{.reg .pred p; setp.eq.f32 p, %0, 0fBF800000; @!p bra done; nanosleep.u32 0; done:}" ::"f"(x)
      : "memory");
}

// The descriptor of a tile.  ptxas moves an upper word that it knows into place anew for every step
// of a product: here it does not know that the grid is flat.
__device__ __forceinline__ uint64_t tile_at(uint32_t address) {
  uint32_t zero;
  asm("mov.u32 %0, %%ctaid.z;" : "=r"(zero));
  return sm90::unhoisted(sm90::descriptor(address) | uint64_t{zero} << 32);
}

// Whether it holds in all threads of the warpgroup.
__device__ __forceinline__ bool all_of_group(bool yes) {
  int all;
  asm volatile(
      "{.reg .pred p, q; setp.ne.s32 p, %1, 0; barrier.cta.red.and.pred q, %2, 128, p; "
      "selp.s32 %0, 1, 0, q;}"
      : "=r"(all)
      : "r"(static_cast<int>(yes)), "r"(threadIdx.x / 128)
      : "memory");
  return __all_sync(~0u, all);  // which the compiler sees to be the same in a warp
}

// The sums of the rows that a lane shares with its quad; l and c are the lane's own shares.  What
// the first's scores give is summed while the second's product runs: a tile's part of c is
// sum p u - sum p w, both centred.
struct DualSoftmax {
  static constexpr float kSlack = 8.f;
  static constexpr bool kTries = true;  // first and second may fail, and do before any tile

  float m[2][2] = {{kNegativeInfinity, kNegativeInfinity}, {kNegativeInfinity, kNegativeInfinity}};
  float l[2][2] = {}, c[2] = {};  // [side][half]
  float sum[2], product[2];       // of the tile under way: sum p, sum p u
  uint32_t silent[2];             // ~0 for rows past the sequence's last, which have no say; 0

  // What a tile's scores are relative to: raised where one of them passes it by too much.
  template <int N>
  __device__ __forceinline__ float raise(int side, int half, const float (&x)[N][4], float factor) {
    float most = kNegativeInfinity;
#pragma unroll
    for (int j = 0; j < N; ++j) most = fmaxf(most, fmaxf(x[j][2 * half], x[j][2 * half + 1]));
    most = __fmul_rn(quad_max(most), factor);
    float& base = m[side][half];
    if (most > base + kSlack) {
      const float moved = base == kNegativeInfinity ? 0.f : base - most;
      const float rescale = exp2_fast(moved);
      base = most, l[side][half] *= rescale;
      if (side == 0) c[half] *= rescale;
      c[half] = fmaf(l[0][half], side == 0 ? moved : -moved, c[half]);
    }
    return base == kNegativeInfinity ? 0.f : base;
  }

  // The first's scores become p.  Whole: no score is masked; else one of -inf is, seen ones are
  // NaN where they are infinite.
  template <bool Whole, int N>
  __device__ __forceinline__ void first(float (&x)[N][4], const float (&factor)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float base = Whole ? m[0][half] : raise(0, half, x, factor[0]);
      sum[half] = product[half] = 0.f;
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          const float u = fmaf(x[j][i], factor[0], -base), p = exp2_fast(u);
          const bool unseen = !Whole && x[j][i] == kNegativeInfinity;
          sum[half] += p, product[half] = fmaf(p, unseen ? 0.f : u, product[half]);
          x[j][i] = p;
        }
    }
  }
  // first() is done where this stands.
  __device__ __forceinline__ void finish_first_sums() const {
    stay_above(sum[0] + sum[1]);
  }
  // Whether the tile counts; if not it must be taken again, not as a whole one.
  template <bool Whole, int N>
  __device__ __forceinline__ bool second(const float (&p)[N][4], const float (&y)[N][4],
                                         const float (&factor)[2]) {
    constexpr float kMost = 4 * N * (1 << static_cast<int>(kSlack));  // of scores within the slack
    bool fine = true;
    float other[2], away[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float base = Whole ? m[1][half] : raise(1, half, y, factor[1]);
      float cross = 0.f;
      other[half] = 0.f;
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          const float w = fmaf(y[j][i], factor[1], -base);
          const bool unseen = !Whole && y[j][i] == kNegativeInfinity;
          other[half] += exp2_fast(w), cross = fmaf(p[j][i], unseen ? 0.f : w, cross);
        }
      away[half] = product[half] - cross;
      // A NaN, the greatest as bits, where `away` is not finite.
      const float all = fmaf(away[half], 0.f, sum[half] + other[half]);
      fine = fine & (__float_as_uint(all) <= (__float_as_uint(kMost) | silent[half]));
    }
    if (Whole && !all_of_group(fine)) return false;
#pragma unroll
    for (int half = 0; half < 2; ++half)
      l[0][half] += sum[half], l[1][half] += other[half], c[half] += away[half];
    return true;
  }
  __device__ __forceinline__ DualTotal total(int half) const {
    return {
        {m[0][half], m[1][half]}, {quad_sum(l[0][half]), quad_sum(l[1][half])}, quad_sum(c[half])};
  }
};

// A consumer warpgroup.
template <class Shape, class Mask, class Epilogue>
__device__ __forceinline__ void compute_pairs(const Attend& a, float second_scale,
                                              const Epilogue& epilogue, int group,
                                              const Shared90<Shape, Contiguous, Mask>& shared) {
  static_assert(!Mask::sinks, "the walk skips no keys");
  constexpr int BN = Shape::BN;
  using Shared = Shared90<Shape, Contiguous, Mask>;
  using KeyState = typename Shared::KeyState;
  const int lane = threadIdx.x % 32, warp_row = group * 64 + threadIdx.x / 32 % 4 * 16;
  const float factor[2] = {a.score.scale * kLog2E, second_scale * kLog2E};
  typename Shared::TileState slot;
  typename Shared::QState q_at;
  KeyState at;
  float x[1][BN / 8][4], y[1][BN / 8][4];

  for (;;) {
    shared.q_pipe().wait(q_at);
    const typename Shared::Slot& work = shared.work(slot);
    if (__all_sync(~0u, work.tile.size == 0)) return;
    const uint32_t q_rows = sm90::uniform(shared.q(q_at) + group * 64 * kPanelRowBytes);
    const int row = work.tile.begin + warp_row;
    int n = sm90::uniform(work.last), left = max(sm90::uniform(work.count), 1);
    const int begin = sm90::uniform(work.mask.begin);
    int end = sm90::uniform(work.mask.end);
    typename Epilogue::Sums state;
    epilogue.begin(state, work.tile, row);

    // False: the tile must be taken again.
    const auto step = [&](auto whole) {
      KeyState second = at;
      second.next();
      shared.key_pipe().wait(at);
      sm90::fence();
      sm90::product_rows<Shape::Dtype, Shape::D, typename Shape::TileQ, typename Shape::TileK>(
          x[0], tile_at(q_rows), tile_at(shared.keys(at)));
      sm90::commit();
      shared.key_pipe().wait(second);
      sm90::fence();
      sm90::product_rows<Shape::Dtype, Shape::E, typename Shape::TileQ2, typename Shape::TileV>(
          y[0], tile_at(q_rows + Shape::TileQ::bytes), tile_at(shared.keys(second)));
      sm90::commit();
      sm90::wait<1>();
      sm90::pin(x[0]);
      if constexpr (!whole) forbid_infinity(x[0]), work.mask.apply(x, n * BN, row);
      state.template first<whole>(x[0], factor);
      if constexpr (Shape::first_sums_early) state.finish_first_sums();
      sm90::wait<0>();
      sm90::pin(y[0]);
      if constexpr (!whole) forbid_infinity(y[0]), work.mask.apply(y, n * BN, row);
      if (!state.template second<whole>(x[0], y[0], factor)) return false;
      shared.key_pipe().release(at), shared.key_pipe().release(second);
      at = second, at.next();
      if (--left == 0) shared.q_pipe().release(q_at);
      --n;
      return true;
    };
    if constexpr (Shape::BM > BN) {
      // Tiles that none of the warpgroup's rows sees, but others of the block do; and those that
      // all of its rows see whole.
      const int own = work.tile.begin + group * 64, tail = work.tile.begin + work.tile.size - 1;
      const int seen = sm90::uniform(work.mask.last_tile(min(own + 63, tail), BN));
      end = sm90::uniform(min(work.mask.last_tile(own, BN), work.tile.keys / BN));
#pragma unroll 1
      for (; left > 1 && n > seen; --left, --n)
#pragma unroll
        for (int side = 0; side < 2; ++side) {
          shared.key_pipe().wait(at);
          shared.key_pipe().release(at);
          at.next();
        }
    }
    bool try_whole = !Epilogue::Sums::kTries;
#pragma unroll 1
    while (left > 0) {
      if (try_whole && n >= begin && n < end) {
#pragma unroll 1
        do try_whole = step(std::true_type());
        while (try_whole && left > 0 && n >= begin);
      } else {
        step(std::false_type());
        try_whole = true;
      }
    }

    each_row<1>(row, [&](int, int half, int m) {
      const auto total = state.total(half);
      if (lane % 4 == 0 && m < work.tile.begin + work.tile.size)
        epilogue.store(work.tile, m, total);
    });
    __syncwarp();
    shared.tile_pipe().release(slot);
    slot.next(), q_at.next();
  }
}

template <class Shape, TileMask Mask, class Epilogue>
__global__ void __launch_bounds__(Shape::threads, Shape::blocks)
    pair_sm90(const __grid_constant__ Attend a, float second_scale,
              const __grid_constant__ AttendGrid grid, const __grid_constant__ DualMaps maps,
              const __grid_constant__ TileOrder order,
              const __grid_constant__ DynamicSchedule schedule,
              const __grid_constant__ Epilogue epilogue) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const Shared90<Shape, Contiguous, Mask> shared(memory);
  if (threadIdx.x == 0) shared.init();
  __syncthreads();
  const int warp = sm90::uniform(threadIdx.x / 32);
  if (threadIdx.x == 32)
    sm90::prefetch_map(maps.q), sm90::prefetch_map(maps.k), sm90::prefetch_map(maps.q2),
        sm90::prefetch_map(maps.v);
  if (warp < 4) {
    sm90::setmaxnreg_dec<Shape::producer_regs>();
    Producer90<Shape, Contiguous, Mask, DualMaps>{a, grid, maps, shared}.run(warp, order, schedule);
  } else {
    sm90::setmaxnreg_inc<Shape::consumer_regs>();
    compute_pairs<Shape>(a, second_scale, epilogue, warp / 4 - 1, shared);
  }
}

}  // namespace fovea::cuda
