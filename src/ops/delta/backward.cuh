// SPDX-License-Identifier: Apache-2.0
// Between the launcher of x_delta_backward and its tuned instances (backward.inc), which are
// compiled apart, and what the kernels of an instance hand over through the workspace.
#pragma once
#include "core/recur_gradients.h"
#include "ops/delta/forward.cuh"

namespace fovea::cuda {

// beta is at least that far from 0 in gradients: dbeta is dV . U / beta^2.  What it adds to U is
// far below the roundings of U.
constexpr float kDeltaLeastBeta = 0x1p-40f;

struct DeltaBackwardWork90 {
  DeltaWork90 forward;  // of the states again: its a.o is dout, each token has an output, scale 1
  RecurBackward b;      // outputs that a kernel here writes in full are not in b.to but in `to`
  Floats<4> dq, dk;     // b.to's, where rows are whole pieces and no heads share one; or not given
  Floats<4> dv;         // rows of dV, (b, t, heads, e) of q's dtype: b.to's or in the workspace
  Floats<3> dgate, dbeta;               // as dq
  Floats<4> dgate_key, dlow_a, dlow_b;  // as dq
  CUtensorMap dout, dv_map;
  // Of a span of one or two chunks, a state head and 64 value columns, swizzled tiles:
  unsigned char* states;   // H before the span, [value][key]
  unsigned char* slopes;   // the gradient of the state after the span / scale, [value][key]
  unsigned char* updates;  // of a chunk: U, [value][token]
  unsigned char* answers;  // of a low rank: dY, [token][value]
  float* betas;            // (tiles, b, s, heads): dV . v of 64 value columns; or not given
  int64_t spans;
};

// Chunks of a span, for widths of k: a warpgroup has no registers for more at d = 64.
constexpr int delta_span(int64_t d) {
  return d == 128 ? 2 : 1;
}

struct DeltaBackwardInstance90 {
  int32_t dtype, d;
  void (*launch)(Context&, const DeltaBackwardWork90&);
};

// A row of backward.inc.
struct DeltaBackwardConfig90 {
  int dtype, d;
  int stages;   // of K, V and T, of the states
  int keys;     // stages of K and T, of their gradients
  int queries;  // stages of Q, dO and A
  int panels;   // of 64 x 64, of the other gradients; under a key gate stages of value tiles
};

// Explicitly instantiated, one file for each width: head gates or none, key gates, low rank.
template <DeltaBackwardConfig90 C>
DeltaBackwardInstance90 delta_backward_sm90_instance();
template <DeltaBackwardConfig90 C>
DeltaBackwardInstance90 delta_backward_keys_sm90_instance();
template <DeltaBackwardConfig90 C>
DeltaBackwardInstance90 delta_backward_low_sm90_instance();

}  // namespace fovea::cuda
