// SPDX-License-Identifier: Apache-2.0
// Queries whose product with (largest, smallest) of a key block is the bound of RocketKV:
//   y = (q_c where c is of R and the sum of q_c over the key head's queries is > 0, else 0;
//        q_c where c is of R and the sum is not, else 0) / sqrt(|q_R|_1 / |q|_1)
//   R = the `subset` columns with the largest sum of |q_c| over the key head's queries
#pragma once
#include "core/attend.h"
#include "core/locate.h"
#include "core/plan.h"

namespace fovea {

constexpr int64_t kSignedWidthMost = 288;  // y is twice as wide, and a row of x_select_block

struct SignedRows {
  View<4> q, y;  // y (b, s, h, 2 d) f32
  Sequences sequences;
  int32_t dtype;
  int64_t h, g, d, subset;
  FOVEA_HD int64_t group() const { return h / g; }
};

extern const Kernel<SignedRows> signed_rows_host;

// CUDA builds only.
extern const Kernel<SignedRows> signed_rows_simt;

}  // namespace fovea
