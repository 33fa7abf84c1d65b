// SPDX-License-Identifier: Apache-2.0
// SageBwd's gradient after q and k are quantised: the resolved call, and the kernels that plan()
// chooses from.
#pragma once
#include "core/attend.h"
#include "core/plan.h"
#include "core/scale_group.h"

namespace fovea {

constexpr int64_t kTileTokens = 64;  // rows of a tile, its keys, and tokens that share a scale

struct QuantBackward {
  AttendBackward call;       // forward.q and forward.k: codes of i8
  View<3> q_scale, k_scale;  // of blocks of 64 tokens
  View<4> q_plain, k_mean;   // both, or none: k is not smoothed

  // Where the scales of sequence r begin, of its blocks in order.
  FOVEA_HD const float* q_scales(const Sequence& q, int64_t r, int64_t head) const {
    return q_scale.at(
        q.batch, head,
        first_entry(call.forward.sequences.query_start, call.forward.s, r, kTileTokens));
  }
  FOVEA_HD const float* k_scales(const Sequence& q, int64_t r, int64_t g) const {
    return k_scale.at(
        q.key_batch, g,
        first_entry(call.forward.sequences.key_start, call.forward.t, r, kTileTokens));
  }
  FOVEA_HD const float* mean_of(const Sequence& q, int64_t r, int64_t g) const {
    return k_mean.at(q.key_batch, g, call.forward.sequences.key_start ? r : 0);
  }
};

// The larger magnitude, or NaN if either is.
FOVEA_HD float larger(float most, float x) {
  const float y = x < 0 ? -x : x;
  return y > most || y != y ? y : most;
}

// Codes of i8 of numbers whose largest magnitude is `most`.
struct TileScale {
  float scale = 0, factor = 0;  // factor 0: every code is 0
  TileScale() = default;
  FOVEA_HD explicit TileScale(float most) {
    const bool finite = most - most == 0, some = finite && most >= 0x1p-100f;
    factor = some ? 127 / most : 0;
    scale = some ? most / 127 : finite ? 0 : most;
  }
  // Adding 1.5 * 2^23 rounds to an integer.
  FOVEA_HD float code(float x) const {
    const float y = x * factor + 12582912.f;
    return factor == 0 ? 0 : y - 12582912.f;
  }
};

extern const Kernel<QuantBackward> x_quant_backward_host;

}  // namespace fovea
