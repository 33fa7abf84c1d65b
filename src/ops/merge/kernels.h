// SPDX-License-Identifier: Apache-2.0
// The resolved calls of the merge operations and the kernels plan() chooses from.
#pragma once
#include "core/attend.h"
#include "core/plan.h"

namespace fovea {

struct Merge {
  View<5> o_part;    // (n, b, u, h, e)
  View<4> lse_part;  // (n, b, h, u)
  View<2> row;
  View<4> o;
  View<3> lse;
  int32_t part_dtype, o_dtype;
  int64_t n, b, u, s, h, e;
  // With row: for part n, the part's row that gives row i of o at [n * s + i], or -1.  Workspace.
  int32_t* source;

  FOVEA_HD int64_t source_of(int64_t part, int64_t i) const {
    return source ? source[part * s + i] : i;
  }
  FOVEA_HD int64_t row_of(int64_t part, int64_t j) const {
    return row.as<int32_t>()[part * row.stride[0] + j * row.stride[1]];
  }
  FOVEA_HD float lse_of(int64_t part, int64_t batch, int64_t head, int64_t j) const {
    return lse_part.as<float>()[part * lse_part.stride[0] + batch * lse_part.stride[1] +
                                head * lse_part.stride[2] + j * lse_part.stride[3]];
  }
};

// The larger, or NaN if either is.
FOVEA_HD float greater(float x, float y) {
  return x != x || x > y ? x : y;
}

struct MergeBackward {
  Merge forward;  // o and lse are inputs here
  View<4> dout;
  View<3> dlse;
  View<5> do_part;
  View<4> dlse_part;
};

extern const Kernel<Merge> merge_forward_host;
extern const Kernel<MergeBackward> merge_backward_host;

// CUDA builds only.
extern const Kernel<Merge> merge_forward_cuda;
extern const Kernel<MergeBackward> merge_backward_cuda;

}  // namespace fovea
