// SPDX-License-Identifier: Apache-2.0
#include "ops/conv_attention/backward.h"

#include "ops/conv_attention/kernels.h"
#include "ops/conv_attention/resolve.h"

namespace fovea {

Plan plan(const Context& ctx, const fovea_conv_attention_backward_params& params) {
  const ConvAttendBackward request = resolve(params);
  if (ctx.backend == FOVEA_HOST)
    return choose("conv_attention_backward", ctx, request, {conv_attention_backward_host});
#if FOVEA_WITH_CUDA
  return choose("conv_attention_backward", ctx, request,
                {conv_attention_backward_sm90, conv_attention_backward_simt});
#else
  return choose<ConvAttendBackward>("conv_attention_backward", ctx, request, {});
#endif
}

}  // namespace fovea
