// SPDX-License-Identifier: Apache-2.0
// The Hopper kernels of the indexer's divergence.
#pragma once
#include "ops/kl_experimental/indexer_gradient_sm90.cuh"
#include "ops/kl_experimental/indexer_scores_sm90.cuh"

namespace fovea::cuda {

template <int Dtype, int D>
IndexerInstance90 kl_indexer_sm90_instance() {
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
  return {Dtype, D, forward, slopes, rows, keys};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(dtype, d) \
  template fovea::cuda::IndexerInstance90 fovea::cuda::kl_indexer_sm90_instance<dtype, d>();
