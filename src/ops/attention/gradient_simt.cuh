// SPDX-License-Identifier: Apache-2.0
// The f32 kernels of attention_backward's sums, a file for each owner and width (gradient.inc).
#pragma once
#include "cuda/loop/attend_bwd_simt.cuh"
#include "ops/attention/backward_simt.cuh"

#define FOVEA_INSTANCE(dtype, columns, owner)                                          \
  template void fovea::cuda::launch_gradient<fovea::cuda::Owner::owner, columns / 64>( \
      fovea::Context&, const char*, const fovea::cuda::BackwardSimt&);
