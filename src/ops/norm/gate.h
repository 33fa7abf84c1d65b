// SPDX-License-Identifier: Apache-2.0
// x_norm_gate, resolved: what a call is, a gate's value and slope, and the kernels plan() chooses
// from.  x_group_norm is one of its calls.
#pragma once
#include <cmath>

#include "core/attend.h"
#include "core/plan.h"
#include "fovea/experimental/norm.h"

namespace fovea {

// A tensor (b, s, h, e) and its dtype.
struct NormRows {
  View<4> view;
  int32_t dtype;

  explicit FOVEA_HD operator bool() const { return static_cast<bool>(view); }
  FOVEA_HD int64_t at(int64_t batch, int64_t i, int64_t head) const {
    return batch * view.stride[0] + i * view.stride[1] + head * view.stride[2];
  }
};

// A tensor (h, e) that may be absent.
struct NormColumns {
  View<2> view;
  int32_t dtype;

  explicit FOVEA_HD operator bool() const { return static_cast<bool>(view); }
};

// act(gate) and its derivative.
struct GateValue {
  float value, slope;
};
FOVEA_HD GateValue gate_value(int32_t act, float x) {
  if (act == FOVEA_X_NORM_GATE_ACT_NONE) return {x, 1.0f};
  const float s = 1.0f / (1.0f + expf(-x));
  if (act == FOVEA_X_NORM_GATE_ACT_SIGMOID) return {s, s * (1.0f - s)};
  // -inf times 0 is no number.
  return {s > 0.0f ? x * s : 0.0f, s > 0.0f ? s * (1.0f + x * (1.0f - s)) : 0.0f};
}

// Zeros of a norm: v less `mean`, times `size`.
struct NormScale {
  float mean, size;
};

struct NormGate {
  NormRows x, gate, before, after, y;  // y: dy in the backward
  NormColumns weight, bias;
  IntVector query_len;
  int64_t b, s, h, e, group;
  float factor, eps;
  int32_t norm, act;
  bool gate_first;

  FOVEA_HD int64_t rows(int64_t batch) const {
    return query_len ? clamp_i64(query_len[batch], 0, s) : s;
  }
  FOVEA_HD bool centred() const { return norm == FOVEA_X_NORM_GATE_NORM_LAYER; }
  FOVEA_HD bool plain() const { return norm == FOVEA_X_NORM_GATE_NORM_NONE; }
  // What the sum of squares is divided by.
  FOVEA_HD float divisor() const {
    return norm == FOVEA_X_NORM_GATE_NORM_L2 ? 1.0f : static_cast<float>(group);
  }
};

struct NormGateBackward {
  NormGate forward;
  NormRows dx, dgate;
  View<2> dweight, dbias;

  FOVEA_HD bool sums() const { return dweight || dbias; }
  // Parts that the rows of all batches are cut into for sums, by shapes alone.
  static constexpr int64_t kPartsMost = 256;
  static constexpr int64_t kPartRows = 64;  // the least rows worth a part
  FOVEA_HD int64_t parts() const {
    return clamp_i64(forward.b * forward.s / kPartRows, 1, kPartsMost);
  }
};

extern const Kernel<NormGate> norm_gate_forward_host;
extern const Kernel<NormGateBackward> norm_gate_backward_host;

// CUDA builds only.
extern const Kernel<NormGate> norm_gate_forward_simt;
extern const Kernel<NormGateBackward> norm_gate_backward_simt;

}  // namespace fovea
