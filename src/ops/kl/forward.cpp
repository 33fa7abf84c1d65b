// SPDX-License-Identifier: Apache-2.0
#include "core/plan.h"
#include "fovea/kl.h"
#include "ops/kl/resolve.h"

namespace fovea {

Plan plan(const Context& ctx, const fovea_kl_forward_params& params) {
  return choose("kl_forward", ctx, resolve(params), kl_forward_host,
                FOVEA_CUDA_KERNELS(kl_forward_sm90, kl_forward_simt));
}

}  // namespace fovea
