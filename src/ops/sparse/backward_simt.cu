// SPDX-License-Identifier: Apache-2.0
// The portable kernel, for every valid x_sparse_backward: delta of each row, lists by key, the
// gradients, the ordered sum of dsink_logit.
#include "core/dtype.h"
#include "cuda/loop/zero.cuh"
#include "ops/sparse/backward.cuh"
#include "ops/sparse/kernels.h"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "x_sparse_backward";

template <Owner owner>
void gradient(Context& ctx, int64_t width, const ListBackward& b, const ListsByKey& lists) {
  with_chunks(width, [&]<int Chunks> { list_gradient<owner, Chunks>(ctx, b, lists); });
}

Text offer(const Context&, const SparseBackward& request, Plan& plan) {
  const AttendBackward& call = request.attend;
  const Attend& a = call.forward;
  const BlockLists lists{request.list, a.sequences, request.list.keep};
  const ListTranspose order(lists, 0);
  if (const char* why = order.refuses(); *why) return why;
  plan.kernel += Text(".") + dtype_name(a.dtype);
  const Slot<float> delta = plan.workspace.add<float>(a.b, a.h, a.s);
  const ListTransposeSlots<BlockLists> slots(plan.workspace, kOp, lists, 0, call.dk || call.dv);
  plan.launch = [=](Context& ctx, void* base) {
    const ListBackward b{{request.attend, operand_of(a.q, a.dtype, a.d),
                          operand_of(a.k, a.dtype, a.d), operand_of(a.v, a.dtype, a.e),
                          operand_of(request.attend.dout, a.o_dtype, a.e), delta.at(base), nullptr},
                         request.forward()};
    clear_gradients(ctx, kOp, b.call);
    row_deltas(ctx, kOp, b);
    ListsByKey by_key{lists, order, slots.sort(ctx, kOp, base).entries};
    if (!by_key.entries) by_key.order.entries = 0;
    if (b.call.dq) gradient<Owner::dq>(ctx, a.d, b, by_key);
    if (b.call.dk) gradient<Owner::dk>(ctx, a.d, b, by_key);
    if (b.call.dv) gradient<Owner::dv>(ctx, a.e, b, by_key);
    sum_sinks(ctx, kOp, b);
  };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<SparseBackward> x_sparse_backward_simt = {"simt", cuda::offer};

}  // namespace fovea
