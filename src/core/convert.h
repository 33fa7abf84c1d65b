// SPDX-License-Identifier: Apache-2.0
// Element types and their conversions to and from f32, written from the format definitions in
// integer arithmetic; host and device agree bit for bit.  Rounding is to nearest even.  f16 and
// bf16 overflow to infinity; e4m3, e5m2 and i8 saturate, infinities included.  A NaN stays NaN, in
// one canonical encoding (i8, which has none: 0).
//   format  exponent  mantissa  bias  largest
//   f16        5         10      15   65504
//   bf16       8          7     127   3.39e38
//   e4m3       4          3       7   448      no infinity, NaN is s.1111.111
//   e5m2       5          2      15   57344
#pragma once
#include <cstdint>

#include "core/attend.h"
#include "core/status.h"

namespace fovea {

struct F16 {
  uint16_t bits;
};
struct Bf16 {
  uint16_t bits;
};
struct E4m3 {
  uint8_t bits;
};
struct E5m2 {
  uint8_t bits;
};

FOVEA_HD uint32_t bits_of(float x) {
  return __builtin_bit_cast(uint32_t, x);
}
FOVEA_HD float float_of(uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}
FOVEA_HD float quiet_nan() {
  return float_of(0x7fffffffu);
}

// A computed NaN has one encoding on every machine.
FOVEA_HD float canonical(double x) {
  return x != x ? quiet_nan() : static_cast<float>(x);
}

// A small format with E exponent and M mantissa bits.  `Finite`: saturates, see above; `Infinity`:
// the top exponent is reserved for infinity and NaN.
template <int E, int M, bool Infinity, bool Finite>
struct SmallFloat {
  static constexpr int kBias = (1 << (E - 1)) - 1;
  static constexpr uint32_t kNan = (1u << (E + M)) - 1;  // all ones below the sign
  static constexpr uint32_t kInfinity = ((1u << E) - 1) << M;
  static constexpr uint32_t kLargest = Infinity ? kInfinity - 1 : kNan - 1;

  static FOVEA_HD uint32_t encode(float x) {
    const uint32_t bits = bits_of(x), magnitude = bits & 0x7fffffffu;
    const uint32_t sign = bits >> 31 << (E + M);
    if (magnitude > 0x7f800000u) return kNan;
    const int exponent = static_cast<int>(magnitude >> 23) - 127 + kBias;  // as a normal number
    uint32_t code;
    if (exponent >= 1) {
      // Rounding carries from the mantissa into the exponent by itself.
      const uint32_t drop = 23 - M, half = (1u << (drop - 1)) - 1;
      const uint32_t rounded = magnitude + half + (magnitude >> drop & 1);
      code = (rounded >> drop) - (static_cast<uint32_t>(127 - kBias) << M);
    } else {
      // Subnormal: the implicit one joins the mantissa, which moves right by 1 - exponent more.
      const int drop = 23 - M + 1 - exponent;
      const uint32_t mantissa = (magnitude & 0x7fffffu) | (magnitude >> 23 ? 0x800000u : 0u);
      const uint32_t half = drop > 25 ? 0 : (1u << (drop - 1)) - 1;
      code = drop > 25 ? 0 : (mantissa + half + (mantissa >> drop & 1)) >> drop;
    }
    const uint32_t most = Finite ? kLargest : kInfinity;
    return sign | (code > most ? most : code);
  }

  static FOVEA_HD float decode(uint32_t code) {
    const uint32_t sign = code >> (E + M) << 31, magnitude = code & kNan;
    if (Infinity ? magnitude > kInfinity : magnitude == kNan) return quiet_nan();
    if (Infinity && magnitude == kInfinity) return float_of(sign | 0x7f800000u);
    if (magnitude >> M)
      return float_of(sign |
                      ((magnitude << (23 - M)) + (static_cast<uint32_t>(127 - kBias) << 23)));
    // Subnormal: mantissa * 2^(1 - bias - M), exact in f32.
    const float value =
        static_cast<float>(magnitude) * float_of(static_cast<uint32_t>(127 + 1 - kBias - M) << 23);
    return float_of(sign | bits_of(value));
  }
};

using FormatF16 = SmallFloat<5, 10, true, false>;
using FormatE4m3 = SmallFloat<4, 3, false, true>;
using FormatE5m2 = SmallFloat<5, 2, true, true>;

FOVEA_HD float to_float(float x) {
  return x;
}
FOVEA_HD float to_float(Bf16 x) {
  return float_of(static_cast<uint32_t>(x.bits) << 16);
}
FOVEA_HD float to_float(E4m3 x) {
  return FormatE4m3::decode(x.bits);
}
FOVEA_HD float to_float(E5m2 x) {
  return FormatE5m2::decode(x.bits);
}
FOVEA_HD float to_float(int8_t x) {
  return static_cast<float>(x);
}
FOVEA_HD float to_float(F16 x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
#else
  return FormatF16::decode(x.bits);
#endif
}

// The device instructions below were compared with the integer form over all 2^32 inputs.
template <class T>
FOVEA_HD T from_float(float x);
template <>
FOVEA_HD float from_float<float>(float x) {
  return x;
}
template <>
FOVEA_HD F16 from_float<F16>(float x) {
#ifdef __CUDA_ARCH__
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return {bits};
#else
  return {static_cast<uint16_t>(FormatF16::encode(x))};
#endif
}
template <>
FOVEA_HD Bf16 from_float<Bf16>(float x) {
#ifdef __CUDA_ARCH__
  uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return {bits};
#else
  const uint32_t bits = bits_of(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {0x7fff};
  return {static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16)};
#endif
}
template <>
FOVEA_HD E4m3 from_float<E4m3>(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
  return {static_cast<uint8_t>(pair)};
#else
  return {static_cast<uint8_t>(FormatE4m3::encode(x))};
#endif
}
template <>
FOVEA_HD E5m2 from_float<E5m2>(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint16_t pair;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
  return {static_cast<uint8_t>(pair)};
#else
  return {static_cast<uint8_t>(FormatE5m2::encode(x))};
#endif
}
template <>
FOVEA_HD int8_t from_float<int8_t>(float x) {
  if (x != x) return 0;
  if (x <= -128.0f) return -128;
  if (x >= 127.0f) return 127;
  // Adding and taking off 1.5 * 2^23 leaves the nearest even integer, and no compiler may reorder
  // it.
  const float shift = 12582912.0f;
  return static_cast<int8_t>(static_cast<int32_t>(bits_of(x + shift)) -
                             static_cast<int32_t>(bits_of(shift)));
}

// Element `offset` of an f32, f16 or bf16 array.
FOVEA_HD float load_fp(const void* data, int32_t dtype, int64_t offset) {
  if (dtype == FOVEA_F32) return static_cast<const float*>(data)[offset];
  if (dtype == FOVEA_F16) return to_float(static_cast<const F16*>(data)[offset]);
  return to_float(static_cast<const Bf16*>(data)[offset]);
}
FOVEA_HD void store_fp(void* data, int32_t dtype, int64_t offset, float x) {
  if (dtype == FOVEA_F32)
    static_cast<float*>(data)[offset] = x;
  else if (dtype == FOVEA_F16)
    static_cast<F16*>(data)[offset] = from_float<F16>(x);
  else
    static_cast<Bf16*>(data)[offset] = from_float<Bf16>(x);
}

// Calls f with a value of the element type of `dtype`; the contract has already refused the others.
template <class F>
decltype(auto) with_fp(int32_t dtype, F&& f) {
  switch (dtype) {
    case FOVEA_F32:
      return f(float{});
    case FOVEA_F16:
      return f(F16{});
    case FOVEA_BF16:
      return f(Bf16{});
  }
  fail(FOVEA_INTERNAL_ERROR, "dtype %d is not f32, f16 or bf16", dtype);
}

template <class F>
decltype(auto) with_cache_type(int32_t dtype, F&& f) {
  switch (dtype) {
    case FOVEA_E4M3:
      return f(E4m3{});
    case FOVEA_E5M2:
      return f(E5m2{});
    case FOVEA_I8:
      return f(int8_t{});
  }
  return with_fp(dtype, static_cast<F&&>(f));
}

}  // namespace fovea
