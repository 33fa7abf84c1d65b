// SPDX-License-Identifier: Apache-2.0
// Public params to resolved calls, with the checks that dims cannot say, and the kernels in order.
#include "core/plan.h"
#include "fovea/experimental/kl.h"
#include "ops/kl/sides.h"
#include "ops/kl_experimental/gather.h"
#include "ops/kl_experimental/indexer.h"
#include "ops/kl_experimental/pool.h"

namespace fovea {
namespace {

constexpr char kOutputs[] = "kl, lse_teacher and lse_student";

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
  Kl a = jensen_shannon("x_kl_jensen_shannon_forward", p);
  a.js = view_of<3>(p.js);
  want_one("x_kl_jensen_shannon_forward", a,
           "js, kl_teacher, kl_student, lse_teacher and lse_student",
           {&p.js, &p.kl_teacher, &p.kl_student, &p.lse_teacher, &p.lse_student});
  return a;
}

KlBackward resolve(const fovea_x_kl_jensen_shannon_backward_params& p) {
  KlBackward a{};
  a.forward = jensen_shannon("x_kl_jensen_shannon_backward", p);
  read_gradients(a.forward.first, a.forward.second, p);
  a.dkl = view_of<3>(p.djs);
  return a;
}

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
  KlIndexer a = indexer("x_kl_indexer_forward", p);
  a.kl = view_of<2>(p.kl);
  want_one("x_kl_indexer_forward", a.teacher, kOutputs, {&p.kl, &p.lse_teacher, &p.lse_student});
  return a;
}

KlIndexer resolve(const fovea_x_kl_indexer_backward_params& p) {
  KlIndexer a = indexer("x_kl_indexer_backward", p);
  a.student.dq = gradient_of<4>(p.dq_student), a.student.dk = gradient_of<4>(p.dk_student);
  a.dweight = gradient_of<3>(p.dweight), a.dkl = view_of<2>(p.dkl);
  return a;
}

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
  KlGather a = gather("x_kl_gather_forward", p);
  want_one("x_kl_gather_forward", a.kl, kOutputs, {&p.kl, &p.lse_teacher, &p.lse_student});
  return a;
}

KlGather resolve(const fovea_x_kl_gather_backward_params& p) {
  KlGather a = gather("x_kl_gather_backward", p);
  read_gradients(a.kl.first, a.kl.second, p);
  a.dkl = view_of<3>(p.dkl);
  if (!a.n) a.kl.sequences.query_max = 0;  // no row gives anything
  return a;
}

constexpr int64_t kBlockKeys = 64;

template <class P>
KlPool pool(const char* op, const P& p) {
  KlPool a{};
  a.kl = sides_of(op, p, false);
  check_not_negative(op, "block_keys", p.block_keys);
  a.block_keys = p.block_keys ? p.block_keys : kBlockKeys;
  if (p.pool != FOVEA_X_POOL_SUM && p.pool != FOVEA_X_POOL_MAX)
    refuse("%s: pool is %d, wanted a fovea_x_pool", op, p.pool);
  a.max = p.pool == FOVEA_X_POOL_MAX;
  a.u = p.k_student.shape[1];
  const int64_t t = a.kl.t, whole = t / a.block_keys;
  const int64_t wanted =
      p.key_start.data ? whole + p.key_start.shape[0] - 1 : whole + (t % a.block_keys != 0);
  if (a.u < wanted)
    refuse("%s: k_student.shape[1] (u) is %lld, wanted at least %lld blocks", op, lld(a.u),
           lld(wanted));
  return a;
}

KlPool resolve(const fovea_x_kl_pool_forward_params& p) {
  KlPool a = pool("x_kl_pool_forward", p);
  a.kl.kl = view_of<3>(p.kl);
  want_one("x_kl_pool_forward", a.kl, kOutputs, {&p.kl, &p.lse_teacher, &p.lse_student});
  return a;
}

KlPool resolve(const fovea_x_kl_pool_backward_params& p) {
  KlPool a = pool("x_kl_pool_backward", p);
  a.kl.second.dq = gradient_of<4>(p.dq_student), a.kl.second.dk = gradient_of<4>(p.dk_student);
  a.dkl = view_of<3>(p.dkl);
  return a;
}

}  // namespace

Plan plan(const Context& ctx, const fovea_x_kl_jensen_shannon_forward_params& params) {
  return choose("x_kl_jensen_shannon_forward", ctx, resolve(params), kl_jensen_shannon_forward_host,
                FOVEA_CUDA_KERNELS(kl_jensen_shannon_forward_sm90, kl_jensen_shannon_forward_simt));
}

Plan plan(const Context& ctx, const fovea_x_kl_jensen_shannon_backward_params& params) {
  return choose(
      "x_kl_jensen_shannon_backward", ctx, resolve(params), kl_jensen_shannon_backward_host,
      FOVEA_CUDA_KERNELS(kl_jensen_shannon_backward_sm90, kl_jensen_shannon_backward_simt));
}

Plan plan(const Context& ctx, const fovea_x_kl_indexer_forward_params& params) {
  return choose("x_kl_indexer_forward", ctx, resolve(params), kl_indexer_forward_host,
                FOVEA_CUDA_KERNELS(kl_indexer_forward_sm90, kl_indexer_forward_sm80,
                                   kl_indexer_forward_simt));
}

Plan plan(const Context& ctx, const fovea_x_kl_indexer_backward_params& params) {
  return choose("x_kl_indexer_backward", ctx, resolve(params), kl_indexer_backward_host,
                FOVEA_CUDA_KERNELS(kl_indexer_backward_sm90, kl_indexer_backward_sm80,
                                   kl_indexer_backward_simt));
}

Plan plan(const Context& ctx, const fovea_x_kl_gather_forward_params& params) {
  return choose("x_kl_gather_forward", ctx, resolve(params), kl_gather_forward_host,
                FOVEA_CUDA_KERNELS(kl_gather_forward_sm80, kl_gather_forward_simt));
}

Plan plan(const Context& ctx, const fovea_x_kl_gather_backward_params& params) {
  return choose("x_kl_gather_backward", ctx, resolve(params), kl_gather_backward_host,
                FOVEA_CUDA_KERNELS(kl_gather_backward_sm80, kl_gather_backward_simt));
}

Plan plan(const Context& ctx, const fovea_x_kl_pool_forward_params& params) {
  return choose("x_kl_pool_forward", ctx, resolve(params), kl_pool_forward_host,
                FOVEA_CUDA_KERNELS(kl_pool_forward_sm80, kl_pool_forward_simt));
}

Plan plan(const Context& ctx, const fovea_x_kl_pool_backward_params& params) {
  return choose(
      "x_kl_pool_backward", ctx, resolve(params), kl_pool_backward_host,
      FOVEA_CUDA_KERNELS(kl_pool_backward_sm90, kl_pool_backward_sm80, kl_pool_backward_simt));
}

}  // namespace fovea
