// SPDX-License-Identifier: Apache-2.0
// attention_forward on the Hopper sweep: the policies of each kind of instance.
#pragma once
#include <algorithm>

#include "cuda/launch.h"
#include "cuda/loop/attend_sm90.cuh"
#include "cuda/loop/merging_epilogue.cuh"
#include "ops/attention/forward.cuh"

namespace fovea::cuda {

// Decode is bound by the bytes of its keys.  Some 80 KB in flight a multiprocessor saturate memory;
// with more, some multiprocessors read faster at the expense of others.  Where shared memory is
// left, blocks of the next kernel become resident beside this one's (PDL).
template <class Base>
struct SplitShape90 : Base {
  static constexpr int producer_warps = 2;
  static constexpr int prefetch = 4;
  static constexpr bool skip_empty_groups = true;
  static constexpr bool twice = 2 * (Base::shared_bytes + 1024) <= 228 * 1024;
  static constexpr int blocks = twice ? 2 : 1;
  static constexpr int producer_regs = twice ? 48 : Base::producer_regs;
  static constexpr int consumer_regs = twice ? 208 : Base::consumer_regs;
};

// Paged keys, all columns of a head in one box.  More boxes take longer to issue, so one more stage
// replaces the second slot of Q.
template <class Base>
struct PageShape90 : Base {
  using TileK = Swizzled<Base::BN, Base::D, true>;
  using TileV = Swizzled<Base::BN, Base::E, true>;
  static constexpr int Slots = 1, Stages = Base::Stages + 1;
  static constexpr int tile_bytes = Base::q_bytes + Stages * Base::stage_bytes;
  static constexpr int shared_bytes = tile_bytes + Base::slack_bytes;
};

// A SpanMask holds more than a WindowMask in the slots of work items, and takes more registers.
template <class Base>
struct SpanShape90 : Base {
  static constexpr int slack_bytes = Base::slack_bytes + (Base::blocks == 1 ? 512 : 0);
  static constexpr int shared_bytes = Base::tile_bytes + slack_bytes;
  static_assert(shared_bytes <= 227 * 1024);
  static constexpr bool q_in_registers = false;
  static constexpr bool scarce = Base::Groups == 1 && Base::E == 256;
  static constexpr int producer_regs = scarce ? 80 : Base::producer_regs,
                       consumer_regs = scarce ? 256 : Base::consumer_regs;
};

template <ForwardConfig90 C>
ForwardInstance90 forward_sm90_instance() {
  using Rows = AttendShape90<C.dtype, C.d, C.e, C.groups, C.keys, C.stages>;
  constexpr bool kSplit = C.kind == ForwardKind::split || C.kind == ForwardKind::span_split;
  using Usual = std::conditional_t<kSplit, SplitShape90<Rows>, Rows>;
  constexpr bool kSpans = C.kind == ForwardKind::span || C.kind == ForwardKind::span_paged ||
                          C.kind == ForwardKind::span_split;
  using Shape = std::conditional_t<kSpans, SpanShape90<Usual>, Usual>;
  static_assert(C.kind != ForwardKind::rich);
  // Where two blocks fit, contiguous and paged keys have a kernel each.
  constexpr bool kInterleaved = Shape::blocks == 2;
  constexpr bool kPaged = C.kind == ForwardKind::paged || C.kind == ForwardKind::span_paged ||
                          (kSplit && !kInterleaved);
  using Mask = std::conditional_t<kSpans, SpanMask, WindowMask>;
  using Score =
      std::conditional_t<C.kind == ForwardKind::capped, CappedScore,
                         std::conditional_t<C.kind == ForwardKind::keyed, KeyScore, PlainScore>>;
  // With one slot of Q, rows of o cannot leave through it.
  using Whole = std::conditional_t<Shape::Slots == 2, TmaEpilogue, DirectEpilogue>;
  using Epilogue = std::conditional_t<kSplit, MergingEpilogue<(C.e > 128 ? 8 : 16)>, Whole>;
  constexpr auto launcher = [](Context& ctx, const Attend& a, const ForwardWork90& work) {
    Epilogue epilogue{};
    if constexpr (kSplit)
      epilogue = {work.parts, work.order.splits, work.arrived};
    else if constexpr (Shape::Slots == 2)
      epilogue.o = work.o, epilogue.given = work.o_given;
    const int blocks = std::min(work.schedule.items, device_info(ctx).multiprocessors);
    const auto launch = [&]<class S, KeySource Source>() {
      launch_pdl<attend_sm90<S, Source, Score, Mask, Epilogue>>(
          ctx, "attention_forward", blocks, S::threads, S::shared_bytes, a, work.grid, work.maps,
          work.order, work.schedule, epilogue);
    };
    if constexpr (kInterleaved)
      if (a.sequences.page) return launch.template operator()<PageShape90<Shape>, Pages>();
    launch.template operator()<Shape, std::conditional_t<kPaged, Pages, Contiguous>>();
  };
  return {C.dtype, C.d, C.e, C.kind, Shape::BM, C.keys, kPaged, kInterleaved, launcher};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(...)                                                        \
  namespace fovea::cuda {                                                          \
  template ForwardInstance90 forward_sm90_instance<ForwardConfig90 __VA_ARGS__>(); \
  }
