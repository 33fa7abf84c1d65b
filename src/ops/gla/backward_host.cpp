// SPDX-License-Identifier: Apache-2.0
// x_gla_backward on the CPU, by host/recur.h.  Value gates alone go by value.h: the forward with
// key gates makes dq, its gradient the rest, both in chunks.
#include <memory>

#include "core/recur_fields.h"
#include "host/recur.h"
#include "host/sweep.h"
#include "ops/gla/gla.h"
#include "ops/gla/value.h"

namespace fovea {
namespace {

// Rows of dq that the forward does not write.
void zero_other_rows(Context& ctx, const Recur& a, const Floats<4>& dq) {
  const auto cost = static_cast<double>(a.b * a.s * a.heads);
  host::pool(ctx).run(a.b * a.s, cost, [&](int64_t row, int32_t) {
    const int64_t batch = row / a.s, at = row % a.s;
    if (a.in_use(batch, at)) {
      const RunTokens run = a.run[a.sequence_of(batch, at)];
      if (at - run.begin >= run.from) return;
    }
    for (int64_t head = 0; head < a.h; ++head)
      for (int64_t c = 0; c < a.d; ++c) dq.store(0, batch, at, head, c);
  });
}

constexpr int64_t kLeastTokens = 64;  // a chunk's; fewer go token by token

bool goes_swapped(const Recur& a) {
  return a.gate_value && !not_swapped(a) && a.v && a.h == a.heads_out && a.e > 0 &&
         a.e <= kRecurWidthMost && a.run.token_max >= kLeastTokens;
}

// Functions of their own, and a heap: calls are kilobytes, and a caller's stack may be small.
[[gnu::noinline]] std::unique_ptr<const RecurBackward> kept(const RecurBackward& b) {
  return std::make_unique<const RecurBackward>(swapped(b));
}
[[gnu::noinline]] void plan_queries(const Context& ctx, const RecurBackward& b, Plan& plan) {
  const Recur& a = b.forward;
  host::plan_recur(ctx, swapped(a, a.o, b.output(RecurGradient::q)), plan);
}
[[gnu::noinline]] void plan_rest(const Context& ctx, const RecurBackward& b, Plan& plan) {
  host::plan_recur_backward(ctx, *kept(b), plan);
}
[[gnu::noinline]] void zero_first(const RecurBackward& b, Plan& plan) {
  const Recur& a = b.forward;
  if (!a.run.ragged() && !a.run.output_from) return;
  plan.launch = [a, dq = b.output(RecurGradient::q), launch = std::move(plan.launch)](Context& ctx,
                                                                                      void* base) {
    zero_other_rows(ctx, a, dq);
    launch(ctx, base);
  };
}
[[gnu::noinline]] void plan_swapped(const Context& ctx, const RecurBackward& b, Plan& plan) {
  if (!b.output(RecurGradient::q)) return plan_rest(ctx, b, plan);
  plan_queries(ctx, b, plan), zero_first(b, plan);
  if (!asks_more_than_q(b)) return;
  const auto then = std::make_unique<Plan>();  // kilobytes too
  plan_rest(ctx, b, *then);
  plan.workspace = either(plan.workspace, then->workspace);
  plan.launch = [first = std::move(plan.launch), then = std::move(then->launch)](
                    Context& on, void* base) { first(on, base), then(on, base); };
}

Text offer(const Context& ctx, const RecurBackward& b, Plan& plan) {
  if (goes_swapped(b.forward) && !b.idle())
    plan_swapped(ctx, b, plan);
  else
    host::plan_recur_backward(ctx, b, plan);
  return Text();
}

}  // namespace

extern const Kernel<RecurBackward> gla_backward_host = {"", offer};

}  // namespace fovea
