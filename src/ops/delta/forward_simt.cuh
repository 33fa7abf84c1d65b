// SPDX-License-Identifier: Apache-2.0
// x_delta_forward, token by token: the kernel of a form.
#pragma once
#include "cuda/loop/recur_forward.cuh"

#define FOVEA_INSTANCE(dtype, columns, form)                         \
  template void fovea::cuda::recur_forward<fovea::Recurrence::form>( \
      fovea::Context&, const char*, const fovea::cuda::RecurCall&, int64_t);
