// SPDX-License-Identifier: Apache-2.0
// conv_attention_forward on Hopper: a persistent kernel with a producer warp
// (sweep_feed_sm90.cuh) and one to three consumer warpgroups (sweep_consumer_sm90.cuh).
//   S = scale q k' (0 where unseen),  A = S convolved (-inf where unseen),  o = softmax(A) v
//
// Tiles.  A block takes work items (head or pack of heads, row tile, split) from the scheduler. The
// producer plans and copies them, and runs ahead into the next one.  A consumer has 64 rows of S,
// the first `above` of the block's only for the convolution.  Packed, a warp has 16 rows of a head
// of its own, `above` of them for the convolution.  A convolution also reads the last rows of the
// warpgroup above.  That one never waits for it but to overwrite them.  In a low row tile the last
// warpgroup has no rows and only releases stages.
//   Keys are walked in tiles of 64 from last to first.  Tile n has the scores of keys 64 n - left
// and on.  The outputs 64 n .. 64 n + 63 read them and the first columns of the tile before, so
// a block computes every score once.  What is read of the tile behind a split's last one is copied
// and computed alone.
//
// A step.  A is made (tile/convolve_sm80.cuh, mma.sync, whose band of taps costs half of what
// wgmma's least operand does), masked and exponentiated.  O += P V runs, and the next tile's S goes
// to shared memory as f16.  That S (wgmma) is issued before A is made.  `late` issues it before
// P V, where three warpgroups leave no registers for both: then the other warpgroups fill the wait.
// Either way a barrier parts the two kinds of product: mixed by the compiler they would stall each
// other.  f16 has 4 bits more than the logits of a bf16 softmax need; S / 64 keeps scores up to
// 4 10^6.
//   Few rows spend their time before the first key and after the last.  So the taps are loaded
// while keys come, and a warp whose rows are stored merges their splits if it is the last.
//
// Shared memory: Slots x Q, a pipeline of Stages tiles (K, K, V, K, V, ...), three tiles of S, two
// work items, barriers.
//
//   | barrier            | who arrives         | who waits | what it guards           |
//   | ------------------ | ------------------- | --------- | ------------------------ |
//   | q full             | TMA                 | consumers | a slot of Q              |
//   | q empty            | a lane of each warp | producer  | the same, to overwrite   |
//   | key full           | TMA                 | consumers | a tile of K or V         |
//   | key empty          | a lane of each warp | producer  | the same, to overwrite   |
//   | tile full          | producer            | consumers | a work item              |
//   | tile empty         | a lane of each warp | producer  | the same, to overwrite   |
//   | named kOwn + g     | warpgroup g         | itself    | its own S                |
//   | named kWritten + g | warpgroup g         | g + 1     | its S, which g + 1 reads |
//   | named kRead + g    | warpgroup g + 1     | g         | the same, to overwrite   |
// Named barriers have 256 threads, or kOwn's 128.
// Multi-Token Attention (2504.00927), FlashAttention-3 (2407.08608).
#pragma once
#include <algorithm>

#include "cuda/launch.h"
#include "ops/conv_attention/sweep_consumer_sm90.cuh"

namespace fovea::cuda {

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, Shape::Blocks)
    conv_sm90(const __grid_constant__ ConvAttend c, const __grid_constant__ ConvWork90 more) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const ConvShared90<Shape> shared(memory);
  if (threadIdx.x == 0) shared.init();
  __syncthreads();
  const int warp = sm90::uniform(threadIdx.x / 32);
  if (threadIdx.x == 32)
    sm90::prefetch_map(more.maps.q), sm90::prefetch_map(more.maps.k),
        sm90::prefetch_map(more.maps.v);
  if (warp < 4) {
    sm90::setmaxnreg_dec<Shape::producer_regs>();
    if (warp == 0) copy_conv<Shape>(c, more, shared);
  } else {
    sm90::setmaxnreg_inc<Shape::consumer_regs>();
    typename ConvConsumer90<Shape>::Fragments fragments;
    ConvConsumer90<Shape>(c, more, warp / 4 - 1, shared, fragments).compute();
  }
}

template <ConvConfig90 C>
ConvInstance90 conv_sm90_instance() {
  using Shape = ConvShape90<C>;
  constexpr auto launcher = [](Context& ctx, const ConvAttend& c, const ConvWork90& work) {
    const int blocks =
        std::min(work.schedule.items, device_info(ctx).multiprocessors * Shape::Blocks);
    launch_pdl<conv_sm90<Shape>>(ctx, "conv_attention_forward", blocks, Shape::threads,
                                 Shape::shared_bytes, c, work);
  };
  return {C, Shape::BN, launcher};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(...)                                               \
  namespace fovea::cuda {                                                 \
  template ConvInstance90 conv_sm90_instance<ConvConfig90 __VA_ARGS__>(); \
  }
