// SPDX-License-Identifier: Apache-2.0
// The resolved calls of the rope operations and the kernels plan() chooses from.
#pragma once
#include "core/attend.h"
#include "core/plan.h"

namespace fovea {

struct RopeForward {
  View<4> x, y;
  View<2> position;
  Sequences sequences;  // of rows alone
  Rope rope;
  int32_t dtype;
  float sign;  // -1: inverse
  int64_t h, d;
};

// How the frequency of column pair i comes about; all arithmetic in f64.
struct RopeTable {
  View<2> cos, sin;
  View<1> frequency;
  int64_t positions, half, position_begin;
  int32_t scaling;
  double base, factor, low, high, original_len;
};

extern const Kernel<RopeForward> rope_forward_host;
extern const Kernel<RopeTable> rope_table_get_host;

// CUDA builds only.
extern const Kernel<RopeForward> rope_forward_cuda;
extern const Kernel<RopeTable> rope_table_get_cuda;

}  // namespace fovea
