// SPDX-License-Identifier: Apache-2.0
// Public params to kernels.h, with the checks dims cannot say.
#pragma once
#include "fovea/experimental/kl.h"
#include "fovea/kl.h"
#include "ops/kl/kernels.h"

namespace fovea {

Kl resolve(const fovea_kl_forward_params& params);
KlBackward resolve(const fovea_kl_backward_params& params);
Kl resolve(const fovea_x_kl_jensen_shannon_forward_params& params);
KlBackward resolve(const fovea_x_kl_jensen_shannon_backward_params& params);

KlIndexer resolve(const fovea_x_kl_indexer_forward_params& params);
KlIndexer resolve(const fovea_x_kl_indexer_backward_params& params);

KlGather resolve(const fovea_x_kl_gather_forward_params& params);
KlGather resolve(const fovea_x_kl_gather_backward_params& params);

KlPool resolve(const fovea_x_kl_pool_forward_params& params);
KlPool resolve(const fovea_x_kl_pool_backward_params& params);

}  // namespace fovea
