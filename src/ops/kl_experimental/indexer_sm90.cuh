// SPDX-License-Identifier: Apache-2.0
// The Hopper kernels of the indexer's divergence.
#pragma once
#include "ops/kl_experimental/indexer_gradient_sm90.cuh"
#include "ops/kl_experimental/indexer_scores_sm90.cuh"

namespace fovea::cuda {

template <int Dtype, int D>
struct IndexerKernels90 {
  using Shape = HeadsShape90<Dtype, D>;
  using Rows = DscoresShape90<Dtype, D, kHeadsTile, 4>;
  using Keys = DscoresShape90<Dtype, D, kDscoreRows, 6>;

  template <class Policy, const char* Op>
  static void scores(Context& ctx, const HeadsWork& work, const IndexerMaps90& maps,
                     const IndexerArgs90& args) {
    launch<heads_sm90<Shape, Policy>>(ctx, Op, work.items(), Shape::threads, Shape::shared_bytes,
                                      work, static_cast<const HeadsMaps&>(maps), args);
  }
  static void rows(Context& ctx, const HeadsWork& work, const IndexerMaps90& maps,
                   const IndexerArgs90& args) {
    launch<heads_rows_sm90<Rows>>(ctx, kIndexerBackward, int64_t{work.count} * work.heads[1],
                                  Rows::threads, Rows::shared_bytes, work, maps, args);
  }
  static void keys(Context& ctx, const HeadsWork& work, const IndexerMaps90& maps,
                   const IndexerArgs90& args) {
    launch<heads_keys_sm90<Keys>>(ctx, kIndexerBackward,
                                  work.a.sequences.count * args.parts.tiles * args.parts.count,
                                  Keys::threads, Keys::shared_bytes, work, maps, args);
  }
};

template <int Dtype, int D>
IndexerInstance90 kl_indexer_sm90_instance() {
  using Kernels = IndexerKernels90<Dtype, D>;
  return {Dtype,
          D,
          Kernels::template scores<IndexerForwardPolicy90, kIndexerForward>,
          Kernels::template scores<IndexerDscoresPolicy90, kIndexerBackward>,
          Kernels::rows,
          Kernels::keys};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(dtype, d) \
  template fovea::cuda::IndexerInstance90 fovea::cuda::kl_indexer_sm90_instance<dtype, d>();
