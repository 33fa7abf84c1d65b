// SPDX-License-Identifier: Apache-2.0
// attention_forward on the Hopper sweep over wide keys: the policies of each kind of instance.
#pragma once
#include <algorithm>

#include "cuda/launch.h"
#include "cuda/loop/attend_wide_sm90.cuh"
#include "ops/attention/wide.cuh"

namespace fovea::cuda {

template <WideConfig90 C>
WideInstance90 wide_sm90_instance() {
  using Shape = WideShape90<C.dtype, C.d, C.v_in_k, C.codes>;
  using Mask = std::conditional_t<C.span, SpanMask, WindowMask>;
  using Score = std::conditional_t<C.span, ScaledScore, PlainScore>;
  constexpr auto launcher = [](Context& ctx, const Attend& a, const WideWork90& work) {
    const SplitEpilogue epilogue{work.parts, work.order.splits};
    const int blocks = std::min(work.schedule.items, device_info(ctx).multiprocessors);
    launch_pdl<attend_wide_sm90<Shape, Pages, Score, Mask, SplitEpilogue>>(
        ctx, "attention_forward", blocks, Shape::threads, Shape::shared_bytes, a, work.grid,
        work.maps, work.order, work.schedule, epilogue);
  };
  return {C, launcher};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(...)                                               \
  namespace fovea::cuda {                                                 \
  template WideInstance90 wide_sm90_instance<WideConfig90 __VA_ARGS__>(); \
  }
