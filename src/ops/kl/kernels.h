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
extern const Kernel<Kl> kl_forward_host, kl_forward_sm90, kl_forward_simt;
extern const Kernel<Kl> kl_jensen_shannon_forward_host, kl_jensen_shannon_forward_sm90,
    kl_jensen_shannon_forward_simt;
extern const Kernel<KlBackward> kl_backward_host, kl_backward_sm90, kl_backward_simt;
extern const Kernel<KlBackward> kl_jensen_shannon_backward_host, kl_jensen_shannon_backward_sm90,
    kl_jensen_shannon_backward_simt;

}  // namespace fovea
