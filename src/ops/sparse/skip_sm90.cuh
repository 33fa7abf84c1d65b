// SPDX-License-Identifier: Apache-2.0
// x_sparse_forward without a list on the Hopper sweep (loop/attend_sm90.cuh), tiles of 64 keys
// skipped by groups of 64 rows (loop/skips_sm90.cuh).
#pragma once
#include <algorithm>

#include "cuda/launch.h"
#include "cuda/loop/attend_sm90.cuh"
#include "ops/sparse/forward.cuh"

namespace fovea::cuda {

// Slots of work items hold the margin, and votes have words.
template <class Base>
struct SkipShape90 : Base {
  static constexpr int slack_bytes = Base::slack_bytes + 512;
  static constexpr int shared_bytes = Base::tile_bytes + slack_bytes;
  static_assert(shared_bytes <= 227 * 1024);
};

template <SparseConfig90 C>
SparseInstance90 sparse_skip_sm90_instance() {
  using Shape = SkipShape90<AttendShape90<C.dtype, C.d, C.e, C.groups, C.keys, C.stages>>;
  static_assert(Shape::Slots == 2);
  constexpr auto launcher = [](Context& ctx, const Attend& a, const SparseWork90& work) {
    const SkippingAttend call{a, work.drop, work.skipped};
    TmaEpilogue epilogue{};
    epilogue.o = work.o, epilogue.given = work.o_given;
    const int blocks = std::min(work.schedule.items, device_info(ctx).multiprocessors);
    const auto run = [&]<KeySource Source>() {
      launch_pdl<attend_sm90<Shape, Source, PlainScore, WindowMask, TmaEpilogue>>(
          ctx, "x_sparse_forward", blocks, Shape::threads, Shape::shared_bytes, call, work.grid,
          work.maps, work.order, work.schedule, epilogue);
    };
    a.sequences.page ? run.template operator()<SkippablePages>()
                     : run.template operator()<Skippable>();
  };
  return {C.dtype, C.d, C.e, Shape::BM, C.keys, false, launcher};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(...)                                                          \
  namespace fovea::cuda {                                                            \
  template SparseInstance90 sparse_skip_sm90_instance<SparseConfig90 __VA_ARGS__>(); \
  }
