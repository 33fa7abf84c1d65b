// SPDX-License-Identifier: Apache-2.0
// A call of the family, resolved, and the kernels plan() chooses from.
#pragma once
#include "core/attend.h"
#include "core/plan.h"

namespace fovea {

struct GroupNorm {
  View<4> x, y;  // y: dy in the backward
  View<2> gain;  // (h, e); not given: 1
  IntVector query_len;
  int32_t dtype, y_dtype, gain_dtype;
  int64_t b, s, h, e;
  float factor, eps;

  FOVEA_HD int64_t rows(int64_t batch) const {
    return query_len ? clamp_i64(query_len[batch], 0, s) : s;
  }
};

struct GroupNormBackward {
  GroupNorm forward;
  View<4> dx;
  View<2> dgain;
  // Parts that the rows of all batches are cut into for dgain, by shapes alone.
  static constexpr int64_t kPartsMost = 256;
  static constexpr int64_t kPartRows = 64;  // the least rows worth a part
  FOVEA_HD int64_t parts() const {
    return clamp_i64(forward.b * forward.s / kPartRows, 1, kPartsMost);
  }
};

extern const Kernel<GroupNorm> group_norm_forward_host;
extern const Kernel<GroupNormBackward> group_norm_backward_host;

// CUDA builds only.
extern const Kernel<GroupNorm> group_norm_forward_simt;
extern const Kernel<GroupNormBackward> group_norm_backward_simt;

}  // namespace fovea
