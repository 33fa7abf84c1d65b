// SPDX-License-Identifier: Apache-2.0
// attention_backward's formula, for the f32 gradient (loop/gradient_tile.cuh):
//   p = exp(score - lse),  ds = p (dout v' - delta),  dx = ds (1 - (x / softcap)^2)
#pragma once
#include "core/workspace.h"
#include "cuda/loop/gradient_tile.cuh"

namespace fovea::cuda {

struct BackwardSimt {
  static constexpr bool infinite_counts = false;
  AttendBackward call;
  Operand q, k, v, dout;
  float* delta;      // (b, h, s)
  float* row_alibi;  // (b, h, s): a row's part of dalibi, or nullptr

  __device__ void fill(RowInfo& row, const PackGqaRows& rows, int64_t m) const {
    const Attend& a = call.forward;
    row.lse = a.lse.as()[rows.lse_offset(m, a.lse.stride)];
    row.delta = delta[row_stats_offset(a, rows.seq, row.h, row.i)];
  }
  FOVEA_HD int64_t parts() const { return call.forward.g; }
  __device__ static int64_t key_head(int64_t part) { return part; }
  __device__ static int64_t value_head(int64_t part) { return part; }
  // `value`: the capped product, on which the softcap's derivative depends.
  __device__ PairGradient gradient(const RowInfo& row, float value, float score, float y) const {
    const float p = expf(score - row.lse), ds = p * (y - row.delta);
    return {p, ds, ds * capped_slope(call.forward.score, value)};
  }
};

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
