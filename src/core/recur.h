// SPDX-License-Identifier: Apache-2.0
// A recurrence of experimental/linear.h, resolved: plain data that host loops and device kernels
// read alike, the maps of gates and features with their slopes, and which head reads which.
//   H~ = decay . H_(t-1)
//   additive   H_t = H~ + k^' v
//   corrected  H_t = H~ + k^' (beta v - p H~)
//   low_rank   H_t = H~ + low_b' (low_a H_(t-1)) + k^' v
//   o = (scale q^ H_t + added) / den, or of H_(t-1) with read_before
// The normaliser is the additive recurrence once more, with one value column of ones: its o is den.
#pragma once
#include <cmath>

#include "core/convert.h"
#include "core/run.h"
#include "fovea/experimental/linear.h"

namespace fovea {

// A strided tensor of f32, f16 or bf16.
template <int N>
struct Floats {
  View<N> view;
  int32_t dtype;

  explicit FOVEA_HD operator bool() const { return static_cast<bool>(view); }
  template <class... Index>
  FOVEA_HD int64_t offset(Index... index) const {
    int64_t sum = 0;
    int axis = 0;
    ((sum += index * view.stride[axis++]), ...);
    return sum;
  }
  template <class... Index>
  FOVEA_HD float operator()(Index... index) const {
    return load_fp(view.data, dtype, offset(index...));
  }
  template <class... Index>
  FOVEA_HD void store(float x, Index... index) const {
    store_fp(view.data, dtype, offset(index...), x);
  }
};

FOVEA_HD float exp_of(float x) {
#ifdef __CUDA_ARCH__
  return expf(x);
#else
  return std::exp(x);
#endif
}
FOVEA_HD float logistic(float x) {
  return 1 / (1 + exp_of(-x));
}
FOVEA_HD float softplus(float x) {
  return x > 20 ? x : log1pf(exp_of(x));
}

// A value and its slope.
struct Sloped {
  float value, slope;
};

FOVEA_HD Sloped feature_of(int32_t map, float x) {
  if (map == FOVEA_X_FEATURE_MAP_RELU) return {x < 0 ? 0 : x, x > 0 ? 1.f : 0.f};
  if (map == FOVEA_X_FEATURE_MAP_ELU_PLUS_ONE) {
    const float below = x < 0 ? exp_of(x) : 1;
    return {x < 0 ? below : x + 1, below};
  }
  if (map == FOVEA_X_FEATURE_MAP_SILU) {
    const float part = logistic(x);
    return {x * part, part * (1 + x * (1 - part))};
  }
  return {x, 1};
}

FOVEA_HD Sloped beta_of(int32_t map, float x) {
  if (map == FOVEA_X_BETA_MAP_NONE) return {x, 1};
  const float part = logistic(x), factor = map == FOVEA_X_BETA_MAP_TWO_SIGMOID ? 2.f : 1.f;
  return {factor * part, factor * part * (1 - part)};
}

// The log of a decay, its slopes in the raw gate and in the rate of its head.
struct LogGate {
  float value, slope, by_rate;
};

struct GateMap {
  int32_t map;
  float bound, tau;

  // x: with its bias
  FOVEA_HD LogGate operator()(float x, float rate) const {
    LogGate g{x, 1, 0};
    if (map == FOVEA_X_GATE_MAP_SOFTPLUS) {
      const float factor = exp_of(rate);
      g.value = g.by_rate = -factor * softplus(x), g.slope = -factor * logistic(x);
    } else if (map == FOVEA_X_GATE_MAP_BOUNDED) {
      const float factor = exp_of(rate), part = logistic(factor * x);
      const float slope = -bound * part * (1 - part);
      return {-bound * part, slope * factor, slope == 0 ? 0 : slope * factor * x};
    } else if (map == FOVEA_X_GATE_MAP_LOG_SIGMOID) {
      g.value = -softplus(-x) / tau, g.slope = logistic(-x) / tau;
    } else if (map == FOVEA_X_GATE_MAP_EXP) {
      g.value = g.slope = -exp_of(x);
    }
    if (bound > 0 && g.value < -bound) return {-bound, 0, 0};
    if (g.value == -INFINITY) g.slope = g.by_rate = 0;
    return g;
  }
};

enum class Recurrence : int32_t { additive, corrected, low_rank };

struct Recur {
  Floats<4> q, k, v;  // v not given: ones
  Floats<4> o;        // dout in the backward
  Floats<3> gate_head;
  Floats<4> gate_key, gate_value;
  View<1> rate;
  View<2> bias;
  Floats<3> select, beta;
  View<2> bonus, skip;
  Floats<4> erase, low_a, low_b;
  Floats<4> state_in, state_out, snapshot;
  View<3> den;                      // (b, s, heads_out), not given: 1
  View<3> z_in, z_out, z_snapshot;  // (rows, heads, d)
  Run run;
  IntVector key_start, key_len;  // of `full`
  int64_t b, s, t, h, g, x, d, e, heads, heads_out;
  float scale, eps, added;
  GateMap gate;
  Recurrence form;
  int32_t map_q, map_k, beta_map;
  int32_t splits;  // as asked; 0: auto
  bool full, read_before, normalise, bonus_sigmoid, l2_norm;

  // Does anything of the call take the normaliser?  Without value columns o has no element.
  bool normaliser_used() const { return normalise && ((o && e > 0) || z_out || z_snapshot); }
  // The recurrence whose output is scale q^ . z + eps: one value column of ones.
  Recur normaliser(float* to) const {
    const auto column = [](const View<3>& z) {
      return Floats<4>{{z.data, {z.stride[0], z.stride[1], z.stride[2], 0}}, FOVEA_F32};
    };
    Recur z = *this;
    z.v = {}, z.skip = {}, z.den = {}, z.normalise = false, z.e = 1, z.added = eps;
    z.state_in = column(z_in), z.state_out = column(z_out), z.snapshot = column(z_snapshot);
    z.o = {{to, {s * heads_out, heads_out, 1, 0}}, FOVEA_F32};
    return z;
  }

  // Output heads of a state head.
  FOVEA_HD int64_t outputs() const { return heads_out / heads; }
  FOVEA_HD int64_t query_head(int64_t output) const { return output / (heads_out / h); }
  FOVEA_HD int64_t key_head(int64_t head) const { return head / (heads / g); }
  FOVEA_HD int64_t value_head(int64_t head) const { return head / (heads / x); }

  FOVEA_HD bool row_gates() const { return gate_head || gate_key; }
  FOVEA_HD float rate_of(int64_t head) const { return rate ? *rate.at(head) : 0.f; }
  // Gates of a token, `at` on the s axis.
  FOVEA_HD LogGate head_gate(int64_t batch, int64_t at, int64_t head) const {
    const float shift = bias && !gate_key ? *bias.at(head, 0) : 0.f;
    return gate(gate_head(batch, at, head) + shift, rate_of(head));
  }
  FOVEA_HD LogGate key_gate(int64_t batch, int64_t at, int64_t head, int64_t c) const {
    return gate(gate_key(batch, at, head, c) + (bias ? *bias.at(head, c) : 0.f), rate_of(head));
  }
  FOVEA_HD LogGate value_gate(int64_t batch, int64_t at, int64_t head, int64_t j) const {
    return gate(gate_value(batch, at, head, j), rate_of(head));
  }
  FOVEA_HD float select_of(int64_t batch, int64_t at, int64_t head) const {
    return select ? select(batch, at, head) : 1.f;
  }
  FOVEA_HD Sloped beta_at(int64_t batch, int64_t at, int64_t head) const {
    return beta ? beta_of(beta_map, beta(batch, at, head)) : Sloped{1, 0};
  }
  FOVEA_HD float value_of(int64_t batch, int64_t at, int64_t head, int64_t j) const {
    return v ? v(batch, at, value_head(head), j) : 1.f;
  }
  FOVEA_HD float bonus_of(float x) const { return bonus_sigmoid ? logistic(x) : x; }
  FOVEA_HD float bonus_slope(float x) const {
    if (!bonus_sigmoid) return 1;
    const float part = logistic(x);
    return part * (1 - part);
  }
  // Keys of a sequence in `full`: the first, and how many.
  struct Keys {
    int64_t begin, count;
  };
  // The sequence of a row that is in use.
  FOVEA_HD int64_t sequence_of(int64_t batch, int64_t at) const {
    return run.start ? run.begun_before(at + 1) - 1 : batch;
  }
  FOVEA_HD bool in_use(int64_t batch, int64_t at) const {
    if (!run.ragged()) return run.count > 0;
    const int64_t r = sequence_of(batch, at);
    if (r < 0) return false;
    const RunTokens q = run[r];
    return at - q.begin < q.count;
  }
  FOVEA_HD bool key_in_use(int64_t batch, int64_t at) const {
    if (!full) return in_use(batch, at);
    const int64_t r = key_start ? Run::begun_before(key_start, run.count, at + 1) - 1 : batch;
    if (r < 0 || r >= run.count) return false;
    const Keys k = keys(run[r]);
    return at >= k.begin && at - k.begin < k.count;
  }
  FOVEA_HD Keys keys(const RunTokens& q) const {
    Keys k{0, t};
    if (key_start) {
      k.begin = clamp_i64(key_start[q.sequence], 0, t);
      k.count = clamp_i64(key_start[q.sequence + 1], k.begin, t) - k.begin;
    }
    if (key_len) k.count = clamp_i64(key_len[q.sequence], 0, k.count);
    return k;
  }
};

// decay . x: where the decay is 0 nothing is left, whatever x is.
FOVEA_HD float decayed(float decay, float x) {
  return decay == 0 ? 0 : decay * x;
}

}  // namespace fovea
