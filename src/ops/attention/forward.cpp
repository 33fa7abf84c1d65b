// SPDX-License-Identifier: Apache-2.0
#include "core/plan.h"
#include "fovea/attention.h"
#include "ops/attention/kernels.h"
#include "ops/attention/resolve.h"

namespace fovea {

Plan plan(const Context& ctx, const fovea_attention_forward_params& params) {
  return choose(
      "attention_forward", ctx, resolve(params), attention_forward_host,
      FOVEA_CUDA_KERNELS(attention_forward_sm90, attention_forward_sm80, attention_forward_simt));
}

}  // namespace fovea
