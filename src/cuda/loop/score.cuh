// SPDX-License-Identifier: Apache-2.0
// Score policy: from the product <q_i, k_j> to the score that enters the softmax.
//   x = scale * dot;  x = softcap * tanh(x / softcap);  score = x - slope * |p_i - p_j| + bias
#pragma once
#include "core/attend.h"
#include "cuda/tile/convert.cuh"

namespace fovea::cuda {

__device__ __forceinline__ float capped(const Score& score, float dot) {
  const float x = score.scale * dot;
  return score.softcap > 0 ? score.softcap * tanhf(x / score.softcap) : x;
}

// d capped / d (scale * dot), from the capped value.
__device__ __forceinline__ float capped_slope(const Score& score, float x) {
  if (score.softcap <= 0) return 1.f;
  const float tanh = x / score.softcap;
  return (1.f - tanh) * (1.f + tanh);
}

__device__ __forceinline__ float alibi_slope(const Score& score, int64_t r, int64_t h) {
  return score.alibi ? score.alibi.as()[r * score.alibi.stride[0] + h * score.alibi.stride[1]]
                     : 0.f;
}

__device__ __forceinline__ float bias_at(const Score& score, const Sequence& q, int64_t h,
                                         int64_t i, int64_t j) {
  if (!score.bias) return 0.f;
  const int64_t* stride = score.bias.stride;
  return load_float(score.bias.data, score.bias_dtype,
                    q.batch * stride[0] + h * stride[1] + (q.row_begin + i) * stride[2] +
                        (q.key_first + j) * stride[3]);
}

// The capped product to the score; `slope` is alibi_slope of the row.
__device__ __forceinline__ float biased(const Score& score, const Sequence& q, float slope,
                                        int64_t h, int64_t i, int64_t j, int64_t p_i, int64_t p_j,
                                        float x) {
  if (score.alibi) x -= slope * static_cast<float>(p_i > p_j ? p_i - p_j : p_j - p_i);
  return x + bias_at(score, q, h, i, j);
}

__device__ __forceinline__ float sink_logit(const Score& score, int64_t h) {
  return score.sink_logit.as()[h * score.sink_logit.stride[0]];
}

}  // namespace fovea::cuda
