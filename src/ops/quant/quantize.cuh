// SPDX-License-Identifier: Apache-2.0
// What the two quantising kernels share: maxima of blocks and of sequences.
#pragma once
#include "ops/quant/quantize.h"

namespace fovea::cuda {

// What a pass over x leaves: scales and codes; maxima in the workspace; scales and codes from
// these.
enum class Pass { all, maxima, codes };

// Of a block of threads, or of each of its `parts` equal parts, 1 or 2; every thread gets its own
// part's.  x >= 0 or NaN, whose bits are ordered as the numbers are, a NaN last.  s holds 2 values.
__device__ inline float block_greatest(float x, uint32_t* s, unsigned parts = 1) {
  const uint32_t bits = __reduce_max_sync(~0u, bits_of(x));
  uint32_t& own = s[threadIdx.x * parts / blockDim.x];
  __syncthreads();
  if (threadIdx.x < 2) s[threadIdx.x] = 0;
  __syncthreads();
  if (threadIdx.x % 32 == 0) atomicMax(&own, bits);
  __syncthreads();
  return float_of(own);
}

// The greatest of a sequence's units, which left `most` (units, h).
__device__ inline float sequence_greatest(const Quantize& a, const CodeUnit& unit, int64_t slot,
                                          int64_t head, const float* most, uint32_t* s) {
  const Interval units = units_of(a, unit, slot);
  float top = 0;
  for (int64_t i = units.begin + threadIdx.x; i < units.end; i += blockDim.x)
    top = greatest(top, most[i * a.h + head]);
  return block_greatest(top, s);
}

}  // namespace fovea::cuda
