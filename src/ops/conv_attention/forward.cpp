// SPDX-License-Identifier: Apache-2.0
#include "core/plan.h"
#include "fovea/conv_attention.h"
#include "ops/conv_attention/kernels.h"
#include "ops/conv_attention/resolve.h"

namespace fovea {

Plan plan(const Context& ctx, const fovea_conv_attention_forward_params& params) {
  return choose("conv_attention_forward", ctx, resolve(params), conv_attention_forward_host,
                FOVEA_CUDA_KERNELS(conv_attention_forward_sm90, conv_attention_forward_simt));
}

}  // namespace fovea
