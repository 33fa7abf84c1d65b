// SPDX-License-Identifier: Apache-2.0
#include "ops/kl_experimental/indexer.h"
#include "core/plan.h"
#include "fovea/experimental/kl.h"
#include "ops/kl/sides.h"

namespace fovea {
namespace {

constexpr char kForward[] = "x_kl_indexer_forward";
constexpr char kBackward[] = "x_kl_indexer_backward";

template <class P>
KlIndexer indexer(const char* op, const P& p) {
  KlIndexer a{};
  a.teacher = rows_and_keys(op, p);
  a.teacher.first = side_of(op, kTeacher, p.q_teacher, p.k_teacher, p.lse_teacher, p.scale_teacher);
  a.student = plain_side(op, kStudent, p.q_student, p.k_student);
  if (p.q_teacher.shape[2] < 1) refuse("%s: q_teacher.shape[2] (h) is 0, wanted >= 1", op);
  if (p.q_student.shape[2] < 1) refuse("%s: q_student.shape[2] (x) is 0, wanted >= 1", op);
  a.teacher.mask.window = read_window(op, p);
  read_sinks(a.teacher.mask.window, op, p);
  a.heads = p.q_student.shape[2], a.weight = view_of<3>(p.weight);
  a.lse = view_of<2>(p.lse_student);
  return a;
}

KlIndexer resolve(const fovea_x_kl_indexer_forward_params& p) {
  KlIndexer a = indexer(kForward, p);
  a.kl = view_of<2>(p.kl);
  if (!p.kl.data && !p.lse_teacher.data && !p.lse_student.data && a.teacher.b && a.teacher.s)
    refuse("%s: kl, lse_teacher and lse_student are all absent, wanted one of them at least",
           kForward);
  return a;
}

KlIndexer resolve(const fovea_x_kl_indexer_backward_params& p) {
  KlIndexer a = indexer(kBackward, p);
  a.student.dq = gradient_of<4>(p.dq_student), a.student.dk = gradient_of<4>(p.dk_student);
  a.dweight = gradient_of<3>(p.dweight), a.dkl = view_of<2>(p.dkl);
  return a;
}

}  // namespace

Plan plan(const Context& ctx, const fovea_x_kl_indexer_forward_params& params) {
  return choose(kForward, ctx, resolve(params), kl_indexer_forward_host,
                FOVEA_CUDA_KERNELS(kl_indexer_forward_sm90, kl_indexer_forward_sm80,
                                   kl_indexer_forward_simt));
}

Plan plan(const Context& ctx, const fovea_x_kl_indexer_backward_params& params) {
  return choose(kBackward, ctx, resolve(params), kl_indexer_backward_host,
                FOVEA_CUDA_KERNELS(kl_indexer_backward_sm90, kl_indexer_backward_sm80,
                                   kl_indexer_backward_simt));
}

}  // namespace fovea
