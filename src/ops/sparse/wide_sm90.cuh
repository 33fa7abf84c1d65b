// SPDX-License-Identifier: Apache-2.0
// x_sparse_forward over single keys on the Hopper sweep over wide keys: the policies of each kind
// of instance.
#pragma once
#include <algorithm>

#include "cuda/launch.h"
#include "cuda/loop/attend_wide_list_sm90.cuh"
#include "cuda/loop/split_epilogue.cuh"
#include "ops/sparse/wide.cuh"

namespace fovea::cuda {

template <WideListConfig90 C>
WideListInstance90 wide_list_sm90_instance() {
  using Shape = WideListShape90<C.dtype, C.d, C.v_in_k>;
  using Score = std::conditional_t<C.softcap, CappedScore, PlainScore>;
  constexpr auto launcher = [](Context& ctx, const KeyListAttend& call,
                               const WideListWork90& work) {
    const SplitEpilogue epilogue{work.parts, work.order.splits};
    const int blocks = std::min(work.schedule.items, device_info(ctx).multiprocessors);
    launch_pdl<attend_wide_list_sm90<Shape, Score, SplitEpilogue>>(
        ctx, "x_sparse_forward", blocks, Shape::threads, Shape::shared_bytes, call, work.grid,
        work.order, work.schedule, epilogue);
  };
  return {C, launcher};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(...)                                                            \
  namespace fovea::cuda {                                                              \
  template WideListInstance90 wide_list_sm90_instance<WideListConfig90 __VA_ARGS__>(); \
  }
