// SPDX-License-Identifier: Apache-2.0
#include "ops/kl_experimental/pool.h"
#include "core/plan.h"
#include "fovea/experimental/kl.h"
#include "ops/kl/sides.h"

namespace fovea {
namespace {

constexpr char kForward[] = "x_kl_pool_forward";
constexpr char kBackward[] = "x_kl_pool_backward";

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
  KlPool a = pool(kForward, p);
  a.kl.kl = view_of<3>(p.kl);
  if (!p.kl.data && !p.lse_teacher.data && !p.lse_student.data && a.kl.b && a.kl.s && a.kl.h)
    refuse("%s: kl, lse_teacher and lse_student are all absent, wanted one of them at least",
           kForward);
  return a;
}

KlPool resolve(const fovea_x_kl_pool_backward_params& p) {
  KlPool a = pool(kBackward, p);
  a.kl.second.dq = gradient_of<4>(p.dq_student), a.kl.second.dk = gradient_of<4>(p.dk_student);
  a.dkl = view_of<3>(p.dkl);
  return a;
}

}  // namespace

Plan plan(const Context& ctx, const fovea_x_kl_pool_forward_params& params) {
  return choose(kForward, ctx, resolve(params), kl_pool_forward_host,
                FOVEA_CUDA_KERNELS(kl_pool_forward_sm80, kl_pool_forward_simt));
}

Plan plan(const Context& ctx, const fovea_x_kl_pool_backward_params& params) {
  return choose(
      kBackward, ctx, resolve(params), kl_pool_backward_host,
      FOVEA_CUDA_KERNELS(kl_pool_backward_sm90, kl_pool_backward_sm80, kl_pool_backward_simt));
}

}  // namespace fovea
