// SPDX-License-Identifier: Apache-2.0
// x_delta_backward of the low-rank form on Hopper, in chunks of 64 tokens: three kernels.
//   low_sm90.cuh                 T, scores and the scaled tiles of every chunk, as the forward's
//   backward_low_chain_sm90.cuh  H and U from the first chunk on, W, dY and dV from the last one on
//   backward_low_tile_sm90.cuh   dq, dk, dlow_a, dlow_b and the gradients of gates
#pragma once
#include "ops/delta/backward_low_chain_sm90.cuh"
#include "ops/delta/backward_low_tile_sm90.cuh"

namespace fovea::cuda {

template <DeltaBackwardConfig90 C>
DeltaBackwardInstance90 delta_backward_low_sm90_instance() {
  constexpr auto launcher = [](Context& ctx, const DeltaBackwardWork90& work) {
    using States = DeltaStatesShape90<DeltaConfig90{C.dtype, C.d, DeltaForm::low, C.stages, 1, 1}>;
    using Reverse = DeltaLowReverseShape90<C.d, C.keys, C.queries>;
    using Gradient = DeltaLowGradientShape90<C.d>;
    constexpr char op[] = "x_delta_backward";
    constexpr int kStates = DeltaStates90<States>::shared_bytes;
    constexpr int kReverse = DeltaLowReverse90<Reverse>::shared_bytes;
    constexpr int kChains = kStates > kReverse ? kStates : kReverse;
    static_assert(kChains <= 227 * 1024);
    const int64_t chunks = work.forward.slots * work.forward.a.heads;
    launch<delta_chunks_sm90_kernel<DeltaLow<C.d>>>(ctx, op, chunks, 128,
                                                    DeltaLow<C.d>::shared_bytes, work.forward);
    launch<delta_backward_low_chain_sm90_kernel<States, Reverse>>(ctx, op, 2 * work.forward.blocks,
                                                                  384, kChains, work);
    launch<delta_low_gradient_sm90_kernel<Gradient>>(
        ctx, op, chunks * Gradient::Parts, Gradient::threads,
        DeltaLowGradient90<Gradient>::shared_bytes, work);
  };
  return {C.dtype, C.d, launcher};
}

}  // namespace fovea::cuda

#undef FOVEA_INSTANCE  // forward_sm90.cuh's
#define FOVEA_INSTANCE(...)                                              \
  namespace fovea::cuda {                                                \
  template DeltaBackwardInstance90                                       \
  delta_backward_low_sm90_instance<DeltaBackwardConfig90 __VA_ARGS__>(); \
  }
