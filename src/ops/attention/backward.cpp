// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/backward.h"

#include "ops/attention/kernels.h"
#include "ops/attention/resolve.h"

namespace fovea {

Plan plan(const Context& ctx, const fovea_attention_backward_params& params) {
  const AttendBackward request = resolve(params);
  if (ctx.backend == FOVEA_HOST)
    return choose("attention_backward", ctx, request, {attention_backward_host});
#if FOVEA_WITH_CUDA
  return choose("attention_backward", ctx, request,
                {attention_backward_sm90, attention_backward_sm80, attention_backward_simt});
#else
  return choose<AttendBackward>("attention_backward", ctx, request, {});
#endif
}

}  // namespace fovea
