// SPDX-License-Identifier: Apache-2.0
// The portable kernel, for every valid attention_forward.
#include "core/dtype.h"
#include "cuda/loop/attend_simt.cuh"
#include "ops/attention/forward.cuh"
#include "ops/attention/kernels.h"

namespace fovea {
namespace cuda {
namespace {

Text offer(const Context& ctx, const Attend& a, Plan& plan) {
  PackedGrid grid(a, a.g);
  const int64_t key_tiles = ceil_div(a.sequences.key_max, kStageTile);
  const int64_t head_bytes = a.sequences.key_max * (a.d + a.e) * dtype_bytes(a.dtype);
  const bool masked = a.mask.window.limits() || a.mask.head_window || a.mask.bits;
  int64_t splits =
      a.splits ? a.splits : auto_splits(grid.work, key_tiles, head_bytes, masked, device_info(ctx));
  splits = clamp_i64(splits, 1, key_tiles > 1 ? key_tiles : 1);
  grid.split(splits);

  plan.kernel +=
      Text(".") + dtype_name(a.dtype) + (a.codes() ? ".codes" : "") + (splits > 1 ? ".split" : "");
  PartialSlots slots;
  if (splits > 1) slots = PartialSlots(plan.workspace, a, splits);
  plan.launch = [=](Context& ctx, void* base) {
    if (!grid.work) return;
    Partials parts{};
    if (splits > 1) parts = slots.at(base, a, splits);
    with_chunks(a.e, [&]<int Chunks> {
      grid.few ? forward_simt<1, Chunks>(ctx, a, grid, parts)
               : forward_simt<4, Chunks>(ctx, a, grid, parts);
    });
    if (splits > 1) combine(ctx, "attention_forward", a, parts);
  };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<Attend> attention_forward_simt = {"simt", cuda::offer};

}  // namespace fovea
