// SPDX-License-Identifier: Apache-2.0
#include "ops/kl/backward.h"

#include "ops/kl/resolve.h"

namespace fovea {

Plan plan(const Context& ctx, const fovea_kl_backward_params& params) {
  const KlBackward request = resolve(params);
  if (ctx.backend == FOVEA_HOST) return choose("kl_backward", ctx, request, {kl_backward_host});
  return choose<KlBackward>("kl_backward", ctx, request, {});
}

}  // namespace fovea
