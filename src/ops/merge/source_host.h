// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>

#include "ops/merge/kernels.h"

namespace fovea {

// Inverts row for one part; a repeated row belongs to the last that names it.
inline void invert_row(const Merge& a, int64_t part) {
  int32_t* source = a.source + part * a.s;
  std::fill(source, source + a.s, -1);
  for (int64_t j = 0; j < a.u; ++j) {
    const int64_t i = a.row_of(part, j);
    if (i >= 0 && i < a.s) source[i] = static_cast<int32_t>(j);
  }
}

}  // namespace fovea
