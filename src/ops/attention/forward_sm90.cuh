// SPDX-License-Identifier: Apache-2.0
// attention_forward on the Hopper sweep: which policies a kind of instance is made of.
#pragma once
#include <algorithm>

#include "cuda/launch.h"
#include "cuda/loop/attend_sm90.cuh"
#include "ops/attention/forward.cuh"
#include "ops/attention/split_sink_sm90.cuh"

namespace fovea::cuda {

// A few rows wait for the bytes of their keys alone.  Where its stages leave room, another block
// reads on while one ends a work, and each has one slot of Q.
template <class Base>
struct SplitShape90 : Base {
  static constexpr int copiers = 2;
  static constexpr int lone_bytes =
      Base::q_bytes + Base::Stages * Base::stage_bytes + Base::slack_bytes;
  static constexpr bool twice = 2 * (lone_bytes + 1024) <= 228 * 1024;
  static constexpr int blocks = twice ? 2 : 1;
  static constexpr int copying = twice ? 40 : Base::copying;
  static constexpr int computing = twice ? 216 : Base::computing;
  static constexpr int Slots = twice ? 1 : Base::Slots;
  static constexpr int shared_bytes = twice ? lone_bytes : Base::shared_bytes;
  static constexpr int tile_bytes = shared_bytes - Base::slack_bytes;
};

template <int Dtype, int D, int E, ForwardKind Kind, int Groups, int BN, int Stages>
ForwardInstance90 forward_sm90_instance() {
  using Rows = AttendShape90<Dtype, D, E, Groups, BN, Stages>;
  using Shape = std::conditional_t<Kind == ForwardKind::split, SplitShape90<Rows>, Rows>;
  static_assert(Kind != ForwardKind::rich);
  constexpr bool kPaged = Kind == ForwardKind::paged || Kind == ForwardKind::split;
  using Score = std::conditional_t<Kind == ForwardKind::capped, CappedScore, PlainScore>;
  // A tile with one slot of Q has no room for rows on their way out.
  using Whole = std::conditional_t<Shape::Slots == 2, EngineSink, DirectSink>;
  using Sink =
      std::conditional_t<Kind == ForwardKind::split, MergingSink<(E > 128 ? 8 : 16)>, Whole>;
  constexpr auto launcher = [](Context& ctx, const Attend& a, const ForwardWork90& work) {
    Sink sink{};
    if constexpr (Kind == ForwardKind::split)
      sink = {work.parts, work.order.splits, work.arrived};
    else if constexpr (Shape::Slots == 2)
      sink.o = work.o, sink.given = work.o_given;
    const int blocks =
        std::min(work.schedule.works, Shape::blocks * device_info(ctx).multiprocessors);
    launch_early<attend_sm90<Shape, kPaged, Score, WindowMask, Sink>>(
        ctx, "attention_forward", blocks, Shape::threads, Shape::shared_bytes, a, work.grid,
        work.maps, work.order, work.schedule, sink);
  };
  return {Dtype, D, E, Kind, Shape::BM, BN, Shape::blocks, launcher};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(dtype, d, e, kind, groups, keys, stages)               \
  template fovea::cuda::ForwardInstance90 fovea::cuda::forward_sm90_instance< \
      dtype, d, e, fovea::cuda::ForwardKind::kind, groups, keys, stages>();
