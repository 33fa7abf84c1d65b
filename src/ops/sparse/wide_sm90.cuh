// SPDX-License-Identifier: Apache-2.0
// x_sparse_forward over single keys on the Hopper sweep over wide keys: the policies of each kind
// of instance.
#pragma once
#include <algorithm>

#include "cuda/launch.h"
#include "cuda/loop/attend_wide_codes_sm90.cuh"
#include "cuda/loop/attend_wide_list_sm90.cuh"
#include "cuda/loop/split_epilogue.cuh"
#include "ops/sparse/wide.cuh"

namespace fovea::cuda {

template <WideListConfig90 C>
void launch_wide_lists(Context& ctx, const KeyListAttend& call, const WideListWork90& work) {
  const SplitEpilogue epilogue{work.parts, work.order.splits};
  const int blocks = std::min(work.schedule.items, device_info(ctx).multiprocessors);
  if constexpr (C.codes) {
    static_assert(C.d == 576 && C.v_in_k && !C.joined && !C.softcap);
    using Shape = WideCodesShape90<C.dtype>;
    launch_pdl<attend_wide_codes_sm90<Shape, WideLists, SeenMask, SplitEpilogue>>(
        ctx, "x_sparse_forward", blocks, Shape::threads, Shape::shared_bytes, call, work.grid,
        work.columns, work.order, work.schedule, epilogue);
  } else {
    using Shape = WideListShape90<C.dtype, C.d, C.v_in_k, C.joined>;
    using Score = std::conditional_t<C.softcap, CappedScore, PlainScore>;
    launch_pdl<attend_wide_list_sm90<Shape, Score, SplitEpilogue>>(
        ctx, "x_sparse_forward", blocks, Shape::threads, Shape::shared_bytes, call, work.grid,
        work.order, work.schedule, epilogue);
  }
}

template <WideListConfig90 C>
WideListInstance90 wide_list_sm90_instance() {
  return {C, launch_wide_lists<C>};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(...)                                                            \
  namespace fovea::cuda {                                                              \
  template WideListInstance90 wide_list_sm90_instance<WideListConfig90 __VA_ARGS__>(); \
  }
