// SPDX-License-Identifier: Apache-2.0
// What kernels that copy 16-byte pieces ask of a tensor.
#pragma once
#include <cstdint>

#include "core/attend.h"

namespace fovea {

// Last stride 1, the others and the address whole pieces of `piece` elements; `extent` is that of
// the first three axes (any number > 1 where unknown), whose stride does not count when it is 1.
inline bool in_pieces(const View<4>& x, const int64_t (&extent)[3], int64_t piece) {
  if (x.stride[3] != 1 || reinterpret_cast<uintptr_t>(x.data) % 16) return false;
  for (int i = 0; i < 3; ++i)
    if (extent[i] > 1 && x.stride[i] % piece) return false;
  return true;
}

}  // namespace fovea
