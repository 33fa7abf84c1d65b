// SPDX-License-Identifier: Apache-2.0
// Instances of attention_backward for wide heads (backward_wide.inc), which are compiled apart.
#pragma once
#include "ops/attention/backward.cuh"

namespace fovea::cuda {

// A row of backward_wide.inc.
struct WideBackwardConfig80 {
  int dtype, d;
  Own owner;
  BackwardKind kind;
};

struct WideBackwardInstance {
  WideBackwardConfig80 config;
  int32_t own, inner;  // rows or keys of a block, of a tile of its loop
  int32_t (*shared_bytes)(const Attend&);
  // `shares` blocks of a key head, and where they store f32 terms (cuda/loop/key_terms.cuh).
  void (*launch)(Context&, const AttendBackward&, const float* delta, int64_t shares, float* terms);
};

// Explicitly instantiated, one file for each dtype and width.
template <WideBackwardConfig80 C>
WideBackwardInstance backward_wide_sm80_instance();

}  // namespace fovea::cuda
