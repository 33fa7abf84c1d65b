// SPDX-License-Identifier: Apache-2.0
// The choice among the sm_80 instances of x_quant_backward.
#include <algorithm>
#include <initializer_list>
#include <vector>

#include "core/dtype.h"
#include "core/pieces.h"
#include "core/reasons.h"
#include "cuda/loop/row_tile.cuh"
#include "ops/quantised/backward.cuh"

namespace fovea {
namespace {

using namespace cuda;

// Every row of backward.inc in this build, narrow widths first.
const std::vector<QuantGradientInstance>& instances() {
  static const std::vector<QuantGradientInstance> rows = {
#define FOVEA_INSTANCE(...) quant_backward_sm80_instance<QuantGradient80 __VA_ARGS__>(),
#include "instances/quantised_backward_sm80.inc"
#undef FOVEA_INSTANCE
  };
  return rows;
}

const QuantGradientInstance* find(const Attend& a, Owner owner) {
  for (const QuantGradientInstance& row : instances())
    if (row.dtype == a.dtype && row.owner == owner && a.d <= row.d && a.e <= row.e) return &row;
  return nullptr;
}

// Of the call's own tensors: codes are contiguous.
Text refuses(const Context& ctx, const QuantBackward& b) {
  const AttendBackward& call = b.call;
  const Attend& a = call.forward;
  const Sequences& q = a.sequences;
  if (a.dtype != FOVEA_F16 && a.dtype != FOVEA_BF16) return reason_dtype(a.dtype);
  if (a.o_dtype != a.dtype) return reason_dtype("o.dtype", a.o_dtype, a.dtype, "q");
  if (Text why = refuse_width("d", a.d, 16, 128); !why.empty()) return why;
  if (Text why = refuse_width("e", a.e, 8, 128); !why.empty()) return why;
  if (!a.h || !a.g || !a.s || !a.t || !q.count) return "there are no rows, keys or heads";
  const int64_t rows[3] = {a.b, a.s, a.h}, keys[3] = {q.key_start ? 1 : q.count, a.t, a.g};
  using Views = std::initializer_list<const View<4>*>;
  for (const View<4>* x : Views{&call.dout, &call.dq})
    if (*x && !in_pieces(*x, rows, 8)) return reason_rows(x == &call.dq ? "dq" : "dout");
  for (const View<4>* x : Views{&a.v, &call.dk, &call.dv})
    if (*x && !in_pieces(*x, keys, 8))
      return reason_rows(x == &a.v ? "v" : x == &call.dk ? "dk" : "dv");
  if (q.key_max > kIndexMax || q.query_max > kIndexMax)
    return "more than 2^30 keys or rows in a sequence";
  if (q.count * std::max(a.g * ceil_div(q.key_max, kTileTokens),
                         a.h * ceil_div(q.query_max, kTileTokens)) >
      INT_MAX)
    return "more than 2^31 blocks of work";
  for (const Owner owner : {Owner::dk, Owner::dq}) {
    const QuantGradientInstance* row = find(a, owner);
    if (!row) return no_instance(a.dtype, "d", a.d, "e", a.e);
    if (row->shared_bytes > device_info(ctx).shared_block_bytes)
      return reason_shared(row->shared_bytes, device_info(ctx).shared_block_bytes);
  }
  return "";
}

Text offer(const Context& ctx, const QuantBackward& b, Plan& plan) {
  if (Text why = refuses(ctx, b); !why.empty()) return why;
  const Attend& a = b.call.forward;
  const QuantGradientInstance *keys = find(a, Owner::dk), *rows = find(a, Owner::dq);
  plan.kernel += Text(".") + dtype_name(a.dtype) + ".d" + Text::number(keys->d);
  const QuantGradientSlots slots(plan.workspace, b, b.call.dk || b.call.dv);
  plan.launch = [b, keys, rows, slots](Context& ctx, void* base) {
    const QuantGradient x = slots.at(base, b);
    quant_backward_rows(ctx, x);
    if (x.b.call.dq) rows->launch(ctx, x);
    if (x.b.call.dk || x.b.call.dv) keys->launch(ctx, x);
  };
  return "";
}

}  // namespace

bool x_quant_backward_sm80_serves(const Context& ctx, const QuantBackward& b) {
  return refuses(ctx, b).empty();
}

extern const Kernel<QuantBackward> x_quant_backward_sm80 = {"sm80", offer};

}  // namespace fovea
