// SPDX-License-Identifier: Apache-2.0
// Public params to kernels.h, with the checks that dims cannot say, and the kernels in order.
#include "core/plan.h"
#include "fovea/kl.h"
#include "ops/kl/sides.h"

namespace fovea {
namespace {

constexpr char kForward[] = "kl_forward";
constexpr char kBackward[] = "kl_backward";

// What forward and backward share; `total` or its gradient is in the call.
template <class P>
Kl shared(const char* op, const P& p, bool total, const char* total_name) {
  const bool reverse = p.direction == FOVEA_DIRECTION_STUDENT_TEACHER;
  if (!reverse && p.direction != FOVEA_DIRECTION_TEACHER_STUDENT)
    refuse("%s: direction is %d, wanted a fovea_direction", op, p.direction);
  Kl a = sides_of(op, p, reverse);
  a.kl = view_of<3>(p.kl), a.row_weight = view_of<3>(p.row_weight);
  check_flag(op, "mean", p.mean);
  a.mean = p.mean != 0;
  if (p.mean && !total) refuse("%s: mean is 1 without %s, wanted 0", op, total_name);
  if (p.row_weight.data && !total)
    refuse("%s: row_weight is given without %s: it weighs nothing else", op, total_name);
  return a;
}

Kl resolve(const fovea_kl_forward_params& p) {
  Kl a = shared(kForward, p, p.total.data, "total");
  a.total = view_of<1>(p.total);
  if (!a.sequences.query_max) a.sequences.count = 0;  // nothing is each sequence's own
  want_one(kForward, a, "kl, lse_teacher, lse_student and total",
           {&p.kl, &p.lse_teacher, &p.lse_student, &p.total});
  return a;
}

KlBackward resolve(const fovea_kl_backward_params& p) {
  KlBackward a{};
  a.forward = shared(kBackward, p, p.dtotal.data, "dtotal");
  const bool reverse = p.direction == FOVEA_DIRECTION_STUDENT_TEACHER;
  KlSide &first = a.forward.first, &second = a.forward.second;
  read_gradients(reverse ? second : first, reverse ? first : second, p);
  a.dkl = view_of<3>(p.dkl), a.dtotal = view_of<1>(p.dtotal);
  check_flag(kBackward, "nondeterministic", p.nondeterministic);
  a.nondeterministic = p.nondeterministic != 0;
  if (!p.dkl.data && !p.dtotal.data && a.forward.b && a.forward.s && a.forward.h)
    refuse("%s: dkl and dtotal are both absent, wanted one of them or both", kBackward);
  return a;
}

}  // namespace

Plan plan(const Context& ctx, const fovea_kl_forward_params& params) {
  return choose(kForward, ctx, resolve(params), kl_forward_host,
                FOVEA_CUDA_KERNELS(kl_forward_sm90, kl_forward_simt));
}

Plan plan(const Context& ctx, const fovea_kl_backward_params& params) {
  return choose(kBackward, ctx, resolve(params), kl_backward_host,
                FOVEA_CUDA_KERNELS(kl_backward_sm90, kl_backward_simt));
}

}  // namespace fovea
