// SPDX-License-Identifier: Apache-2.0
// The portable kernel, for every valid attention_backward.  The preprocess makes delta of each row,
// the postprocess the ordered sums of dalibi and dsink_logit.
#include "ops/attention/backward_simt.cuh"

#include "core/dtype.h"
#include "cuda/loop/zero.cuh"
#include "ops/attention/backward_simt_bias.cuh"
#include "ops/attention/kernels.h"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "attention_backward";
void launch_bias(Context& ctx, const BackwardSimt& b) {
  const Attend& a = b.call.forward;
  const Sequences& q = a.sequences;
  const int64_t* stride = b.call.dbias.stride;
  if (!q.count || !a.b || !a.s || !a.h || !a.columns) return;
  // Packed sequences are apart in rows, padded ones on the batch axis.
  const bool sums[4] = {q.query_start ? !stride[2] : !stride[0], !stride[1], !stride[2],
                        !stride[3]};
  const int64_t all[4] = {q.count, a.h, ceil_div(q.query_max, kStageTile),
                          ceil_div(a.columns, kStageTile)};
  BiasTiles grid{{}, {}, sums[2], sums[3]};
  for (int i = 0; i < 4; ++i)
    grid.own[i] = sums[i] ? 1 : all[i], grid.summed[i] = sums[i] ? all[i] : 1;
  launch<bias_simt_kernel>(ctx, kOp, grid.work(), kStageThreads, FmaTiles<4>::bytes(), b, grid);
}

void enqueue(Context& ctx, const BackwardSimt& b) {
  const AttendBackward& call = b.call;
  backward_preprocess(ctx, b);
  if (call.dq || call.dalibi) gradient_simt<Owner::dq>(ctx, kOp, b);
  if (call.dk) gradient_simt<Owner::dk>(ctx, kOp, b);
  if (call.dv) gradient_simt<Owner::dv>(ctx, kOp, b);
  backward_postprocess(ctx, b);
}

Text offer(const Context&, const AttendBackward& call, Plan& plan) {
  plan.kernel += Text(".") + dtype_name(call.forward.dtype);
  const BackwardSlots slots(plan.workspace, call);
  plan.launch = [=](Context& ctx, void* base) { enqueue(ctx, slots.at(base, call)); };
  return "";
}

}  // namespace

BackwardSlots::BackwardSlots(Layout& layout, const AttendBackward& call) {
  const int64_t rows = call.forward.b * call.forward.h * call.forward.s;
  delta = layout.add<float>(rows);
  alibi = layout.add<float>(call.dalibi ? rows : 0);
}

BackwardSimt BackwardSlots::at(void* base, const AttendBackward& call) const {
  const Attend& a = call.forward;
  return {call,
          operand_of(a.q, a.dtype, a.d),
          operand_of(a.k, a.dtype, a.d),
          operand_of(a.v, a.dtype, a.e),
          operand_of(call.dout, a.o_dtype, a.e),
          delta.at(base),
          alibi.at(base)};
}

void backward_clear(Context& ctx, const BackwardSimt& b) {
  const Attend& a = b.call.forward;
  clear_gradients(ctx, kOp, b.call);
  if (b.call.dbias && ragged(a))
    zero(ctx, kOp, b.call.dbias, FOVEA_F32, {a.b, a.h, a.s, a.columns});
}

void backward_preprocess(Context& ctx, const BackwardSimt& b) {
  backward_clear(ctx, b);
  row_deltas(ctx, kOp, b);
}

void backward_row_alibi(Context& ctx, BackwardSimt b) {
  b.call.dq = {};
  gradient_simt<Owner::dq>(ctx, kOp, b);
}

void backward_postprocess(Context& ctx, const BackwardSimt& b) {
  if (b.call.dbias) launch_bias(ctx, b);
  sum_alibi(ctx, kOp, b);
  sum_sinks(ctx, kOp, b);
}

}  // namespace cuda

extern const Kernel<AttendBackward> attention_backward_simt = {"simt", cuda::offer};

}  // namespace fovea
