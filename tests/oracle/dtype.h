// SPDX-License-Identifier: Apache-2.0
// Element types, from their definitions: value = sign * mantissa * 2^exponent, rounded to nearest
// even.  Doubles in, bytes out, and back.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "generated/headers.h"
#include "harness/random.h"

namespace oracle {

// A small float: `mantissa` explicit bits, exponent field of `exponent` bits.
struct Format {
  int exponent, mantissa;
  bool infinities;  // e4m3 (fn) has none: the top exponent holds numbers, all ones is NaN
  double largest;
};

inline Format format_of(int dtype) {
  switch (dtype) {
    case FOVEA_F16:
      return {5, 10, true, 65504.0};
    case FOVEA_BF16:
      return {8, 7, true, 3.3895313892515355e38};
    case FOVEA_E4M3:
      return {4, 3, false, 448.0};
    default:
      return {5, 2, true, 57344.0};  // E5M2
  }
}

inline bool is_float(int dtype) {
  return dtype <= FOVEA_E5M2;
}
inline bool is_fp8(int dtype) {
  return dtype == FOVEA_E4M3 || dtype == FOVEA_E5M2;
}

inline int64_t bytes_of(int dtype) {
  switch (dtype) {
    case FOVEA_F32:
    case FOVEA_I32:
      return 4;
    case FOVEA_F16:
    case FOVEA_BF16:
      return 2;
    case FOVEA_I64:
      return 8;
    default:
      return 1;
  }
}

// Half the distance of 1 to its neighbour: the largest relative error of one rounding.
inline double unit_of(int dtype) {
  if (!is_float(dtype)) return 0;
  if (dtype == FOVEA_F32) return std::ldexp(1.0, -24);
  return std::ldexp(1.0, -1 - format_of(dtype).mantissa);
}

// The distance of the format's numbers around x.
inline double step_of(const Format& f, double x) {
  const int lowest = 2 - (1 << (f.exponent - 1));  // exponent of the smallest normal number
  int exponent;
  std::frexp(x, &exponent);
  return std::ldexp(1.0, (exponent - 1 > lowest ? exponent - 1 : lowest) - f.mantissa);
}

inline double round_small(const Format& f, double x, bool saturate) {
  if (std::isnan(x) || x == 0) return x;
  if (std::isinf(x)) return saturate ? std::copysign(f.largest, x) : x;
  const double step = step_of(f, x);
  const double y = std::nearbyint(x / step) * step;
  if (std::abs(y) <= f.largest) return y;
  if (saturate) return std::copysign(f.largest, x);
  return std::copysign(f.infinities ? HUGE_VAL : NAN, x);
}

// The value that x has once stored as dtype.  8-bit types saturate, and i8 has no NaN, as
// cache_append says.
inline double nearest(int dtype, double x) {
  switch (dtype) {
    case FOVEA_F32:
      return static_cast<float>(x);
    case FOVEA_F16:
    case FOVEA_BF16:
      return round_small(format_of(dtype), x, false);
    case FOVEA_E4M3:
    case FOVEA_E5M2:
      return round_small(format_of(dtype), x, true);
    case FOVEA_I8: {
      const double y = std::isnan(x) ? 0 : std::nearbyint(x);
      return y < -128 ? -128 : y > 127 ? 127 : y;
    }
    default:
      return x;
  }
}

// Which draw of roundings to 16 bits this thread makes: 0 is to nearest.
inline uint64_t& rounding_draw() {
  static thread_local uint64_t draw = 0;
  return draw;
}
struct RoundingDraw {
  explicit RoundingDraw(uint64_t draw) { rounding_draw() = draw; }
  ~RoundingDraw() { rounding_draw() = 0; }
  RoundingDraw(const RoundingDraw&) = delete;
};

// `y` is x to nearest.  Another draw goes to the nearest point of a grid that is moved by a part of
// its step: its error is another one of the same size.  What the type holds stays.
inline double drawn(const Format& f, double x, double y) {
  if (!rounding_draw() || y == x || !std::isfinite(y)) return y;
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const harness::Random random(rounding_draw());
  const double step = step_of(f, x), part = step * (random.uniform(bits) - 0.5);
  return std::nearbyint((x - part) / step) * step + part;
}

// As a kernel rounds an intermediate number or an output.
inline double round_to(int dtype, double x) {
  const double y = nearest(dtype, x);
  return dtype == FOVEA_F16 || dtype == FOVEA_BF16 ? drawn(format_of(dtype), x, y) : y;
}

inline uint32_t encode_small(const Format& f, double x) {
  const uint32_t sign = std::signbit(x) ? 1u << (f.exponent + f.mantissa) : 0;
  const uint32_t top = (1u << f.exponent) - 1;
  if (std::isnan(x))
    return sign | (f.infinities ? top << f.mantissa | 1u << (f.mantissa - 1) : 0x7f);
  if (std::isinf(x)) return sign | top << f.mantissa;
  const double a = std::abs(x);
  if (a == 0) return sign;
  const int bias = (1 << (f.exponent - 1)) - 1;
  int exponent;
  std::frexp(a, &exponent);
  exponent -= 1;
  if (exponent < 1 - bias)  // subnormal
    return sign | static_cast<uint32_t>(std::ldexp(a, bias - 1 + f.mantissa));
  const auto field = static_cast<uint32_t>(exponent + bias);
  const auto fraction =
      static_cast<uint32_t>(std::ldexp(a, f.mantissa - exponent)) - (1u << f.mantissa);
  return sign | field << f.mantissa | fraction;
}

inline double decode_small(const Format& f, uint32_t bits) {
  const double sign = bits >> (f.exponent + f.mantissa) & 1 ? -1.0 : 1.0;
  const uint32_t top = (1u << f.exponent) - 1, field = bits >> f.mantissa & top;
  const uint32_t fraction = bits & ((1u << f.mantissa) - 1);
  const int bias = (1 << (f.exponent - 1)) - 1;
  if (f.infinities && field == top) return fraction ? NAN : sign * HUGE_VAL;
  if (!f.infinities && (bits & 0x7f) == 0x7f) return NAN;
  if (field == 0) return sign * std::ldexp(fraction, 1 - bias - f.mantissa);
  return sign *
         std::ldexp(fraction + (1u << f.mantissa), static_cast<int>(field) - bias - f.mantissa);
}

template <class T>
T bits_at(const void* at) {
  T x;
  std::memcpy(&x, at, sizeof x);
  return x;
}

inline double decode(int dtype, const void* at) {
  switch (dtype) {
    case FOVEA_F32:
      return bits_at<float>(at);
    case FOVEA_BF16: {
      const uint32_t wide = static_cast<uint32_t>(bits_at<uint16_t>(at)) << 16;
      return bits_at<float>(&wide);
    }
    case FOVEA_F16:
      return decode_small(format_of(dtype), bits_at<uint16_t>(at));
    case FOVEA_E4M3:
    case FOVEA_E5M2:
      return decode_small(format_of(dtype), bits_at<uint8_t>(at));
    case FOVEA_I8:
      return bits_at<int8_t>(at);
    case FOVEA_U8:
      return bits_at<uint8_t>(at);
    case FOVEA_I64:
      return static_cast<double>(bits_at<int64_t>(at));
    default:
      return bits_at<int32_t>(at);
  }
}

template <class T>
void put(void* at, T x) {
  std::memcpy(at, &x, sizeof x);
}

inline void encode(int dtype, double x, void* at) {
  x = nearest(dtype, x);
  switch (dtype) {
    case FOVEA_F32:
      return put(at, static_cast<float>(x));
    case FOVEA_F16:
    case FOVEA_BF16:
      return put(at, static_cast<uint16_t>(encode_small(format_of(dtype), x)));
    case FOVEA_E4M3:
    case FOVEA_E5M2:
      return put(at, static_cast<uint8_t>(encode_small(format_of(dtype), x)));
    case FOVEA_I8:
      return put(at, static_cast<int8_t>(x));
    case FOVEA_U8:
      return put(at, static_cast<uint8_t>(x));
    case FOVEA_I64:
      return put(at, static_cast<int64_t>(x));
    default:
      return put(at, static_cast<int32_t>(x));
  }
}

}  // namespace oracle
