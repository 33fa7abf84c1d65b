// SPDX-License-Identifier: Apache-2.0
// f32, f16 and bf16 elements to and from float, one at a time; simd.h has whole rows.
#pragma once
#include <cstdint>
#include <cstring>

#include "fovea/core.h"

namespace fovea::host {

inline float float_of_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

inline uint32_t bits_of_float(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline float bf16_to_float(uint16_t x) {
  return float_of_bits(static_cast<uint32_t>(x) << 16);
}

inline float f16_to_float(uint16_t x) {
  const uint32_t sign = static_cast<uint32_t>(x & 0x8000) << 16;
  const uint32_t rest = static_cast<uint32_t>(x & 0x7fff) << 13;
  // A float with the same exponent field is 2^112 too small; subnormals come out right as well.
  const uint32_t bits = bits_of_float(float_of_bits(rest) * 0x1p112f);
  return float_of_bits(sign | ((x & 0x7c00) == 0x7c00 ? rest | 0x7f800000 : bits));
}

// Both round to nearest even; NaN stays NaN.
inline uint16_t float_to_bf16(float x) {
  const uint32_t bits = bits_of_float(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline uint16_t float_to_f16(float x) {
  const uint32_t bits = bits_of_float(x);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t size = bits & 0x7fffffff;
  if (size > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00 | (size >> 13 & 0x3ff));
  if (size >= 0x477ff000) return sign | 0x7c00;  // rounds past 65504
  if (size < 0x38800000) {
    // Subnormal: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits.
    return static_cast<uint16_t>(sign |
                                 (bits_of_float(float_of_bits(size) + 0.5f) - bits_of_float(0.5f)));
  }
  return static_cast<uint16_t>(sign | ((size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13));
}

inline float load_element(const void* data, int32_t dtype, int64_t i) {
  switch (dtype) {
    case FOVEA_F16:
      return f16_to_float(static_cast<const uint16_t*>(data)[i]);
    case FOVEA_BF16:
      return bf16_to_float(static_cast<const uint16_t*>(data)[i]);
    default:
      return static_cast<const float*>(data)[i];
  }
}

inline void store_element(void* data, int32_t dtype, int64_t i, float x) {
  switch (dtype) {
    case FOVEA_F16:
      static_cast<uint16_t*>(data)[i] = float_to_f16(x);
      return;
    case FOVEA_BF16:
      static_cast<uint16_t*>(data)[i] = float_to_bf16(x);
      return;
    default:
      static_cast<float*>(data)[i] = x;
      return;
  }
}

}  // namespace fovea::host
