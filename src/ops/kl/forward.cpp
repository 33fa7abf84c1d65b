// SPDX-License-Identifier: Apache-2.0
#include "ops/kl/forward.h"

#include "ops/kl/resolve.h"

namespace fovea {

Plan plan(const Context& ctx, const fovea_kl_forward_params& params) {
  const Kl request = resolve(params);
  if (ctx.backend == FOVEA_HOST) return choose("kl_forward", ctx, request, {kl_forward_host});
  return choose<Kl>("kl_forward", ctx, request, {});
}

}  // namespace fovea
