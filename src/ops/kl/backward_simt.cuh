// SPDX-License-Identifier: Apache-2.0
// The gradient of kl by one distribution's scores as the f32 gradient (loop/gradient_tile.cuh) has
// it.
#pragma once
#include <numeric>

#include "cuda/loop/gradient_tile.cuh"
#include "ops/kl/backward.cuh"
#include "ops/kl/mixture.cuh"

namespace fovea::cuda {

struct KlGradientSimt : KlGradient {
  static constexpr bool infinite_counts = true;  // its row has a lse of NaN
  Operand q, k, v, dout;
  float* row_alibi = nullptr;
  int64_t common;  // parts of the query heads: a head of k and one of v for each

  KlGradientSimt(const KlGradient& gradient, int32_t other_dtype) : KlGradient(gradient) {
    const Attend& a = call.forward;
    q = operand_of(a.q, a.dtype, a.d), k = operand_of(a.k, a.dtype, a.d);
    common = other_heads ? std::lcm(a.g, other_heads) : a.g;  // without query heads it may be none
    v = operand_of(a.v, other_dtype, a.e), dout = operand_of(call.dout, other_dtype, a.e);
  }
  __device__ void fill(RowInfo& row, const PackGqaRows& rows, int64_t m) const {
    row.lse = lse.as()[rows.lse_offset(m, lse.stride)];
    row.other = other_lse.as()[rows.lse_offset(m, other_lse.stride)];
    row.delta = kl.as()[rows.lse_offset(m, kl.stride)];
    row.gain = gain[row_stats_offset(call.forward, rows.seq, row.h, row.i)];
  }
  FOVEA_HD int64_t parts() const { return common; }
  __device__ int64_t key_head(int64_t part) const { return part * call.forward.g / common; }
  __device__ int64_t value_head(int64_t part) const { return part * other_heads / common; }
  __device__ PairGradient gradient(const RowInfo& row, float, float x, float y) const {
    if (row.gain == 0) return {};
    const float u = x - row.lse, w = y * other_scale - row.other, r = expf(u);
    if (own == KlOwn::mixed) {
      const float mixed = row.gain * (share * mixed_term(u, w, share, row.delta));
      return {r, mixed, mixed};
    }
    const float ds = row.gain * (own == KlOwn::second ? r - expf(w) : r * (u - w - row.delta));
    return {r, ds, ds};
  }
};

}  // namespace fovea::cuda
