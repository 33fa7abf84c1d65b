// SPDX-License-Identifier: Apache-2.0
#include "core/plan.h"
#include "fovea/attention.h"
#include "ops/attention/kernels.h"
#include "ops/attention/resolve.h"

namespace fovea {

Plan plan(const Context& ctx, const fovea_attention_backward_params& params) {
  return choose("attention_backward", ctx, resolve(params), attention_backward_host,
                FOVEA_CUDA_KERNELS(attention_backward_sm90, attention_backward_sm80,
                                   attention_backward_simt));
}

}  // namespace fovea
