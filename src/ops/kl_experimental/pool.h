// SPDX-License-Identifier: Apache-2.0
// The resolved calls of x_kl_pool and the kernels plan() chooses from.
#pragma once
#include "ops/kl/kernels.h"

namespace fovea {

// KL(pooled teacher || student over blocks of keys), forward and backward.
struct KlPool {
  Kl kl;  // first is the teacher over keys, second the student over blocks
  int64_t block_keys;
  int64_t u;  // blocks that the student's k has
  bool max;   // of a block's probabilities; else their sum
  View<3> dkl;
};

extern const Kernel<KlPool> kl_pool_forward_host, kl_pool_backward_host;
extern const Kernel<KlPool> kl_pool_forward_sm80, kl_pool_forward_simt, kl_pool_backward_sm90,
    kl_pool_backward_sm80, kl_pool_backward_simt;

}  // namespace fovea
