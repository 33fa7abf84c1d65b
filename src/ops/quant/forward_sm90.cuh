// SPDX-License-Identifier: Apache-2.0
// quant_forward on the 8-bit Hopper sweep.
#pragma once
#include <algorithm>

#include "cuda/launch.h"
#include "cuda/loop/attend_fp8_sm90.cuh"
#include "ops/quant/forward.cuh"

namespace fovea::cuda {

// The call's scales as the sweep asks for them.
template <bool Blocks>
struct CallScales {
  static constexpr bool blocks = Blocks;
  QuantAttend call;
  __device__ const Attend& attend() const { return call.attend; }
  __device__ float row(const Sequence& q, int64_t r, int64_t head, int64_t i) const {
    return call.q_scale_of(q, r, head, i);
  }
  __device__ float key(const Sequence& q, int64_t r, int64_t g, int64_t j) const {
    return call.k_scale_of(q, r, g, j);
  }
  __device__ float value(const Sequence& q, int64_t r, int64_t g) const {
    return call.v_scale_of(q, r, g);
  }
  __device__ int64_t column(int64_t r) const { return call.v_column(r); }
  __device__ int64_t columns() const { return call.padded; }
};

template <QuantConfig90 C>
QuantInstance90 quant_sm90_instance() {
  static_assert(C.dtype == FOVEA_E4M3);
  using Shape = ByteShape90<C.d, C.d, C.groups, C.keys, C.stages, C.run>;
  constexpr auto launcher = [](Context& ctx, const QuantAttend& a, const QuantWork& work,
                               const AttendMaps& maps) {
    const int blocks = std::min(work.schedule.items, device_info(ctx).multiprocessors);
    const auto run = [&]<bool Blocks>() {
      launch<attend_fp8_sm90<Shape, CallScales<Blocks>, DirectEpilogue>>(
          ctx, "quant_forward", blocks, Shape::threads, byte_shared_bytes<Shape>,
          CallScales<Blocks>{a}, work.grid, maps, work.order, work.schedule, DirectEpilogue());
    };
    a.k_block ? run.template operator()<true>() : run.template operator()<false>();
  };
  return {C.d, Shape::BM, C.keys, Shape::TileK::Panel, Shape::TileV::Panel, launcher};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(...)                                                  \
  namespace fovea::cuda {                                                    \
  template QuantInstance90 quant_sm90_instance<QuantConfig90 __VA_ARGS__>(); \
  }
