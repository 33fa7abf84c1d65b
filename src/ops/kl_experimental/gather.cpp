// SPDX-License-Identifier: Apache-2.0
#include "ops/kl_experimental/gather.h"
#include "core/plan.h"
#include "fovea/experimental/kl.h"
#include "ops/kl/sides.h"

namespace fovea {
namespace {

constexpr char kForward[] = "x_kl_gather_forward";
constexpr char kBackward[] = "x_kl_gather_backward";

template <class P>
KlGather gather(const char* op, const P& p) {
  KlGather a{};
  a.kl = rows_and_keys(op, p);
  a.kl.first = side_of(op, kTeacher, p.q_teacher, p.k_teacher, p.lse_teacher, p.scale_teacher);
  a.kl.second = side_of(op, kStudent, p.q_student, p.k_student, p.lse_student, p.scale_student);
  a.kl.kl = view_of<3>(p.kl);
  a.index = view_of<4>(p.index), a.n = p.index.shape[3];
  return a;
}

KlGather resolve(const fovea_x_kl_gather_forward_params& p) {
  KlGather a = gather(kForward, p);
  if (!p.kl.data && !p.lse_teacher.data && !p.lse_student.data && a.kl.b && a.kl.s && a.kl.h)
    refuse("%s: kl, lse_teacher and lse_student are all absent, wanted one of them at least",
           kForward);
  return a;
}

KlGather resolve(const fovea_x_kl_gather_backward_params& p) {
  KlGather a = gather(kBackward, p);
  KlSide &teacher = a.kl.first, &student = a.kl.second;
  teacher.dq = gradient_of<4>(p.dq_teacher), teacher.dk = gradient_of<4>(p.dk_teacher);
  student.dq = gradient_of<4>(p.dq_student), student.dk = gradient_of<4>(p.dk_student);
  a.dkl = view_of<3>(p.dkl);
  if (!a.n) a.kl.sequences.query_max = 0;  // no row gives anything
  return a;
}

}  // namespace

Plan plan(const Context& ctx, const fovea_x_kl_gather_forward_params& params) {
  return choose(kForward, ctx, resolve(params), kl_gather_forward_host,
                FOVEA_CUDA_KERNELS(kl_gather_forward_sm80, kl_gather_forward_simt));
}

Plan plan(const Context& ctx, const fovea_x_kl_gather_backward_params& params) {
  return choose(kBackward, ctx, resolve(params), kl_gather_backward_host,
                FOVEA_CUDA_KERNELS(kl_gather_backward_sm80, kl_gather_backward_simt));
}

}  // namespace fovea
