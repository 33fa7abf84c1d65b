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
  Floats<3> dgate, dbeta;  // as dq
  CUtensorMap dout, dv_map;
  // Of a chunk, state head and 64 value columns, swizzled tiles:
  unsigned char* states;   // H before the chunk, [value][key]
  unsigned char* updates;  // U, [value][token]
  unsigned char* slopes;   // the gradient of the state after the chunk / scale, [value][key]
  int64_t units;           // chunks and output heads
};

struct DeltaBackwardInstance90 {
  int32_t dtype, d;
  void (*launch)(Context&, const DeltaBackwardWork90&);
};

// A row of backward.inc.
struct DeltaBackwardConfig90 {
  int dtype, d;
  int stages;   // of K, V and T
  int queries;  // stages of Q, dO and A
  int values;   // stages of 64 value columns, of the gradients
};

// Explicitly instantiated, one file for each width.
template <DeltaBackwardConfig90 C>
DeltaBackwardInstance90 delta_backward_sm90_instance();

}  // namespace fovea::cuda
