// SPDX-License-Identifier: Apache-2.0
// The resolved calls of x_kl_gather and the kernels plan() chooses from.
#pragma once
#include "ops/kl/kernels.h"

namespace fovea {

// KL(first || second) over the keys that each row's list names, forward and backward.
struct KlGather {
  Kl kl;  // first is the teacher; nothing is masked
  View<4> index;
  int64_t n;  // entries of a list
  View<3> dkl;
};

extern const Kernel<KlGather> kl_gather_forward_host, kl_gather_backward_host;
extern const Kernel<KlGather> kl_gather_forward_sm80, kl_gather_forward_simt,
    kl_gather_backward_sm80, kl_gather_backward_simt;

}  // namespace fovea
