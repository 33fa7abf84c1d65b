// SPDX-License-Identifier: Apache-2.0
// x_gla with value gates on Hopper: by value.h both directions run on the kernels of key gates
// (backward_keys_sm90.cuh, forward_sm90.cuh).
#include "ops/gla/value.h"

#include "core/dtype.h"
#include "core/reasons.h"
#include "cuda/launch.h"
#include "cuda/loop/chain.h"
#include "ops/gla/gla.h"
#include "ops/gla/rows_sm90.cuh"

namespace fovea {
namespace {

using namespace cuda;

constexpr char kBackward[] = "x_gla_backward";
constexpr int64_t kTokensMost = int64_t{1} << 30;  // tiles have 32-bit rows
constexpr int64_t kColumnsMost = 128;              // of keys and of values

Text refuses(const Context& ctx, const Recur& a) {
  if (!a.gate_value) return "gate_value is not given";
  if (const int arch = device_info(ctx).arch; arch != 90) return reason_capability(arch, "9.0");
  if (a.q.dtype != FOVEA_BF16) return Text("dtype is ") + dtype_name(a.q.dtype) + ", wanted bf16";
  if (const char* field = not_swapped(a)) return reason_given(field);
  if (Text why = refuse_widths(a.d, a.e, kChainColumns, kColumnsMost); !why.empty()) return why;
  if (a.run.token_max < kChainTokens)  // a chunk costs as much for few tokens
    return Text("sequences of at most ") + Text::number(a.run.token_max) + " tokens, wanted " +
           Text::number(kChainTokens);
  if (a.run.token_max > kTokensMost || a.s > kTokensMost) return "more than 2^30 tokens";
  // TMA has no empty tensor: it would read one row.
  if (!a.b || !a.heads || !a.d || !a.e || !a.run.count)
    return "there are no sequences, heads or columns";
  if (a.h != a.heads) return reason("q.shape[2]", a.h, "as many as the heads of k and v");
  return "";
}

void name(const Recur& a, Plan& plan) {
  plan.kernel += Text(".") + dtype_name(a.q.dtype) + ".d" + Text::number(a.e) + ".value";
}

Text offer(const Context& ctx, const Recur& a, Plan& plan) {
  if (Text why = refuses(ctx, a); !why.empty()) return why;
  if (a.snapshot) return reason_given("snapshot with gate_value");
  if (a.o && !direct(a, a.o, a.heads, a.s)) return reason_rows("o");
  RecurBackward b{};
  b.forward = swapped(a, {{}, a.q.dtype}, a.q);
  b.to[static_cast<int>(RecurGradient::q)] = a.o;
  name(a, plan);
  return plan_gla_keys(b, {"x_gla_forward", "q", "v", "k", "q", true}, plan);
}

// dq as the output of a forward, before what is planned; and the rows that it does not write.
Text offer_queries(const Context& ctx, const RecurBackward& b, Plan& plan) {
  const Recur& a = b.forward;
  const Floats<4>& dq = b.output(RecurGradient::q);
  if (!direct(a, dq, a.heads, a.s)) return reason_rows("dq");
  Plan part;
  const Recur forward = swapped(a, a.o, dq);
  if (Text why = gla_forward_sm90.offer(ctx, forward, part); !why.empty()) return why;
  plan.workspace = either(part.workspace, plan.workspace);
  const GlaRows rows{dq, a.heads, a.d, true};
  plan.launch = [a, rows, first = std::move(part.launch), then = std::move(plan.launch),
                 more = asks_more_than_q(b)](Context& on, void* base) {
    if (a.run.ragged()) zero_unused_rows(on, kBackward, a, rows);
    first(on, base);
    if (more) then(on, base);
  };
  return "";
}

Text offer_backward(const Context& ctx, const RecurBackward& b, Plan& plan) {
  const Recur& a = b.forward;
  if (Text why = refuses(ctx, a); !why.empty()) return why;
  if (!a.o) return "dout is not given";
  if (a.o.dtype != a.q.dtype) return reason_dtype("dout.dtype", a.o.dtype, a.q.dtype, "q");
  // Rows of q' that have no output would not be 0.
  if (a.run.output_from) return reason_given("output_from with gate_value");
  name(a, plan);
  const GlaKeyRoles roles{kBackward, "dout", "v", "k", "q", false};
  if (Text why = plan_gla_keys(swapped(b), roles, plan); !why.empty()) return why;
  return b.output(RecurGradient::q) ? offer_queries(ctx, b, plan) : Text();
}

}  // namespace

extern const Kernel<Recur> gla_forward_value_sm90 = {"sm90", offer};
extern const Kernel<RecurBackward> gla_backward_value_sm90 = {"sm90", offer_backward};

}  // namespace fovea
