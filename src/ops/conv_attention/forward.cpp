// SPDX-License-Identifier: Apache-2.0
#include "ops/conv_attention/forward.h"

#include "ops/conv_attention/kernels.h"
#include "ops/conv_attention/resolve.h"

namespace fovea {

Plan plan(const Context& ctx, const fovea_conv_attention_forward_params& params) {
  const ConvAttend request = resolve(params);
  if (ctx.backend == FOVEA_HOST)
    return choose("conv_attention_forward", ctx, request, {conv_attention_forward_host});
#if FOVEA_WITH_CUDA
  return choose("conv_attention_forward", ctx, request,
                {conv_attention_forward_sm90, conv_attention_forward_simt});
#else
  return choose<ConvAttend>("conv_attention_forward", ctx, request, {});
#endif
}

}  // namespace fovea
