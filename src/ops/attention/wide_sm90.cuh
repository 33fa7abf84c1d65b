// SPDX-License-Identifier: Apache-2.0
// attention_forward on the Hopper sweep over wide keys: the policies of each kind of instance.
#pragma once
#include <algorithm>

#include "cuda/launch.h"
#include "cuda/loop/attend_wide_codes_sm90.cuh"
#include "ops/attention/wide.cuh"

namespace fovea::cuda {

template <WideConfig90 C>
void launch_wide(Context& ctx, const Attend& a, const WideWork90& work) {
  using Mask = std::conditional_t<C.span, SpanMask, WindowMask>;
  const SplitEpilogue epilogue{work.parts, work.order.splits};
  const int blocks = std::min(work.schedule.items, device_info(ctx).multiprocessors);
  if constexpr (C.codes) {
    static_assert(C.d == 576 && C.v_in_k && !C.span);
    using Shape = WideCodesShape90<C.dtype>;
    launch_pdl<attend_wide_codes_sm90<Shape, Contiguous, Mask, SplitEpilogue>>(
        ctx, "attention_forward", blocks, Shape::threads, Shape::shared_bytes, a, work.grid,
        work.columns, work.order, work.schedule, epilogue);
  } else {
    using Shape = WideShape90<C.dtype, C.d, C.v_in_k>;
    using Score = std::conditional_t<C.span, ScaledScore, PlainScore>;
    launch_pdl<attend_wide_sm90<Shape, Pages, Score, Mask, SplitEpilogue>>(
        ctx, "attention_forward", blocks, Shape::threads, Shape::shared_bytes, a, work.grid,
        work.maps, work.order, work.schedule, epilogue);
  }
}

template <WideConfig90 C>
WideInstance90 wide_sm90_instance() {
  return {C, launch_wide<C>};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(...)                                               \
  namespace fovea::cuda {                                                 \
  template WideInstance90 wide_sm90_instance<WideConfig90 __VA_ARGS__>(); \
  }
