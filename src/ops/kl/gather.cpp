// SPDX-License-Identifier: Apache-2.0
#include "ops/kl/gather.h"

#include "ops/kl/resolve.h"

namespace fovea {

Plan plan(const Context& ctx, const fovea_x_kl_gather_forward_params& params) {
  const KlGather request = resolve(params);
  const char* op = "x_kl_gather_forward";
  if (ctx.backend == FOVEA_HOST) return choose(op, ctx, request, {kl_gather_forward_host});
  return choose<KlGather>(op, ctx, request, {});
}

Plan plan(const Context& ctx, const fovea_x_kl_gather_backward_params& params) {
  const KlGather request = resolve(params);
  const char* op = "x_kl_gather_backward";
  if (ctx.backend == FOVEA_HOST) return choose(op, ctx, request, {kl_gather_backward_host});
  return choose<KlGather>(op, ctx, request, {});
}

}  // namespace fovea
