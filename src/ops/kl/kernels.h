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

// KL(first || second): the direction has decided which side is the teacher.
struct Kl {
  KlSide first, second;
  View<3> kl, row_weight;
  View<1> total;
  int64_t b, s, t, h;
  Sequences sequences;
  Mask mask;
  bool mean;
};

struct KlBackward {
  Kl forward;  // kl and lse are inputs here
  View<3> dkl;
  View<1> dtotal;
  bool nondeterministic;
};

extern const Kernel<Kl> kl_forward_host;
extern const Kernel<KlBackward> kl_backward_host;

}  // namespace fovea
