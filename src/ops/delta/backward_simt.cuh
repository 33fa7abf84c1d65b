// SPDX-License-Identifier: Apache-2.0
// x_delta_backward, token by token: the kernel of a form.
#pragma once
#include "cuda/loop/recur_backward.cuh"

#define FOVEA_INSTANCE(dtype, columns, form)                          \
  template void fovea::cuda::recur_backward<fovea::Recurrence::form>( \
      fovea::Context&, const char*, const fovea::cuda::RecurBackwardCall&, int64_t, int64_t);
