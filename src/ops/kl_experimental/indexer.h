// SPDX-License-Identifier: Apache-2.0
// The resolved call of the indexer's divergence and the kernels plan() chooses from.
#pragma once
#include "ops/kl/kernels.h"

namespace fovea {

// The mean of the teacher's heads against one student whose logits are sum_n weight_n
// max(<q_n, k>, 0), forward and backward.
struct KlIndexer {
  Kl teacher;      // `first`; rows, keys and what is seen, for the student too
  KlSide student;  // one key head, scale 1; dq, dk in a backward
  int64_t heads;   // of the student
  View<3> weight, dweight;
  View<2> kl, lse, dkl;
};

extern const Kernel<KlIndexer> kl_indexer_forward_host, kl_indexer_backward_host;
extern const Kernel<KlIndexer> kl_indexer_forward_sm90, kl_indexer_forward_sm80,
    kl_indexer_forward_simt, kl_indexer_backward_sm90, kl_indexer_backward_sm80,
    kl_indexer_backward_simt;

}  // namespace fovea
