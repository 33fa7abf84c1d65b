// SPDX-License-Identifier: Apache-2.0
#include "ops/kl/jensen_shannon.h"

#include "ops/kl/resolve.h"

namespace fovea {

Plan plan(const Context& ctx, const fovea_x_kl_jensen_shannon_forward_params& params) {
  const Kl request = resolve(params);
  const char* op = "x_kl_jensen_shannon_forward";
  if (ctx.backend == FOVEA_HOST) return choose(op, ctx, request, {kl_jensen_shannon_forward_host});
  return choose<Kl>(op, ctx, request, {});
}

Plan plan(const Context& ctx, const fovea_x_kl_jensen_shannon_backward_params& params) {
  const KlBackward request = resolve(params);
  const char* op = "x_kl_jensen_shannon_backward";
  if (ctx.backend == FOVEA_HOST) return choose(op, ctx, request, {kl_jensen_shannon_backward_host});
  return choose<KlBackward>(op, ctx, request, {});
}

}  // namespace fovea
