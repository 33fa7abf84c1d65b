// SPDX-License-Identifier: Apache-2.0
// The rows' attention on the Hopper sweep: over the list of each row block, or dense for the lse.
#pragma once
#include <algorithm>

#include "cuda/launch.h"
#include "cuda/loop/list_shape_sm90.cuh"
#include "ops/trace/rows.cuh"

namespace fovea::cuda {

// Epilogue: o and lse where given, and the TraceRow.
struct TraceEpilogue {
  TraceRow* row;

  template <int Dtype, int N>
  __device__ void store(const Attend& a, const RowTile& tile, int m, bool valid, int split,
                        float top, float sum, const float (&o)[N][4], int half) const {
    if (a.o) DirectEpilogue().store<Dtype>(a, tile, m, valid, split, top, sum, o, half);
    if (!valid || threadIdx.x % 4) return;
    if (a.lse && !a.o)
      a.lse.as()[tile.offset(m, a.lse.stride, 1, 2)] =
          sum == 0.f ? kNegativeInfinity : (top + log2f(sum)) * kLn2;
    if (row)
      row[(tile.rows.r * a.h + tile.rows.g) * a.s + m] = {
          top == kNegativeInfinity ? 0.f : top * kLn2, sum == 0.f ? 0.f : 1.f / sum};
  }
};

template <int Dtype, int D, int E, int Groups, int BN, int Stages>
struct RowsShape90 : ListShape90<AttendShape90<Dtype, D, E, Groups, BN, Stages>> {
  static constexpr bool q_in_registers = false;  // measured for dense attention alone
};

template <RowsConfig90 C>
RowsInstance90 rows_sm90_instance() {
  using Shape = RowsShape90<C.dtype, C.d, C.e, C.groups, C.keys, C.stages>;
  using Source = std::conditional_t<C.kind == RowsKind::listed, ListOfPages, Pages>;
  constexpr auto launcher = [](Context& ctx, const Attend& a, const RowsWork90& work) {
    const int blocks =
        std::min(work.schedule.items, Shape::blocks * device_info(ctx).multiprocessors);
    const auto run = [&](const typename Source::Call& call) {
      launch<attend_sm90<Shape, Source, PlainScore, WindowMask, TraceEpilogue>>(
          ctx, kTraceOp, blocks, Shape::threads, Shape::shared_bytes, call, work.grid, work.maps,
          work.order, work.schedule, TraceEpilogue{work.row});
    };
    if constexpr (C.kind == RowsKind::listed)
      run({a, work.list});
    else
      run(a);
  };
  return {C.dtype, C.d, C.e, C.kind, Shape::BM, C.keys, launcher};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(...)                                               \
  namespace fovea::cuda {                                                 \
  template RowsInstance90 rows_sm90_instance<RowsConfig90 __VA_ARGS__>(); \
  }
