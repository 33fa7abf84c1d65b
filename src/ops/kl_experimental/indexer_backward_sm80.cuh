// SPDX-License-Identifier: Apache-2.0
// x_kl_indexer_backward on mma.sync, where a dscore of 0 is multiplied like any other.
#pragma once
#include "ops/kl_experimental/indexer_backward.cuh"

namespace fovea::cuda {

template <int Dtype>
void kl_indexer_backward_sm80(Context& ctx, const IndexerBackward& call, bool rows) {
  run_indexer_backward<PairsMma<Dtype, false>>(ctx, call, rows);
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(dtype, width)                                                           \
  template void fovea::cuda::kl_indexer_backward_sm80<dtype>(Context&, const IndexerBackward&, \
                                                             bool);
