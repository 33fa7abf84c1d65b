// SPDX-License-Identifier: Apache-2.0
// Attention's formula for the f32 gradient (gradient_tile.cuh), and the passes over rows around it:
//   p = exp(score - lse),  ds = p (dout v' - delta),  dx = ds (1 - (x / softcap)^2)
//   delta = <dout, o> - dlse,  dsink_logit = - sum exp(sink_logit - lse) delta
#pragma once
#include "core/text.h"
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

// Why no tensor core kernel stores dq, dk and dv: "" or a reason.
Text gradients_refuse(const AttendBackward& call);
// Zeros in dq, dk and dv for rows and keys that no tile visits.
void clear_gradients(Context& ctx, const char* op, const AttendBackward& call);
// delta of each row.
void row_deltas(Context& ctx, const char* op, const BackwardSimt& b);
// The ordered sums of dalibi (from row_alibi) and dsink_logit (from delta).
void sum_alibi(Context& ctx, const char* op, const BackwardSimt& b);
void sum_sinks(Context& ctx, const char* op, const BackwardSimt& b);

}  // namespace fovea::cuda
