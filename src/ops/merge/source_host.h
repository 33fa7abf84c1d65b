// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>

#include "host/parallel.h"
#include "ops/merge/kernels.h"

namespace fovea {

// Inverts row for each part, if it is given; a repeated row belongs to the last that names it.
inline void invert_rows(host::Pool& pool, const Merge& a) {
  if (!a.source) return;
  pool.run(a.n, static_cast<double>(a.n * (a.u + a.s)), [&](int64_t part, int32_t) {
    int32_t* source = a.source + part * a.s;
    std::fill(source, source + a.s, -1);
    for (int64_t j = 0; j < a.u; ++j) {
      const int64_t i = a.row_of(part, j);
      if (i >= 0 && i < a.s) source[i] = static_cast<int32_t>(j);
    }
  });
}

}  // namespace fovea
