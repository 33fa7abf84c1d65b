// SPDX-License-Identifier: Apache-2.0
// Keys and values that may be codes of 8 bits, read as f32: code * scale.
#pragma once
#include <algorithm>

#include "core/convert.h"
#include "cuda/block/stage.cuh"

namespace fovea::cuda {

// k or v.  A code counts times the scale of its part of the row, `columns` wide.
struct KeyOperand : Operand {
  bool codes;
  int32_t columns;
  View<4> scale;
};

// Column `column` of the row that starts at element `row`.
inline __device__ float load_key(const KeyOperand& x, int64_t row, int64_t scale, int column) {
  const int64_t at = row + column * x.column_stride;
  if (!x.codes) return load_float(x.data, x.dtype, at);
  const uint8_t code = static_cast<const uint8_t*>(x.data)[at];
  const float value = x.dtype == FOVEA_E4M3   ? fovea::to_float(E4m3{code})
                      : x.dtype == FOVEA_E5M2 ? fovea::to_float(E5m2{code})
                                              : static_cast<float>(static_cast<int8_t>(code));
  return x.scale ? value * x.scale.as()[scale + column / x.columns * x.scale.stride[3]] : value;
}

// Four columns of a row of codes; a row < 0 is all zero.
inline __device__ __noinline__ float4 load_codes(const KeyOperand& x, int64_t row, int64_t scale,
                                                 int column) {
  float out[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    out[i] = row >= 0 && column + i < x.width ? load_key(x, row, scale, column + i) : 0.f;
  return {out[0], out[1], out[2], out[3]};
}

// The same whether x holds codes or not.
__device__ __forceinline__ float4 load_keys(const KeyOperand& x, int64_t row, int64_t scale,
                                            int column) {
  return x.codes ? load_codes(x, row, scale, column) : load_four(x, row, column);
}

inline KeyOperand key_operand(const Attend& a, const View<4>& view, int32_t dtype, int64_t width,
                              const View<4>& scale) {
  return {operand_of(view, dtype, width), dtype != a.dtype,
          static_cast<int32_t>(width / std::max<int64_t>(a.groups, 1)), scale};
}

}  // namespace fovea::cuda
