// SPDX-License-Identifier: Apache-2.0
#include "ops/kl/pool.h"

#include "ops/kl/resolve.h"

namespace fovea {

Plan plan(const Context& ctx, const fovea_x_kl_pool_forward_params& params) {
  const KlPool request = resolve(params);
  const char* op = "x_kl_pool_forward";
  if (ctx.backend == FOVEA_HOST) return choose(op, ctx, request, {kl_pool_forward_host});
  return choose<KlPool>(op, ctx, request, {});
}

Plan plan(const Context& ctx, const fovea_x_kl_pool_backward_params& params) {
  const KlPool request = resolve(params);
  const char* op = "x_kl_pool_backward";
  if (ctx.backend == FOVEA_HOST) return choose(op, ctx, request, {kl_pool_backward_host});
  return choose<KlPool>(op, ctx, request, {});
}

}  // namespace fovea
