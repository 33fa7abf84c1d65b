// SPDX-License-Identifier: Apache-2.0
// The kernel of last resort: takes every valid kl_backward.
#include <numeric>

#include "core/dtype.h"
#include "cuda/loop/attend_bwd_simt.cuh"
#include "ops/kl/backward.cuh"
#include "ops/kl/mixture.cuh"

namespace fovea {
namespace cuda {
namespace {

struct KlSimt : KlGradient {
  static constexpr bool infinite_counts = true;  // its row has a lse of NaN
  Operand q, k, v, dout;
  float* row_alibi = nullptr;
  int64_t common;  // parts of the query heads: a head of k and one of v for each

  explicit KlSimt(const KlGradient& gradient, int32_t other_dtype) : KlGradient(gradient) {
    const Attend& a = call.forward;
    q = operand_of(a.q, a.dtype, a.d), k = operand_of(a.k, a.dtype, a.d);
    common = other_heads ? std::lcm(a.g, other_heads) : a.g;  // without query heads it may be none
    v = operand_of(a.v, other_dtype, a.e), dout = operand_of(call.dout, other_dtype, a.e);
  }
  __device__ void fill(RowInfo& row, const PackedRows& rows, int64_t m) const {
    row.lse = lse.as()[rows.lse_offset(m, lse.stride)];
    row.other = other_lse.as()[rows.lse_offset(m, other_lse.stride)];
    row.delta = kl.as()[rows.lse_offset(m, kl.stride)];
    row.gain = gain[side_offset(call.forward, rows.seq, row.h, row.i)];
  }
  FOVEA_HD int64_t parts() const { return common; }
  __device__ int64_t key_head(int64_t part) const { return part * call.forward.g / common; }
  __device__ int64_t value_head(int64_t part) const { return part * other_heads / common; }
  __device__ Slope slope(const RowInfo& row, float, float x, float y) const {
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

void enqueue(Context& ctx, const KlBackward& b, KlOwn own, const float* gain) {
  const KlGradient gradient = gradient_of(b, own, gain);
  const AttendBackward& call = gradient.call;
  if (!call.dq && !call.dk) return;
  const KlSide& other = own == KlOwn::first ? b.forward.second : b.forward.first;
  const KlSimt simt(gradient, other.dtype);
  if (call.dq) launch_rows(ctx, gradient.op, simt);
  if (call.dk) launch_keys<Owner::dk>(ctx, gradient.op, simt);
}

std::string offer(const Context&, const KlBackward& b, Plan& plan) {
  plan.kernel += std::string(".") + dtype_name(b.forward.first.dtype);
  const GainSlots slots(plan.workspace, b);
  plan.launch = [=](Context& ctx, void* base) {
    const float* gain = slots.fill(ctx, b, base);
    for (KlOwn own : {KlOwn::first, KlOwn::second}) enqueue(ctx, b, own, gain);
  };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<KlBackward> kl_backward_simt = {"simt", cuda::offer};
extern const Kernel<KlBackward> kl_jensen_shannon_backward_simt = {"simt", cuda::offer};

}  // namespace fovea
