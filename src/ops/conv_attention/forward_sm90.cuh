// SPDX-License-Identifier: Apache-2.0
// conv_attention_forward's instances of the Hopper sweep.
#pragma once
#include <algorithm>

#include "cuda/launch.h"
#include "ops/conv_attention/sweep_sm90.cuh"

namespace fovea::cuda {

template <ConvConfig90 C>
ConvInstance90 conv_sm90_instance() {
  using Shape = ConvShape90<C>;
  constexpr auto launcher = [](Context& ctx, const ConvAttend& c, const ConvWork90& work) {
    const int blocks =
        std::min(work.schedule.items, device_info(ctx).multiprocessors * Shape::Blocks);
    launch_pdl<conv_sm90<Shape>>(ctx, "conv_attention_forward", blocks, Shape::threads,
                                 Shape::shared_bytes, c, work);
  };
  return {C.dtype, C.d,      C.e,       2 * C.pairs, 8 * C.ahead - 7,
          C.kind,  C.groups, Shape::BN, C.blocks,    launcher};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(...)                                               \
  namespace fovea::cuda {                                                 \
  template ConvInstance90 conv_sm90_instance<ConvConfig90 __VA_ARGS__>(); \
  }
