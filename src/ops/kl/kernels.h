// SPDX-License-Identifier: Apache-2.0
// The resolved calls of the KL operations and the kernels plan() chooses from.
#pragma once
#include "core/attend.h"
#include "core/dtype.h"
#include "core/plan.h"
#include "core/reasons.h"

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

// What a kernel on tensor cores refuses of two sides.  The names are of both, since the direction
// has decided which one is first.
inline Text reason_sides(const KlSide& x, const KlSide& y) {
  return Text("dtypes are ") + dtype_name(x.dtype) + " and " + dtype_name(y.dtype) +
         ", wanted q_student as q_teacher";
}
inline Text refuse_sides(const KlSide& x, const KlSide& y, int64_t of, int64_t most = 0) {
  const Text why = refuse_width("d or f", x.width, of, most);
  return why.empty() ? refuse_width("d or f", y.width, of, most) : why;
}

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

extern const Kernel<Kl> kl_forward_host, kl_forward_sm90, kl_forward_simt;
extern const Kernel<Kl> kl_jensen_shannon_forward_host, kl_jensen_shannon_forward_sm90,
    kl_jensen_shannon_forward_simt;
extern const Kernel<KlBackward> kl_backward_host, kl_backward_sm90, kl_backward_simt;
extern const Kernel<KlBackward> kl_jensen_shannon_backward_host, kl_jensen_shannon_backward_sm90,
    kl_jensen_shannon_backward_simt;

}  // namespace fovea
