// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/forward.h"

#include "ops/attention/kernels.h"
#include "ops/attention/resolve.h"

namespace fovea {

Plan plan(const Context& ctx, const fovea_attention_forward_params& params) {
  const Attend request = resolve(params);
  if (ctx.backend == FOVEA_HOST)
    return choose("attention_forward", ctx, request, {attention_forward_host});
#if FOVEA_WITH_CUDA
  return choose("attention_forward", ctx, request,
                {attention_forward_sm90, attention_forward_sm80, attention_forward_simt});
#else
  return choose<Attend>("attention_forward", ctx, request, {});
#endif
}

}  // namespace fovea
