// SPDX-License-Identifier: Apache-2.0
// A call of the family, resolved, and the kernels plan() chooses from.
#pragma once
#include "core/out_rows.h"
#include "core/plan.h"

namespace fovea {

constexpr int64_t kKernelRowsMost = 16, kKernelColumnsMost = 31;
constexpr float kScoreUnit = 64;  // of S as f16

struct ConvAttend {
  Attend attend;   // scale, sequences, dtypes; o and lse have rows_out rows
  View<3> weight;  // (h, kernel_rows, kernel_columns)
  int32_t weight_dtype;
  int64_t kernel_rows, kernel_columns;
  int64_t history, rows_out;
  bool causal;

  FOVEA_HD int64_t taps() const { return kernel_rows * kernel_columns; }
  // Rows and keys that a tap reaches back, and keys it reaches ahead.
  FOVEA_HD int64_t above() const { return kernel_rows - 1; }
  FOVEA_HD int64_t left() const { return (kernel_columns - 1) / 2; }
  FOVEA_HD int64_t right() const { return kernel_columns - 1 - left(); }

  // What a row sees: taps reach past it on both sides, and what they find there unseen is 0.
  template <class Int = int64_t>
  FOVEA_HD Reach<Int> reach() const {
    return {0, causal};
  }
  // Keys that row i of the sequence sees: those before.
  FOVEA_HD int64_t seen(const Sequence& q, int64_t i) const {
    if (i < 0 || i >= q.rows) return 0;
    return clamp_i64(reach().high(i + q.keys - q.rows, q.keys), 0, q.keys);
  }

  // Where a sequence's rows of o and lse are.
  using Rows = OutRows::Place;
  FOVEA_HD OutRows out() const { return {history, rows_out}; }
  FOVEA_HD Rows rows_of(const Sequence& q, int64_t r) const {
    return out().of(attend.sequences, q, r);
  }
};

struct ConvAttendBackward {
  ConvAttend forward;  // o and lse are inputs here
  View<4> dout, dq, dk, dv;
  View<3> dweight;
};

extern const Kernel<ConvAttend> conv_attention_forward_host;
extern const Kernel<ConvAttendBackward> conv_attention_backward_host;

// CUDA builds only.  sm90: Hopper's tensor cores; simt: anything valid.
extern const Kernel<ConvAttend> conv_attention_forward_sm90, conv_attention_forward_simt;
extern const Kernel<ConvAttendBackward> conv_attention_backward_sm90, conv_attention_backward_simt;

}  // namespace fovea
