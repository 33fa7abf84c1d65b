// SPDX-License-Identifier: Apache-2.0
// x_sparse_forward on the Hopper sweep (loop/attend_sm90.cuh), tiles of keys by spans of lists.
#pragma once
#include <algorithm>

#include "cuda/launch.h"
#include "cuda/loop/list_shape_sm90.cuh"
#include "cuda/loop/merging_epilogue.cuh"
#include "cuda/loop/source_unions_sm90.cuh"
#include "ops/sparse/forward.cuh"
#include "ops/sparse/gathered_sm90.cuh"
#include "ops/sparse/list_rows_sm90.cuh"

namespace fovea::cuda {

// Gathered rows, on the instances of tiles of 128 rows and 128 keys.
template <SparseConfig90 C>
auto gather_launcher() -> decltype(SparseInstance90::gather) {
  if constexpr (C.groups == 2 && C.keys == kGatheredKeys && C.d <= 128) {
    using Shape = GatheredShape90<C.dtype, C.d, C.e, C.stages>;
    return [](Context& ctx, const Attend& a, const GatheredWork90& work) {
      launch<gathered_rows_sm90<Shape>>(
          ctx, "x_sparse_forward", std::min(work.schedule.items, device_info(ctx).multiprocessors),
          Shape::threads, GatheredShared90<Shape>::layout.bytes, a, work);
    };
  } else {
    return nullptr;
  }
}

// Few rows, on the instances of tiles of 64 rows.
template <SparseConfig90 C>
auto few_launcher() -> decltype(SparseInstance90::few) {
  if constexpr (C.groups == 1) {
    using Shape = ListRowsShape<ListOperands<C.dtype, C.d, C.e>>;
    using Epilogue = MergingEpilogue<8, true>;
    return [](Context& ctx, const SparseAttend& call, const SparseWork90& work) {
      launch_pdl<attend_list_sm90<Shape, Epilogue>>(
          ctx, "x_sparse_forward", work.schedule.items, Shape::threads, Shape::shared_bytes, call,
          work.grid, work.maps, Epilogue{work.parts, work.order.splits, work.arrived});
    };
  } else {
    return nullptr;
  }
}

template <SparseConfig90 C>
SparseInstance90 sparse_sm90_instance() {
  using Shape = ListShape90<AttendShape90<C.dtype, C.d, C.e, C.groups, C.keys, C.stages>>;
  // With one slot of Q, rows of o cannot leave through it.
  using Whole = std::conditional_t<Shape::Slots == 2, TmaEpilogue, DirectEpilogue>;
  using Merging = MergingEpilogue<(C.e > 128 ? 8 : 16)>;
  // Short rows, small blocks.
  constexpr bool kBlocks = C.groups == 1;
  constexpr auto launcher = [](Context& ctx, const Attend& a, const SparseWork90& work) {
    const int blocks =
        std::min(work.schedule.items, Shape::blocks * device_info(ctx).multiprocessors);
    const auto run_on = [&]<KeySource Source, class Epilogue>(const auto& call,
                                                              const Epilogue& epilogue) {
      launch_pdl<attend_sm90<Shape, Source, PlainScore, WindowMask, Epilogue>>(
          ctx, "x_sparse_forward", blocks, Shape::threads, Shape::shared_bytes, call, work.grid,
          work.maps, work.order, work.schedule, epilogue);
    };
    const auto run = [&]<KeySource Source, class Epilogue>(const Epilogue& epilogue) {
      run_on.template operator()<Source>(TiledAttend{a, work.lists}, epilogue);
    };
    if constexpr (kBlocks)
      if (work.order.splits > 1)
        return run.template operator()<Blocks>(
            Merging{work.parts, work.order.splits, work.arrived});
    Whole whole{};
    if constexpr (Shape::Slots == 2) whole.o = work.o, whole.given = work.o_given;
    if constexpr (C.groups == 2 && C.keys == 128)
      if (work.unions.rows)
        return run_on.template operator()<United>(UnitedAttend{a, work.unions}, whole);
    if constexpr (kBlocks)
      if (work.blocks) return run.template operator()<Blocks>(whole);
    if constexpr (kBlocks)
      if (work.lists.rows > 1)
        return a.sequences.page ? run.template operator()<UnionsOfPages>(whole)
                                : run.template operator()<Unions>(whole);
    a.sequences.page ? run.template operator()<SpansOfPages>(whole)
                     : run.template operator()<Spans>(whole);
  };
  return {C.dtype,          C.d, C.e, Shape::BM, C.keys, kBlocks, launcher, gather_launcher<C>(),
          few_launcher<C>()};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(...)                                                     \
  namespace fovea::cuda {                                                       \
  template SparseInstance90 sparse_sm90_instance<SparseConfig90 __VA_ARGS__>(); \
  }
