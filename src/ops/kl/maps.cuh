// SPDX-License-Identifier: Apache-2.0
// The operands of a side as TMA copies them: boxes of so many rows.
#pragma once
#include "cuda/loop/hopper.h"
#include "ops/kl/kernels.h"

namespace fovea::cuda {

inline MapOf rows_of(const Kl& a, const KlSide& x, int64_t heads, int rows) {
  return {x.q, x.dtype, a.b, a.s, heads, x.width, rows};
}
// `keys`: of a cache row, or blocks of them.
inline MapOf keys_of(const Kl& a, const KlSide& x, int64_t keys, int rows) {
  return {x.k, x.dtype, a.sequences.caches, keys, x.key_heads, x.width, rows};
}

}  // namespace fovea::cuda
