// SPDX-License-Identifier: Apache-2.0
// x_gla_backward on the CPU, by host/recur.h.  Value gates alone go by value.h: the forward with
// key gates makes dq, its gradient the rest, both in chunks.
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

Text offer(const Context& ctx, const RecurBackward& b, Plan& plan) {
  const Recur& a = b.forward;
  if (!goes_swapped(a) || b.idle()) return host::plan_recur_backward(ctx, b, plan), Text();
  const Floats<4>& dq = b.output(RecurGradient::q);
  const bool more = asks_more_than_q(b);
  Plan first, then;
  if (dq) host::plan_recur(ctx, swapped(a, a.o, dq), first);
  if (more) host::plan_recur_backward(ctx, swapped(b), then);
  plan.workspace = either(first.workspace, then.workspace);
  plan.kernel += (more ? then : first).kernel;
  plan.launch = [a, dq, more, first = std::move(first.launch), then = std::move(then.launch)](
                    Context& on, void* base) {
    if (dq) {
      if (a.run.ragged() || a.run.output_from) zero_other_rows(on, a, dq);
      first(on, base);
    }
    if (more) then(on, base);
  };
  return Text();
}

}  // namespace

extern const Kernel<RecurBackward> gla_backward_host = {"", offer};

}  // namespace fovea
