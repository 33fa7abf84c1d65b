// SPDX-License-Identifier: Apache-2.0
// The portable kernel, for every valid x_sparse_forward, and the mass of each key (mass.cuh).
#include "core/dtype.h"
#include "cuda/loop/list_tile.cuh"
#include "ops/sparse/kernels.h"
#include "ops/sparse/mass.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "x_sparse_forward";

Text offer(const Context& ctx, const SparseAttend& call, Plan& plan) {
  const Attend& a = call.attend;
  ListGrid grid(call);
  const int64_t key_tiles = std::max<int64_t>(1, ceil_div(call.keys_bound(), kStageTile));
  const int64_t wanted =
      a.splits ? a.splits : auto_splits(grid.tiles, key_tiles, 0, true, device_info(ctx));
  const int64_t splits = call.skip_margin > 0 ? 1 : clamp_i64(wanted, 1, key_tiles);
  grid.split(splits);

  plan.kernel +=
      Text(".") + dtype_name(a.dtype) + (a.codes() ? ".codes" : "") + (splits > 1 ? ".split" : "");
  PartialSlots slots;
  if (splits > 1) slots = PartialSlots(plan.workspace, a, splits);
  MassSlots mass;
  if (call.mass) {
    if (!a.lse) mass.lse = plan.workspace.add<float>(a.b, a.h, a.s);
    mass.sum =
        plan.workspace.add<unsigned long long>(a.sequences.count, call.list.x, a.sequences.key_max);
    mass.odd = plan.workspace.add<int32_t>(a.sequences.count, call.list.x, a.sequences.key_max);
  }
  plan.launch = [=](Context& ctx, void* base) {
    SparseAttend s = call;
    if (float* lse = mass.lse.at(base)) s.attend.lse = {lse, {a.h * a.s, a.s, 1}};
    if (s.skipped) check(cudaMemsetAsync(s.skipped, 0, sizeof(int64_t), stream(ctx)), kOp);
    if (!grid.work) return;
    Partials parts{};
    if (splits > 1) parts = slots.at(base, a, splits), parts.skip_head = s.skip_head;
    with_chunks(a.e, [&]<int Chunks> {
      grid.few ? sparse_simt<1, Chunks>(ctx, s, grid, parts)
               : sparse_simt<4, Chunks>(ctx, s, grid, parts);
    });
    if (splits > 1) combine(ctx, kOp, s.attend, parts);
    if (s.mass) add_mass(ctx, s, grid, mass, base);
  };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<SparseAttend> x_sparse_forward_simt = {"simt", cuda::offer};

}  // namespace fovea
