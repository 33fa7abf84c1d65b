// SPDX-License-Identifier: Apache-2.0
// The choice among the sm_80 instances of attention_backward, and the passes around them.
#include <algorithm>
#include <vector>

#include "core/dtype.h"
#include "core/pieces.h"
#include "core/reasons.h"
#include "cuda/loop/row_tile.cuh"
#include "ops/attention/backward.cuh"
#include "ops/attention/backward_simt.cuh"
#include "ops/attention/kernels.h"

namespace fovea {
namespace {

using namespace cuda;

const BackwardInstance kNone{};

// Every row of backward.inc in this build, narrow widths first.
const std::vector<BackwardInstance>& instances() {
  static const std::vector<BackwardInstance> rows = {
#define FOVEA_INSTANCE(...) backward_sm80_instance<BackwardConfig80 __VA_ARGS__>(),
#include "instances/attention_backward_sm80.inc"
#undef FOVEA_INSTANCE
  };
  return rows;
}

const BackwardInstance& find(const Attend& a, Own owner) {
  const BackwardKind kind = a.plain() ? BackwardKind::plain : BackwardKind::rich;
  for (const BackwardInstance& row : instances())
    if (row.dtype == a.dtype && row.kind == kind && row.owner == owner && a.d <= row.d &&
        a.e <= row.e)
      return row;
  return kNone;
}

struct Choice {
  const BackwardInstance *rows, *keys, *keys_dk, *keys_dv;

  explicit Choice(const Attend& a)
      : rows(&find(a, Own::rows)),
        keys(&find(a, Own::keys)),
        keys_dk(&find(a, Own::keys_dk)),
        keys_dv(&find(a, Own::keys_dv)) {
    if (keys->launch) keys_dk = keys_dv = &kNone;
  }
  bool complete() const {
    return rows->launch && (keys->launch || (keys_dk->launch && keys_dv->launch));
  }
  int32_t shared_bytes() const {
    return std::max(
        {rows->shared_bytes, keys->shared_bytes, keys_dk->shared_bytes, keys_dv->shared_bytes});
  }
};

Text refuses(const Context& ctx, const AttendBackward& call) {
  const Attend& a = call.forward;
  if (Text why = backward_mma_refuses(call, 256); !why.empty()) return why;
  const Choice c(a);
  if (!c.complete()) return no_instance(a.dtype, "d", a.d, "e", a.e);
  if (c.shared_bytes() > device_info(ctx).shared_block_bytes)
    return reason_shared(c.shared_bytes(), device_info(ctx).shared_block_bytes);
  return "";
}

Text offer(const Context& ctx, const AttendBackward& call, Plan& plan) {
  if (Text why = refuses(ctx, call); !why.empty()) return why;
  const Attend& a = call.forward;
  const Choice c(a);
  plan.kernel += Text(".") + dtype_name(a.dtype) + ".d" + Text::number(c.rows->d) +
                 (a.plain() ? ".plain" : ".rich");
  const BackwardSlots slots(plan.workspace, call);
  plan.launch = [call, c, slots](Context& ctx, void* base) {
    const BackwardSimt simt = slots.at(base, call);
    backward_preprocess(ctx, simt);
    if (call.dalibi) backward_row_alibi(ctx, simt);
    if (call.dq) c.rows->launch(ctx, call, simt.delta);
    if ((call.dk || call.dv) && c.keys->launch) c.keys->launch(ctx, call, simt.delta);
    if (call.dk && c.keys_dk->launch) c.keys_dk->launch(ctx, call, simt.delta);
    if (call.dv && c.keys_dv->launch) c.keys_dv->launch(ctx, call, simt.delta);
    backward_postprocess(ctx, simt);
  };
  return "";
}

}  // namespace

Text cuda::backward_mma_refuses(const AttendBackward& call, int64_t widest) {
  const Attend& a = call.forward;
  if (a.dtype != FOVEA_F16 && a.dtype != FOVEA_BF16) return reason_dtype(a.dtype);
  if (a.o_dtype != a.dtype) return reason_dtype("o.dtype", a.o_dtype, a.dtype, "q");
  if (Text why = refuse_widths(a.d, a.e, 8, widest); !why.empty()) return why;
  if (!a.h || !a.g) return "h is 0";
  const Sequences& q = a.sequences;
  const int64_t rows[3] = {a.b, a.s, a.h}, keys[3] = {q.key_start ? 1 : q.count, a.t, a.g};
  for (const View<4>* x : {&a.q, &call.dout})
    if (*x && !in_pieces(*x, rows, 8)) return reason_rows(x == &a.q ? "q" : "dout");
  for (const View<4>* x : {&a.k, &a.v})
    if (*x && !in_pieces(*x, keys, 8)) return reason_rows(x == &a.k ? "k" : "v");
  if (Text why = gradients_refuse(call); !why.empty()) return why;
  if (q.key_max > kIndexMax || q.query_max > kIndexMax)
    return "more than 2^30 keys or rows in a sequence";
  if (q.count * std::max(a.g * ceil_div(q.key_max, 64), a.h * ceil_div(q.query_max, 64)) > INT_MAX)
    return "more than 2^31 blocks of work";
  return "";
}

extern const Kernel<AttendBackward> attention_backward_sm80 = {"sm80", offer};

}  // namespace fovea
