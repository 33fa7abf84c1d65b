// SPDX-License-Identifier: Apache-2.0
// The kernel of last resort: takes every valid kl_backward.  Before it, the gain of each row.
#include <numeric>

#include "core/dtype.h"
#include "cuda/loop/attend_bwd_simt.cuh"
#include "cuda/loop/zero.cuh"
#include "ops/kl/backward.cuh"
#include "ops/kl/mixture.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr int kThreads = 256;

// `weights`: sum w, where dtotal is divided by it.
__global__ void __launch_bounds__(kThreads)
    gain_kernel(const __grid_constant__ KlBackward b, const KlTotals* weights, float* gain,
                int64_t work) {
  const Kl& a = b.forward;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t w = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; w < work;
       w += stride) {
    const int64_t i = w % a.sequences.query_max, h = w / a.sequences.query_max % a.h;
    const Sequence q = a.sequences[w / a.sequences.query_max / a.h];
    if (i >= q.rows) continue;
    const auto at = [&](const View<3>& x) {
      return x.as()[q.batch * x.stride[0] + h * x.stride[1] + (q.row_begin + i) * x.stride[2]];
    };
    float sum = 0;
    if (at(a.first.lse) != -INFINITY) {
      if (b.dkl) sum = at(b.dkl);
      const float weight = b.dtotal ? a.row_weight ? at(a.row_weight) : 1.f : 0.f;
      if (weight != 0) {
        const double share = weights ? weight / weights->weight : weight;
        sum += static_cast<float>(share * *b.dtotal.as());
      }
    }
    gain[(q.batch * a.h + h) * a.s + q.row_begin + i] = sum;
  }
}

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

KlGradient gradient_of(const KlBackward& b, KlOwn side, const float* gain) {
  const Kl& a = b.forward;
  const bool first = side == KlOwn::first;
  const KlSide &mine = first ? a.first : a.second, &other = first ? a.second : a.first;
  AttendBackward call{};
  call.forward = attend_of(a, mine, other);
  call.dout = other.q, call.dq = mine.dq, call.dk = mine.dk;
  call.nondeterministic = b.nondeterministic;
  const bool mixed = a.share > 0;
  return {call,
          mine.lse,
          other.lse,
          mixed && !first ? a.kl_second : a.kl,
          gain,
          other.scale,
          mine.key_heads,
          other.key_heads,
          mixed ? KlOwn::mixed : side,
          mixed && !first ? 1 - a.share : a.share,
          op_of(b)};
}

GainSlots::GainSlots(Layout& layout, const KlBackward& b)
    : gain(layout.add<float>(b.forward.b * b.forward.h * b.forward.s)),
      totals(layout, b.forward, b.dtotal && b.forward.mean) {}

const float* GainSlots::fill(Context& ctx, const KlBackward& b, void* base) const {
  const Kl& a = b.forward;
  const char* op = op_of(b);
  for (const KlSide* side : {&a.first, &a.second}) {
    const Attend shape = attend_of(a, *side, *side);
    if (!ragged(shape)) continue;
    const int64_t key_b = a.sequences.key_start ? 1 : a.sequences.count;
    if (side->dq) zero(ctx, op, side->dq, side->dtype, {a.b, a.s, a.h, side->width});
    if (side->dk) zero(ctx, op, side->dk, side->dtype, {key_b, a.t, side->key_heads, side->width});
  }
  const KlTotals* weights = nullptr;
  if (b.dtotal && a.mean) weights = add_up(ctx, op, a, {}, a.first.lse, totals.parts.at(base));
  const int64_t work = a.sequences.count * a.sequences.query_max * a.h;
  launch<gain_kernel>(ctx, op, ceil_div(work, kThreads), kThreads, 0, b, weights, gain.at(base),
                      work);
  return gain.at(base);
}

}  // namespace cuda

extern const Kernel<KlBackward> kl_backward_simt = {"simt", cuda::offer};
extern const Kernel<KlBackward> kl_jensen_shannon_backward_simt = {"simt", cuda::offer};

}  // namespace fovea
