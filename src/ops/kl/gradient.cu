// SPDX-License-Identifier: Apache-2.0
// What every kernel of kl_backward starts from: each row's gain, and a distribution's gradient as a
// call of attention's.
#include "ops/kl/backward.cuh"

namespace fovea::cuda {
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
    const auto at = [&](const View<3>& x) { return row_value(x, q, h, i); };
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

}  // namespace

void zero_gradients(Context& ctx, const char* op, const Kl& a, const KlSide& side, int64_t heads,
                    int64_t keys) {
  const int64_t key_b = a.sequences.key_start ? 1 : a.sequences.count;
  if (side.dq) zero(ctx, op, side.dq, side.dtype, {a.b, a.s, heads, side.width});
  if (side.dk) zero(ctx, op, side.dk, side.dtype, {key_b, keys, side.key_heads, side.width});
}

KlGradient gradient_of(const KlBackward& b, KlOwn side, const float* gain) {
  const Kl& a = b.forward;
  const bool first = side == KlOwn::first;
  const KlSide &mine = first ? a.first : a.second, &other = first ? a.second : a.first;
  AttendBackward call{};
  call.forward = attend_of(a, mine, other);
  call.dout = other.q, call.dq = {mine.dq, mine.dtype}, call.dk = {mine.dk, mine.dtype};
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
  if (ragged(a))
    for (const KlSide* side : {&a.first, &a.second}) zero_gradients(ctx, op, a, *side, a.h, a.t);
  const KlTotals* weights = nullptr;
  if (b.dtotal && a.mean) weights = add_up(ctx, op, a, {}, a.first.lse, totals.parts.at(base));
  const int64_t work = a.sequences.count * a.sequences.query_max * a.h;
  launch<gain_kernel>(ctx, op, ceil_div(work, kThreads), kThreads, 0, b, weights, gain.at(base),
                      work);
  return gain.at(base);
}

}  // namespace fovea::cuda
