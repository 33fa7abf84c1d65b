// SPDX-License-Identifier: Apache-2.0
// A call of the family, resolved, what one channel of one token is, and the kernels plan() chooses
// from.  The sums of a forward start from the bias and add taps from the oldest token on, fused on
// the device: every kernel has the same bits.
#pragma once
#include <cmath>

#include "core/convert.h"
#include "core/plan.h"
#include "core/run.h"

namespace fovea {

// Of taps: what kernels with a window of tokens in registers have instances for.
constexpr int64_t kConv1dTapsMost = 4;

FOVEA_HD float sigmoid_of(float z) {
#ifdef __CUDA_ARCH__
  // Past 2^126 the sum is far from any result: flushing to 0 spares the scaling of subnormals.
  float power, result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(z * -1.4426950408889634f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(1.f + power));
  return result;
#else
  return 1 / (1 + std::exp(-z));
#endif
}

// sum + x w, one rounding on the device.
FOVEA_HD float add_product(float x, float w, float sum) {
#ifdef __CUDA_ARCH__
  return fmaf(x, w, sum);
#else
  return sum + x * w;
#endif
}

struct Conv1d {
  View<3> x, y;  // y: dy in the backward
  View<2> weight;
  View<1> bias;
  View<3> state_in, state_out, snapshot;
  Run run;
  int32_t dtype, y_dtype, weight_dtype, in_dtype, out_dtype, snapshot_dtype;
  int64_t b, s, f, taps, tail;
  bool silu;

  // Token t of a sequence; those of its state lie below 0.
  FOVEA_HD float token(const RunTokens& q, int64_t t, int64_t c) const {
    if (t >= 0) return load_fp(x.data, dtype, offset(x, q.batch, q.begin + t, c));
    return q.state < 0 ? 0.f
                       : load_fp(state_in.data, in_dtype, offset(state_in, q.state, c, tail + t));
  }
  FOVEA_HD float weight_of(int64_t c, int64_t tap) const {
    return load_fp(weight.data, weight_dtype, c * weight.stride[0] + tap * weight.stride[1]);
  }
  FOVEA_HD float bias_of(int64_t c) const { return bias ? *bias.at(c) : 0.f; }
  FOVEA_HD float sum_of(const RunTokens& q, int64_t t, int64_t c) const {
    float sum = bias_of(c);
    for (int64_t u = 0; u < taps; ++u)
      sum = add_product(token(q, t - (taps - 1) + u, c), weight_of(c, u), sum);
    return sum;
  }
  FOVEA_HD float activated(float z) const { return silu ? z * sigmoid_of(z) : z; }
  FOVEA_HD float slope(float z) const {
    if (!silu) return 1;
    const float part = sigmoid_of(z);
    return part * (1 + z * (1 - part));
  }

  // Work items of a sequence's states: item 0 has all that read state_in or overwrite the row that
  // is read, item i + 1 has snapshot i.  So items may run in any order, or at once.
  FOVEA_HD int64_t state_items() const { return 1 + (run.snapshots ? run.kept : 0); }
  FOVEA_HD void states(const RunTokens& q, int64_t item, int64_t c) const {
    if (item > 0) {
      const int64_t row = run.kept_row(q, item - 1);
      if (row >= 0 && !early(q, item - 1, row))
        store_state(snapshot, snapshot_dtype, row, q, item * run.every, c);
      return;
    }
    int64_t over =
        -1;  // tokens of the state that goes to the row that is read: the last to be written
    const bool shared = snapshot && snapshot.data == state_in.data;
    for (int64_t i = 0; i < run.kept && (shared || (i + 1) * run.every < taps - 1); ++i) {
      const int64_t row = run.kept_row(q, i);
      if (row < 0 || !early(q, i, row)) continue;
      if (shared && row == q.state)
        over = (i + 1) * run.every;
      else
        store_state(snapshot, snapshot_dtype, row, q, (i + 1) * run.every, c);
    }
    const int64_t row = state_out ? run.out_row(q.sequence) : -1;
    if (row >= 0 && state_out.data == state_in.data && row == q.state)
      over = q.count;
    else if (row >= 0)
      store_state(state_out, out_dtype, row, q, q.count, c);
    if (over >= 0) store_state(state_in, in_dtype, q.state, q, over, c);
  }

  static FOVEA_HD int64_t offset(const View<3>& v, int64_t i, int64_t j, int64_t k) {
    return i * v.stride[0] + j * v.stride[1] + k * v.stride[2];
  }

 private:
  // Snapshot i is item 0's.
  FOVEA_HD bool early(const RunTokens& q, int64_t i, int64_t row) const {
    return (i + 1) * run.every < taps - 1 || (snapshot.data == state_in.data && row == q.state);
  }
  // The state after `count` tokens.  Columns ascend, and each reads one at least as far on: `to`
  // may be the row that is read.
  FOVEA_HD void store_state(const View<3>& to, int32_t to_dtype, int64_t row, const RunTokens& q,
                            int64_t count, int64_t c) const {
    for (int64_t k = 1 - taps; k < 0; ++k)
      store_fp(to.data, to_dtype, offset(to, row, c, tail + k), token(q, count + k, c));
  }
};

struct Conv1dBackward {
  Conv1d forward;
  View<3> dstate_out, dx, dstate_in;  // the states' are (r, f, tail)
  View<2> dweight;
  View<1> dbias;
  int32_t dout_dtype, din_dtype;

  // dz of token t, 0 where it has no output.
  FOVEA_HD float slope(const RunTokens& q, int64_t t, int64_t c) const {
    const Conv1d& a = forward;
    if (t < q.from || t >= q.count) return 0;
    const float dy = load_fp(a.y.data, a.y_dtype, a.offset(a.y, q.batch, q.begin + t, c));
    return a.silu ? dy * a.slope(a.sum_of(q, t, c)) : dy;
  }
  // What dstate_out adds to the gradient of token t, which may lie below 0.
  FOVEA_HD float from_state(const RunTokens& q, int64_t t, int64_t c) const {
    const int64_t k = t - q.count;
    if (!dstate_out || k >= 0 || k < 1 - forward.taps) return 0;
    return load_fp(dstate_out.data, dout_dtype,
                   forward.offset(dstate_out, q.sequence, c, forward.tail + k));
  }
  FOVEA_HD float gradient(const RunTokens& q, int64_t t, int64_t c) const {
    float sum = from_state(q, t, c);
    for (int64_t u = 0; u < forward.taps; ++u)
      sum = add_product(slope(q, t + forward.taps - 1 - u, c), forward.weight_of(c, u), sum);
    return sum;
  }
  // Rows of partial sums: those of dweight, then that of dbias.
  FOVEA_HD int64_t sums() const { return dweight || dbias ? forward.taps + 1 : 0; }
};

extern const Kernel<Conv1d> conv1d_forward_host;
extern const Kernel<Conv1dBackward> conv1d_backward_host;

// CUDA builds only.
extern const Kernel<Conv1d> conv1d_forward_simt;
extern const Kernel<Conv1dBackward> conv1d_backward_simt;

}  // namespace fovea
