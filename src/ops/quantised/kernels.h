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
  AttendBackward call;           // forward.q and forward.k: codes of i8
  View<3> q_scale, k_scale;      // of blocks of 64 tokens
  View<4> q_plain, k_mean;       // both, or none: k is not smoothed
  View<4> q_columns, k_columns;  // (b, h, d, padded): codes transposed, in v_perm16's order; or
                                 // none: the kernel reads none

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
  // Where transposed codes of sequence r begin, of column 0.
  FOVEA_HD const int8_t* q_column(const Sequence& q, int64_t r, int64_t head) const {
    return column(q_columns, q.batch, head, call.forward.sequences.query_start, call.forward.s, r);
  }
  FOVEA_HD const int8_t* k_column(const Sequence& q, int64_t r, int64_t g) const {
    return column(k_columns, q.key_batch, g, call.forward.sequences.key_start, call.forward.t, r);
  }
  FOVEA_HD const float* mean_of(const Sequence& q, int64_t r, int64_t g) const {
    return k_mean.at(q.key_batch, g, call.forward.sequences.key_start ? r : 0);
  }

 private:
  FOVEA_HD static const int8_t* column(const View<4>& x, int64_t batch, int64_t head,
                                       const IntVector& start, int64_t tokens, int64_t r) {
    return x.at<int8_t>(batch, head, 0, first_entry(start, tokens, r, kCodeRun) * kCodeRun);
  }
};

// The larger magnitude, or NaN if either is.
FOVEA_HD float larger(float most, float x) {
  const float y = x < 0 ? -x : x;
  return y > most || y != y ? y : most;
}

// Codes of i8 of numbers whose largest magnitude is `most`.  Of an infinity or NaN the scale is
// NaN: it is in every product.
struct TileScale {
  float scale = 0, factor = 0;  // factor 0: every code is 0
  TileScale() = default;
  FOVEA_HD explicit TileScale(float most) {
    const bool finite = most - most == 0, some = finite && most >= 0x1p-100f;
#ifdef __CUDA_ARCH__
    // IEEE divisions would be hundreds of cycles of latency.  __fdividef takes no divisor above
    // 2^126: most is scaled.
    const float inverse = __fdividef(127 / 128.f, most * 0x1p-7f), part = most * (1 / 127.f);
#else
    const float inverse = 127 / most, part = most / 127;
#endif
    factor = some ? inverse : 0;
    scale = some ? part : finite ? 0 : most - most;
  }
  // Adding 1.5 * 2^23 rounds to an integer.
  FOVEA_HD float code(float x) const {
    const float y = x * factor + 12582912.f;
    return factor == 0 ? 0 : y - 12582912.f;
  }
};

extern const Kernel<QuantBackward> x_quant_backward_host;

// CUDA builds only.  sm90: Hopper, one pass; sm80: mma.sync; both over codes, with columns.  simt:
// anything valid.
extern const Kernel<QuantBackward> x_quant_backward_sm90, x_quant_backward_sm80,
    x_quant_backward_simt;
// Whether a kernel with columns will take the call, of which codes are not made yet.
bool x_quant_backward_sm90_serves(const Context& ctx, const QuantBackward& b);
bool x_quant_backward_sm80_serves(const Context& ctx, const QuantBackward& b);

}  // namespace fovea
