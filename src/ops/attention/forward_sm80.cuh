// SPDX-License-Identifier: Apache-2.0
// attention_forward on the sm_80 sweep: the policies of each kind of instance.
#pragma once
#include "cuda/launch.h"
#include "cuda/loop/attend_sm80.cuh"
#include "ops/attention/forward.cuh"

namespace fovea::cuda {

template <ForwardKind Kind, int Threads>
struct ForwardPolicies {
  using Load = GatheredKeys<kTileKeys, Threads>;
  using Score = RichScore;
  using Mask = RichMask;
  using Epilogue = SplitEpilogue;
};
template <int Threads>
struct ForwardPolicies<ForwardKind::whole, Threads> {
  using Load = ContiguousKeys<kTileKeys, Threads>;
  using Score = PlainScore;
  using Mask = WindowMask;
  using Epilogue = DirectEpilogue;
};
template <int Threads>
struct ForwardPolicies<ForwardKind::paged, Threads> {
  using Load = GatheredKeys<kTileKeys, Threads>;
  using Score = PlainScore;
  using Mask = WindowMask;
  using Epilogue = DirectEpilogue;
};
template <int Threads>
struct ForwardPolicies<ForwardKind::split, Threads> : ForwardPolicies<ForwardKind::paged, Threads> {
  using Epilogue = SplitEpilogue;
};

template <ForwardConfig80 C>
ForwardInstance forward_sm80_instance() {
  using Shape = AttendShape<AttendConfig{.dtype = C.dtype,
                                         .d = C.d,
                                         .e = C.e,
                                         .rows = C.rows,
                                         .warps = C.warps,
                                         .stages = C.stages,
                                         .blocks = C.blocks}>;
  using P = ForwardPolicies<C.kind, Shape::threads>;
  constexpr int kShared = Shape::shared_bytes + P::Load::shared_bytes;
  constexpr auto launcher = [](Context& ctx, const Attend& a, const ForwardWork& work) {
    typename P::Epilogue epilogue{};
    if constexpr (std::is_same_v<typename P::Epilogue, SplitEpilogue>)
      epilogue = {work.parts, work.grid.splits};
    launch<attend_sm80<Shape, typename P::Load, typename P::Score, typename P::Mask,
                       typename P::Epilogue>>(ctx, "attention_forward", work.blocks, Shape::threads,
                                              kShared, a, work.grid, epilogue);
  };
  return {C.dtype, C.d, C.e, C.kind, C.rows, C.blocks, kShared, launcher};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(...)                                                      \
  namespace fovea::cuda {                                                        \
  template ForwardInstance forward_sm80_instance<ForwardConfig80 __VA_ARGS__>(); \
  }
