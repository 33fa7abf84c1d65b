// SPDX-License-Identifier: Apache-2.0
// What forward and backward of x_compressed share.
#pragma once
#include "core/status.h"
#include "core/text.h"
#include "fovea/core.h"

namespace fovea::compressed {

inline int64_t or_else(int64_t value, int64_t otherwise) {
  return value ? value : otherwise;
}

inline void check_step(const char* op, int64_t step) {
  constexpr int64_t most = 1 << 16;
  if (step < 0 || step > most)
    refuse("%s: compress_step is %lld, wanted 1 .. %lld, or 0 for 4", op, lld(step), lld(most));
}

inline void check_keys(const char* op, int64_t keys) {
  if (keys > INT32_MAX)
    fail(FOVEA_UNSUPPORTED, "%s: a sequence has up to %lld keys, wanted at most %d", op, lld(keys),
         INT32_MAX);
}

// x (b, s, ...) as the lists of one list head.
inline fovea_tensor as_list(const fovea_tensor& x) {
  fovea_tensor y = x;
  y.ndim = x.ndim + 1;
  y.shape[1] = 1, y.stride[1] = x.stride[0];
  for (int axis = 1; axis < x.ndim; ++axis)
    y.shape[axis + 1] = x.shape[axis], y.stride[axis + 1] = x.stride[axis];
  return y;
}

}  // namespace fovea::compressed
