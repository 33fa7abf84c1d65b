// SPDX-License-Identifier: Apache-2.0
#include "core/plan.h"
#include "fovea/kl.h"
#include "ops/kl/resolve.h"

namespace fovea {

Plan plan(const Context& ctx, const fovea_kl_backward_params& params) {
  return choose("kl_backward", ctx, resolve(params), kl_backward_host,
                FOVEA_CUDA_KERNELS(kl_backward_sm90, kl_backward_simt));
}

}  // namespace fovea
