// SPDX-License-Identifier: Apache-2.0
// The Hopper kernels of the divergences that look at all heads of a tile.
#pragma once
#include "ops/kl/heads_backward_sm90.cuh"
#include "ops/kl/heads_indexer_sm90.cuh"
#include "ops/kl/heads_pool_sm90.cuh"

namespace fovea::cuda {

template <int Dtype, int D>
HeadsInstance90 kl_heads_sm90_instance() {
  using Shape = HeadsShape90<Dtype, D>;
  constexpr auto forward = [](Context& ctx, const HeadsWork& work, const HeadsMaps& maps,
                              const IndexerForward90& args) {
    launch<heads_sm90<Shape, IndexerForwardPolicy90>>(
        ctx, kIndexerForward, work.works(), Shape::threads, Shape::shared_bytes, work, maps, args);
  };
  constexpr auto slopes = [](Context& ctx, const HeadsWork& work, const HeadsMaps& maps,
                             const IndexerSlopes90& args) {
    launch<heads_sm90<Shape, IndexerSlopesPolicy90>>(
        ctx, kIndexerBackward, work.works(), Shape::threads, Shape::shared_bytes, work, maps, args);
  };
  constexpr auto rows = [](Context& ctx, const HeadsWork& work, const SlopesMaps& maps,
                           const SlopesRows90& args) {
    using Rows = SlopesShape90<Dtype, D, kHeadsTile, 4>;
    launch<heads_rows_sm90<Rows>>(ctx, kIndexerBackward, int64_t{work.count} * work.heads[1],
                                  Rows::threads, Rows::shared_bytes, work, maps, args);
  };
  constexpr auto keys = [](Context& ctx, const HeadsWork& work, const SlopesMaps& maps,
                           const SlopesKeys90& args) {
    using Keys = SlopesShape90<Dtype, D, kSlopesRows, 6>;
    launch<heads_keys_sm90<Keys>>(ctx, kIndexerBackward, args.works(work), Keys::threads,
                                  Keys::shared_bytes, work, maps, args);
  };
  constexpr auto pool = [](Context& ctx, const HeadsWork& work, const HeadsMaps& maps,
                           const PoolWeights90& args) {
    launch<heads_sm90<Shape, PoolPolicy90>>(ctx, "x_kl_pool_backward", work.works(), Shape::threads,
                                            Shape::shared_bytes, work, maps, args);
  };
  return {Dtype, D, forward, slopes, rows, keys, pool};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(dtype, d) \
  template fovea::cuda::HeadsInstance90 fovea::cuda::kl_heads_sm90_instance<dtype, d>();
