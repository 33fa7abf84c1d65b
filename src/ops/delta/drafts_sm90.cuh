// SPDX-License-Identifier: Apache-2.0
// x_delta_forward, drafts of many heads: the kernels of a form.
#pragma once
#include "cuda/loop/recur_drafts_sm90.cuh"

#define FOVEA_INSTANCE(dtype, columns, form)                        \
  template void fovea::cuda::recur_drafts<fovea::Recurrence::form>( \
      fovea::Context&, const char*, const fovea::cuda::RecurCall&, int64_t);
