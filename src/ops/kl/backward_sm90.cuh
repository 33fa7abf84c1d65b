// SPDX-License-Identifier: Apache-2.0
// kl_backward and that of the Jensen-Shannon divergence on Hopper: the dscores of their formulas,
// for the gradient loop of attention, without its dv, or, of wide heads, one of their own.
#pragma once
#include <type_traits>

#include "cuda/launch.h"
#include "cuda/loop/attend_bwd_sm90.cuh"
#include "ops/kl/backward.cuh"
#include "ops/kl/backward_loop_sm90.cuh"
#include "ops/kl/mixture.cuh"

namespace fovea::cuda {

// A row's values in the workspace, in this order; lse in units of log2.  A row that is not there,
// or whose gain is 0, has lse such that r = 0.
template <KlOwn Own>
struct KlDscores {
  struct Args {
    float other;                     // scale of the other's products, log2 units
    int32_t own_heads, other_heads;  // of the call's key heads for one of k's, of the other's
    float share;                     // of the own in a mixture
  };
  static constexpr int stats = Own == KlOwn::second ? 3 : 4;  // lse, other's lse, gain, kl
  static constexpr bool weights = false;
  static constexpr bool clears_keys = true;
  static constexpr float kUnseen = -1e38f;
  PlainPairs pairs;
  float other, share;

  __device__ KlDscores(const Attend& a, const Sequence& q, const Args& args)
      : pairs(a, q, 0, 0), other(args.other), share(args.share) {}
  __device__ static int key_head(int g, const Args& args) { return g / args.own_heads; }
  __device__ static int value_head(int g, const Args& args) { return g / args.other_heads; }
  // A row of gain 0 gives nothing, whatever it holds; rows that are not there have none.  One that
  // read a NaN has it in lse, for the keys that it sees and no other.
  template <int BM>
  __device__ static ChosenRows<BM> rows(int, const float* side) {
    return ChosenRows<BM>(
        [=](int i) { return side[2 * BM + i] != 0.f && !isnan(side[i]) && !isnan(side[BM + i]); });
  }
  // r, or its logarithm where that is needed; what is unseen says so.
  __device__ float weigh(float x, float lse, int i, int j, bool full) const {
    const float log = fmaf(x, pairs.factor, -lse);
    if (!full && !pairs.sees(i, j)) return kUnseen;
    return Own == KlOwn::second ? exp2_fast(log) : log;
  }
  __device__ float dscore(float r, float y, const float (&row)[stats - 1], bool full) const {
    const float log = fmaf(y, other, -row[0]), gain = row[1];
    float away;
    if constexpr (Own == KlOwn::first)
      away = exp2_fast(r) * fmaf(r - log, kLn2, -row[2]);
    else if constexpr (Own == KlOwn::mixed)
      away = share * exp2_fast(r) * fmaf(Mixed(r, log, share, 1.f - share).log_p, kLn2, -row[2]);
    else
      away = r - exp2_fast(log);
    // Finite also in a row of gain 0: that and keys that are not finite are zeros by now.
    return !full && r == kUnseen ? 0.f : gain * away;
  }
};

// At D64 the exponents are the longer part and want the longer row tiles of attention's loop.
template <KlBackwardConfig90 C, KlOwn Own>
using KlShape =
    std::conditional_t<(C.d > 64),
                       KlBackwardShape90<C.dtype, C.d, C.e, C.rows, C.stages, KlDscores<Own>>,
                       BackwardShape90<GradientConfig90{.dtype = C.dtype,
                                                        .d = C.d,
                                                        .e = C.e,
                                                        .rows = C.rows,
                                                        .stages_q = C.stages,
                                                        .stages_dout = 2},
                                       KlDscores<Own>>>;

template <KlBackwardConfig90 C>
KlBackwardInstance90 kl_backward_sm90_instance() {
  constexpr auto launcher = [](Context& ctx, const KlGradient& b, const BackwardMaps& maps,
                               const BackwardWork& work, const BackwardGrid90& grid) {
    const Attend& a = b.call.forward;
    const auto run = [&]<KlOwn Own>() {
      using Shape = KlShape<C, Own>;
      const typename KlDscores<Own>::Args args{b.other_scale * kLog2E,
                                               static_cast<int32_t>(a.g / b.own_heads),
                                               static_cast<int32_t>(a.g / b.other_heads), b.share};
      constexpr auto kernel = [] {
        if constexpr (C.d > 64)
          return kl_bwd_sm90<Shape>;
        else
          return attend_bwd_sm90<Shape>;
      }();
      launch<kernel>(ctx, b.op, grid.total(), Shape::threads, Shape::shared_bytes, b.call, maps,
                     work, grid, args);
    };
    if (b.own == KlOwn::mixed)
      run.template operator()<KlOwn::mixed>();
    else if (b.own == KlOwn::first)
      run.template operator()<KlOwn::first>();
    else
      run.template operator()<KlOwn::second>();
  };
  using Shape = KlShape<C, KlOwn::second>;
  return {C.dtype, C.d, C.e, C.rows, Shape::BN, Shape::TileQ::panels, launcher};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(...)                                                                  \
  namespace fovea::cuda {                                                                    \
  template KlBackwardInstance90 kl_backward_sm90_instance<KlBackwardConfig90 __VA_ARGS__>(); \
  }
