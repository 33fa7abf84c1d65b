// SPDX-License-Identifier: Apache-2.0
// x_gla_forward on Hopper with key gates: the tiles of all chunks (intra_sm90.cuh), then the
// chains.
#pragma once
#include <algorithm>

#include "ops/gla/forward_sm90.cuh"
#include "ops/gla/intra_sm90.cuh"

namespace fovea::cuda {

template <GlaConfig90 C>
GlaInstance90 gla_keys_sm90_instance() {
  constexpr auto launcher = [](Context& ctx, const GlaWork90& work) {
    constexpr char op[] = "x_gla_forward";
    const auto intra = [&]<bool Before>() {
      using Intra = GlaIntra<C.dtype, C.d, Before>;
      const int64_t most = int64_t{device_info(ctx).multiprocessors} * Intra::blocks;
      launch<gla_intra_sm90_kernel<C.dtype, C.d, Before>>(
          ctx, op, std::min(work.slots * work.a.heads, most), Intra::threads, Intra::shared_bytes,
          work);
    };
    work.a.read_before ? intra.template operator()<true>() : intra.template operator()<false>();
    gla_sm90_instance<C>().launch(ctx, work);
  };
  return {C.dtype, C.d, C.gate, launcher};
}

}  // namespace fovea::cuda

// A row is of the two kernels.
#undef FOVEA_INSTANCE
#define FOVEA_INSTANCE(...)                                                 \
  namespace fovea::cuda {                                                   \
  template GlaInstance90 gla_keys_sm90_instance<GlaConfig90 __VA_ARGS__>(); \
  }
