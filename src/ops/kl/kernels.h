// SPDX-License-Identifier: Apache-2.0
// The resolved calls of the KL operations and the kernels plan() chooses from.
#pragma once
#include "core/attend.h"
#include "core/plan.h"

namespace fovea {

// One of the two distributions: its logits are scale <q, k>.
struct KlSide {
  View<4> q, k;
  View<3> lse;
  View<4> dq, dk;  // backward
  int32_t dtype;
  int64_t width, key_heads;
  float scale;  // resolved, > 0
};

// KL(first || second): the direction has decided which side is the teacher.  With `share` > 0 the
// Jensen-Shannon divergence instead: first's share in the mixture m, kl and kl_second the
// divergences of first and second from m.
struct Kl {
  KlSide first, second;
  View<3> kl, row_weight;
  View<3> js, kl_second;
  View<1> total;
  int64_t b, s, t, h;
  Sequences sequences;
  Mask mask;
  bool mean;
  float share;
};

struct KlBackward {
  Kl forward;   // kl and lse are inputs here
  View<3> dkl;  // of js where share > 0
  View<1> dtotal;
  bool nondeterministic;
};

// KL(first || second) over the keys that each row's list names, forward and backward.
struct KlGather {
  Kl kl;  // first is the teacher; nothing is masked
  View<4> index;
  int64_t n;  // entries of a list
  View<3> dkl;
};

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
extern const Kernel<KlGather> kl_gather_forward_host, kl_gather_backward_host;
extern const Kernel<KlGather> kl_gather_forward_sm80, kl_gather_forward_simt,
    kl_gather_backward_sm80, kl_gather_backward_simt;
extern const Kernel<Kl> kl_forward_host, kl_forward_sm90, kl_forward_simt;
extern const Kernel<Kl> kl_jensen_shannon_forward_host, kl_jensen_shannon_forward_sm90,
    kl_jensen_shannon_forward_simt;
extern const Kernel<KlBackward> kl_backward_host, kl_backward_sm90, kl_backward_simt;
extern const Kernel<KlBackward> kl_jensen_shannon_backward_host, kl_jensen_shannon_backward_sm90,
    kl_jensen_shannon_backward_simt;

}  // namespace fovea
