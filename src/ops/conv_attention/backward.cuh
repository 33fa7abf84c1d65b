// SPDX-License-Identifier: Apache-2.0
// What any kernel of conv_attention_backward needs beside itself.  Before it: zeros for rows and
// keys of no sequence.  After it: the ordered sum of the parts of dweight.
#pragma once
#include "core/workspace.h"
#include "cuda/launch.h"
#include "ops/conv_attention/kernels.h"

namespace fovea::cuda {

// Zeros where no block of a sweep comes: all of dk and dv where keys have heads and rows none.
void conv_clear(Context& ctx, const ConvAttendBackward& b);

// Parts of dweight: (r, h, parts, taps).
struct TapParts {
  const double* sums;
  int64_t parts;
};
void conv_add_dweight(Context& ctx, const ConvAttendBackward& b, const TapParts& parts);

}  // namespace fovea::cuda
