// SPDX-License-Identifier: Apache-2.0
// kl_forward on the Hopper sweep of two distributions.
#pragma once
#include <algorithm>

#include "cuda/launch.h"
#include "cuda/loop/pair_sm90.cuh"
#include "ops/kl/forward.cuh"

namespace fovea::cuda {

struct KlSink {
  View<3> kl, first, second;

  // Packed row m: the maxima (log2 units), the sums, c.
  __device__ void store(const RowTile& tile, int m, float x, float y, const float (&sum)[2],
                        float cross) const {
    const bool empty = sum[0] == 0.f;
    const float log[2] = {log2f(sum[0]), log2f(sum[1])};
    const auto put = [&](const View<3>& to, float value) {
      if (to) to.as()[tile.offset(m, to.stride, 1, 2)] = value;
    };
    put(kl, empty ? 0.f : (cross / sum[0] - log[0] + log[1]) * kLn2);
    put(first, empty ? kNegativeInfinity : (x + log[0]) * kLn2);
    put(second, empty ? kNegativeInfinity : (y + log[1]) * kLn2);
  }
};

template <int Dtype, int D, int E, int Groups, int BN, int Stages>
KlInstance90 kl_sm90_instance() {
  using Shape = PairShape90<Dtype, D, E, Groups, BN, Stages>;
  constexpr auto launcher = [](Context& ctx, const Attend& first, float second_scale,
                               const KlWork90& work) {
    const int blocks = std::min(work.schedule.works, device_info(ctx).multiprocessors);
    launch<pair_sm90<Shape, WindowMask, KlSink>>(
        ctx, "kl_forward", blocks, Shape::threads, Shape::shared_bytes, first, second_scale,
        work.grid, work.maps, work.order, work.schedule, KlSink{work.kl, work.first, work.second});
  };
  return {Dtype, D, E, Shape::BM, BN, launcher};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(dtype, d, e, groups, keys, stages) \
  template fovea::cuda::KlInstance90                      \
  fovea::cuda::kl_sm90_instance<dtype, d, e, groups, keys, stages>();
