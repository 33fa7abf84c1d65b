// SPDX-License-Identifier: Apache-2.0
// What every kernel of attention_backward shares with the f32 gradient (loop/backward_rows.cuh).
#pragma once
#include "core/workspace.h"
#include "cuda/loop/backward_rows.cuh"

namespace fovea::cuda {

// The workspace of a call.
struct BackwardSlots {
  Slot<float> delta, alibi;
  BackwardSlots(Layout& layout, const AttendBackward& call);
  BackwardSimt at(void* base, const AttendBackward& call) const;
};

// The passes around any kernel of dq, dk and dv, in this order:
//   backward_preprocess   calls backward_clear and computes delta
//   backward_clear        zeros for rows and keys that no tile visits
//   backward_row_alibi    each row's part of dalibi
//   backward_postprocess  the gradients of bias, alibi and sink_logit
void backward_clear(Context& ctx, const BackwardSimt& b);
void backward_preprocess(Context& ctx, const BackwardSimt& b);
void backward_row_alibi(Context& ctx, BackwardSimt b);
void backward_postprocess(Context& ctx, const BackwardSimt& b);

}  // namespace fovea::cuda
