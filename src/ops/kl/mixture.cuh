// SPDX-License-Identifier: Apache-2.0
// The mixture of two distributions at one key.
#pragma once
#include "cuda/block/softmax.cuh"

namespace fovea::cuda {

// p (ln(p / m) - kl) with p = e^u, r = e^v, m = share p + (1 - share) r.  The larger of p and r is
// taken out of m: no power overflows.  A p of 0 gives 0, whatever its logarithm is.
__device__ __forceinline__ float mixed_term(float u, float v, float share, float kl) {
  const float p = expf(u), away = v - u;
  const float log_m = away <= 0 ? logf(fmaf(1 - share, expf(away), share))
                                : away + logf(fmaf(share, expf(-away), 1 - share));
  return p == 0 ? 0 : p * (-log_m - kl);
}

// log2(p / m) and log2(r / m) from u = log2 p, v = log2 r, rest = 1 - share, by the fast
// instructions.
struct Mixed {
  float log_p, log_r;
  __device__ __forceinline__ Mixed(float u, float v, float share, float rest) {
    const float away = v - u, far = exp2_fast(-fabsf(away));
    const float log_m = __log2f(away <= 0.f ? fmaf(rest, far, share) : fmaf(share, far, rest));
    log_p = -log_m - fmaxf(away, 0.f), log_r = log_p + away;
  }
};

}  // namespace fovea::cuda
