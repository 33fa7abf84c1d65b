// SPDX-License-Identifier: Apache-2.0
// How a recurrence is cut into blocks; its normaliser runs before it.
#include "cuda/loop/recur.cuh"

#include <algorithm>

#include "core/dtype.h"
#include "core/locate.h"
#include "cuda/launch.h"
#include "cuda/loop/recur.h"

namespace fovea::cuda {
namespace {

// Rows of `count` elements whose parts of 4 are aligned.
template <int N>
bool in_fours(const Floats<N>& x, int64_t count) {
  if (!x) return false;
  bool fits = x.view.stride[N - 1] == 1 && count % 4 == 0 &&
              reinterpret_cast<uintptr_t>(x.view.data) % (4 * dtype_bytes(x.dtype)) == 0;
  for (int i = 0; i < N - 1; ++i) fits = fits && x.view.stride[i] % 4 == 0;
  return fits;
}

StateOrder order_of(const Floats<4>& x, int64_t d, int64_t e) {
  if (in_fours(x, e)) return StateOrder::columns;
  Floats<4> turned = x;
  turned.view.stride[2] = x.view.stride[3], turned.view.stride[3] = x.view.stride[2];
  return in_fours(turned, d) ? StateOrder::rows : StateOrder::any;
}

struct ForwardPlan {
  Recur a;
  Slot<float> den;
};

}  // namespace

RecurCall recur_call(const Recur& a) {
  RecurCall call{};
  call.a = a;
  for (call.lanes = 4; rows_of(call) < a.d;) call.lanes *= 2;
  const int64_t tile = 32 / call.lanes * CW;
  call.warps =
      static_cast<int32_t>(clamp_i64(ceil_div(a.e, tile), 1, std::min(8, 1024 / rows_of(call))));
  // 32 KB of rows where outputs are few, and one token of as many as fit where they are not.
  constexpr int64_t kFloats = 8192;
  const int64_t outputs = a.heads ? a.outputs() : 1, rows = rows_of(call);
  call.queries = static_cast<int32_t>(clamp_i64(outputs, 1, 2 * kFloats / rows - kQueries));
  call.tokens = static_cast<int32_t>(clamp_i64(kFloats / ((kQueries + call.queries) * rows), 1,
                                               a.full ? 16 : clamp_i64(a.run.token_max, 1, 16)));
  if (call.queries < outputs) call.tokens = 1;
  call.in = order_of(a.state_in, a.d, a.e), call.out = order_of(a.state_out, a.d, a.e);
  call.snapshot = order_of(a.snapshot, a.d, a.e);
  // Without heads or columns nothing is launched.
  const auto share = [](int64_t x, int64_t y) { return static_cast<uint32_t>(y ? x / y : 1); };
  call.key_share = share(a.heads, a.g), call.value_share = share(a.heads, a.x);
  call.query_share = share(a.heads_out, a.h), call.outputs = share(a.heads_out, a.heads);
  call.whole = a.d == rows_of(call) && a.e % columns_of(call) == 0;
  const auto mark = [&](const Floats<4>& x, int64_t count, Fours which) {
    if (in_fours(x, count)) call.fours |= which;
  };
  mark(a.q, a.d, kFoursQ), mark(a.k, a.d, kFoursK), mark(a.v, a.e, kFoursV);
  mark(a.gate_key, a.d, kFoursGate), mark(a.erase, a.d, kFoursErase);
  mark(a.low_a, a.d, kFoursLowA), mark(a.low_b, a.d, kFoursLowB), mark(a.o, a.e, kFoursO);
  return call;
}

bool serves_steps(const RecurCall& call) {
  const Recur& a = call.a;
  const auto fours = [&](const Floats<4>& x, Fours which) { return !x || (call.fours & which); };
  return call.whole && (call.lanes == 4 || call.lanes == 8) && a.run.token_max <= kStepTokens &&
         a.s <= INT_MAX && !a.full && !a.read_before && !a.gate_value && !a.bonus && !a.den &&
         a.v && !(a.gate_head && a.gate_key) && a.state_in && a.state_in.dtype == FOVEA_F32 &&
         call.in == StateOrder::columns &&
         (!a.state_out || (a.state_out.dtype == FOVEA_F32 && call.out == StateOrder::columns)) &&
         (!a.snapshot || (a.snapshot.dtype == FOVEA_F32 && a.run.every <= INT_MAX &&
                          call.snapshot == StateOrder::columns)) &&
         fours(a.q, kFoursQ) && fours(a.k, kFoursK) && fours(a.v, kFoursV) &&
         fours(a.gate_key, kFoursGate) && fours(a.erase, kFoursErase) &&
         fours(a.low_a, kFoursLowA) && fours(a.low_b, kFoursLowB);
}

void run_recur(Context& ctx, const char* op, const Recur& a, RecurForward kernel) {
  const RecurCall call = recur_call(a);
  kernel(ctx, op, call, a.run.count * a.heads * ceil_div(a.e, columns_of(call)));
}

void plan_recur(const char* op, const Recur& a, RecurForward kernel, Plan& plan) {
  ForwardPlan p{a, {}};
  if (a.normalise && a.o) p.den = plan.workspace.add<float>(a.b, a.s, a.heads_out);
  plan.kernel += Text(".") + dtype_name(a.q.dtype) + ".d" + Text::number(a.d);
  if (!a.normaliser_used() && serves_steps(recur_call(a))) plan.kernel += ".steps";
  plan.launch = [=](Context& ctx, void* base) {
    Recur call = p.a;
    if (call.normaliser_used()) {
      float* den = call.o ? p.den.at(base) : nullptr;
      run_recur(ctx, op, call.normaliser(den), kernel);
      call.den = {den, {call.s * call.heads_out, call.heads_out, 1}};
    }
    run_recur(ctx, op, call, kernel);
  };
}

}  // namespace fovea::cuda
