// SPDX-License-Identifier: Apache-2.0
// trace_forward with portable stages: takes every valid call.
#include "core/dtype.h"
#include "cuda/block/stage.cuh"
#include "ops/trace/rows.cuh"
#include "ops/trace/workspace.cuh"

namespace fovea {
namespace cuda {

void rows_simt(Context& ctx, const TraceCall& call) {
  const Attend& a = call.a.attend;
  with_chunks(a.o ? a.e : 1, [&]<int Chunks> { rows_simt<Chunks, false>(ctx, call); });
}

void dense_simt(Context& ctx, const TraceCall& call) {
  rows_simt<1, true>(ctx, call);
}

}  // namespace cuda

namespace {

using namespace cuda;

Text offer(const Context&, const Trace& a, Plan& plan) {
  const TraceWorkspace slots(a, plan.workspace, false);
  plan.kernel += Text(".") + dtype_name(a.attend.dtype);
  plan.launch = [=](Context& ctx, void* base) {
    const TraceCall call = slots.at(a, base);
    select_simt(ctx, call);
    if (a.wants_rows()) rows_simt(ctx, call);
    if (a.wants_mass()) weigh_simt(ctx, call);
    if (a.lse_dense) dense_simt(ctx, call);
    if (a.wants_edges()) edges(ctx, call);
  };
  return "";
}

}  // namespace

extern const Kernel<Trace> trace_forward_simt = {"simt", offer};

}  // namespace fovea
