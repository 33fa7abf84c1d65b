// SPDX-License-Identifier: Apache-2.0
// kl_forward on the Hopper sweep of two distributions, and the second sweep of the Jensen-Shannon
// divergence.
#pragma once
#include <algorithm>

#include "cuda/launch.h"
#include "cuda/loop/pair_sm90.cuh"
#include "ops/kl/forward.cuh"
#include "ops/kl/mixture.cuh"

namespace fovea::cuda {

__device__ __forceinline__ void put_row(const View<3>& to, const RowTile& tile, int m,
                                        float value) {
  if (to) to.as()[tile.offset(m, to.stride, 1, 2)] = value;
}

struct KlEpilogue {
  using Sums = DualSoftmax;
  View<3> kl, first, second;

  __device__ static void begin(Sums& sums, const RowTile& tile, int row) {
    each_row<1>(row, [&](int, int half, int m) {
      sums.silent[half] = m < tile.begin + tile.size ? 0 : ~0u;
    });
  }
  // Packed row m.
  __device__ void store(const RowTile& tile, int m, const DualTotal& sum) const {
    const bool empty = sum.l[0] == 0.f;
    const float log[2] = {log2f(sum.l[0]), log2f(sum.l[1])};
    put_row(kl, tile, m, empty ? 0.f : (sum.c / sum.l[0] - log[0] + log[1]) * kLn2);
    put_row(first, tile, m, empty ? kNegativeInfinity : (sum.m[0] + log[0]) * kLn2);
    put_row(second, tile, m, empty ? kNegativeInfinity : (sum.m[1] + log[1]) * kLn2);
  }
};

// With both lse known, the divergences of p and r from m = share p + (1 - share) r.
struct MixtureSums {
  static constexpr bool kTries = false;
  float lse[2][2] = {}, kl[2][2] = {};  // [side][half]; lse in log2 units, kl the lane's share
  float share = 0.f, rest = 0.f;

  template <bool Whole, int N>
  __device__ __forceinline__ void first(float (&)[N][4], const float (&)[2]) {}
  __device__ __forceinline__ void finish_first_sums() const {}
  template <bool Whole, int N>
  __device__ __forceinline__ bool second(const float (&x)[N][4], const float (&y)[N][4],
                                         const float (&factor)[2]) {
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float u = fmaf(x[j][i], factor[0], -lse[0][i / 2]);
        const float v = fmaf(y[j][i], factor[1], -lse[1][i / 2]);
        const Mixed at(u, v, share, rest);
        const bool unseen = !Whole && x[j][i] == kNegativeInfinity && y[j][i] == kNegativeInfinity;
        kl[0][i / 2] = fmaf(exp2_fast(u), unseen ? 0.f : at.log_p, kl[0][i / 2]);
        kl[1][i / 2] = fmaf(exp2_fast(v), unseen ? 0.f : at.log_r, kl[1][i / 2]);
      }
    return true;
  }
  __device__ __forceinline__ float2 total(int half) const {
    return {quad_sum(kl[0][half]) * kLn2, quad_sum(kl[1][half]) * kLn2};
  }
};

struct MixtureEpilogue {
  using Sums = MixtureSums;
  View<3> js, kl, kl_second, first, second;
  float share;

  __device__ void begin(Sums& sums, const RowTile& tile, int row) const {
    sums.share = share, sums.rest = 1.f - share;
    each_row<1>(row, [&](int, int half, int m) {
      if (m >= tile.begin + tile.size) return;
      const auto at = [&](const View<3>& x) {
        const float lse = x.as()[tile.offset(m, x.stride, 1, 2)] * kLog2E;
        return lse == kNegativeInfinity ? 0.f : lse;
      };
      sums.lse[0][half] = at(first), sums.lse[1][half] = at(second);
    });
  }
  __device__ void store(const RowTile& tile, int m, float2 of) const {
    put_row(kl, tile, m, of.x), put_row(kl_second, tile, m, of.y);
    put_row(js, tile, m, fmaf(share, of.x, (1.f - share) * of.y));
  }
};

template <KlConfig90 C>
KlInstance90 kl_sm90_instance() {
  using Shape = PairShape90<C.dtype, C.d, C.e, C.groups, C.keys, C.stages>;
  constexpr auto launcher = [](Context& ctx, const Attend& first, float second_scale,
                               const KlWork90& work) {
    const int blocks =
        std::min(work.schedule.items, Shape::blocks * device_info(ctx).multiprocessors);
    const auto run = [&](const auto& epilogue) {
      using Epilogue = std::remove_cvref_t<decltype(epilogue)>;
      launch<pair_sm90<Shape, WindowMask, Epilogue>>(
          ctx, work.op, blocks, Shape::threads, Shape::shared_bytes, first, second_scale, work.grid,
          work.maps, work.order, work.schedule, epilogue);
    };
    if (work.share > 0)
      run(MixtureEpilogue{work.js, work.kl, work.kl_second, work.first, work.second, work.share});
    else
      run(KlEpilogue{work.kl, work.first, work.second});
  };
  return {C.dtype, C.d, C.e, Shape::BM, C.keys, launcher};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(...)                                         \
  namespace fovea::cuda {                                           \
  template KlInstance90 kl_sm90_instance<KlConfig90 __VA_ARGS__>(); \
  }
