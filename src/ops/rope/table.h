// SPDX-License-Identifier: Apache-2.0
// The frequency of a column pair and the entries of its column, in f64 on both backends.
#pragma once
#include <cmath>

#include "fovea/rope.h"
#include "ops/rope/kernels.h"

namespace fovea {

// Frequency of pair i in radians a position, after scaling.
FOVEA_HD double frequency_of(const RopeTable& a, int64_t i) {
  const double plain = a.frequency
                           ? static_cast<double>(a.frequency.as<float>()[i * a.frequency.stride[0]])
                           : pow(a.base, -static_cast<double>(i) / static_cast<double>(a.half));
  const double stretched = plain / a.factor;
  double keep = 0;  // share of the unscaled frequency
  switch (a.scaling) {
    case FOVEA_SCALING_NONE:
      return plain;
    case FOVEA_SCALING_LINEAR:
      return stretched;
    case FOVEA_SCALING_LLAMA3: {
      const double turns = a.original_len * plain / 6.283185307179586476925;
      keep = (turns - a.low) / (a.high - a.low);
      break;
    }
    case FOVEA_SCALING_YARN:
      keep = 1 - (static_cast<double>(i) - a.low) / (a.high - a.low);
      break;
  }
  if (keep >= 1) return plain;
  if (!(keep > 0)) return stretched;
  return (1 - keep) * stretched + keep * plain;
}

FOVEA_HD void fill_entry(const RopeTable& a, double frequency, int64_t row, int64_t i) {
  const double angle = static_cast<double>(a.position_begin + row) * frequency;
  a.cos.as<float>()[row * a.cos.stride[0] + i * a.cos.stride[1]] = static_cast<float>(cos(angle));
  a.sin.as<float>()[row * a.sin.stride[0] + i * a.sin.stride[1]] = static_cast<float>(sin(angle));
}

}  // namespace fovea
