// SPDX-License-Identifier: Apache-2.0
#include "ops/kl/backward.h"

#include "ops/kl/resolve.h"

namespace fovea {

Plan plan(const Context& ctx, const fovea_kl_backward_params& params) {
  const KlBackward request = resolve(params);
  if (ctx.backend == FOVEA_HOST) return choose("kl_backward", ctx, request, {kl_backward_host});
#if FOVEA_WITH_CUDA
  return choose("kl_backward", ctx, request, {kl_backward_sm90, kl_backward_simt});
#else
  return choose<KlBackward>("kl_backward", ctx, request, {});
#endif
}

}  // namespace fovea
