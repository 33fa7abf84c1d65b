// SPDX-License-Identifier: Apache-2.0
// Element types: to f32 and back (round to nearest even), by type or by a dtype known at run time.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "fovea/core.h"

namespace fovea::cuda {

using f16 = __half;
using bf16 = __nv_bfloat16;

template <class T>
constexpr int32_t dtype_of = 0;
template <>
inline constexpr int32_t dtype_of<float> = FOVEA_F32;
template <>
inline constexpr int32_t dtype_of<f16> = FOVEA_F16;
template <>
inline constexpr int32_t dtype_of<bf16> = FOVEA_BF16;

__device__ __forceinline__ float to_float(float x) {
  return x;
}
__device__ __forceinline__ float to_float(f16 x) {
  return __half2float(x);
}
__device__ __forceinline__ float to_float(bf16 x) {
  return __bfloat162float(x);
}

template <class T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ f16 from_float<f16>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ __forceinline__ bf16 from_float<bf16>(float x) {
  return __float2bfloat16_rn(x);
}

// f(T()) for the element type of f32, f16 or bf16.
template <class F>
void with_element(int32_t dtype, F f) {
  if (dtype == FOVEA_F32) return f(float());
  dtype == FOVEA_F16 ? f(f16()) : f(bf16());
}

// The two f16 or bf16 of a word.
template <int Dtype>
__device__ __forceinline__ float2 pair_of(uint32_t x) {
  if constexpr (Dtype == FOVEA_BF16)
    return make_float2(__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u));
  else
    return __half22float2(*reinterpret_cast<const __half2*>(&x));
}

// Element `offset` of an f32, f16 or bf16 array.
__device__ __forceinline__ float load_float(const void* data, int32_t dtype, int64_t offset) {
  if (dtype == FOVEA_F32) return static_cast<const float*>(data)[offset];
  if (dtype == FOVEA_F16) return to_float(static_cast<const f16*>(data)[offset]);
  return to_float(static_cast<const bf16*>(data)[offset]);
}

__device__ __forceinline__ void store_float(void* data, int32_t dtype, int64_t offset, float x) {
  if (dtype == FOVEA_F32)
    static_cast<float*>(data)[offset] = x;
  else if (dtype == FOVEA_F16)
    static_cast<f16*>(data)[offset] = from_float<f16>(x);
  else
    static_cast<bf16*>(data)[offset] = from_float<bf16>(x);
}

}  // namespace fovea::cuda
