// SPDX-License-Identifier: Apache-2.0
#include "core/plan.h"
#include "fovea/experimental/kl.h"
#include "ops/kl/sides.h"

namespace fovea {
namespace {

constexpr char kForward[] = "x_kl_jensen_shannon_forward";
constexpr char kBackward[] = "x_kl_jensen_shannon_backward";

template <class P>
Kl jensen_shannon(const char* op, const P& p) {
  Kl a = sides_of(op, p, false);
  if (!(p.weight >= 0 && p.weight < 1))
    refuse("%s: weight is %g, wanted between 0 and 1, or 0 for 0.5", op, p.weight);
  a.share = p.weight > 0 ? p.weight : 0.5f;
  a.kl = view_of<3>(p.kl_teacher), a.kl_second = view_of<3>(p.kl_student);
  return a;
}

Kl resolve(const fovea_x_kl_jensen_shannon_forward_params& p) {
  Kl a = jensen_shannon(kForward, p);
  a.js = view_of<3>(p.js);
  if (!p.js.data && !p.kl_teacher.data && !p.kl_student.data && !p.lse_teacher.data &&
      !p.lse_student.data && a.b && a.s && a.h)
    refuse(
        "%s: js, kl_teacher, kl_student, lse_teacher and lse_student are all absent, wanted one of "
        "them at least",
        kForward);
  return a;
}

KlBackward resolve(const fovea_x_kl_jensen_shannon_backward_params& p) {
  KlBackward a{};
  a.forward = jensen_shannon(kBackward, p);
  KlSide &teacher = a.forward.first, &student = a.forward.second;
  teacher.dq = gradient_of<4>(p.dq_teacher), teacher.dk = gradient_of<4>(p.dk_teacher);
  student.dq = gradient_of<4>(p.dq_student), student.dk = gradient_of<4>(p.dk_student);
  a.dkl = view_of<3>(p.djs);
  return a;
}

}  // namespace

Plan plan(const Context& ctx, const fovea_x_kl_jensen_shannon_forward_params& params) {
  return choose(kForward, ctx, resolve(params), kl_jensen_shannon_forward_host,
                FOVEA_CUDA_KERNELS(kl_jensen_shannon_forward_sm90, kl_jensen_shannon_forward_simt));
}

Plan plan(const Context& ctx, const fovea_x_kl_jensen_shannon_backward_params& params) {
  return choose(
      kBackward, ctx, resolve(params), kl_jensen_shannon_backward_host,
      FOVEA_CUDA_KERNELS(kl_jensen_shannon_backward_sm90, kl_jensen_shannon_backward_simt));
}

}  // namespace fovea
